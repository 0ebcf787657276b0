"""The backward in JAX's own operators: what the derivative of planish's backward is taken of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from planish.jax.calls import RUNNING, Axes, Call, compute_dtype

__all__ = ["backward", "forward"]

_ACTIVATIONS = {
    0: lambda z: z,
    1: jax.nn.silu,
    2: jax.nn.relu,
    3: lambda z: jax.nn.gelu(z, approximate=False),
    4: lambda z: jax.nn.gelu(z, approximate=True),
    5: jax.nn.relu6,
    6: jax.nn.hard_swish,
}


def _along(array: Any, axes: Axes, ndim: int, dtype: Any) -> Any:
    """With the rank of x, 1 on every other axis."""
    sizes = dict(zip(sorted(axes), array.shape, strict=True))
    return array.astype(dtype).reshape([sizes.get(axis, 1) for axis in range(-ndim, 0)])


def _kept(array: Any, call: Call, ndim: int, dtype: Any) -> Any:
    axes = tuple(axis for axis in range(-ndim, 0) if axis not in call.reduce)
    return _along(array, axes, ndim, dtype)


def _mean(call: Call, array: Any) -> Any:
    """Over the reduced axes, and over the parts of the named ones."""
    own = array.mean(call.reduce, keepdims=True)
    return jax.lax.pmean(own, call.names, axis_index_groups=call.groups) if call.names else own


def forward(call: Call, given: Mapping[str, Any], eps: Any = None) -> Any:
    """y of s = ``given["x"]`` and what stands behind the norm, in the type of the arithmetic.
    ``eps``: in place of the call's."""
    s = given["x"]
    ndim, wide = s.ndim, compute_dtype(list(given.values()))
    s = s.astype(wide)
    if call.gate_before:
        s = s * jax.nn.silu(given["gate"].astype(wide))
    if call.frozen:
        mean, variance = (_kept(given[f"running_{n}"], call, ndim, wide) for n in ("mean", "var"))
        centred = s - mean
    else:
        mean = 0.0 if call.rms else _mean(call, s)
        centred = s - mean
        variance = _mean(call, jnp.square(centred))
    z = centred * jax.lax.rsqrt(variance + (call.eps if eps is None else eps))
    if "weight" in given:
        z = z * (call.weight_offset + _along(given["weight"], call.affine, ndim, wide))
    if "bias" in given:
        z = z + _along(given["bias"], call.affine, ndim, wide)
    if "scale" in given:
        z = z * (1 + _along(given["scale"], call.modulation, ndim, wide))
    if "shift" in given:
        z = z + _along(given["shift"], call.modulation, ndim, wide)
    if "addend" in given:
        z = z + given["addend"].astype(wide)
    z = _ACTIVATIONS[call.activation](z)
    if "gate" in given and not call.gate_before:
        z = z * jax.nn.silu(given["gate"].astype(wide))
    return z


def backward(call: Call, given: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """What PLANISH_BACKWARD makes of dy, x (which is s) and the rest, by role, in these dtypes;
    mean and rstd are made again of x. With y, that of a ReLU, dy passes where y says."""
    if "rng" in given:
        raise NotImplementedError("planish.jax: a second derivative through dropout is not there")
    wide = compute_dtype([array for name, array in given.items() if name not in ("mean", "rstd")])
    ndim, dy = given["x"].ndim, given["dy"].astype(wide)
    if "y" in given:
        dy = jnp.where(given["y"] <= 0, 0, dy)  # NaN passes
        call = replace(call, activation=0)
    behind = {
        name: given[name].astype(wide)
        for name in ("x", "weight", "bias", "scale", "shift", "gate", "addend")
        if name in given
    }
    # Where the bias is not read it is not given, and its gradient is that of any.
    if "dbias" in made and "bias" not in behind:
        behind["bias"] = jnp.zeros(call.shape_of("bias", given["x"].shape), wide)
    if "dshift" in made and "shift" not in behind:
        behind["shift"] = jnp.zeros(call.shape_of("shift", given["x"].shape), wide)
    running = {name: given[name] for name in RUNNING & given.keys()}
    _, pull = jax.vjp(lambda each: forward(call, running | each), behind)
    (found,) = pull(dy)
    gradients = {"daddend": dy} | {f"d{name}": gradient for name, gradient in found.items()}
    ds = gradients["dx"]
    if "dsum" in given:
        ds = ds + given["dsum"].astype(wide)
    factor: Any = 1.0
    if "row_scale" in given:
        factor = _kept(given["row_scale"], call, ndim, wide)
    if "dcolumn_scale" in made:
        others = tuple(axis for axis in range(-ndim, 0) if axis not in call.column)
        gradients["dcolumn_scale"] = (ds * given["branch"].astype(wide) * factor).sum(others)
    if "column_scale" in given:
        factor = factor * _along(given["column_scale"], call.column, ndim, wide)
    gradients["dresidual"], gradients["dx"] = ds, ds * factor
    return {name: gradients[name].astype(dtype) for name, dtype in made.items()}
