"""Batch norm for JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import export

from planish.jax.calls import Call
from planish.jax.checks import axes_of, check_array, check_like, check_parameter, number_of
from planish.jax.derivatives import norm
from planish.jax.functions import activation_of, present

__all__ = ["BatchNormResult", "batch_norm", "names_of"]


class BatchNormResult(NamedTuple):
    """What :func:`batch_norm` returns."""

    y: Any
    #: Brought up to date in training, else as they were given; None without.
    running_mean: Any
    running_var: Any
    #: Those of the batch, 1 / sqrt(var + eps) the second; None where not in training.
    mean: Any
    rstd: Any


export.register_namedtuple_serialization(
    BatchNormResult, serialized_name="planish.jax.BatchNormResult"
)


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    training: bool = False,
    momentum: float = 0.1,
    channel_axis: int = -1,
    activation: str | None = None,
    addend: Any = None,
    axis_name: str | Sequence[str] | None = None,
    out_dtype: Any = None,
) -> BatchNormResult:
    """Batch normalization, and what stands behind it in the same pass over memory:

        y = act((x - mean) / sqrt(var + eps) * weight + bias + addend)

    In training mean and (biased) variance are those of each channel, over all other axes, and the
    running statistics that come back, where any are given, are

        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var  = (1 - momentum) * running_var  + momentum * var * n / (n - 1)

    in f64, rounded once, n being the number of elements of a channel: torch's formula. Otherwise
    they are the mean and the variance, and may not be None. Vectors have one element for each
    channel, ``addend`` has x's shape. ``eps`` and ``momentum`` are numbers.

    ``axis_name``: the statistics are taken over the parts of a named axis or of several, those of
    shard_map, vmap or pmap; each part has the gradients of its own weight and bias, to be added up.
    Under jit alone no name is wanted: where x's other axes are divided among devices, statistics
    and gradients are those of the whole array, and x is not gathered.

    No gradient reaches the running statistics, nor mean and rstd. Dtypes, ``activation`` and
    transforms are those of :func:`layer_norm`; bits are the same for any number of threads.

    Raises TypeError and ValueError as :func:`layer_norm`, ValueError for running statistics that
    are missing.

    >>> import jax.numpy as jnp, planish.jax
    >>> images, zeros, ones = jnp.ones((2, 8, 8, 32)), jnp.zeros(32), jnp.ones(32)
    >>> found = planish.jax.batch_norm(images, zeros, ones, training=True, activation="relu")
    >>> found.y.shape, float(found.running_mean[0])
    ((2, 8, 8, 32), 0.10000000149011612)
    """
    function = "batch_norm"
    check_array(function, "x", x)
    (channel,) = axes_of(function, (channel_axis,), x.ndim)
    vectors = present(running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    _check(function, x, channel, vectors, addend, training)
    call = Call(
        tuple(axis for axis in range(-x.ndim, 0) if axis != channel),
        (channel,),
        eps=number_of(function, "eps", eps),
        activation=activation_of(function, activation),
        y_dtype=jnp.dtype(out_dtype or x.dtype),
        saves=training,
        batch=True,
        frozen=not training,
        momentum=number_of(function, "momentum", momentum) if training else 0.0,
        names=names_of(axis_name) if training else (),
    )
    found = norm(call, {"x": x, **vectors, **present(addend=addend)})
    after = vectors | found
    return BatchNormResult(
        found["y"],
        after.get("running_mean"),
        after.get("running_var"),
        found.get("mean"),
        found.get("rstd"),
    )


def _check(
    function: str, x: Any, channel: int, vectors: dict[str, Any], addend: Any, training: bool
) -> None:
    if x.ndim < 2:
        raise ValueError(f"{function}: x has {x.ndim} axis; wanted 2 or more")
    for name, vector in vectors.items():
        check_parameter(function, name, vector, [x.shape[channel]])
    if addend is not None:
        check_like(function, "addend", addend, x.shape)
    missing = [name for name in ("running_mean", "running_var") if name not in vectors]
    if missing and not (training and len(missing) == 2):
        wanted = "both, or in training neither" if training else "both, as training is False"
        raise ValueError(f"{function}: {' and '.join(missing)} is None; wanted {wanted}")


def names_of(axis_name: Any) -> tuple[Any, ...]:
    """The named axes of flax's or jax.lax's ``axis_name``."""
    if axis_name is None:
        return ()
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
