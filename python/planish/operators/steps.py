"""Small calls as torch's operators one after the other, where planish is under these: the bits are
the same, and their derivatives are C++, which costs the host a fraction of one in Python."""

from __future__ import annotations

from typing import Any

import torch
from planish.library import torch_calls
from planish.library.seen import needs_graph
from planish.library.torch_calls import runs_torchs
from planish.operators.arguments import HALF
from torch import Tensor

__all__ = ["is_zero", "norm", "pair", "sum_and_norm"]

#: With more elements a pass over them costs more than what the host saves.
_SMALL = {False: 1 << 16, True: 1 << 18}


def is_zero(number: Any) -> bool:
    """Whether an option is the number that says nothing."""
    return (type(number) is float or type(number) is int) and number == 0


def _are_better(x: Tensor) -> bool:
    cuda = x.is_cuda
    return x.numel() <= _SMALL[cuda] and not (cuda and torch.cuda.is_current_stream_capturing())


def _by_torch(rms: bool, x: Tensor, weight: Any, bias: Any, eps: float) -> Tensor:
    if rms:
        return torch_calls.rms_norm(x, x.shape[-1:], weight, eps)
    return torch_calls.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _fits(x: Tensor, *parameters: Any) -> bool:
    shape = x.shape[-1:]
    for parameter in parameters:  # noqa: SIM110 (a loop, as in ways.py)
        if parameter is not None and parameter.shape != shape:
            return False
    return True


def norm(rms: bool, x: Any, weight: Any, bias: Any, eps: Any) -> Tensor | None:
    """Over the last axis, by torch's operator, of any size; None where that is not the same."""
    if type(eps) is not float or (rms and bias is not None):
        return None
    if not runs_torchs("rms_norm" if rms else "layer_norm", x, weight, bias):
        return None
    return _by_torch(rms, x, weight, bias, eps) if x.dim() and _fits(x, weight, bias) else None


def sum_and_norm(
    rms: bool, x: Any, residual: Any, weight: Any, bias: Any, eps: Any
) -> tuple[Tensor, Tensor] | None:
    """(y, sum) of torch's sum with its norm over the last axis; None where one call is better, or
    something else is asked for."""
    if type(eps) is not float or residual is None or (rms and bias is not None):
        return None
    if not runs_torchs("rms_norm" if rms else "layer_norm", x, residual, weight, bias):
        return None
    if residual.shape != x.shape or not (x.dim() and residual.is_contiguous() and _are_better(x)):
        return None
    if not _fits(x, weight, bias):
        return None
    if x.dtype in HALF and needs_graph(x, residual, weight, bias):
        return None  # autograd would round the norm's gradient before it adds the sum's
    total = x + residual
    return _by_torch(rms, total, weight, bias, eps), total


def pair(
    rms: bool, first: Any, second: Any, first_weight: Any, second_weight: Any, eps: Any
) -> tuple[Tensor, Tensor] | None:
    """Two norms over the last axis of small tensors that are recorded for a derivative; None where
    one call is better."""
    if not torch.is_grad_enabled() or type(eps) is not float:
        return None
    kind = "rms_norm" if rms else "layer_norm"
    if not (runs_torchs(kind, first, first_weight) and runs_torchs(kind, second, second_weight)):
        return None
    if not (first.dim() and second.dim() and _are_better(first) and _are_better(second)):
        return None
    if not (_fits(first, first_weight) and _fits(second, second_weight)):
        return None
    return (
        _by_torch(rms, first, first_weight, None, eps),
        _by_torch(rms, second, second_weight, None, eps),
    )
