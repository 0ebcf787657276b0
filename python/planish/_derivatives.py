"""Derivatives of planish's operators: what a call saves, and the formulas of every order.

The first derivative of the norm is planish's own backward. That of the backward is its formula in
torch's own operators, differentiated by torch, so that any further order is torch's affair.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "ACTIVATIONS",
    "differentiate_backward",
    "differentiate_forward",
    "differentiate_statistics",
    "save_backward",
    "save_forward",
    "save_statistics",
]

#: What may follow a norm: planish_activation of planish.h.
ACTIVATIONS = {None: 0, "silu": 1, "relu": 2, "gelu": 3, "gelu_tanh": 4}


def save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, reduce, affine, _, rms, _, activation = inputs
    _, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(x, weight, bias if activation else None, mean, rstd)
    ctx.reduce, ctx.affine, ctx.rms, ctx.activation = reduce, affine, rms, activation
    ctx.weight_shape = None if weight is None else weight.shape
    ctx.bias_shape = None if bias is None else bias.shape
    ctx.bias_dtype = None if bias is None else bias.dtype


def differentiate_forward(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    nothing = (None,) * 6
    if dy is None:
        return None, None, None, *nothing
    x, weight, bias, mean, rstd = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[1:4])  # the first argument is the dispatch keys
    axes = ctx.reduce, ctx.affine, ctx.rms
    dx, dweight, dbias = torch.ops.planish.norm_backward(
        dy, x, mean, rstd, weight, *axes, needed, bias, ctx.activation
    )
    if dweight is not None:
        dweight = dweight.reshape(ctx.weight_shape)
    if dbias is not None:
        dbias = dbias.reshape(ctx.bias_shape).to(ctx.bias_dtype)
    return dx, dweight, dbias, *nothing


def save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, _, rstd, weight, reduce, affine, rms, wanted, bias, activation = inputs
    ctx.save_for_backward(dy, x, rstd, weight, bias)
    ctx.reduce, ctx.affine, ctx.rms, ctx.wanted = reduce, affine, rms, wanted
    ctx.activation = activation


def _slope(activation: int, z: Tensor) -> Tensor:
    if activation == ACTIVATIONS["relu"]:
        return (~(z <= 0)).to(z.dtype)
    if activation == ACTIVATIONS["gelu"]:
        density = (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)
        slope: Tensor = torch.special.ndtr(z) + z * density
        return slope
    if activation == ACTIVATIONS["gelu_tanh"]:
        s = (math.sqrt(8 / math.pi) * z * (1 + 0.044715 * z * z)).sigmoid()
        return s * (1 + z * math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * z * z) * (1 - s))
    s = z.sigmoid()
    return s * (1 + z * (1 - s))


def _as_input(saved: Tensor) -> Tensor:
    """The tensor as one that a derivative is taken by, of which another can be taken where autograd
    records: none of what made it is between it and the other inputs."""
    if torch.is_grad_enabled() and saved.requires_grad:
        return saved.view_as(saved)
    return saved.detach().requires_grad_()


def differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """Double backward: the backward formula in torch's own operators, differentiated by torch."""
    saved_dy, saved_x, rstd, saved_weight, saved_bias = ctx.saved_tensors
    reduce, affine = list(ctx.reduce), list(ctx.affine)
    others = [axis for axis in range(saved_x.dim()) if axis not in affine]
    goes_on = torch.is_grad_enabled()
    inputs = [_as_input(saved_dy), _as_input(saved_x)]
    weight, bias = (
        None if saved is None else _as_input(saved) for saved in (saved_weight, saved_bias)
    )
    with torch.enable_grad():
        dtype = rstd.dtype
        dy, x = inputs
        wide_dy, wide_x = dy.to(dtype), x.to(dtype)
        along = [size if axis in affine else 1 for axis, size in enumerate(x.shape)]
        scale: Tensor | float = 1.0
        shift: Tensor | float = 0.0
        if weight is not None:
            inputs.append(weight)
            scale = weight.to(dtype).reshape(along)
        if bias is not None:
            inputs.append(bias)
            shift = bias.to(dtype).reshape(along)
        centred = wide_x if ctx.rms else wide_x - wide_x.mean(reduce, keepdim=True)
        variance = centred.square().mean(reduce, keepdim=True)
        eps = (rstd.pow(-2) - variance).detach()
        xhat = centred * (variance + eps).rsqrt()
        if ctx.activation:
            wide_dy = wide_dy * _slope(ctx.activation, xhat * scale + shift)
        g = wide_dy * scale
        inner = g - xhat * (g * xhat).mean(reduce, keepdim=True)
        if not ctx.rms:
            inner = inner - g.mean(reduce, keepdim=True)
        results = [
            (variance + eps).rsqrt() * inner,
            (wide_dy * xhat).sum(others) if others else wide_dy * xhat,
            wide_dy.sum(others) if others else wide_dy,
        ]
        pairs = [
            (result, gradient.to(dtype))
            for result, gradient, wanted in zip(results, gradients, ctx.wanted, strict=True)
            if wanted and gradient is not None
        ]
        if not pairs:
            return (None,) * 11
        ddy, dx, *parameters = torch.autograd.grad(
            [result for result, _ in pairs],
            inputs,
            [gradient.reshape(result.shape) for result, gradient in pairs],
            allow_unused=True,
            create_graph=goes_on,
        )
    dweight = parameters.pop(0) if saved_weight is not None else None
    dbias = parameters.pop(0) if saved_bias is not None else None
    return ddy, dx, None, None, dweight, None, None, None, None, dbias, None


def save_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, reduce = inputs
    mean, _ = output
    ctx.save_for_backward(x, mean)
    ctx.count = math.prod(x.shape[axis] for axis in reduce)


def differentiate_statistics(ctx: Any, dmean: Tensor | None, dm2: Tensor | None) -> Any:
    x, mean = ctx.saved_tensors
    dx = None if dmean is None else (dmean / ctx.count).expand(x.shape)
    if dm2 is not None:
        part = 2 * dm2 * (x.to(mean.dtype) - mean)
        dx = part if dx is None else dx + part
    return None if dx is None else dx.to(x.dtype), None
