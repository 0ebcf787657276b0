"""What stands around a norm, one stage at a time, in torch's operators: the sum with a residual,
dropout, scales, and the checks of their arguments.

The functions of stage_norms.py and quantized.py put these together. Nothing here is public.
"""

from __future__ import annotations

import torch
from planish.functions import functional
from planish.operators.arguments import (
    DTYPES,
    check_tensor,
    compute_dtype,
    number_of,
    with_offset,
)
from planish.operators.stage_calls import last_axes
from torch import Tensor

__all__ = [
    "along_columns",
    "check_float",
    "check_like_x",
    "check_modulation",
    "check_parameter",
    "check_probability",
    "check_row_scale",
    "check_x",
    "compute_dtype",
    "drop",
    "norm_last",
    "nothing_of",
    "scaled",
    "silu",
    "split_columns",
    "sum_of",
    "sum_with",
    "weighted",
]


# ---- Checks -------------------------------------------------------------------------------------


def check_float(function: str, name: str, dtype: torch.dtype | None) -> None:
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{function}: Expected {name} to be a torch.dtype, but got {dtype!r}")
    if dtype not in DTYPES:
        raise NotImplementedError(
            f"{function}: not implemented for {name} of {dtype}; wanted float16, bfloat16, float32 "
            "or float64"
        )


def check_x(function: str, x: Tensor, name: str = "x") -> None:
    """A dtype and a device there are kernels for, and an axis to normalise over."""
    check_tensor(function, name, x)
    functional._check_x(function, x, name)
    if x.dim() == 0:
        raise RuntimeError(
            f"{function}: Expected {name} to have at least 1 dimension, but got a scalar; the norm "
            "is over the last one"
        )


def _check_place(function: str, name: str, tensor: Tensor, x: Tensor) -> None:
    check_float(function, name, tensor.dtype)
    if tensor.device != x.device:
        raise RuntimeError(
            f"{function}: Expected {name} on {x.device}, like x, but got it on {tensor.device}"
        )


def check_like_x(
    function: str, name: str, tensor: Tensor | None, x: Tensor, optional: bool = True
) -> None:
    """A tensor with a value for each element of x, its dtype its own."""
    if tensor is None and optional:
        return
    check_tensor(function, name, tensor)
    assert tensor is not None
    if tensor.shape != x.shape:
        raise RuntimeError(
            f"{function}: Expected {name} to have x's shape {list(x.shape)}, but got {name} of "
            f"shape {list(tensor.shape)}"
        )
    _check_place(function, name, tensor, x)


def check_parameter(
    function: str, name: str, parameter: Tensor | None, x: Tensor, x_name: str = "x"
) -> None:
    """weight, bias or column_scale: the sizes of x's last axes, one or more of them."""
    if parameter is None:
        return
    check_tensor(function, name, parameter)
    count = parameter.dim()
    if not 1 <= count <= x.dim() or parameter.shape != x.shape[x.dim() - count :]:
        raise RuntimeError(
            f"{function}: Expected {name} to have the size of {x_name}'s last axis or the sizes of "
            f"its last axes, {x_name} being of shape {list(x.shape)}, but got {name} of shape "
            f"{list(parameter.shape)}"
        )
    _check_place(function, name, parameter, x)


def check_row_scale(function: str, row_scale: Tensor | None, x: Tensor) -> Tensor | None:
    """One value for each row, with a last axis of size 1 in the result."""
    if row_scale is None:
        return None
    check_tensor(function, "row_scale", row_scale)
    rows = x.shape[:-1]
    if row_scale.shape not in (rows, (*rows, 1)):
        raise RuntimeError(
            f"{function}: Expected row_scale of shape {list(rows)} or {[*rows, 1]}, one value for "
            f"each row of x, but got row_scale of shape {list(row_scale.shape)}"
        )
    _check_place(function, "row_scale", row_scale, x)
    return row_scale.reshape(*rows, 1)


def has_rows_rank(row_scale: Tensor | None, x: Tensor) -> bool:
    """Whether the kernels read this row_scale as it is, if it fits."""
    if row_scale is None:
        return True
    if not isinstance(row_scale, Tensor) or not isinstance(x, Tensor) or row_scale.requires_grad:
        return False
    return row_scale.dim() == x.dim()


def check_modulation(function: str, name: str, tensor: Tensor | None, x: Tensor) -> None:
    """scale, shift or the gate of a sum: x's rank with each axis x's or 1, or the last axis alone.

    A rank between these is refused: (B, D) beside x (B, S, D) would be taken for (1, B, D) by
    broadcasting, and be wrong without a word where B is S.
    """
    if tensor is None:
        return
    check_tensor(function, name, tensor)
    if tensor.dim() not in (1, x.dim()):
        raise RuntimeError(
            f"{function}: Expected {name} to have 1 axis or the {x.dim()} axes of x, but got "
            f"{name} of shape {list(tensor.shape)} for x of shape {list(x.shape)}; write the axes "
            "that do not vary as 1, e.g. (B, 1, D)"
        )
    pairs = zip(tensor.shape, x.shape[x.dim() - tensor.dim() :], strict=True)
    if any(size not in (1, whole) for size, whole in pairs):
        raise RuntimeError(
            f"{function}: Expected each axis of {name} to have x's size or 1, but got {name} of "
            f"shape {list(tensor.shape)} for x of shape {list(x.shape)}"
        )
    _check_place(function, name, tensor, x)


def check_probability(function: str, p: float) -> float:
    """As torch.nn.Dropout takes it: with 1 everything is dropped."""
    p = number_of(function, "dropout_p", p)
    if not 0 <= p <= 1:
        raise ValueError(f"{function}: dropout_p is {p}; wanted a probability, from 0 to 1")
    return p


# ---- Orders of rounding --------------------------------------------------------------------------


def weighted(
    xhat: Tensor, weight: Tensor | None, bias: Tensor | None, weight_offset: float
) -> Tensor:
    """weight * xhat + bias in torch's own operators and by its promotion of dtypes."""
    if weight is not None and weight_offset:
        weight = with_offset(weight, weight_offset)
    y = xhat if weight is None else weight * xhat
    return y if bias is None else y + bias


# ---- Stages -------------------------------------------------------------------------------------


def silu(value: Tensor) -> Tensor:
    return torch.nn.functional.silu(value)


def drop(value: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(value * keep / (1 - p), keep), the mask drawn from torch's generator of the device."""
    like = torch.contiguous_format
    keep = torch.rand_like(value, dtype=torch.float32, memory_format=like) >= p
    left = value / (1 - p) if p < 1 else value  # of what is dropped whole nothing is left
    return torch.where(keep, left, 0), keep


def nothing_of(x: Tensor, *factors: Tensor | None) -> Tensor:
    """What dropout of everything leaves of x and its factors: 0, and gradients of 0."""
    u = scaled(x, compute_dtype(x.dtype), *factors)
    return torch.where(torch.zeros_like(u, dtype=torch.bool), u, 0).to(x.dtype)


def scaled(x: Tensor, wide: torch.dtype, *factors: Tensor | None) -> Tensor:
    """x times what is not None, in the compute type; x itself where nothing is there."""
    for factor in factors:
        if factor is not None:
            x = x.to(wide) * factor.to(wide)
    return x


def along_columns(tensor: Tensor | None, x: Tensor, most_axes: int) -> Tensor | None:
    """A modulation of one element, and of so many axes at most, as one that varies along the
    columns; in the compute type, in which the columns of its gradient are then added up."""
    if tensor is None or tensor.numel() != 1 or tensor.dim() > most_axes:
        return tensor
    return tensor.to(compute_dtype(x.dtype, tensor.dtype)).reshape(1).expand(x.shape[-1])


def split_columns(tensor: Tensor, size: int) -> Tensor:
    """(..., columns) as (..., columns / size, size)."""
    return tensor.reshape(*tensor.shape[:-1], tensor.shape[-1] // size, size)


def sum_with(u: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
    """u + residual in the compute type, rounded once to ``dtype``."""
    if residual is None:
        return u.to(dtype)
    if u.dtype == residual.dtype == dtype:
        return u + residual
    wide = compute_dtype(u.dtype, residual.dtype, dtype)
    return (u.to(wide) + residual.to(wide)).to(dtype)


def sum_of(
    x: Tensor,
    residual: Tensor,
    dtype: torch.dtype,
    *factors: Tensor | None,
    dropout_p: float = 0.0,
) -> Tensor:
    """The sum of the residual and of x times its factors, after dropout of that."""
    wide = compute_dtype(x.dtype, residual.dtype)
    u = scaled(x, wide, *factors)
    if dropout_p:
        u, _ = drop(u.to(wide), dropout_p)
    return sum_with(u, residual, dtype)


def norm_last(
    rms: bool,
    s: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    weight_offset: float,
    dtype: torch.dtype,
) -> Tensor:
    """planish's own norm over the last axis, y rounded once to ``dtype``.

    weight and bias have the sizes of s's last axes, as many as they have axes themselves.
    """
    wide = s if s.dtype == dtype else s.to(compute_dtype(s.dtype, dtype))
    if weight_offset and weight is not None and wide.dtype == torch.float64:
        weight = weight.double()  # the sum with the offset is of the compute type
    norm = functional.rms_norm if rms else functional.layer_norm
    counts = {parameter.dim() for parameter in (weight, bias) if parameter is not None}
    if len(counts) > 1:  # (heads, columns) and (columns): the bias is added behind
        assert weight is not None and bias is not None
        wide = s.to(compute_dtype(s.dtype, dtype, bias.dtype))
        y = norm(
            wide, -1, weight, None, eps, last_axes(s.dim(), weight), weight_offset=weight_offset
        )
        return (y + bias).to(dtype)
    affine = last_axes(s.dim(), weight if weight is not None else bias)
    return norm(wide, -1, weight, bias, eps, affine, weight_offset=weight_offset).to(dtype)
