"""Norms whose result is quantised, and norms whose results go into tensors that are given, each in
one call of planish's operators, for the functions of quantized.py and compat, which have checked
their arguments."""

from __future__ import annotations

import struct

import torch
from planish.library import counts
from planish.library.loaded import ERROR_OVERLAP, ERROR_UNAVAILABLE
from planish.library.seen import needs_graph
from planish.operators import asked, call, limits, ops, short
from planish.operators.records import thrown
from planish.operators.stage_calls import (
    as_rows,
    last_axes,
    saves_badly,
    together,
    whole_offset,
)
from planish.operators.ways import Way, way_of
from torch import Tensor

__all__ = ["float_of", "norm_into", "quantized"]


def float_of(number: float) -> float:
    """The nearest f32, of a number that has one with all its digits."""
    if (
        torch.compiler.is_compiling()
    ):  # it may be a graph's input: its lower 29 bits go by arithmetic
        split = number * (2.0**29 + 1)
        return split - (split - number)
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _last(x: Tensor, parameter: Tensor | None) -> int:
    return call.pack_axes(last_axes(x.dim(), None), last_axes(x.dim(), parameter))


def norm_into(
    out: Tensor,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    *,
    weight_offset: float = 0,
    y_scale: Tensor | None = None,
    total: Tensor | None = None,
) -> bool:
    """The norm over the last axis of x, or of its sum with the residual, into ``out``, which may be
    x; with a y_scale quantised. The sum into ``total``, which may be the residual or x. Whether it
    ran: else nothing was written. Nothing is recorded for a derivative."""
    if (
        way_of(x, residual, weight, bias, y_scale, out, total) is not Way.PLAIN
        or torch.is_grad_enabled()
    ):
        return False
    weight, offset = whole_offset(weight, weight_offset)
    axes = _last(x, weight if weight is not None else bias)
    options = call.pack_options(rms=rms, weight_offset=offset, save=False)
    try:
        short.INTO(x, residual, weight, bias, y_scale, axes, options, eps, out, total)
    except RuntimeError:
        if thrown(ERROR_UNAVAILABLE, ERROR_OVERLAP):
            return False  # torch's operators do as well as they can where memory is shared
        raise
    torch.autograd.graph.increment_version((out,) if total is None else (out, total))
    return True


def quantized(
    way: Way,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    eps: float,
    rms: bool,
    *,
    weight_offset: float,
    dtype: torch.dtype,
    block: int,
    scale_format: str,
    transposed: bool,
    least: float,
    most: float,
    sum_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """(q, the scales that were made, the sum), or None for the composition."""
    if way is not Way.PLAIN and way is not Way.OPERATOR:
        return None
    weight, offset = whole_offset(weight, weight_offset)
    weight, bias = together(weight, bias)
    tensors = x, residual, weight, bias
    graph = needs_graph(*tensors)
    if graph and (way is not Way.PLAIN or saves_badly(*tensors)):
        return None  # compiled graphs ask for gradients that nobody uses
    why = asked.why_not(x.device)
    if why:
        if way is Way.PLAIN:
            counts.count_composed("planish::quantized_norm", why)
        return None
    if x.numel() > limits.GENERAL_ELEMENTS:
        x, residual = as_rows(x), as_rows(residual)
    more = call.POWER_OF_TWO * (scale_format != "f32") | call.TRANSPOSED * transposed
    more |= call.SCALES_AS_BYTES * (scale_format == "e8m0")
    options = call.pack_options(
        rms=rms, weight_offset=offset, save=False, dtype=dtype, sum_dtype=sum_dtype, more=more
    )
    axes = _last(x, weight if weight is not None else bias)
    given = call.Quantized(x, residual, weight, bias, scale)
    numbers = axes, options, eps, block, least, most
    results: tuple[Tensor, Tensor | None, Tensor | None]
    try:
        if way is not Way.PLAIN:
            results = ops.QUANTIZED(*given, *numbers)
        elif graph:
            results = ops.record_quantized((None, *numbers), *given)
        else:
            results = short.QUANTIZED(*given, *numbers)
    except RuntimeError:
        if thrown(ERROR_UNAVAILABLE):
            return None
        raise
    return results
