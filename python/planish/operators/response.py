"""Global response norm: statistics of a channel's pixels, their share of the mean over channels,
and one pass by these (the kernels of planish::norm_part_statistics and those behind it). Arguments
were checked by who calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from planish.library.seen import needs_graph
from planish.operators import call, ops, short
from planish.operators.arguments import DEVICES, DTYPES, device_type
from planish.operators.composite import computed_in
from planish.operators.formulas import along
from planish.operators.ways import Way
from torch import Tensor

__all__ = ["response_norm"]

_OPTIONS = call.pack_options(rms=True)
_ops = torch.ops.planish
_plain_apply, _backward_given = short.of("norm_apply"), short.unrecorded("norm_backward_apply")


def _pixels(x: Tensor, axis: int) -> list[int]:
    return [i for i in range(1, x.dim()) if i != axis]


def _composed(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axis: int
) -> Tensor:
    """In torch's own operators."""
    dtype = computed_in(x, weight, bias)
    wide = x.to(dtype)
    lengths = torch.linalg.vector_norm(wide, 2, _pixels(x, axis), keepdim=True)
    factor = lengths / (lengths.mean(axis, keepdim=True) + eps)
    w, b = (along(parameter, [axis], x, dtype) for parameter in (weight, bias))
    y: Tensor = wide * (1 + (factor if w is None else factor * w))
    y = y if b is None else y + b
    return y.to(x.dtype)


class _Known(NamedTuple):
    """What a forward finds of each channel of each sample, f64, with x's rank."""

    lengths: Tensor
    mean: Tensor  # of the lengths, and eps
    share: Tensor
    factor: Tensor  # of x


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axis: int
) -> tuple[Tensor, _Known]:
    axes = call.pack_axes(_pixels(x, axis), [axis])
    _, squares = _ops.norm_part_statistics(x, axes, _OPTIONS)
    lengths = squares.sqrt_()
    mean = lengths.mean(axis, keepdim=True).add_(eps)
    share = lengths / mean
    w = along(weight, [axis], x, torch.float64)
    factor = (share if w is None else share * w).add(1)
    flat = None if bias is None else bias.reshape(-1)
    y = _plain_apply(x, factor, None, None, None, flat, axes, _OPTIONS, 0.0)
    return y, _Known(lengths, mean, share, factor)


def _are_rows(x: Tensor, axis: int) -> bool:
    """Whether a channel's pixels are neighbours: the halves of a backward are those of rows."""
    return axis == 1 and x.is_contiguous()


def _products(dy: Tensor, x: Tensor, lengths: Tensor, axis: int) -> Tensor:
    """The sums of dy * x over each channel's pixels, f64."""
    if not _are_rows(x, axis) and x.is_cuda:  # the gradient of a weight for each channel and sample
        one = torch.ones(lengths.shape, dtype=computed_in(dy, x), device=x.device)
        wanted, weight = (False, True, False), one.view(x.shape[0], -1)
        _, sums, _ = ops.plain_backward(
            dy, x, None, one, weight, _pixels(x, axis), [0, axis], True, wanted
        )
        assert sums is not None
        return sums.view(lengths.shape).double()
    if not _are_rows(x, axis):
        wide = dy.to(computed_in(dy, x))
        return (wide * x).sum(_pixels(x, axis), keepdim=True, dtype=torch.float64)
    axes, ones = call.pack_axes(_pixels(x, axis)), torch.ones_like(lengths)
    c2, *_ = _ops.norm_backward_statistics(dy, x, ones, None, None, axes, _OPTIONS, 0, 0.0)
    return c2.view(lengths.shape) * (x.numel() // max(lengths.numel(), 1))  # type: ignore[no-any-return]


def _scaled_sum(dy: Tensor, a: Tensor, x: Tensor, b: Tensor, axis: int) -> Tensor:
    """a * dy + b * x, in x's dtype. planish's backward by given means makes that of xhat = a * x:
    a * (dy - xhat * c2)."""
    dtype = computed_in(x, dy)
    if not _are_rows(x, axis) and not x.is_cuda:
        return torch.addcmul(dy * a.to(dtype), x, b.to(dtype)).to(x.dtype)
    a = a + (1e-30 if dtype == torch.float64 else 1e-9)  # which may be 0, and is divided by
    axes, c2 = call.pack_axes(_pixels(x, axis)), b / (a * a).neg_()
    none = None
    beside = a, none, none, c2, none, none, none, none
    dx, *_ = _backward_given(dy, x, *beside, axes, _OPTIONS | 1 << call.WANTED_AT, 0.0)
    return dx  # type: ignore[no-any-return]


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, known: _Known, axis: int, wants: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dweight, dbias); sums are f64 or f32.

    dx = factor * dy + x * dlength / length
    """
    others = [i for i in range(x.dim()) if i != axis]
    dbias = None
    if wants[2]:
        dbias = dy.sum(others, dtype=computed_in(x))
    if not (wants[0] or wants[1]):
        return None, None, dbias
    sums = _products(dy, x, known.lengths, axis)
    products = sums * known.share
    dweight = products.sum(others) if wants[1] else None
    if not wants[0]:
        return None, dweight, dbias
    w = along(weight, [axis], x, torch.float64)
    dshare, products = (sums, products) if w is None else (sums * w, products * w)
    rest = dshare - products.mean(axis, keepdim=True)
    of_x = torch.where(known.lengths > 0, rest / (known.lengths * known.mean), 0.0)
    return _scaled_sum(dy, known.factor, x, of_x, axis), dweight, dbias


class _Response(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axis: int
    ) -> Tensor:
        y, known = _forward(x, weight, bias, eps, axis)
        ctx.save_for_backward(x, weight, bias, *known)
        ctx.numbers = eps, axis
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias, *known = ctx.saved_tensors
        given, wants = (x, weight, bias), ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # differentiated once more
            y = _composed(*given, *ctx.numbers)
            inputs = [t for t, wanted in zip(given, wants, strict=True) if wanted]
            found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
            return *(next(found) if wanted else None for wanted in wants), None, None
        _, axis = ctx.numbers
        made = _backward(dy, x, weight, _Known(*known), axis, wants)
        shaped = (
            g if g is None or t is x else g.to(t.dtype).view(t.shape)
            for g, t in zip(made, given, strict=True)
        )
        return *shaped, None, None


def response_norm(
    way: Way, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axis: int
) -> Tensor:
    """x * (1 + weight * length / (mean length + eps)) + bias, laid out as x. ``axis``: that of the
    channels, not negative."""
    runs = x.dtype in DTYPES and device_type(x) in DEVICES and x.numel() > 0
    if way is not Way.PLAIN or not runs:
        return _composed(x, weight, bias, eps, axis)
    if not needs_graph(x, weight, bias):
        return _forward(x, weight, bias, eps, axis)[0]
    if x.is_inference():
        x = x.clone()  # autograd saves no tensor that was made in inference mode
    return _Response.apply(x, weight, bias, eps, axis)  # type: ignore[no-any-return, no-untyped-call]
