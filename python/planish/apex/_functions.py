"""Apex's autograd Functions of LayerNorm and RMSNorm; ``.apply`` takes positional arguments.

With ``memory_efficient`` the backward is done from y, and x is not kept, wherever x can be had from
y (_recovery.py); elsewhere x is kept, so that the gradients are right. That mode has no second
derivatives and says so. Without it the backward may be differentiated once more.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from planish.apex import _kernels, _recovery
from torch import Tensor

__all__ = [
    "FusedLayerNormAffineFunction",
    "FusedLayerNormAffineMixedDtypesFunction",
    "FusedLayerNormFunction",
    "FusedRMSNormAffineFunction",
    "FusedRMSNormAffineMixedDtypesFunction",
    "FusedRMSNormFunction",
    "norm_from_y",
]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _below_autograd() -> Any:
    """Past autograd, which has nothing to do inside; a compiler does not know that guard."""
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return torch._C._AutoDispatchBelowAutograd()


def _forward(
    ctx: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
    eps: float,
    memory_efficient: bool,
    rms: bool,
    mixed: bool = False,
    own: Any = None,
) -> Tensor:
    """``own``: a reference to the weight by which y is known to be enough already."""
    with _below_autograd():
        y, mean, rstd = _kernels.forward(x, weight, bias, shape, eps, rms, mixed)
    enough = own is not None
    if memory_efficient and not enough and any(ctx.needs_input_grad):
        enough = _recovery.y_is_enough(y.dtype, weight, bias)
        own = _reference(weight)
    ctx.from_y, ctx.own = enough, own
    ctx.bias_dtype = None if bias is None else bias.dtype
    kept = x
    if enough:
        kept, weight, bias = y, _recovery.copied(weight), _recovery.copied(bias)
    else:
        bias = None  # of no use to the backward
    ctx.save_for_backward(kept, weight, bias, None if ctx.from_y or rms else mean, rstd)
    ctx.shape, ctx.rms, ctx.dtype = tuple(shape), rms, x.dtype
    return y


def _reference(weight: Tensor | None) -> Any:
    return (lambda: None) if weight is None else weakref.ref(weight)


def _backward(ctx: Any, dy: Tensor, needed: Sequence[bool]) -> Gradients:
    kept, weight, bias, mean, rstd = ctx.saved_tensors
    if ctx.from_y:
        _recovery.may_have_changed(ctx.own())
        rstd = _recovery.proven(rstd, kept.dtype, weight, bias)
    arguments = dy, kept, mean, rstd, weight, bias, ctx.shape, ctx.rms, ctx.from_y, needed
    if not torch.is_grad_enabled():
        with _below_autograd():
            dx, dweight, dbias = _kernels.backward(*arguments)
    elif ctx.from_y:
        raise RuntimeError(
            "planish.apex: memory_efficient keeps y alone, which has no second derivatives; make "
            "the norm with memory_efficient=False to differentiate its backward"
        )
    else:
        dx, dweight, dbias = _kernels.backward(*arguments)
    if dbias is not None and ctx.bias_dtype is not None:
        dbias = _kernels.as_dtype(dbias, ctx.bias_dtype)
    return None if dx is None else _kernels.as_dtype(dx, ctx.dtype), dweight, dbias


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """LayerNorm with weight and bias (either may be None); the result has x's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        return _forward(ctx, input, weight, bias, normalized_shape, eps, memory_efficient, False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        return *_backward(ctx, grad_output, ctx.needs_input_grad[:3]), None, None, None


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """The same; the result has the parameters' dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        shape = normalized_shape
        return _forward(ctx, input, weight, bias, shape, eps, memory_efficient, False, True)


class FusedLayerNormFunction(torch.autograd.Function):
    """LayerNorm without parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        return _forward(ctx, input, None, None, normalized_shape, eps, memory_efficient, False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[0], False, False
        return _backward(ctx, grad_output, needed)[0], None, None, None


class FusedRMSNormAffineFunction(torch.autograd.Function):
    """RMSNorm with a weight (which may be None); the result has x's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        return _forward(ctx, input, weight, None, normalized_shape, eps, memory_efficient, True)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        needed = *ctx.needs_input_grad[:2], False
        return *_backward(ctx, grad_output, needed)[:2], None, None, None


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """The same; the result has the weight's dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        shape = normalized_shape
        return _forward(ctx, input, weight, None, shape, eps, memory_efficient, True, True)


class FusedRMSNormFunction(torch.autograd.Function):
    """RMSNorm without a weight."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        return _forward(ctx, input, None, None, normalized_shape, eps, memory_efficient, True)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[0], False, False
        return _backward(ctx, grad_output, needed)[0], None, None, None


class _FromY(torch.autograd.Function):
    """Any of them, where y is known to be enough for the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: Sequence[int],
        eps: float,
        rms: bool,
        mixed: bool,
        own: Any,
    ) -> Tensor:
        return _forward(ctx, x, weight, bias, shape, eps, True, rms, mixed, own)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        return *_backward(ctx, grad_output, ctx.needs_input_grad[:3]), *(None,) * 5


def norm_from_y(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
    eps: float,
    rms: bool,
    mixed: bool,
    own: Tensor | None,
) -> Tensor:
    """The norm whose backward is done from y alone; ``own``: the parameter that ``weight`` is, or
    was cast from."""
    y: Tensor = _FromY.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, shape, eps, rms, mixed, _reference(own)
    )
    return y
