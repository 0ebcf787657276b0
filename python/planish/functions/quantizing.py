"""How numbers become fp8 or int8 in torch's own operators: their scales, and the rounding."""

from __future__ import annotations

import math

import torch
from planish.functions import stages
from torch import Tensor

__all__ = ["LARGEST", "in_columns", "power_of_two_above", "quantize", "scale_of"]

#: The largest value of each type that is used; int8 is symmetric.
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}

#: Rows of one column of scales are padded to so many bytes, which is what GPU copies want.
_COLUMN_BYTES = 16


def _to_odd_float(value: Tensor) -> Tensor:
    """f64 as f32 rounded to odd: a further rounding, to fewer bits, is then the only one."""
    near = value.float()
    bits = near.view(torch.int32)
    back = near.double()
    away = back.abs() > value.abs()
    inexact = (back != value) & value.isfinite()
    bits = torch.where(away, bits - 1, bits)
    return torch.where(inexact, bits | 1, bits).view(torch.float32)


def quantize(y: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """y / scale to the nearest value of ``dtype``, to even in a tie, saturating. NaN stays; in int8
    it is 0."""
    largest = LARGEST[dtype]
    value = (y / scale.to(y.dtype)).clamp(-largest, largest)
    if dtype == torch.int8:
        return value.round().nan_to_num(0.0).to(torch.int8)
    return (_to_odd_float(value) if value.dtype == torch.float64 else value).to(dtype)


def power_of_two_above(scale: Tensor) -> Tensor:
    """The least power of two that is not below a positive f32, from 2^-126 to 2^127; exact."""
    bits = scale.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def _blocks(y: Tensor, block: int) -> Tensor:
    """(..., blocks, block): the last block is filled up with zeros."""
    missing = -y.shape[-1] % block
    if missing:
        y = torch.nn.functional.pad(y, (0, missing))
    return stages.split_columns(y, block)


def in_columns(scale: Tensor) -> Tensor:
    """The same scales (rows, blocks), a column after the other, rows padded to 16 bytes."""
    rows, blocks = scale.shape[:-1], scale.shape[-1]
    step = _COLUMN_BYTES // scale.element_size()
    padded = -(-math.prod(rows) // step) * step
    buffer = torch.zeros(blocks, padded, dtype=torch.float32, device=scale.device).to(scale.dtype)
    columns = buffer[:, : math.prod(rows)].t().view(*rows, blocks)
    return columns.copy_(scale)


def scale_of(
    y: Tensor, per: str | int, largest: float, floor: float, bound: float | None, format: str
) -> tuple[Tensor, Tensor]:
    """(y as it is divided, its scale in f32)."""
    if isinstance(per, int):
        y = _blocks(y, per)
    found = y.abs().nan_to_num(0.0, float("inf"))  # one row's NaN is not another row's scale
    if per == "tensor":
        amax = found.amax() if y.numel() else y.new_zeros(())
    elif y.shape[-1]:
        amax = found.amax(-1, keepdim=True)
    else:
        amax = y.new_zeros((*y.shape[:-1], 1))
    scale = amax.float().clamp(min=floor) / largest
    if format != "f32":
        scale = power_of_two_above(scale)
    return y, scale if bound is None else scale.clamp(max=bound)
