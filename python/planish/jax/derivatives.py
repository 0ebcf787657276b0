"""The norm as a function of arrays by role that JAX differentiates, to any order.

The first derivative is planish's backward. That of the backward is taken of its formula. No
gradient reaches running statistics, those that are given and those that are made, nor mean and
rstd.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from planish.jax import formulas, targets
from planish.jax.calls import RUNNING, Call, compute_dtype, wide_where_f64
from planish.jax.passes import run

__all__ = ["Arrays", "norm"]

Arrays = dict[str, Any]
#: What x is multiplied by before the sum.
_FACTORS = ("row_scale", "column_scale", "rng")
#: What the derivative of a backward is not taken of.
_FIXED = RUNNING | {"mean", "rstd", "y"}
#: What follows a norm.
_BEHIND = ("scale", "shift", "gate", "addend")
_RELU = 2


def _exact(call: Call, given: Arrays) -> bool:
    """Whether a backward wants statistics of f64: where it makes again what follows the norm, and
    where it has a part of a batch alone. It would have to mend a rounded mean by x."""
    behind = call.activation or any(name in given for name in _BEHIND)
    return not call.rms and bool(behind or call.names)


def _made(call: Call, given: Arrays) -> list[tuple[str, Any]]:
    made = [("y", call.y_dtype), ("sum", call.sum_dtype), ("q", call.q_dtype)]
    made = [(name, dtype) for name, dtype in made if dtype is not None]
    if call.q_dtype is not None and "y_scale" not in given:
        made.append(("y_scales", jnp.dtype("float32")))
    if call.saves and not call.frozen:
        wide = jnp.float64 if call.exact else compute_dtype(list(given.values()))
        made += [("rstd", wide)] if call.rms else [("mean", wide), ("rstd", wide)]
    if not call.frozen:
        made += [(name, given[name].dtype) for name in sorted(RUNNING & given.keys())]
    return made


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def norm(call: Call, given: Arrays) -> Arrays:
    """The forward: y and, where the call has a dtype for it, sum or q, by role; the statistics
    where it saves them, and the running ones that it was given, brought up to date."""
    return run(call, targets.APPLY if call.frozen else targets.FORWARD, given, _made(call, given))


def _save(call: Call, given: Arrays) -> tuple[Arrays, tuple[Arrays, Arrays]]:
    """With the statistics. Where s is not x itself it is a result, sum."""
    found = norm(replace(call, saves=True, exact=_exact(call, given)), given)
    with wide_where_f64(list(found.values())):
        results = {name: found[name].astype(dtype) for name, dtype in _made(call, given)}
    return results, (given, found)


def _wanted(call: Call, given: Arrays) -> dict[str, Any]:
    """The gradients that planish makes, and their dtypes; what is dropped of these XLA drops."""
    wanted = {"dx": given["x"].dtype}
    if "residual" in given and (
        any(name in given for name in _FACTORS) or given["residual"].dtype != given["x"].dtype
    ):
        wanted["dresidual"] = given["residual"].dtype
    for name in ("weight", "bias", "scale", "shift", "gate", "column_scale"):
        if name in given:
            wanted[f"d{name}"] = given[name].dtype
    if "addend" in given and call.activation:
        wanted["daddend"] = given["addend"].dtype
    return wanted


def _pull(call: Call, saved: tuple[Arrays, Arrays], cotangents: Arrays) -> tuple[Arrays]:
    given, found = saved
    by_y = call.activation == _RELU and "addend" in given
    behind = call.activation or any(name in given for name in _BEHIND if name != "addend")
    reads_bias = behind and not by_y
    dropped = {"x", "residual", "bias"} | (set() if call.frozen else RUNNING)
    if by_y or not call.activation:
        dropped.add("addend")
    kept = {name: array for name, array in given.items() if name not in dropped}
    kept |= {name: found[name] for name in ("mean", "rstd") if name in found}
    if by_y:
        kept["y"] = found["y"]
    kept["x"] = found.get("sum", given["x"])
    kept["dy"] = cotangents["y"]
    if "bias" in given and reads_bias:
        kept["bias"] = given["bias"]
    if "sum" in cotangents:
        kept["dsum"] = cotangents["sum"]
    if "column_scale" in given:
        kept["branch"] = given["x"]
    wanted = tuple(sorted(_wanted(call, given).items()))
    gradients = _backward(call, wanted, kept)
    if "addend" in given and not call.activation:
        gradients["daddend"] = kept["dy"].astype(given["addend"].dtype)
    return ({name: _gradient(name, given, gradients) for name in given},)


def _gradient(name: str, given: Arrays, gradients: Arrays) -> Any:
    if name == "residual" and "dresidual" not in gradients:
        return gradients["dx"]
    # None: a seed, running statistics, or row_scale, which stop_gradient went over.
    return gradients.get(f"d{name}")


norm.defvjp(_save, _pull)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _backward(call: Call, made: tuple[tuple[str, Any], ...], given: Arrays) -> Arrays:
    return run(call, targets.BACKWARD, given, made)


def _save_backward(
    call: Call, made: tuple[tuple[str, Any], ...], given: Arrays
) -> tuple[Arrays, Arrays]:
    return _backward(call, made, given), given


def _pull_backward(
    call: Call, made: tuple[tuple[str, Any], ...], given: Arrays, cotangents: Arrays
) -> tuple[Arrays]:
    """mean and rstd are functions of x here, so their own cotangents are 0."""
    fixed = {name: array for name, array in given.items() if name in _FIXED}
    floats = {name: array for name, array in given.items() if name not in _FIXED}
    _, pull = jax.vjp(lambda each: formulas.backward(call, fixed | each, dict(made)), floats)
    (found,) = pull(cotangents)
    with wide_where_f64(list(fixed.values())):
        return ({**found, **{name: jnp.zeros_like(array) for name, array in fixed.items()}},)


_backward.defvjp(_save_backward, _pull_backward)
