"""The norm with its stages in one call of planish's operators, for the functions of _fused.py,
_quantized.py and _functional.py, which have checked their arguments.

Each function here returns None where the library, or the way of the call (_ways.py), wants the
composition of torch's operators.
"""

from __future__ import annotations

import struct
import sys
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from planish import _asked, _prepared, _staged_ops
from planish._arguments import with_offset
from planish._library import ERROR_OVERLAP, ERROR_UNAVAILABLE
from planish._staged_composite import Stages
from planish._staged_derivatives import thrown
from planish._ways import Way, below_autograd, needs_graph, way_of
from torch import Tensor

__all__ = [
    "Around",
    "float_of",
    "last_axes",
    "modulation_axes",
    "norm",
    "norm_into",
    "quantized",
    "whole_offset",
]

#: Seeds and offsets are below it.
_SEEDS = 2**63 - 1

_forward_op = _staged_ops.FORWARD._op
_quantized_op = _staged_ops.QUANTIZED._op
_into_op = _staged_ops.INTO._op


class Around(NamedTuple):
    """The tensors around a norm, each checked, and None where there is none."""

    residual: Tensor | None = None
    row_scale: Tensor | None = None
    column_scale: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    gate: Tensor | None = None


def last_axes(x: Tensor, parameter: Tensor | None) -> list[int]:
    """Those of a parameter with the sizes of x's last axes."""
    ndim = x.dim()
    return list(range(ndim - (1 if parameter is None else parameter.dim()), ndim))


def modulation_axes(x: Tensor, tensor: Tensor | None) -> list[int]:
    """Those along which a modulation varies that has x's rank or the last axis alone."""
    if tensor is None:
        return []
    if tensor.dim() != x.dim():
        return [x.dim() - 1]
    return [axis for axis, size in enumerate(tensor.shape) if size != 1]


def whole_offset(weight: Tensor | None, offset: float) -> tuple[Tensor | None, int]:
    """(weight, weight_offset) as the library has them: it adds 0 or 1."""
    if weight is None:
        return None, 0
    if offset in (0, 1):
        return weight, int(offset)
    return with_offset(weight, offset), 0


def _together(one: Tensor | None, other: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Two parameters of the same axes: where their shapes differ they are seen in the one that both
    broadcast to."""
    if one is None or other is None or one.shape == other.shape:
        return one, other
    pairs = zip_longest(one.shape[::-1], other.shape[::-1], fillvalue=1)
    shape = [max(sizes) if 0 not in sizes else 0 for sizes in pairs][::-1]
    return one.expand(shape), other.expand(shape)


def _are_saved_badly(way: Way, *tensors: Tensor | None) -> bool:
    """Autograd saves no tensor that was made in inference mode."""
    return way is Way.PLAIN and any(t is not None and t.is_inference() for t in tensors)


#: With more elements than this the general kernels take longer than torch's operators.
_GENERAL_ELEMENTS = 32768


def _over_last(x: Tensor, reduce: list[int], affine: list[int]) -> bool:
    """Whether the norm is over the last axes, and weights vary along them: for all else the library
    has its general kernels alone."""
    last = list(range(x.dim() - len(reduce), x.dim()))
    return reduce == last and affine[-len(reduce) :] == last


def _as_rows(tensor: Tensor) -> Tensor:
    """With elements of the last axis as neighbours: a copy, as torch's own norm makes it, of an
    image whose channels are seen last."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _is_distributed(x: Tensor) -> bool:
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(x, distributed.DTensor)


def norm(
    way: Way,
    x: Tensor,
    around: Around,
    reduce: list[int],
    eps: float,
    rms: bool,
    *,
    affine: list[int] | None = None,
    column: list[int] | None = None,
    weight_offset: float = 0,
    activation: int = 0,
    gate_before: bool = False,
    round_xhat: bool = False,
    dropout_p: float = 0.0,
    y_dtype: torch.dtype,
    sum_dtype: torch.dtype | None = None,
    known: _prepared.Known | None = None,
    split: tuple[Any, Any] | None = None,
) -> tuple[Tensor, Any] | None:
    """(y, sum or None), or None for the composition. ``affine`` and ``column``: the axes of weight
    and bias and of column_scale, by default x's last as far as they have them. ``known``: what
    it comes to is kept for it (_prepared.py), ``split`` beside it."""
    if way is not Way.PLAIN and way is not Way.OPERATOR:
        return None
    residual, row_scale, column_scale, weight, bias, scale, shift, gate = around
    weight, offset = whole_offset(weight, weight_offset)
    weight, bias = _together(weight, bias)
    scale, shift = _together(scale, shift)
    tensors = x, residual, row_scale, column_scale, weight, bias, scale, shift, gate
    graph = needs_graph(*tensors)
    if graph and (
        (row_scale is not None and row_scale.requires_grad) or _are_saved_badly(way, *tensors)
    ):
        return None  # row_scale has no gradient
    dtypes = (*[None if t is None else t.dtype for t in tensors], y_dtype, sum_dtype)
    question = rms, offset, activation, gate_before, round_xhat, dropout_p > 0, False
    if not _asked.runs("cpu" if x.is_cpu else x.device.type, dtypes, question, graph):
        return None
    if affine is None:
        affine = last_axes(x, weight if weight is not None else bias)
    has_stages = any(t is not None for t in (residual, scale, shift, gate)) or round_xhat
    if has_stages and x.numel() > _GENERAL_ELEMENTS:
        if not _over_last(x, reduce, affine):
            return None
        x = _as_rows(x)
        residual = None if residual is None else _as_rows(residual)
        gate = None if gate is None else _as_rows(gate)
    if column is None:
        column = [] if column_scale is None else last_axes(x, column_scale)
    rng = None
    if dropout_p:
        if way is Way.OPERATOR and type(x) is not Tensor and _is_distributed(x):
            return None  # each shard would draw the others' mask
        # The seed and the offset, by torch's generator of the device; a CUDA graph draws new ones
        # at each replay.
        rng = torch.randint(_SEEDS, (2,), dtype=torch.int64, device=x.device)
    arguments = (
        x,
        residual,
        row_scale,
        column_scale,
        rng,
        weight,
        bias,
        scale,
        shift,
        gate,
        reduce,
        affine,
        column,
        modulation_axes(x, shift if scale is None else scale),
        eps,
        rms,
        offset,
        activation,
        gate_before,
        round_xhat,
        dropout_p,
        y_dtype,
        sum_dtype,
    )
    given = around.weight, around.bias, around.scale, around.shift
    same = all(a is b for a, b in zip(given, (weight, bias, scale, shift), strict=True))
    if known is not None and known[0] is not None and same and way is Way.PLAIN:
        stages = Stages(*arguments[10:14], rms, offset, activation, gate_before, dropout_p)
        dtypes = x.dtype, x.dtype if residual is None else residual.dtype
        alone = residual is not None and all(t is None for t in (column_scale, scale, shift, gate))
        alike = bias is None or (weight is not None and weight.dtype == bias.dtype)
        simple = alone and alike and not activation
        call = _prepared.Call(arguments[10:], stages, dtypes, y_dtype, graph, simple, split)
        return _prepared.first(known, call)
    results = _call(way, graph, _staged_ops.function, _forward_op, _staged_ops.FORWARD, arguments)
    return None if results is None else (results[0], results[1])


def _call(
    way: Way, graph: bool, function: Any, plain: Any, operator: Any, arguments: tuple[Any, ...]
) -> Any:
    if way is not Way.PLAIN:
        return operator(*arguments)
    try:
        if graph:
            return function.apply(None, *arguments)
        with below_autograd():
            return plain(*arguments)
    except RuntimeError:
        if thrown(ERROR_UNAVAILABLE):
            return None
        raise


# ---- In place ----


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
    if way_of(x, residual, weight, bias, out) is not Way.PLAIN or torch.is_grad_enabled():
        return False
    weight, offset = whole_offset(weight, weight_offset)
    arguments = (
        x,
        residual,
        weight,
        bias,
        y_scale,
        last_axes(x, None),
        last_axes(x, weight if weight is not None else bias),
        eps,
        rms,
        offset,
        out,
        total,
    )
    try:
        with below_autograd():
            _into_op(*arguments)
    except RuntimeError:
        if thrown(ERROR_UNAVAILABLE, ERROR_OVERLAP):
            return False  # torch's operators do as well as they can where memory is shared
        raise
    torch.autograd.graph.increment_version((out,) if total is None else (out, total))
    return True


# ---- Quantised results --------------------------------------------------------------------------


def float_of(number: float) -> float:
    """The nearest f32."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


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
    weight, bias = _together(weight, bias)
    tensors = x, residual, weight, bias
    graph = needs_graph(*tensors)
    if graph and (way is not Way.PLAIN or _are_saved_badly(way, *tensors)):
        return None  # compiled graphs ask for gradients that nobody uses
    none = None
    dtypes = (
        x.dtype,
        none if residual is None else residual.dtype,
        none,
        none,
        none if weight is None else weight.dtype,
        none if bias is None else bias.dtype,
        none,
        none,
        none,
        x.dtype,
        sum_dtype,
    )
    question = rms, offset, 0, False, False, False, True
    if not _asked.runs("cpu" if x.is_cpu else x.device.type, dtypes, question, False):
        return None
    axes = last_axes(x, None)
    if x.numel() > _GENERAL_ELEMENTS:
        x = _as_rows(x)
        residual = None if residual is None else _as_rows(residual)
    arguments = (
        x,
        residual,
        weight,
        bias,
        scale,
        axes,
        last_axes(x, weight if weight is not None else bias),
        eps,
        rms,
        offset,
        dtype,
        block,
        scale_format != "f32",
        scale_format == "e8m0",
        transposed,
        least,
        most,
        sum_dtype,
    )
    results: tuple[Tensor, Tensor | None, Tensor | None] | None = _call(
        way,
        graph,
        _staged_ops.quantized_function,
        _quantized_op,
        _staged_ops.QUANTIZED,
        arguments,
    )
    return results
