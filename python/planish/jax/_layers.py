"""What the layers of flax.nnx and flax.linen share: which of their calls planish runs, and how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from planish.jax.batch_functions import names_of
from planish.jax.calls import Call, compute_dtype
from planish.jax.checks import DTYPES, axes_of
from planish.jax.derivatives import norm
from planish.jax.functions import group_norm, present

__all__ = ["normalize", "normalize_batch", "normalize_groups", "runs", "runs_batch"]


def runs(layer: Any, x: Any, mask: Any) -> bool:
    """Whether planish runs the call; else flax's own text does: masks, statistics over devices of a
    named axis, and other dtypes."""
    return layer.axis_name is None and _takes(layer, x, mask)


def _takes(layer: Any, x: Any, mask: Any) -> bool:
    return (
        mask is None
        and getattr(layer, "force_float32_reductions", True)
        and jnp.dtype(x.dtype).name in DTYPES
        and x.ndim > 0
    )


def runs_batch(layer: Any, x: Any, mask: Any) -> bool:
    """The same of a batch norm, for which named axes are no matter."""
    features = {axis % x.ndim for axis in _sorted(layer.axis)} if x.ndim else set()
    return x.size > 0 and len(features) < x.ndim and _takes(layer, x, mask)


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


def normalize_batch(
    layer: Any,
    x: Any,
    scale: Any,
    bias: Any,
    running: tuple[Any, Any] | None,
    dtype: Any,
    named: bool = True,
) -> tuple[Any, Any, Any]:
    """y, and mean and variance that it was made with: ``running``, or those of the batch (of the
    parts of the layer's named axis, too, where ``named``)."""
    channels = axes_of("BatchNorm", tuple(_sorted(layer.axis)), x.ndim)
    reduce = tuple(axis for axis in range(-x.ndim, 0) if axis not in channels)
    groups = layer.axis_index_groups
    call = Call(
        reduce,
        channels,
        eps=float(layer.epsilon),
        y_dtype=jnp.dtype(dtype),
        batch=True,
        frozen=running is not None,
        momentum=0.0 if running is not None else 1.0,
        names=names_of(layer.axis_name) if named and running is None else (),
        groups=None if groups is None else tuple(map(tuple, groups)),
    )
    sizes = [x.shape[axis] for axis in channels]
    mean, var = running or (jnp.zeros(sizes, compute_dtype([x])),) * 2
    found = norm(call, present(x=x, weight=scale, bias=bias, running_mean=mean, running_var=var))
    if running is not None:
        return found["y"], mean, var
    # Of the running variance the new part is unbiased, flax's is not.
    count = math.prod(x.shape[axis] for axis in reduce)
    if call.names:
        count *= len(groups[0]) if groups is not None else jax.lax.axis_size(call.names)
    share = (count - 1) / count
    return found["y"], found["running_mean"], found["running_var"] * share if share else var
