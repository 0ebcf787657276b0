"""What planish's operators return for fake tensors: shapes, strides and dtypes, as the files of C
that ops.py names have them. Nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from planish.operators import call
from torch import Tensor

__all__ = [
    "apply",
    "backward",
    "backward_apply",
    "backward_statistics",
    "batch",
    "forward",
    "into",
    "pair",
    "pair_backward",
    "part_apply",
    "part_backward_apply",
    "part_message",
    "part_statistics",
    "quantized",
    "statistics",
    "statistics_dtype",
]


def _dense(x: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=x.device)


def statistics_dtype(options: int, *tensors: Tensor | None) -> torch.dtype:
    """As src/torch/norm_operators.c has it; the last two tensors are scale and gate."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    dtypes |= {call.dtype_in(options), call.sum_dtype_in(options)}  # type: ignore[arg-type]
    stages = not options & call.RMS and any(tensor is not None for tensor in tensors[-2:])
    exact = call.activation_in(options) or stages or torch.float64 in dtypes
    return torch.float64 if exact else torch.float32


def forward(
    x: Tensor,
    residual: Tensor | None,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    rng: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    gate: Tensor | None,
    axes: int,
    options: int,
    split: int,
    eps: float,
    dropout_p: float,
) -> tuple[Tensor | None, ...]:
    tensors = x, residual, row_scale, column_scale, weight, bias, shift, scale, gate
    statistics = statistics_dtype(options, *tensors)
    reduce = call.axes_of(axes, 0)
    seen = call.seen_shape(x.shape, split)
    shape = [1 if axis in reduce else size for axis, size in enumerate(seen)]
    save, dense = options & call.SAVE, options & call.DENSE

    def full(dtype: torch.dtype) -> Tensor:
        return _dense(x, x.shape, dtype) if dense else torch.empty_like(x, dtype=dtype)

    total = call.sum_dtype_in(options)
    return (
        full(call.dtype_in(options) or x.dtype),
        None if total is None else full(total),
        _dense(x, shape, statistics) if save and not options & call.RMS else None,
        _dense(x, shape, statistics) if save else None,
    )


def backward(
    dy: Tensor,
    s: Tensor,
    rstd: Tensor,
    mean: Tensor | None,
    dsum: Tensor | None,
    branch: Tensor | None,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    rng: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    gate: Tensor | None,
    axes: int,
    options: int,
    split: int,
    dropout_p: float,
) -> tuple[Tensor | None, ...]:
    other = s.dtype if weight is None else weight.dtype
    seen = call.seen_shape(s.shape, split)

    def along(place: int, parameter: Tensor | None) -> Tensor:
        own = call.axes_of(axes, place)
        sizes = [seen[axis] for axis in own]
        if split:
            axis, _ = call.split_place(s.dim(), split)
            if axis in own and axis + 1 in own:
                first = own.index(axis)
                sizes[first : first + 2] = [s.shape[axis]]
        return _dense(s, sizes, other if parameter is None else parameter.dtype)

    made: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.empty_like(s, dtype=call.dtype_in(options)),
        lambda: torch.empty_like(s, dtype=call.sum_dtype_in(options)),
        lambda: along(1, weight),
        lambda: along(1, bias),
        lambda: along(2, column_scale),
        lambda: along(3, scale),
        lambda: along(3, shift),
        lambda: torch.empty_like(s, dtype=other if gate is None else gate.dtype),
    )
    wanted = call.wanted_in(options)
    return tuple([make() if want else None for make, want in zip(made, wanted, strict=True)])


def statistics(x: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    reduce = call.axes_of(axes, 0)
    shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _dense(x, shape, dtype), _dense(x, shape, dtype)


def quantized(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    y_scale: Tensor | None,
    axes: int,
    options: int,
    eps: float,
    block: int,
    least: float,
    most: float,
) -> tuple[Tensor | None, ...]:
    scales = None
    reduce, as_bytes = call.axes_of(axes, 0), bool(options & call.SCALES_AS_BYTES)
    if y_scale is None:
        kept = [size for axis, size in enumerate(x.shape) if axis not in reduce]
        shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
        if block:
            columns = math.prod(x.shape[axis] for axis in reduce)
            blocks, rows = -(-columns // block), math.prod(kept)
            step = 16 if as_bytes else 4
            padded = -(-rows // step) * step
            shape = [blocks, padded] if options & call.TRANSPOSED else [*kept, blocks]
        scales = _dense(x, shape, torch.uint8 if as_bytes else torch.float32)
    total = call.sum_dtype_in(options)
    return (
        torch.empty_like(x, dtype=call.dtype_in(options)),
        scales,
        None if total is None else torch.empty_like(x, dtype=total),
    )


def into(*arguments: Any) -> None:
    return None


def pair(
    first: Tensor,
    second: Tensor,
    first_weight: Tensor | None,
    second_weight: Tensor | None,
    options: int,
    eps: float,
) -> tuple[Tensor | None, ...]:
    save, rms = options & call.SAVE, options & call.RMS
    made: list[Tensor | None] = []
    for x, weight in ((first, first_weight), (second, second_weight)):
        shape, dtype = [*x.shape[:-1], 1], statistics_dtype(options, x, weight, None, None)
        mean = _dense(x, shape, dtype) if save and not rms else None
        made += torch.empty_like(x), mean, _dense(x, shape, dtype) if save else None
    return tuple(made)


def pair_backward(
    first_dy: Tensor,
    second_dy: Tensor,
    first: Tensor,
    second: Tensor,
    first_mean: Tensor | None,
    second_mean: Tensor | None,
    first_rstd: Tensor,
    second_rstd: Tensor,
    first_weight: Tensor | None,
    second_weight: Tensor | None,
    options: int,
) -> tuple[Tensor | None, ...]:
    wanted = call.wanted_in(options)
    made: list[Tensor | None] = []
    for x, weight, want in (
        (first, first_weight, wanted[:2]),
        (second, second_weight, wanted[2:4]),
    ):
        dweight = None
        if want[1]:
            shape = x.shape[-1:] if weight is None else x.shape[x.dim() - weight.dim() :]
            dweight = _dense(x, shape, x.dtype if weight is None else weight.dtype)
        made += torch.empty_like(x) if want[0] else None, dweight
    return tuple(made)


# ---- Given statistics, and those of parts of rows ------------------------------------------------


def _row_statistics(x: Tensor, axes: int, options: int) -> tuple[Tensor | None, Tensor]:
    """What is one number for each row; the first is not there of RMS."""
    reduce = call.axes_of(axes, 0)
    shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
    first = None if options & call.RMS else _dense(x, shape, torch.float64)
    return first, _dense(x, shape, torch.float64)


def part_statistics(x: Tensor, axes: int, options: int) -> tuple[Tensor | None, Tensor]:
    return _row_statistics(x, axes, options)


def _message(
    head: int, x: Tensor, axes: int, options: int, ranks: int
) -> tuple[Tensor, Tensor | None]:
    first, second = _row_statistics(x, axes, options)
    length = head + second.numel() * (1 if first is None else 2)
    return second.new_empty(1, length), second.new_empty(ranks, length) if ranks else None


def part_message(x: Tensor, axes: int, options: int, ranks: int) -> tuple[Tensor, Tensor | None]:
    return _message(1, x, axes, options, ranks)


def part_apply(
    x: Tensor,
    sent: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    options: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    y = torch.empty_like(x, dtype=call.dtype_in(options) or x.dtype)
    return y, *_row_statistics(x, axes, options), sent.new_empty(sent.shape[0])


def part_backward_apply(
    dy: Tensor,
    x: Tensor,
    sent: Tensor,
    shares: Tensor,
    rstd: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    axes: int,
    options: int,
) -> Tensor:
    return torch.empty_like(x)


def apply(
    x: Tensor,
    spread: Tensor,
    mean: Tensor | None,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    options: int,
    eps: float,
) -> Tensor:
    dtype = call.dtype_in(options) or x.dtype
    if options & call.DENSE:
        return _dense(x, x.shape, dtype)
    return torch.empty_like(x, dtype=dtype)


def backward_statistics(
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    mean: Tensor | None,
    weight: Tensor | None,
    axes: int,
    options: int,
    ranks: int,
    eps: float,
) -> tuple[Tensor | None, ...]:
    sizes = [x.shape[axis] for axis in call.axes_of(axes, 1)]
    dtype = x.dtype if weight is None else weight.dtype
    wanted = call.wanted_in(options)
    gradients = [_dense(x, sizes, dtype) if want else None for want in wanted[2:4]]
    return *_message(0, x, axes, options, ranks), *gradients


def backward_apply(
    dy: Tensor,
    x: Tensor,
    spread: Tensor,
    mean: Tensor | None,
    c1: Tensor | None,
    c2: Tensor | None,
    y: Tensor | None,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    options: int,
    eps: float,
) -> tuple[Tensor | None, ...]:
    sizes = [x.shape[axis] for axis in call.axes_of(axes, 1)]
    numbers = dy, x, spread, mean, c1, c2, y, addend, weight, bias
    double = any(t is not None and t.dtype == torch.float64 for t in numbers)
    wide = torch.float64 if double else torch.float32
    other = x.dtype if weight is None else weight.dtype
    dx, daddend, dweight, dbias, unrounded, *_ = call.wanted_in(options)

    def along(parameter: Tensor | None) -> Tensor:
        dtype = other if parameter is None else parameter.dtype
        return _dense(x, sizes, wide if unrounded else dtype)

    return (
        torch.empty_like(x, dtype=call.dtype_in(options)) if dx else None,
        torch.empty_like(x, dtype=None if addend is None else addend.dtype) if daddend else None,
        along(weight) if dweight else None,
        along(bias) if dbias else None,
    )


# ---- Batches -------------------------------------------------------------------------------------


def batch(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    axes: int,
    options: int,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    y = torch.empty_like(x)
    if not options & call.SAVE:
        return y, None, None
    dtype = statistics_dtype(options, x, weight, bias, running_mean, running_var, addend, None)
    return y, _dense(x, x.shape[1:2], dtype), _dense(x, x.shape[1:2], dtype)
