"""Inputs, and the formulas in numpy's longest float."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

WIDE = np.longdouble
#: One ULP of each dtype at 1.
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def array(seed: int, shape: tuple[int, ...], dtype: Any = "float32", mean: float = 0.0) -> Any:
    """Normal numbers of this dtype."""
    numbers = np.random.default_rng(seed).standard_normal(shape) + mean
    return jnp.asarray(numbers, dtype)


def exact(value: Any) -> Any:
    """The same numbers in long double."""
    return np.asarray(value).astype(np.float64).astype(WIDE)


def normed(x: Any, axes: Any, eps: float, rms: bool) -> Any:
    """xhat in long double."""
    mean = 0 if rms else x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + WIDE(eps))


def silu(z: Any) -> Any:
    return z / (1 + np.exp(-z))


def assert_near(found: Any, wanted: Any, ulps: float) -> None:
    """Within so many ULP of found's dtype, of the largest magnitude in the last axis."""
    room = ulps * ULP[str(found.dtype)] * np.abs(wanted).max(-1, keepdims=True)
    error = np.abs(exact(found) - wanted)
    assert (error <= room).all(), f"off by up to {float((error / room).max()) * ulps:.3g} ULP"
