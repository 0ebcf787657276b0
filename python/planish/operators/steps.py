"""Small calls as torch's operators one after the other, where planish is under these: the bits are
the same, and their derivatives are C++, which costs the host a fraction of one in Python."""

from __future__ import annotations

from typing import Any

from torch.compiler import is_compiling

import torch
from planish.library import quick
from planish.library.seen import needs_graph
from planish.library.torch_calls import runs_torchs, short
from planish.operators.arguments import HALF
from torch import Tensor

__all__ = ["are_better", "is_bare", "is_zero", "norm", "pair", "sum_and_norm"]

#: With more elements a pass over them costs more than what the host saves.
_SMALL = {False: 1 << 16, True: 1 << 18}
_WIDE = (torch.float32, torch.float64)


def is_zero(number: Any) -> bool:
    """Whether an option is the number that says nothing."""
    return (type(number) is float or type(number) is int) and number == 0


def is_bare(x: Any, eps: Any, weight_offset: Any, cast: Any, activation: Any, dtype: Any) -> bool:
    """Whether nothing is asked for but the norm, with an eps that torch takes as it is. xhat of f32
    or f64 is rounded by nothing where the parameters have its dtype."""
    once = cast == "once" or (cast == "xhat" and isinstance(x, Tensor) and x.dtype in _WIDE)
    plain = once and activation is None and dtype is None
    return plain and type(eps) is float and is_zero(weight_offset)


def are_better(x: Tensor, recorded: bool = True) -> bool:
    """Whether x is so small. In a model's block that no derivative is recorded of, whether one call
    would ask more questions than a pass over x takes; a CUDA graph asks none."""
    cuda = x.is_cuda
    small = _SMALL[cuda] if recorded else _SMALL[False] // 8
    return x.numel() <= small and not (cuda and torch.cuda.is_current_stream_capturing())


def norm(rms: bool, x: Any, weight: Any, bias: Any, eps: Any) -> Tensor | None:
    """Over the last axis, by torch's operator, of any size; None where that is not the same."""
    if type(eps) is not float:
        return None
    return short(quick.RMS_NORM if rms else quick.LAYER_NORM, x, None, weight, bias, eps)


def sum_and_norm(
    rms: bool, x: Any, residual: Any, weight: Any, bias: Any, eps: Any
) -> tuple[Tensor, Tensor] | None:
    """(y, sum) of torch's sum with its norm over the last axis, recorded for a derivative; None
    where one call is better, or something else is asked for."""
    if is_compiling() or not quick.is_recorded(x, residual, weight, bias):
        return None
    if residual is None or (rms and bias is not None):
        return None
    if not runs_torchs(quick.RMS_NORM if rms else quick.LAYER_NORM, x, residual, weight, bias):
        return None
    if residual.shape != x.shape or residual.device != x.device:
        return None
    if not (residual.is_contiguous() and are_better(x)):
        return None
    if x.dtype in HALF:
        return None  # autograd would round the norm's gradient before it adds the sum's
    total = x + residual
    y = norm(rms, total, weight, bias, eps)
    return None if y is None else (y, total)


def pair(
    rms: bool, first: Any, second: Any, first_weight: Any, second_weight: Any, eps: Any
) -> tuple[Tensor, Tensor] | None:
    """Two norms over the last axis of small tensors, both recorded for a derivative; None where one
    call is better."""
    kind = quick.RMS_NORM if rms else quick.LAYER_NORM
    if not torch.is_grad_enabled():
        return None
    if not (runs_torchs(kind, first, first_weight) and runs_torchs(kind, second, second_weight)):
        return None
    if not (needs_graph(first, first_weight) and needs_graph(second, second_weight)):
        return None
    if not (are_better(first) and are_better(second)):
        return None
    one = norm(rms, first, first_weight, None, eps)
    other = norm(rms, second, second_weight, None, eps)
    return None if one is None or other is None else (one, other)
