"""What a norm is besides its arrays.

Axes are counted from the end, -1 the last one, so that a batch axis in front changes none.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from planish.library import structs

__all__ = ["AFFINE", "COLUMN", "FULL", "KEPT", "MODULATION", "RUNNING", "SINGLE"]
__all__ += ["Axes", "Call", "compute_dtype", "wide_where_f64"]

Axes = tuple[int, ...]
#: The roles of x's shape, those by the axes that are not reduced, those of one or two elements.
FULL = frozenset("x y dy dx residual sum gate mask q branch dsum dresidual dgate".split())  # noqa: SIM905
FULL |= {"addend", "daddend"}
RUNNING = frozenset({"running_mean", "running_var"})
KEPT = frozenset({"mean", "rstd", "m2", "c1", "c2", "row_scale", "y_scales"}) | RUNNING
SINGLE = frozenset({"rng", "y_scale", "amax"})
AFFINE = frozenset({"weight", "bias", "dweight", "dbias"})
COLUMN = frozenset({"column_scale", "dcolumn_scale"})
MODULATION = frozenset({"scale", "shift", "dscale", "dshift"})


@dataclass(frozen=True)
class Call:
    """planish_norm, its axes counted from the end; and the dtypes of what it makes."""

    reduce: Axes
    affine: Axes
    rms: bool = False
    eps: float = 0.0
    weight_offset: int = 0
    activation: int = 0
    column: Axes = ()
    modulation: Axes = ()
    gate_before: bool = False
    round_xhat: bool = False
    dropout_p: float = 0.0
    scale_block: int = 0
    power_of_two: bool = False
    y_dtype: Any = None  #: None: there is no y
    sum_dtype: Any = None  #: None: there is no sum
    q_dtype: Any = None  #: None: nothing is quantised
    saves: bool = False  #: the statistics are results, too,
    exact: bool = False  #: and of f64
    batch: bool = False  #: a batch norm: devices may each have a part of the reduced axes
    frozen: bool = False  #: by the running statistics, which do not depend on x
    momentum: float = 0.0
    #: The named axes over whose parts the statistics are taken, and jax.lax's axis_index_groups.
    names: tuple[Any, ...] = ()
    groups: tuple[tuple[int, ...], ...] | None = None

    def op(self, ndim: int) -> structs.Norm:
        """For an x of so many axes."""

        def bits(axes: Axes) -> int:
            return sum(1 << ndim + axis for axis in axes)

        return structs.Norm(
            struct_size=ctypes.sizeof(structs.Norm),
            kind=int(self.rms),
            weight_offset=self.weight_offset,
            reduce_axes=bits(self.reduce),
            affine_axes=bits(self.affine),
            eps=self.eps,
            activation=self.activation,
            modulation_axes=bits(self.modulation),
            column_axes=bits(self.column),
            gate=int(self.gate_before),
            rounding=int(self.round_xhat),
            dropout_p=self.dropout_p,
            scale_block=self.scale_block,
            scale_format=int(self.power_of_two),
            momentum=self.momentum,
        )

    def axes_of(self, role: str, ndim: int) -> Axes:
        """Those of x that a role's array has, in their order."""
        if role in FULL:
            return tuple(range(-ndim, 0))
        if role in KEPT:
            return tuple(axis for axis in range(-ndim, 0) if axis not in self.reduce)
        for members, axes in (
            (AFFINE, self.affine), (COLUMN, self.column), (MODULATION, self.modulation)
        ):  # fmt: skip
            if role in members:
                return tuple(sorted(axes))
        return ()

    def shape_of(self, role: str, shape: Sequence[int]) -> tuple[int, ...]:
        """That of a role's array, for an x of this shape."""
        if role in SINGLE:
            return (2,) if role == "rng" else (1,)
        sizes = tuple(shape[axis] for axis in self.axes_of(role, len(shape)))
        if role == "y_scales" and self.scale_block:
            columns = math.prod(shape[axis] for axis in self.reduce)
            sizes += (-(-columns // self.scale_block),)
        return sizes


def compute_dtype(arrays: Sequence[Any]) -> Any:
    """That of the arithmetic: f64 if any is f64, else f32."""
    double = any(array.dtype == jnp.float64 for array in arrays)
    return jnp.dtype(jnp.float64 if double else jnp.float32)


def wide_where_f64(arrays: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
    """Where JAX takes f64 as it is, if one is: statistics may be f64 without jax_enable_x64."""
    if any(array.dtype == jnp.float64 for array in arrays):
        return jax.enable_x64(True)
    return contextlib.nullcontext()
