"""One pass of a batch norm over a part of the batch, by the statistics of all parts.

The parts lie with the devices, or the batch elements, of named axes, and each has as many elements
as any other. What they tell each other is f64, with or without jax_enable_x64: mean and sum of
squares (Chan, Golub, LeVeque 1983), then, for dx, the sums that are dweight and dbias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from planish.jax import targets
from planish.jax.calls import RUNNING, Call, compute_dtype

__all__ = ["Run", "run_part"]

_F64 = jnp.float64
Made = Sequence[tuple[str, Any]]
#: One pass over what is here: call, direction, arrays by role, roles and dtypes of the results.
Run = Callable[[Call, int, dict[str, Any], Made], dict[str, Any]]


def run_part(
    run: Run, call: Call, direction: int, given: dict[str, Any], made: Made
) -> dict[str, Any]:
    """The pass by the statistics over all parts of ``call.names``. The gradients of weight and bias
    are those of this part."""
    own = replace(call, names=(), groups=None)
    if call.frozen or not call.names:
        return run(own, direction, given, made)
    with jax.enable_x64(True):
        part = _forward if direction == targets.FORWARD else _backward
        return part(run, own, call, given, dict(made))


def _count(call: Call, x: Any) -> int:
    return math.prod(x.shape[axis] for axis in call.reduce)


def _forward(
    run: Run, own: Call, call: Call, given: dict[str, Any], made: dict[str, Any]
) -> dict[str, Any]:
    x = given["x"]
    found = run(own, targets.STATISTICS, {"x": x}, [(name, _F64) for name in ("mean", "m2")])
    message = jnp.stack([found["mean"], found["m2"]])
    # In the order of the parts, so that all of them get the same bits.
    all_parts = jax.lax.all_gather(message, call.names, axis_index_groups=call.groups)
    means, squares = all_parts[:, 0], all_parts[:, 1]
    mean = means.mean(0)
    m2 = squares.sum(0) + _count(call, x) * jnp.square(means - mean).sum(0)
    count = _count(call, x) * means.shape[0]
    rstd = jax.lax.rsqrt(m2 / count + call.eps)
    behind = {name: array for name, array in given.items() if name not in RUNNING}
    results = run(own, targets.APPLY, behind | {"mean": mean, "rstd": rstd}, [("y", made["y"])])
    if RUNNING & given.keys():
        share, unbiased = call.momentum, m2 / max(count - 1, 0)
        for name, new in (("running_mean", mean), ("running_var", unbiased)):
            results[name] = (1 - share) * given[name].astype(_F64) + share * new
    results |= {"mean": mean, "rstd": rstd}
    return {name: results[name].astype(dtype) for name, dtype in made.items()}


def _backward(
    run: Run, own: Call, call: Call, given: dict[str, Any], made: dict[str, Any]
) -> dict[str, Any]:
    wide = compute_dtype([array for name, array in given.items() if name not in ("mean", "rstd")])
    first = {name: dtype for name, dtype in made.items() if name == "daddend"}
    sums = run(own, targets.BACKWARD, given, [*first.items(), ("dweight", wide), ("dbias", wide)])
    everywhere = jnp.stack([sums["dbias"], sums["dweight"]]).astype(_F64)
    everywhere = jax.lax.psum(everywhere, call.names, axis_index_groups=call.groups)
    count = jax.lax.psum(_count(call, given["x"]), call.names, axis_index_groups=call.groups)
    weight = given["weight"].astype(_F64) + call.weight_offset if "weight" in given else 1.0
    c1, c2 = everywhere * (weight / count)
    dx = run(own, targets.BACKWARD, given | {"c1": c1, "c2": c2}, [("dx", made["dx"])])
    return {name: (dx | sums)[name].astype(dtype) for name, dtype in made.items()}
