"""EvoNorm-S0: the sums of each group of channels by planish's kernel, and the rest in torch's
operators. Arguments were checked by who calls.

Of plain tensors it is one function under autograd, whose backward is what autograd would make of
the composition, operator by operator and bit by bit, without asking for each in Python or C++ what
it is differentiated by.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from planish.library.seen import is_plain, needs_graph
from planish.operators import call, norms, ops, short
from planish.operators.ways import Way
from torch import Tensor

__all__ = ["evo_norm", "from_variance"]

_AXES = call.pack_axes([2, 3, 4])
_sigmoid_backward = torch.ops.aten.sigmoid_backward.default._op


def from_variance(
    x: Tensor,
    variance: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
) -> Tensor:
    """The norm in torch's own operators; ``variance``: (N, groups, 1, 1, 1)."""
    rstd = (variance + eps).rsqrt().to(x.dtype).view(x.size(0), groups, 1)
    weight = weight.view(groups, -1).to(x.dtype)
    scale = (rstd * weight).view(x.size(0), x.size(1), 1, 1)
    gate = (v.view(-1, 1, 1).to(x.dtype) * x).sigmoid()
    return x * gate * scale + bias.view(-1, 1, 1).to(x.dtype)


class _Numbers(NamedTuple):
    groups: int
    eps: float


def _apart(x: Tensor, groups: int) -> tuple[Tensor, int]:
    """x with its channels split, and how many elements a group has."""
    batch, channels, height, width = x.shape
    size = channels // groups
    return x.view(batch, groups, size, height, width), size * height * width


def _composed(
    way: Way, x: Tensor, v: Tensor, weight: Tensor, bias: Tensor, numbers: _Numbers
) -> Tensor:
    apart, count = _apart(x, numbers.groups)
    _, squares = norms.statistics(apart, [2, 3, 4], way)
    return from_variance(x, squares / count, v, weight, bias, *numbers)


# ---- Without a graph -----------------------------------------------------------------------------


class _Known(NamedTuple):
    """What a forward finds: of each group mean and rstd, in the dtype of sums; rstd in x's, what
    each channel of a sample is multiplied by, and each element."""

    mean: Tensor
    rstd: Tensor
    narrow: Tensor
    scale: Tensor
    gate: Tensor


def _forward(
    x: Tensor, v: Tensor, weight: Tensor, bias: Tensor, numbers: _Numbers
) -> tuple[Tensor, _Known]:
    groups, eps = numbers
    apart, count = _apart(x, groups)
    mean, squares = short.STATISTICS(apart, _AXES)
    rstd = squares.div_(float(count)).add_(eps).rsqrt_()  # torch takes an int in twice the time
    narrow = rstd.type_as(x).view(-1, groups, 1)
    scale = (narrow * weight.view(groups, -1).type_as(x)).view(-1, x.shape[1], 1, 1)
    gate = (v.view(-1, 1, 1).type_as(x) * x).sigmoid_()
    y = (x * gate).mul_(scale).add_(bias.view(-1, 1, 1).type_as(x))
    return y, _Known(mean, rstd, narrow, scale, gate)


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    return gradient.type_as(parameter).view(-1)


def _backward(
    dy: Tensor,
    x: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor,
    known: _Known,
    numbers: _Numbers,
    wants: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """(dx, dv, dweight, dbias), in the order and the dtypes that autograd has for the composition.
    Nothing is written where dy has no part in it, as dy may be many."""
    groups, _ = numbers
    batch, channels, _, _ = x.shape
    size = channels // groups
    wants_x, wants_v, wants_weight, wants_bias = wants
    dx = dv = dweight = dbias = None
    if wants_bias:
        dbias = _like(dy.sum_to_size(channels, 1, 1), bias)
    if wants_x or wants_v:
        gated = dy * known.scale
        inner = _sigmoid_backward(gated * x, known.gate)
        if wants_v:
            dv = _like((inner * x).sum_to_size(channels, 1, 1), v)
    if wants_x or wants_weight:
        products = (dy * (x * known.gate)).sum_to_size(batch, channels, 1, 1)
        products = products.view(batch, groups, size)
        if wants_weight:
            dweight = _like((products * known.narrow).sum_to_size(groups, size), weight)
    if wants_x:
        apart, count = _apart(x, groups)
        spread = (products * weight.view(groups, -1).type_as(x)).sum_to_size(batch, groups, 1)
        spread = spread.view(known.rstd.shape).type_as(known.rstd)
        # 2 * (-0.5 * spread * rstd^3 / count): powers of two round nothing
        of_centred = (spread * known.rstd.pow(3)).div_(-float(count))
        of_groups = (of_centred * (apart - known.mean)).type_as(x).reshape(x.shape)
        of_gate = inner.mul_(v.view(-1, 1, 1).type_as(x))
        dx = (gated * known.gate).add_(of_gate).add_(of_groups)
    return dx, dv, dweight, dbias


class _Evo(torch.autograd.Function):
    """Of the numbers, x, v, weight and bias, plain tensors."""

    @staticmethod
    def forward(
        ctx: Any, numbers: _Numbers, x: Tensor, v: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        y, known = _forward(x, v, weight, bias, numbers)
        ctx.save_for_backward(x, v, weight, bias, *known)
        ctx.numbers = numbers
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, v, weight, bias, *known = ctx.saved_tensors
        wants = ctx.needs_input_grad[1:]
        given = x, v, weight, bias
        if not torch.is_grad_enabled():
            return None, *_backward(dy, *given, _Known(*known), ctx.numbers, wants)
        y = _composed(Way.PLAIN, *given, ctx.numbers)  # differentiated once more
        inputs = [tensor for tensor, wanted in zip(given, wants, strict=True) if wanted]
        found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
        return None, *(next(found) if wanted else None for wanted in wants)


_record = ops.record_of(_Evo)


def evo_norm(
    way: Way, x: Tensor, v: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> Tensor:
    """x * sigmoid(v * x) / sqrt(var + eps) * weight + bias, laid out as x, with var that of each
    group of channels and their pixels."""
    numbers = _Numbers(groups, eps)
    if way is Way.PLAIN:
        recorded, plain = needs_graph(x, v, weight, bias), is_plain(v, weight, bias)
        if plain and not recorded:
            return _forward(x, v, weight, bias, numbers)[0]
        if recorded and x.is_inference():
            x = x.clone()  # autograd saves no tensor that was made in inference mode
        if plain:
            y: Tensor = _record(numbers, x, v, weight, bias)
            return y
    return _composed(way, x, v, weight, bias, numbers)
