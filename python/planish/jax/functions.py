"""Norms for JAX; those with stages around them are in stage_functions.py."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from planish.jax import formulas
from planish.jax.calls import Call
from planish.jax.checks import axes_of, check_array, check_parameter, number_of
from planish.jax.derivatives import norm

__all__ = ["activation_of", "group_norm", "layer_norm", "offset_of", "plain", "present"]
__all__ += ["rms_norm", "rounds"]

_ACTIVATIONS = {None: 0, "silu": 1, "swish": 1, "relu": 2, "gelu": 3, "gelu_tanh": 4}
_ACTIVATIONS |= {"relu6": 5, "hardswish": 6}


def activation_of(function: str, name: str | None) -> int:
    if name not in _ACTIVATIONS:
        known = ", ".join(repr(known) for known in _ACTIVATIONS)
        raise ValueError(f"{function}: activation is {name!r}; known are {known}")
    return _ACTIVATIONS[name]


def present(**arrays: Any) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if array is not None}


def _run(call: Call, eps: Any, given: dict[str, Any]) -> dict[str, Any]:
    """By planish where eps is a number, else by the formula in JAX's own operators."""
    if isinstance(eps, numbers.Real):
        return norm(call, given)
    return {"y": formulas.forward(call, given, eps).astype(call.y_dtype)}


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
    *,
    axis: int | Sequence[int] = -1,
    weight_offset: float = 0.0,
    activation: str | None = None,
    out_dtype: Any = None,
) -> Any:
    """Layer normalization over any axes.

        y = act((x - mean) / sqrt(var + eps) * (weight_offset + weight) + bias)

    ``weight`` and ``bias`` have the sizes of the axes ``axis`` in their order in x, or are None.
    Dtypes: float16, bfloat16, float32, float64, each array its own; the arithmetic is f32, f64 if
    any array is. The result is rounded once, to ``out_dtype`` (x's by default). ``activation``:
    None, "silu", "relu", "gelu", "gelu_tanh", "relu6" or "hardswish". Bits depend on the row alone,
    not on threads or on the batch. ``eps`` may be traced; the norm is then made of JAX's own
    operators.

    Works under jit, grad (to any order), vmap, scan, remat and shard_map, on CPUs and NVIDIA GPUs.

    Raises TypeError for what is no array of these dtypes, ValueError for shapes and axes that do
    not fit.

    >>> import jax.numpy as jnp, planish.jax
    >>> planish.jax.layer_norm(jnp.array([[1.0, 2.0, 3.0, 6.0]])).shape
    (1, 4)
    """
    return plain("layer_norm", False, x, weight, bias, eps, axis, weight_offset, activation,
                  out_dtype)  # fmt: skip


def rms_norm(
    x: Any,
    weight: Any = None,
    eps: Any = 1e-6,
    *,
    axis: int | Sequence[int] = -1,
    weight_offset: float = 0.0,
    activation: str | None = None,
    cast: str = "once",
    out_dtype: Any = None,
) -> Any:
    """RMS normalization over any axes: y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight).

    ``weight_offset=1``: weights are stored around zero, as Gemma's. ``cast``: "once", the result is
    rounded at the end; "xhat", the normalised x is rounded to x's dtype before it meets the weight,
    as models do whose RMSNorm is written so. Everything else as :func:`layer_norm`.

    >>> import jax.numpy as jnp, planish.jax
    >>> planish.jax.rms_norm(jnp.ones((2, 8)), jnp.ones(8)).dtype
    dtype('float32')
    """
    return plain("rms_norm", True, x, weight, None, eps, axis, weight_offset, activation,
                  out_dtype, cast)  # fmt: skip


def rounds(function: str, cast: str, x: Any) -> bool:
    if cast not in ("once", "xhat"):
        raise ValueError(f"{function}: cast is {cast!r}; known are 'once' and 'xhat'")
    return cast == "xhat" and x.dtype in (jnp.float16, jnp.bfloat16)


def plain(
    function: str,
    rms: bool,
    x: Any,
    weight: Any,
    bias: Any,
    eps: Any,
    axis: int | Sequence[int],
    weight_offset: float,
    activation: str | None,
    out_dtype: Any,
    cast: str = "once",
) -> Any:
    check_array(function, "x", x)
    axes = axes_of(function, axis, x.ndim)
    for name, parameter in (("weight", weight), ("bias", bias)):
        check_parameter(function, name, parameter, [x.shape[i] for i in axes])
    call = Call(
        axes,
        axes,
        rms,
        number_of(function, "eps", eps) if isinstance(eps, numbers.Real) else 0.0,
        offset_of(function, weight_offset),
        activation_of(function, activation),
        round_xhat=rounds(function, cast, x),
        y_dtype=jnp.dtype(out_dtype or x.dtype),
    )
    return _run(call, eps, present(x=x, weight=weight, bias=bias))["y"]


def offset_of(function: str, value: float) -> int:
    if value not in (0, 1):
        raise ValueError(f"{function}: weight_offset is {value!r}; known are 0 and 1")
    return int(value)


def group_norm(
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = -1,
    activation: str | None = None,
    out_dtype: Any = None,
) -> Any:
    """Group normalization of x (N, ...): over a group of neighbouring channels and all axes but the
    first. ``weight`` and ``bias`` have one element for each channel.

    ``channel_axis``: -1 (channels last) or 1 (channels first). Everything else as
    :func:`layer_norm`; ``num_groups`` has to divide the channels (ValueError).

    >>> import jax.numpy as jnp, planish.jax
    >>> planish.jax.group_norm(jnp.ones((2, 8, 8, 32)), 4, activation="silu").shape
    (2, 8, 8, 32)
    """
    function = "group_norm"
    check_array(function, "x", x)
    if x.ndim < 2 or channel_axis not in (-1, 1, x.ndim - 1):
        raise ValueError(
            f"{function}: channel_axis is {channel_axis} of an x with {x.ndim} axes; wanted -1 or "
            "1, and 2 axes or more"
        )
    first = channel_axis == 1 and x.ndim > 2
    channels = x.shape[channel_axis]
    if num_groups <= 0 or channels % num_groups:
        raise ValueError(
            f"{function}: num_groups is {num_groups}; wanted a divisor of the {channels} channels"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        check_parameter(function, name, parameter, [channels])
    parts = (num_groups, channels // num_groups)
    if first:
        seen = x.reshape(x.shape[0], *parts, *x.shape[2:])
        affine = (1 - seen.ndim, 2 - seen.ndim)
        reduce = tuple(range(2 - seen.ndim, 0))
    else:
        seen = x.reshape(*x.shape[:-1], *parts)
        affine = (-2, -1)
        reduce = (*range(1 - seen.ndim, -2), -1)
    call = Call(
        reduce,
        affine,
        eps=number_of(function, "eps", eps),
        activation=activation_of(function, activation),
        y_dtype=jnp.dtype(out_dtype or x.dtype),
    )
    given = {
        name: parameter.reshape(parts)
        for name, parameter in present(weight=weight, bias=bias).items()
    }
    return norm(call, {"x": seen, **given})["y"].reshape(x.shape)
