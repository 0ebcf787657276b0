"""Apex's norms as functions: one way in for all of them, and which way each call goes.

Without memory_efficient that is planish.layer_norm or planish.rms_norm, or torch's operator where
that says the same and runs on planish. Under tracing and torch.compile it is torch's operator, as
in Apex, which a compiler can fuse; so it is for what planish has no kernel for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch.nn.functional as F

import torch
from planish.apex import _autocast_utils, _functions, _kernels, _recovery
from planish.functions import functional as planish_functions
from planish.library import quick, torch_calls
from planish.operators.arguments import check_floats, check_optional, check_tensor
from torch import Tensor

__all__ = ["fused_norm"]


def _torch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
    eps: float,
    rms: bool,
    dtype: torch.dtype,
) -> Tensor:
    """torch's operators, which do not all take parameters of another dtype than x."""
    function = "fused_rms_norm" if rms else "fused_layer_norm"
    check_floats(function, input=x, weight=weight, bias=bias)
    widest = x.dtype
    for parameter in (weight, bias):
        if parameter is not None:
            widest = torch.promote_types(widest, parameter.dtype)
    x = x.to(widest)
    weight = None if weight is None else weight.to(widest)
    if rms:
        return F.rms_norm(x, shape, weight, eps).to(dtype)
    bias = None if bias is None else bias.to(widest)
    return F.layer_norm(x, shape, weight, bias, eps).to(dtype)


def _is_looked_at() -> bool:
    """Whether something else than eager autograd sees the operators: compilation, tracing, or one
    of torch.func's transforms, for which torch's operators have all rules."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
    eps: float,
    rms: bool,
    mixed: bool,
) -> Tensor:
    dtype = _kernels.result_dtype(x, weight, mixed)
    if _is_looked_at() or not _kernels.runs(x, weight, bias):
        return _torch_norm(x, weight, bias, shape, eps, rms, dtype)
    _kernels.check_shape(x, shape)
    if dtype != x.dtype:
        x = x.to(torch.promote_types(x.dtype, dtype))
    dims = range(x.dim() - len(shape), x.dim())
    if rms:
        y = planish_functions.rms_norm(x, dims, weight, eps=eps)
    else:
        y = planish_functions.layer_norm(x, dims, weight, bias, eps)
    return y if y.dtype == dtype else y.to(dtype)


def _keeps_what_it_is_told(*tensors: Tensor | None) -> bool:
    """Whether autograd will keep something for a backward, and nothing else decides what: that
    torch.compile does, and the transforms of torch.func."""
    return (
        torch.is_grad_enabled()
        and any(t is not None and t.requires_grad for t in tensors)
        and not _is_looked_at()
    )


def _eager(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
    eps: float,
    rms: bool,
    mixed: bool,
    device: str,
) -> Tensor:
    """Without memory_efficient and autocast."""
    op = quick.RMS_NORM if rms else quick.LAYER_NORM
    y = torch_calls.short(op, x, shape, weight, bias, eps)
    if y is not None:
        return y
    return _norm(x, weight, bias, shape, eps, rms, mixed)


def fused_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: int | Sequence[int],
    eps: float,
    memory_efficient: bool,
    rms: bool,
    mixed: bool,
) -> Tensor:
    """LayerNorm, or RMSNorm (``rms``, without bias), over the last axes of x. Any parameter may be
    None. ``mixed``: the result has the dtype of the weight, else x's."""
    if not (
        isinstance(x, Tensor)
        and (weight is None or isinstance(weight, Tensor))
        and (bias is None or isinstance(bias, Tensor))
    ):
        function = "fused_rms_norm" if rms else "fused_layer_norm"
        check_tensor(function, "input", x)
        check_optional(function, weight=weight, bias=bias)
    device = "cpu" if x.is_cpu else x.device.type
    given = normalized_shape
    shape = (given,) if isinstance(given, int) else tuple(given)
    autocast = device in _autocast_utils.DEVICES and torch.is_autocast_enabled(device)
    memory_efficient = memory_efficient and _keeps_what_it_is_told(x, weight, bias)
    if not (autocast or memory_efficient):
        return _eager(x, weight, bias, shape, eps, rms, mixed, device)
    own = weight, bias
    if autocast:
        dtype = torch.get_autocast_dtype(device)
        x, weight, bias = (_autocast_utils.cast(t, device, dtype) for t in (x, weight, bias))
    with _autocast_utils.off(device) if autocast else contextlib.nullcontext():
        # looks at the parameters and not at what they were cast to, which is new every time
        if (
            memory_efficient
            and _kernels.runs(x, weight, bias)
            and _recovery.y_is_enough(_kernels.result_dtype(x, weight, mixed), *own)
        ):
            return _functions.norm_from_y(x, weight, bias, shape, eps, rms, mixed, own[0])
        return _eager(x, weight, bias, shape, eps, rms, mixed, device)
