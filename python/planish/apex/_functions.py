"""Apex's autograd Functions of LayerNorm and RMSNorm; ``.apply`` takes positional arguments.

With ``memory_efficient`` the backward is done from y, and x is not kept, wherever x can be had from
y (_recovery.py); elsewhere x is kept, so that the gradients are right. That mode has no second
derivatives and says so. Without it the backward may be differentiated once more.
"""

from __future__ import annotations

import contextlib
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
    enough: bool = False,
) -> Tensor:
    """``enough``: that y is is known already."""
    with _below_autograd():
        y, mean, rstd = _kernels.forward(x, weight, bias, shape, eps, rms, mixed)
    if memory_efficient and not enough and any(ctx.needs_input_grad):
        enough = _recovery.y_is_enough(y.dtype, weight, bias)
    ctx.from_y = enough
    kept = y if ctx.from_y else x
    ctx.save_for_backward(kept, weight, bias, None if ctx.from_y or rms else mean, rstd)
    ctx.shape, ctx.rms, ctx.dtype = tuple(shape), rms, x.dtype
    return y


def _backward(ctx: Any, dy: Tensor, needed: Sequence[bool]) -> Gradients:
    kept, weight, bias, mean, rstd = ctx.saved_tensors
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
    ) -> Tensor:
        return _forward(ctx, x, weight, bias, shape, eps, True, rms, mixed, enough=True)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        return *_backward(ctx, grad_output, ctx.needs_input_grad[:3]), *(None,) * 4


def norm_from_y(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
    eps: float,
    rms: bool,
    mixed: bool,
) -> Tensor:
    """The norm whose backward is done from y alone."""
    y: Tensor = _FromY.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, shape, eps, rms, mixed
    )
    return y
