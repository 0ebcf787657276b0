"""Norms of which each process of a group has a part of every row, and what stands around them.

    from planish import distributed as pd

    y = pd.rms_norm(x, weight, eps, group=group)      # x: this rank's columns, or heads, or pixels
    y = pd.layer_norm(x, weight, bias, group=group)
    y = pd.group_norm(x, 32, weight, bias, group=group)
    y = pd.batch_norm(x, mean, var, weight, bias, True, group=group)  # x: this rank's images
    y, sum = pd.add_rms_norm(x, residual, weight, eps, group=group)
    q, k = pd.qk_norm(q, k, q_weight, k_weight, eps, group=group)
    y, residual = pd.all_reduce_add_rms_norm(x, residual, weight, eps, group=group)
    parallelize_module(model, mesh, {"q_norm": pd.ShardedNorm()})
    with pd.checked(): ...                            # ranks that disagree raise one clear error

Nothing of the rows themselves is sent: a few numbers for each row, once in the forward and once in
the backward."""

from __future__ import annotations

from planish.distributed.agreement import checked
from planish.distributed.batch import batch_norm
from planish.distributed.norms import (
    add_layer_norm,
    add_rms_norm,
    group_norm,
    layer_norm,
    qk_norm,
    rms_norm,
)
from planish.distributed.reduced import all_reduce_add_rms_norm, all_reduce_quantized_rms_norm
from planish.distributed.styles import ShardedNorm

__all__ = [
    "ShardedNorm",
    "add_layer_norm",
    "add_rms_norm",
    "all_reduce_add_rms_norm",
    "all_reduce_quantized_rms_norm",
    "batch_norm",
    "checked",
    "group_norm",
    "layer_norm",
    "qk_norm",
    "rms_norm",
]
