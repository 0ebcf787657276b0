"""Norms of tensors that only eager autograd looks at, at little cost to the host.

torch runs a derivative that was registered in Python by way of Python, several times a call, also
where there is nothing to differentiate. What is done here goes past that, and is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from planish import _ops
from planish._ways import below_autograd, is_plain, needs_graph
from torch import Tensor

__all__ = ["Axes", "forward_arguments", "last_strides", "norm", "split_channels"]

#: Without the Python function around them.
_forward_op = _ops.forward._op
_backward_op = _ops.backward._op


class Axes(NamedTuple):
    """What a norm is besides its tensors."""

    reduce: list[int]
    affine: list[int]
    rms: bool
    keep: bool = False
    #: Channels (axis 1) are seen as this many groups, and the axes are those of that view; 0: not.
    groups: int = 0
    activation: int = 0


def split_channels(x: Tensor, groups: int) -> Tensor:
    """(N, C, ...) seen as (N, groups, C / groups, ...), whatever the strides."""
    batch, channels, *pixels = x.shape
    return x.view(batch, groups, channels // groups, *pixels)


def _seen(x: Tensor, axes: Axes) -> Tensor:
    return split_channels(x, axes.groups) if axes.groups else x


def _split_parameter(parameter: Tensor | None, axes: Axes) -> Tensor | None:
    if not axes.groups or parameter is None:
        return parameter
    return parameter.view(axes.groups, parameter.shape[0] // axes.groups)


def forward_arguments(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axes: Axes
) -> tuple[Any, ...]:
    """What planish::norm_forward is called with."""
    return (
        _seen(x, axes),
        _split_parameter(weight, axes),
        _split_parameter(bias, axes),
        axes.reduce,
        axes.affine,
        eps,
        axes.rms,
        axes.keep,
        axes.activation,
    )


def last_strides(x: Tensor) -> tuple[int, ...] | None:
    """The strides of channels last, if that is how x lies and not how its shape alone has it."""
    if x.is_contiguous():
        return None
    strides, size = [0] * x.dim(), 1
    for axis in (1, *range(x.dim() - 1, 1, -1), 0):
        strides[axis] = size
        size *= x.shape[axis]
    lies = all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), strides, strict=True))
    return tuple(strides) if lies else None


def _whole(grouped: Tensor, x: Tensor) -> Tensor:
    """With x's shape again, past autograd; a copy where pixels lie between the channels. An axis of
    size 1 gets the stride that tells torch the memory format."""
    if grouped.is_contiguous():
        return grouped.view(x.shape)
    whole = grouped.reshape(x.shape)
    strides = last_strides(x)
    if strides is not None and whole.stride() != strides and 1 in x.shape:
        return whole.as_strided(x.shape, strides)
    return whole


def _run(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axes: Axes
) -> tuple[Tensor, Tensor, Tensor]:
    """The forward, past autograd."""
    with below_autograd():
        y, mean, rstd = _forward_op(*forward_arguments(x, weight, bias, eps, axes))
        return _whole(y, x) if axes.groups else y, mean, rstd


def _run_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    axes: Axes,
    wanted: list[bool],
) -> list[Tensor | None]:
    dx, dweight, dbias = _backward_op(
        _seen(dy, axes),
        _seen(x, axes),
        mean,
        rstd,
        _split_parameter(weight, axes),
        axes.reduce,
        axes.affine,
        axes.rms,
        wanted,
        _split_parameter(bias, axes),
        axes.activation,
    )
    return [_whole(dx, x) if axes.groups and dx is not None else dx, dweight, dbias]


class _Norm(torch.autograd.Function):
    """The derivative of a norm of plain tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        axes: Axes,
    ) -> Tensor:
        y, mean, rstd = _run(x, weight, bias, eps, axes)
        ctx.save_for_backward(x, weight, bias if axes.activation else None, mean, rstd)
        ctx.axes = axes
        ctx.weight_shape = None if weight is None else weight.shape
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        arguments = dy, x, weight, bias, mean, rstd, ctx.axes, wanted
        if torch.is_grad_enabled() or not is_plain(dy, x, weight):
            dx, dweight, dbias = _run_backward(*arguments)
        else:
            with below_autograd():
                dx, dweight, dbias = _run_backward(*arguments)
        if dweight is not None and dweight.shape != ctx.weight_shape:
            dweight = dweight.reshape(ctx.weight_shape)
        if dbias is not None and dbias.shape != ctx.bias_shape:
            dbias = dbias.reshape(ctx.bias_shape)
        if dbias is not None and dbias.dtype != ctx.bias_dtype:
            dbias = dbias.to(ctx.bias_dtype)
        return dx, dweight, dbias, None, None


#: torch.autograd.Function.apply without what it does for the transforms of torch.func, at a third
#: of its cost: there are none here.
_record: Any = super(torch.autograd.Function, _Norm).apply


def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axes: Axes) -> Tensor:
    if needs_graph(x, weight, bias):
        if x.is_inference():
            x = x.clone()  # autograd saves no tensor that was made in inference mode
        if axes.activation and bias is not None:
            bias = bias.clone()  # torch's activation keeps its input; the bias may be written to
        y: Tensor = _record(x, weight, bias, eps, axes)
        return y
    return _run(x, weight, bias, eps, axes)[0]
