"""How a pass is divided among devices where jit divides arrays by their shardings.

Rows are independent: axes that are not reduced may be sharded, and each device does its own part.
Reduced axes are gathered; those of a batch norm may be sharded, and its statistics are merged. A
gradient that is summed over rows, such as the weight's, is summed over the devices.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from planish.jax.calls import SINGLE, Call

__all__ = ["partitioned"]


def _rule(call: Call, given: Sequence[str], made: Sequence[str], ndim: int) -> tuple[str, Any]:
    """Shardy's: a letter for each axis of x; those that no device may have a part of."""
    letters = dict(zip(range(-ndim, 0), string.ascii_lowercase, strict=False))
    own = iter(string.ascii_lowercase[ndim:])  # axes that x does not have
    alone: list[str] = []

    def word(role: str) -> str:
        axes = [letters[axis] for axis in call.axes_of(role, ndim)]
        if role in SINGLE or (role == "y_scales" and call.scale_block):
            alone.append(next(own))
            axes.append(alone[-1])
        return " ".join(axes)

    rule = ", ".join(map(word, given)) + " -> " + ", ".join(map(word, made))
    gathered = () if call.batch else tuple(letters[axis] for axis in sorted(call.reduce))
    return rule, gathered + tuple(alone)


def partitioned(
    call: Call, given: Sequence[str], made: Sequence[str], ndim: int, part: Callable[..., Any]
) -> Any:
    """A pass over arrays of these roles as a function that jit may divide. ``part`` is the pass
    over what one device has; its first argument has the names of the axes of the mesh by which
    reduced axes are divided."""

    def whole(*arrays: Any) -> Any:
        return part((), *arrays)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        spec = arguments[given.index("x")].sharding.spec
        entries = (*spec, *(None,) * (ndim - len(spec)))
        gathered = () if call.batch else call.reduce
        at = {axis: None if axis in gathered else entries[ndim + axis] for axis in range(-ndim, 0)}

        def sharding(role: str) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(at[a] for a in call.axes_of(role, ndim))))

        def own(*arrays: Any) -> Any:
            found = part(_names(at[axis] for axis in call.reduce), *arrays)
            return tuple(
                _summed(array, _names(at[a] for a in at if a not in call.axes_of(role, ndim)))
                if role in _SUMS
                else array
                for role, array in zip(made, found, strict=True)
            )

        shardings = tuple(sharding(role) for role in made)
        return mesh, own, shardings, tuple(sharding(role) for role in given)

    rule, alone = _rule(call, given, made, ndim)
    divided = custom_partitioning(whole)
    divided.def_partition(partition=partition, sharding_rule=rule, need_replication_factors=alone)
    return divided


_SUMS = frozenset({"dweight", "dbias", "dscale", "dshift", "dcolumn_scale"})


def _names(entries: Iterable[Any]) -> tuple[str, ...]:
    """The axes of the mesh in entries of a PartitionSpec."""
    return tuple(
        name
        for entry in entries
        if entry
        for name in (entry if isinstance(entry, tuple) else (entry,))
    )


def _summed(array: Any, names: tuple[str, ...]) -> Any:
    """Over the devices among which these axes are divided."""
    return jax.lax.psum(array, names) if names else array
