"""Sharding rules of the operators for a norm with stages (_staged_ops.py), as _sharding.py has them
for the others: rows are free, gradients of what varies along fewer axes are partial sums."""

from __future__ import annotations

from typing import Any

from planish import _staged_ops

__all__ = ["register"]

#: The axes of each tensor, in the order of the operators' arguments and results.
_FORWARD = ("x", "x", "row", "column", "none", "affine", "affine", "modulation", "modulation", "x")
_BACKWARD = ("x", "x", "mean", "row", "x", "x", *_FORWARD[2:])
_GRADIENTS = ("x", "x", "affine", "affine", "column", "modulation", "modulation", "x")


class _Place:
    """Where tensors lie if x is sharded along one axis; None: everything is replicated."""

    def __init__(
        self, axis: int | None, ndim: int, rms: bool, reduce: list[int], **axes: list[int]
    ) -> None:
        kept = [one for one in range(ndim) if one not in reduce]
        self.axis, self.ndim, self.rms = axis, ndim, rms
        self.axes = {**axes, "row": kept, "x": list(range(ndim)), "none": []}

    def of(self, name: str, tensor: Any) -> Any:
        """Of an argument, by the form that it has."""
        from torch.distributed.tensor import Replicate, Shard

        if tensor is None:
            return None
        if name == "mean":
            name = "none" if self.rms else "row"
        if self.axis is None or self.axis not in self.axes[name]:
            return Replicate()
        whole = len(tensor.shape) == self.ndim
        return Shard(self.axis if whole else self.axes[name].index(self.axis))

    def gradient(self, name: str) -> Any:
        """Of a gradient, which has its own axes alone."""
        from torch.distributed.tensor import Partial, Replicate, Shard

        if self.axis is None:
            return Replicate()
        own = self.axes[name]
        return Shard(own.index(self.axis)) if self.axis in own else Partial()

    def row(self) -> Any:
        """Of a statistic with x's rank."""
        from torch.distributed.tensor import Replicate, Shard

        return Replicate() if self.axis is None else Shard(self.axis)


def _places(
    ndim: int,
    rms: bool,
    reduce: list[int],
    affine: list[int],
    column: list[int],
    modulation: list[int],
) -> list[_Place]:
    free: list[int | None] = [axis for axis in range(ndim) if axis not in reduce]
    return [
        _Place(axis, ndim, rms, reduce, affine=affine, column=column, modulation=modulation)
        for axis in [None, *free]
    ]


def _forward_rule(*arguments: Any) -> list[Any]:
    from torch.distributed.tensor import Replicate

    tensors, (reduce, affine, column, modulation, _, rms, *_) = arguments[:10], arguments[10:]
    has_sum = arguments[22] is not None
    rules = []
    for place in _places(len(tensors[0].shape), rms, reduce, affine, column, modulation):
        row = place.row()
        results = [row, row if has_sum else None, Replicate() if rms else row, row]
        given = [place.of(name, tensor) for name, tensor in zip(_FORWARD, tensors, strict=True)]
        rules.append((results, [*given, *(None,) * 13]))
    return rules


def _backward_rule(*arguments: Any) -> list[Any]:
    tensors, (reduce, affine, column, modulation, rms, *_) = arguments[:14], arguments[14:]
    wanted = arguments[25]
    rules = []
    for place in _places(len(tensors[1].shape), rms, reduce, affine, column, modulation):
        results = [
            place.gradient(name) if want else None
            for name, want in zip(_GRADIENTS, wanted, strict=True)
        ]
        given = [place.of(name, tensor) for name, tensor in zip(_BACKWARD, tensors, strict=True)]
        rules.append((results, [*given, *(None,) * 12]))
    return rules


def _quantized_rule(*arguments: Any) -> list[Any]:
    from torch.distributed.tensor import Shard

    tensors, (reduce, affine, _, rms, *_) = arguments[:5], arguments[5:]
    block, transposed, has_sum = arguments[11], arguments[14], arguments[17] is not None
    rules = []
    for place in _places(len(tensors[0].shape), rms, reduce, affine, [], []):
        if transposed and place.axis is not None:
            continue  # rows are padded there
        row = place.row()
        scales = None if tensors[4] is not None else row
        if scales is not None and block and place.axis is not None:
            scales = Shard(place.axes["row"].index(place.axis))
        names = ("x", "x", "affine", "affine", "none")
        given = [place.of(name, tensor) for name, tensor in zip(names, tensors, strict=True)]
        rules.append(([row, scales, row if has_sum else None], [*given, *(None,) * 13]))
    return rules


def register(register_sharding: Any) -> None:
    """Gives DTensor the rules."""
    register_sharding(_staged_ops.FORWARD)(_forward_rule)
    register_sharding(_staged_ops.BACKWARD)(_backward_rule)
    register_sharding(_staged_ops.QUANTIZED)(_quantized_rule)
