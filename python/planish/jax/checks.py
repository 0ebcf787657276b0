"""Arguments of the functions: what is wrong with one is said with its name."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from planish.jax.calls import Axes

__all__ = ["DTYPES", "axes_of", "check_array", "check_like", "check_parameter", "number_of"]

DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_array(function: str, name: str, array: Any) -> None:
    """An array of f16, bf16, f32 or f64."""
    found = getattr(array, "dtype", None)
    if found is None or not hasattr(array, "shape"):
        raise TypeError(f"{function}: {name} is a {type(array).__name__}; wanted an array")
    if jnp.dtype(found).name not in DTYPES:
        raise TypeError(f"{function}: {name} is {found}; wanted {', '.join(DTYPES)}")


def check_like(function: str, name: str, array: Any, shape: Sequence[int]) -> None:
    """One of just this shape."""
    check_array(function, name, array)
    if tuple(array.shape) != tuple(shape):
        raise ValueError(
            f"{function}: {name} has shape {tuple(array.shape)}; wanted {tuple(shape)}"
        )


def check_parameter(function: str, name: str, array: Any, shape: Sequence[int]) -> None:
    """The same, or None."""
    if array is not None:
        check_like(function, name, array, shape)


def number_of(function: str, name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{function}: {name} is a {type(value).__name__}; wanted a number")
    if not math.isfinite(value):
        raise ValueError(f"{function}: {name} is {value}; wanted a finite number")
    return float(value)


def axes_of(function: str, axis: int | Sequence[int], ndim: int) -> Axes:
    """Counted from the end, in their order."""
    given = axis if isinstance(axis, Sequence) else (axis,)
    found = []
    for each in given:
        number = operator.index(each)
        if not -ndim <= number < ndim:
            raise ValueError(f"{function}: axis {number} is out of range; x has {ndim} axes")
        found.append(number % ndim - ndim)
    if not found or len(set(found)) != len(found):
        raise ValueError(f"{function}: axis is {axis}; wanted one axis or more, each once")
    return tuple(sorted(found))
