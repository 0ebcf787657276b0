"""What planish's norms are given: devices and dtypes there are kernels for, axes, parameters,
activations, and the orders of rounding. Nothing is run here but what an order of rounding asks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from planish._call import ACTIVATIONS
from planish._library import library
from torch import Tensor

__all__ = [
    "CASTS",
    "DEVICES",
    "DTYPES",
    "activates",
    "affine_of",
    "axes_of",
    "check_activation",
    "check_cast",
    "check_parameter",
    "device_type",
    "rounds_xhat",
    "with_offset",
]

#: Device types there are operators for.
DEVICES = ("cpu", "meta") if library().cuda_is_missing() else ("cpu", "meta", "cuda")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def axes_of(dims: int | Iterable[int], ndim: int, name: str) -> list[int]:
    """Sorted axes that are not negative; torch's exceptions for what is none."""
    given = [dims] if isinstance(dims, int) else list(dims)
    axes: set[int] = set()
    for dim in given:
        if not -ndim <= dim < ndim:
            raise IndexError(
                f"{name}: Dimension out of range (expected to be in range of "
                f"[{-ndim}, {ndim - 1}], but got {dim})"
            )
        if dim % ndim in axes:
            raise RuntimeError(
                f"{name}: dim {dim % ndim} appears multiple times in the list of dims"
            )
        axes.add(dim % ndim)
    return sorted(axes)


def device_type(x: Tensor) -> str:
    return "cpu" if x.is_cpu else x.device.type


def check_parameter(
    x: Tensor, parameter: Tensor | None, affine: list[int], function: str, name: str
) -> None:
    if parameter is None:
        return
    shape, given = x.shape, list(parameter.shape)
    short = [shape[axis] for axis in affine]
    if given != short:
        full = [size if axis in affine else 1 for axis, size in enumerate(shape)]
        if given != full:
            raise RuntimeError(
                f"{function}: Expected {name} to have the sizes {short} of the affine dims "
                f"(or {full}), but got {name} of shape {given}"
            )
    if parameter.dtype not in DTYPES:
        raise NotImplementedError(f"{function}: not implemented for {name} of {parameter.dtype}")
    if parameter.device != x.device:
        raise RuntimeError(
            f"{function}: Expected {name} on {x.device}, like x, but got it on {parameter.device}"
        )


#: Longer rows have a GPU's fast kernels for an activation in the forward alone, or on some GPUs.
_ACTIVATED_BYTES = 1 << 14


def activates(x: Tensor, reduce: list[int], affine: list[int]) -> bool:
    """Whether a norm over these axes has fast kernels, forward and backward, that an activation can
    be part of: on a GPU where a row's elements are neighbours, or are the channels of images."""
    if device_type(x) == "cpu":
        return True
    if reduce != affine:
        return False
    if reduce == [1] and x.dim() > 2:
        return x.is_contiguous()
    columns = 1
    for axis, other in zip(reversed(range(x.dim())), reversed(reduce), strict=False):
        if axis != other or (x.shape[axis] != 1 and x.stride(axis) != columns):
            return False
        columns *= x.shape[axis]
    return columns * x.element_size() <= _ACTIVATED_BYTES


def check_activation(function: str, activation: str | None) -> None:
    """Raises ValueError for one that is not known."""
    if activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{function}: activation is {activation!r}; known are {known}")


#: Orders of rounding; see layer_norm.
CASTS = ("once", "xhat")


def check_cast(function: str, cast: str) -> None:
    """Raises ValueError for one that is not known."""
    if cast not in CASTS:
        raise ValueError(f"{function}: cast is {cast!r}; known are {', '.join(map(repr, CASTS))}")


def with_offset(weight: Tensor, offset: float) -> Tensor:
    """In float at least: 1 + w of bf16 would lose w's digits."""
    return (weight if weight.dtype == torch.float64 else weight.float()) + offset


def rounds_xhat(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether rounding xhat to x's dtype before weight and bias is another result."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    others = (parameter for parameter in (weight, bias) if parameter is not None)
    return any(half or parameter.dtype != x.dtype for parameter in others)


def affine_of(
    xhat: Tensor, weight: Tensor | None, bias: Tensor | None, affine: list[int]
) -> Tensor:
    """weight * xhat + bias in torch's own operators and by its promotion of dtypes."""
    sizes = [size if axis in affine else 1 for axis, size in enumerate(xhat.shape)]
    y = xhat if weight is None else weight.reshape(sizes) * xhat
    return y if bias is None else y + bias.reshape(sizes)
