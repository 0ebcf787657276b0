"""planish's operators for a norm with stages around it: staged_norm, its backward, quantized_norm
and norm_into.

C defines them and runs them on real tensors (src/torch/staged_norm.c, quantized_norm.c, which say
what they take and return); this file adds shapes for fake tensors, and derivatives (the formulas
are in _staged_derivatives.py). Only _staged.py calls them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from planish import _ops, _staged_derivatives
from torch import Tensor

__all__ = ["BACKWARD", "FORWARD", "INTO", "QUANTIZED", "function", "quantized_function"]


def _dense(x: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=x.device)


def _statistics_dtype(
    tensors: tuple[Tensor | None, ...],
    dtypes: tuple[torch.dtype | None, ...],
    layer_around: bool,
    activation: int,
) -> torch.dtype:
    """As src/torch/staged_norm.c has it."""
    given = {tensor.dtype for tensor in tensors if tensor is not None} | set(dtypes)
    exact = activation or layer_around or torch.float64 in given
    return torch.float64 if exact else torch.float32


def _forward_fake(
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
    reduce: list[int],
    affine: list[int],
    column: list[int],
    modulation: list[int],
    eps: float,
    rms: bool,
    weight_offset: int,
    activation: int,
    gate_before: bool,
    round_xhat: bool,
    dropout_p: float,
    y_dtype: torch.dtype,
    sum_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    around = not rms and (scale is not None or gate is not None)
    tensors = x, residual, row_scale, column_scale, weight, bias, scale, shift, gate
    dtype = _statistics_dtype(tensors, (y_dtype, sum_dtype), around, activation)
    shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
    return (
        torch.empty_like(x, dtype=y_dtype),
        None if sum_dtype is None else torch.empty_like(x, dtype=sum_dtype),
        _dense(x, [0] if rms else shape, dtype),
        _dense(x, shape, dtype),
    )


def _backward_fake(
    dy: Tensor,
    s: Tensor,
    mean: Tensor,
    rstd: Tensor,
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
    reduce: list[int],
    affine: list[int],
    column: list[int],
    modulation: list[int],
    rms: bool,
    weight_offset: int,
    activation: int,
    gate_before: bool,
    dropout_p: float,
    dx_dtype: torch.dtype,
    dresidual_dtype: torch.dtype,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    other = s.dtype if weight is None else weight.dtype

    def along(axes: list[int], parameter: Tensor | None) -> Tensor:
        dtype = other if parameter is None else parameter.dtype
        return _dense(s, [s.shape[axis] for axis in axes], dtype)

    made: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.empty_like(s, dtype=dx_dtype),
        lambda: torch.empty_like(s, dtype=dresidual_dtype),
        lambda: along(affine, weight),
        lambda: along(affine, bias),
        lambda: along(column, column_scale),
        lambda: along(modulation, scale),
        lambda: along(modulation, shift),
        lambda: torch.empty_like(s, dtype=other if gate is None else gate.dtype),
    )
    return tuple([make() if want else None for make, want in zip(made, wanted, strict=True)])


def _quantized_fake(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    y_scale: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    weight_offset: int,
    q_dtype: torch.dtype,
    block: int,
    power_of_two: bool,
    as_bytes: bool,
    transposed: bool,
    least: float,
    most: float,
    sum_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    scales = None
    if y_scale is None:
        kept = [size for axis, size in enumerate(x.shape) if axis not in reduce]
        shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
        if block:
            columns = math.prod(x.shape[axis] for axis in reduce)
            blocks, rows = -(-columns // block), math.prod(kept)
            step = 16 if as_bytes else 4
            shape = [blocks, -(-rows // step) * step] if transposed else [*kept, blocks]
        scales = _dense(x, shape, torch.uint8 if as_bytes else torch.float32)
    return (
        torch.empty_like(x, dtype=q_dtype),
        scales,
        None if sum_dtype is None else torch.empty_like(x, dtype=sum_dtype),
    )


def _into_fake(*arguments: Any) -> None:
    return None


def _register() -> tuple[Any, dict[str, Any]]:
    """The library object whose life is that of the registrations, and the operators' functions."""
    made: Any = torch.library.Library("planish", "FRAGMENT")  # type: ignore[no-untyped-call]
    torch.library.register_fake("planish::norm_into", _into_fake)
    functions: dict[str, Any] = {}
    for name, fake, save, differentiate in (
        (
            "staged_norm",
            _forward_fake,
            _staged_derivatives.save_forward,
            _staged_derivatives.differentiate_forward,
        ),
        (
            "staged_norm_backward",
            _backward_fake,
            _staged_derivatives.save_backward,
            _staged_derivatives.differentiate_backward,
        ),
        (
            "quantized_norm",
            _quantized_fake,
            _staged_derivatives.save_quantized,
            _staged_derivatives.differentiate_quantized,
        ),
    ):
        torch.library.register_fake(f"planish::{name}", fake)
        functions[name] = _ops.recorded(name, save, differentiate)
        kernel = _ops.autograd_kernel(name, functions[name])
        made.impl(name, kernel, "Autograd", with_keyset=True)
    return made, functions


_registered, _functions = _register()  # at import: tracing must not come across it

#: What autograd records of plain tensors.
function = _functions["staged_norm"]
quantized_function = _functions["quantized_norm"]

FORWARD = torch.ops.planish.staged_norm.default
BACKWARD = torch.ops.planish.staged_norm_backward.default
QUANTIZED = torch.ops.planish.quantized_norm.default
INTO = torch.ops.planish.norm_into.default
