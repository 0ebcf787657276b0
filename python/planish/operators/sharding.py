"""Sharding rules of planish's operators for DTensor.

Rows are free: an axis along which nothing is summed and no parameter varies may be sharded. The
gradients of what varies along fewer axes are then partial sums. Where a normalised axis is sharded,
DTensor gathers it first.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from planish.operators import call, ops, ways
from planish.operators.call import GRADIENTS, Quantized, Tensors
from planish.operators.formulas import Given

__all__ = ["register"]

#: Which of the sets of axes a tensor has; "x": all of x's, "row": those that are not reduced.
_SETS = {
    "row_scale": "row",
    "column_scale": "column",
    "rng": "none",
    "weight": "affine",
    "bias": "affine",
    "scale": "modulation",
    "shift": "modulation",
    "rstd": "row",
    "mean": "row",
    "y_scale": "none",
}
_PLACES = ("affine", "column", "modulation")  # of the packed sets, from 1 on


class _Place:
    """Where tensors lie if x is sharded along one axis; None: everything is replicated."""

    def __init__(self, axis: int | None, ndim: int, axes: int, split: int) -> None:
        self.axis, self.at, self.seen_ndim = axis, axis, ndim + (split != 0)
        if axis is not None and split and axis > call.split_place(ndim, split)[0]:
            self.at = axis + 1
        reduce = call.axes_of(axes, 0)
        self.axes = {name: call.axes_of(axes, i + 1) for i, name in enumerate(_PLACES)}
        self.axes["row"] = [one for one in range(self.seen_ndim) if one not in reduce]
        self.axes["none"] = []

    def of(self, name: str, tensor: Any) -> Any:
        """Of an argument, by the form that it has."""
        from torch.distributed.tensor import Replicate, Shard

        if tensor is None:
            return None
        kind = _SETS.get(name, "x")
        if self.axis is None or self.at is None:
            return Replicate()
        if kind == "x":
            return Shard(self.axis)
        if self.at not in self.axes[kind]:
            return Replicate()
        whole = len(tensor.shape) == self.seen_ndim
        return Shard(self.at if whole else self.axes[kind].index(self.at))

    def gradient(self, name: str) -> Any:
        """Of a gradient, which has its own axes alone."""
        from torch.distributed.tensor import Partial, Replicate, Shard

        kind = _SETS.get(name, "x")
        if self.axis is None or self.at is None:
            return Replicate()
        if kind == "x":
            return Shard(self.axis)
        own = self.axes[kind]
        return Shard(own.index(self.at)) if self.at in own else Partial()

    def full(self) -> Any:
        """Of a result with x's axes."""
        from torch.distributed.tensor import Replicate, Shard

        return Replicate() if self.axis is None else Shard(self.axis)

    def row(self) -> Any:
        """Of a statistic, with the rank that x is seen with."""
        from torch.distributed.tensor import Replicate, Shard

        return Replicate() if self.at is None else Shard(self.at)


def _places(ndim: int, axes: int, split: int = 0) -> Iterator[_Place]:
    yield _Place(None, ndim, axes, split)
    reduce = call.axes_of(axes, 0)
    taken = call.split_place(ndim, split)[0] if split else None
    for axis in range(ndim):
        place = _Place(axis, ndim, axes, split)
        if axis != taken and place.at not in reduce:
            yield place


def _given(place: _Place, names: tuple[str, ...], tensors: tuple[Any, ...]) -> list[Any]:
    return [place.of(name, tensor) for name, tensor in zip(names, tensors, strict=True)]


def _forward_rule(*arguments: Any) -> list[Any]:
    count = len(Tensors._fields)
    tensors, (axes, options, split, *rest) = arguments[:count], arguments[count:]
    rules = []
    for place in _places(len(tensors[0].shape), axes, split):
        save, row = options & call.SAVE, place.row()
        results = [
            place.full(),
            None if call.sum_dtype_in(options) is None else place.full(),
            row if save and not options & call.RMS else None,
            row if save else None,
        ]
        given = _given(place, Tensors._fields, tensors)
        rules.append((results, [*given, *(None,) * (3 + len(rest))]))
    return rules


def _backward_rule(*arguments: Any) -> list[Any]:
    count = len(Given._fields)
    tensors, (axes, options, split, *rest) = arguments[:count], arguments[count:]
    wanted = call.wanted_in(options)
    rules = []
    for place in _places(len(tensors[1].shape), axes, split):
        results = [
            place.gradient(name) if want else None
            for name, want in zip(GRADIENTS, wanted, strict=True)
        ]
        given = _given(place, Given._fields, tensors)
        rules.append((results, [*given, *(None,) * (3 + len(rest))]))
    return rules


def _statistics_rule(x: Any, axes: int) -> list[Any]:
    return [([place.row()] * 2, [place.full(), None]) for place in _places(len(x.shape), axes)]


def _quantized_rule(*arguments: Any) -> list[Any]:
    from torch.distributed.tensor import Shard

    count = len(Quantized._fields)
    tensors, (axes, options, _, block, *rest) = Quantized(*arguments[:count]), arguments[count:]
    rules = []
    for place in _places(len(tensors.x.shape), axes):
        if options & call.TRANSPOSED and place.axis is not None:
            continue  # rows are padded there
        scales = None if tensors.y_scale is not None else place.row()
        if scales is not None and block and place.at is not None:
            scales = Shard(place.axes["row"].index(place.at))
        total = None if call.sum_dtype_in(options) is None else place.full()
        given = _given(place, Quantized._fields, tensors)
        rules.append(([place.full(), scales, total], [*given, *(None,) * (4 + len(rest))]))
    return rules


@functools.cache
def register() -> bool:
    """Gives DTensor the rules, once; false where this torch takes none."""
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:
        return False
    register_sharding(ops.FORWARD)(_forward_rule)
    register_sharding(ops.BACKWARD)(_backward_rule)
    register_sharding(ops.STATISTICS)(_statistics_rule)
    register_sharding(ops.QUANTIZED)(_quantized_rule)
    return True


ways.give_rules(register)
