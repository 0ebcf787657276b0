"""What planish's norms are given: devices and dtypes there are kernels for, axes, parameters,
activations, and the orders of rounding. Nothing is run here but what an order of rounding asks."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from planish.library.dtypes import DTYPES as DTYPES
from planish.library.dtypes import HALF as HALF
from planish.library.loaded import library
from planish.operators import limits
from planish.operators.call import ACTIVATIONS
from torch import Tensor

__all__ = [
    "CASTS",
    "DEVICES",
    "DTYPES",
    "HALF",
    "activates",
    "affine_of",
    "axes_of",
    "check_activation",
    "check_cast",
    "check_floats",
    "check_optional",
    "check_parameter",
    "check_tensor",
    "compute_dtype",
    "device_type",
    "eps_of",
    "given_axes",
    "kernels_round",
    "number_of",
    "rms_eps",
    "rounds_xhat",
    "size_of",
    "sizes_of",
    "truth_of",
    "whole_of",
    "with_offset",
]

#: Device types there are operators for.
DEVICES = ("cpu", "meta") if library().cuda_is_missing() else ("cpu", "meta", "cuda")


#: What a call may be given; torch's operators have the rules of nested tensors.
_LAYOUTS = (torch.strided, torch.jagged)

#: Iterables whose elements are no axes, whatever they are.
_NO_AXES = (str, bytes, bytearray, memoryview, dict)

# ---- Tensors, numbers and axes -------------------------------------------------------------------


def _kind(given: Any) -> str:
    """The type of what was given, as an error names it."""
    kind = type(given)
    known = kind.__module__ in ("builtins", "torch")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"


def check_tensor(function: str, name: str, given: Any) -> None:
    """Raises TypeError for what is no tensor, NotImplementedError for a sparse one."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{function}: Expected {name} to be a tensor, but got {_kind(given)}")
    # A graph of a backward may not ask for a layout; what it is traced with has been looked at.
    if not torch.compiler.is_compiling() and given.layout not in _LAYOUTS:
        raise NotImplementedError(
            f"{function}: not implemented for {name} of layout {given.layout}; wanted a dense "
            "tensor (torch.strided)"
        )


def check_optional(function: str, **tensors: Any) -> None:
    """check_tensor for each that is not None."""
    for name, given in tensors.items():
        if given is not None:
            check_tensor(function, name, given)


def check_floats(function: str, **tensors: Tensor | None) -> None:
    """Raises NotImplementedError for one of whole numbers or booleans."""
    for name, tensor in tensors.items():
        if tensor is not None and not (tensor.is_floating_point() or tensor.is_complex()):
            raise NotImplementedError(f"{function}: not implemented for {name} of {tensor.dtype}")


def number_of(function: str, name: str, given: Any) -> float:
    """A number as torch's functions take it: also a tensor of no axes."""
    if type(given) is float or isinstance(given, torch.SymFloat | torch.SymInt):
        return given  # type: ignore[return-value]
    scalar = isinstance(given, Tensor) and given.dim() == 0 and not given.requires_grad
    if scalar or isinstance(given, numbers.Real):
        return float(given)
    raise TypeError(f"{function}: Expected {name} to be a number, but got {_kind(given)}")


def truth_of(function: str, name: str, given: Any) -> bool:
    """True or False, or a number that says so: of text, None and containers no truth is asked."""
    if isinstance(given, bool | torch.SymBool):
        return given  # type: ignore[return-value]
    numpys = type(given).__module__ == "numpy" and given.dtype == bool and not given.ndim
    if isinstance(given, Tensor) or not (numpys or _index(given) is not None):
        raise TypeError(f"{function}: Expected {name} to be True or False, but got {_kind(given)}")
    return bool(given)


def rms_eps(eps: float | None, x: Tensor) -> float:
    """eps as torch's RMS norm has it: None stands for that of the arithmetic."""
    return _arithmetic_eps(x.dtype) if eps is None else eps


def _arithmetic_eps(dtype: torch.dtype) -> float:
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def eps_of(function: str, eps: Any, rms: bool, dtype: torch.dtype) -> float:
    """eps of a norm of what has this dtype: that of an RMS norm may be None."""
    if eps is None and rms:
        return _arithmetic_eps(dtype)
    return number_of(function, "eps", eps)


def _index(given: Any) -> int | None:
    """A whole number, as torch takes it for an axis or a size; None for what is none."""
    if type(given) is int:
        return given
    unfit = isinstance(given, bool) or (
        isinstance(given, Tensor) and (given.numel() != 1 or given.dtype == torch.bool)
    )
    if unfit or (type(given).__module__ == "numpy" and getattr(given, "ndim", None)):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def _are_ints(dims: Any) -> bool:
    kinds = set(map(type, dims))
    return not kinds or kinds == {int}


def given_axes(function: str, name: str, dims: Any) -> int | tuple[int, ...]:
    """``dims`` as whole numbers, not looked at further; TypeError for what is no axis or axes."""
    if type(dims) is int:
        return dims
    if type(dims) is range or (type(dims) in (tuple, list) and _are_ints(dims)):
        return tuple(dims)
    one = _index(dims)
    if one is not None:
        return one
    weight = isinstance(dims, Tensor) and (dims.dim() != 1 or dims.is_floating_point())
    found = f"{dims!r}" if isinstance(dims, str | bytes | float) else _kind(dims)
    if isinstance(dims, Iterable) and not isinstance(dims, _NO_AXES) and not weight:
        several = list(dims)
        axes = [axis for axis in map(_index, several) if axis is not None]
        if len(axes) == len(several):
            return tuple(axes)
        wrong = next(dim for dim in several if _index(dim) is None)
        found = f"{_kind(dims)} with {wrong!r}"
    hint = ""
    if isinstance(dims, Tensor) or type(dims).__module__ == "numpy":
        hint = f"; a weight goes behind the dims: planish.{function}(x, dims, weight)"
        found = _kind(dims)
    raise TypeError(
        f"{function}: Expected {name} to be an axis or several, which are whole numbers, but got "
        f"{found}{hint}"
    )


def whole_of(function: str, name: str, given: Any) -> int:
    """A whole number."""
    number = _index(given)
    if number is None:
        raise TypeError(f"{function}: Expected {name} to be a whole number, but got {_kind(given)}")
    return number


def size_of(function: str, name: str, given: Any) -> int:
    """A size, positive."""
    size = whole_of(function, name, given)
    if size <= 0:
        raise ValueError(f"{function}: {name} is {size}; wanted a positive size")
    return size


def sizes_of(function: str, name: str, given: Any) -> tuple[int, ...]:
    """The sizes of the axes of a norm, from one of them or from several, as torch's modules take
    them."""
    if isinstance(given, Iterable) and not isinstance(given, (*_NO_AXES, Tensor)):
        sizes = tuple(size_of(function, name, size) for size in given)
        if sizes:
            return sizes
        raise ValueError(f"{function}: {name} is empty; wanted one size or more")
    return (size_of(function, name, given),)


def axes_of(dims: int | Iterable[int], ndim: int, name: str) -> list[int]:
    """Sorted axes that are not negative; torch's exceptions for what is none. ``dims`` are whole
    numbers (given_axes)."""
    given = [dims] if isinstance(dims, int) else list(dims)
    axes: set[int] = set()
    for dim in given:
        if not -ndim <= dim < ndim:
            if not ndim:
                raise IndexError(
                    f"{name}: Dimension specified as {dim} but x has no dimensions: it is a scalar"
                )
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
    x: Tensor, parameter: Tensor | None, affine: Sequence[int], function: str, name: str
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


def activates(x: Tensor, reduce: tuple[int, ...], affine: tuple[int, ...]) -> bool:
    """Whether a norm over these axes has fast kernels, forward and backward, that an activation can
    be part of: on a GPU where a row's elements are neighbours, or are the channels of images."""
    if device_type(x) == "cpu":
        return True
    if reduce != affine:
        return False
    if reduce == (1,) and x.dim() > 2:
        return x.is_contiguous()
    columns = 1
    for axis, other in zip(reversed(range(x.dim())), reversed(reduce), strict=False):
        if axis != other or (x.shape[axis] != 1 and x.stride(axis) != columns):
            return False
        columns *= x.shape[axis]
    return columns * x.element_size() <= limits.ACTIVATED_BYTES


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


def compute_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """What planish computes in where these meet: f64 where one is f64, else f32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def rounds_xhat(dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether rounding xhat to this dtype before weight and bias is another result."""
    half = dtype in HALF
    return any(t is not None and (half or t.dtype != dtype) for t in (weight, bias))


def kernels_round(
    dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None, weight_offset: float
) -> bool:
    """Whether the kernels mean the same by it: they round to x's 16 bits, and so does torch the
    product of two such tensors."""
    same = all(t is None or t.dtype == dtype for t in (weight, bias))
    return same and not weight_offset and dtype in HALF


def affine_of(
    xhat: Tensor, weight: Tensor | None, bias: Tensor | None, affine: Sequence[int]
) -> Tensor:
    """weight * xhat + bias in torch's own operators and by its promotion of dtypes."""
    sizes = [size if axis in affine else 1 for axis, size in enumerate(xhat.shape)]
    y = xhat if weight is None else weight.reshape(sizes) * xhat
    return y if bias is None else y + bias.reshape(sizes)
