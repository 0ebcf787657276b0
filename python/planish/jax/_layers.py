"""What the layers of flax.nnx and flax.linen share: which of their calls planish runs, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from planish.jax.calls import Call
from planish.jax.checks import axes_of
from planish.jax.derivatives import norm
from planish.jax.functions import group_norm

__all__ = ["normalize", "normalize_groups", "runs"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def runs(layer: Any, x: Any, mask: Any) -> bool:
    """Whether planish runs the call; else flax's own text does: masks, statistics over devices of a
    named axis, and other dtypes."""
    return (
        mask is None
        and layer.axis_name is None
        and getattr(layer, "force_float32_reductions", True)
        and jnp.dtype(x.dtype).name in _DTYPES
        and x.ndim > 0
    )


def _sorted(axes: Any) -> Sequence[int]:
    return axes if isinstance(axes, Sequence) else (axes,)


def normalize(
    name: str,
    rms: bool,
    x: Any,
    scale: Any,
    bias: Any,
    epsilon: float,
    reduction_axes: Any,
    feature_axes: Any,
    dtype: Any,
) -> Any:
    """Over any axes, with scale and bias along any: each has the sizes of its axes in the order
    given."""
    reduce = axes_of(name, tuple(_sorted(reduction_axes)), x.ndim)
    features = [axis % x.ndim - x.ndim for axis in _sorted(feature_axes)]
    order = sorted(range(len(features)), key=features.__getitem__)
    given = {"x": x}
    for role, parameter in (("weight", scale), ("bias", bias)):
        if parameter is not None:
            given[role] = jnp.transpose(parameter, order)
    call = Call(reduce, tuple(sorted(features)), rms, float(epsilon), y_dtype=jnp.dtype(dtype))
    return norm(call, given)["y"]


def normalize_groups(layer: Any, x: Any, groups: int, scale: Any, bias: Any, dtype: Any) -> Any:
    """Channels last."""
    return group_norm(x, groups, scale, bias, float(layer.epsilon), out_dtype=dtype)
