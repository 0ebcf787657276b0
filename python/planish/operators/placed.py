"""Norms of DTensors whose normalised axis is sharded: each rank's part by parts.py, so that nothing
is gathered. Everything else has rules for DTensor itself (sharding.py)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from planish.operators import call, parts
from torch import Tensor

__all__ = ["norm", "split_axis_of"]


def _distributed() -> Any:
    return sys.modules.get("torch.distributed.tensor")


def split_axis_of(x: Tensor, reduce: Sequence[int]) -> int | None:
    """The axis of x's mesh that shards one of these axes of x; None where none does, or several do,
    or x is a sum that is still to be made."""
    tensor = _distributed()
    if tensor is None or not isinstance(x, tensor.DTensor):
        return None
    found = [
        axis
        for axis, placement in enumerate(x.placements)
        if type(placement) is tensor.Shard and placement.dim % x.dim() in reduce
    ]
    partial = any(placement.is_partial() for placement in x.placements)
    return found[0] if len(found) == 1 and not partial else None


def _local(x: Any, parameter: Any, affine: Sequence[int]) -> Tensor | None:
    """This rank's part of a parameter, sharded as x is along the axes that it has; its gradient is
    a sum over the ranks that have other rows, or other elements that share it."""
    tensor = _distributed()
    if parameter is None:
        return None
    placements, gradients = [], []
    for placement in x.placements:
        axis = placement.dim % x.dim() if placement.is_shard() else None
        if axis in affine:
            placements.append(tensor.Shard(affine.index(axis)))
            gradients.append(placements[-1])
        else:
            placements.append(tensor.Replicate())
            gradients.append(tensor.Replicate() if axis is None else tensor.Partial())
    placed = parameter
    if list(parameter.placements) != placements:  # else its gradient would be summed up at once
        placed = parameter.redistribute(x.device_mesh, placements)
    return placed.to_local(grad_placements=gradients)  # type: ignore[no-any-return]


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, problem: call.Norm
) -> Tensor | None:
    """The norm of a DTensor with one normalised axis sharded along one axis of its mesh, without
    its activation; None for any other, and for parameters that are no DTensors of x's mesh."""
    at = split_axis_of(x, problem.reduce)
    if at is None:
        return None
    tensor = _distributed()
    given: Any = x
    mesh = given.device_mesh
    for parameter in (weight, bias):
        if parameter is None:
            continue
        if not isinstance(parameter, tensor.DTensor) or parameter.device_mesh != mesh:
            return None
        if parameter.dim() != len(problem.affine):
            return None
    axes = call.pack_axes(problem.reduce, problem.affine)
    part = parts.Norm(axes, call.pack_options(rms=problem.rms), problem.eps)
    local = [_local(given, parameter, problem.affine) for parameter in (weight, bias)]
    y = parts.norms((part,), mesh.get_group(at), given.to_local(), *local)[0]
    return tensor.DTensor.from_local(  # type: ignore[no-any-return]
        y, mesh, given.placements, run_check=False, shape=x.shape, stride=x.stride()
    )
