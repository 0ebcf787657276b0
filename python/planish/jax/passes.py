"""One pass of a norm under jit, vmap, named axes and partitioning."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from planish.jax import targets
from planish.jax.calls import AFFINE, COLUMN, FULL, KEPT, MODULATION, SINGLE, Call, wide_where_f64
from planish.jax.merging import run_part
from planish.jax.partitions import partitioned

__all__ = ["run"]


def _here(
    call: Call, direction: int, given: dict[str, Any], made: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """On one device."""
    shape = given["x"].shape
    results = {
        name: jax.ShapeDtypeStruct(call.shape_of(name, shape), dtype) for name, dtype in made
    }
    with wide_where_f64([*given.values(), *results.values()]):
        return targets.call(call.op(len(shape)), direction, given, results)


@functools.cache
def _runner(
    call: Call, direction: int, given: tuple[str, ...], made: tuple[tuple[str, Any], ...]
) -> Any:
    """The pass as a function of arrays, in the order of ``given``, which vmap knows."""

    def part(names: tuple[str, ...], *arrays: Any) -> Any:
        by_role = dict(zip(given, arrays, strict=True))
        found = run_part(_here, replace(call, names=names), direction, by_role, made)
        return tuple(found[name] for name, _ in made)

    @jax.custom_batching.custom_vmap
    def run(*arrays: Any) -> Any:
        ndim = len(arrays[given.index("x")].shape)
        return partitioned(call, given, tuple(name for name, _ in made), ndim, part)(*arrays)

    @run.def_vmap
    def rule(size: int, in_batched: Sequence[bool], *arrays: Any) -> Any:
        batched = tuple(
            array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
            for array, is_batched in zip(arrays, in_batched, strict=True)
        )
        by_role = dict(zip(given, in_batched, strict=True))
        wider = _batched_call(call, len(arrays[given.index("x")].shape) - by_role["x"], by_role,
                              [name for name, _ in made])  # fmt: skip
        if wider is None:
            one = _runner(call, direction, given, made)
            found = jax.lax.map(lambda each: one(*each), batched)
        else:
            kept = tuple(
                array if name in wider[1] else original
                for name, array, original in zip(given, batched, arrays, strict=True)
            )
            found = _runner(wider[0], direction, given, made)(*kept)
        return found, tuple(True for _ in found)

    return run


def _batched_call(
    call: Call, ndim: int, in_batched: dict[str, bool], made: Sequence[str]
) -> tuple[Call, frozenset[str]] | None:
    """The same norm with one more axis in front, which is not reduced, and the roles that have it.
    None where no one call does it."""
    if in_batched.get("rng") or in_batched.get("y_scale") or "amax" in made:
        return None
    roles = FULL | KEPT
    front = -(ndim + 1)
    wider: dict[str, Any] = {}
    for field, members in (("affine", AFFINE), ("column", COLUMN), ("modulation", MODULATION)):
        own = any(in_batched.get(name) for name in members)
        if own or any(name in made for name in members):
            wider[field] = (front, *getattr(call, field))
            roles |= members
    call = replace(call, **wider)
    return call, roles - SINGLE


def run(
    call: Call, direction: int, given: dict[str, Any], made: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """One pass: arrays by role, results by role; ``made`` has their dtypes. All are dense."""
    if call.names:
        return run_part(run, call, direction, given, made)
    names = tuple(sorted(given))
    with wide_where_f64([*given.values(), *(jax.ShapeDtypeStruct((), d) for _, d in made)]):
        found = _runner(call, direction, names, tuple(made))(*(given[name] for name in names))
    return dict(zip((name for name, _ in made), found, strict=True))
