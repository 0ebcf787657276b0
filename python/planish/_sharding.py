"""Sharding rules of planish's operators for DTensor.

Rows are free: an axis along which nothing is summed and no parameter varies may be sharded. The
gradients of weight and bias are then partial sums. Where a normalised axis is sharded, DTensor
gathers it first.
"""

from __future__ import annotations

import functools
from typing import Any

from planish import _ops, _staged_sharding

__all__ = ["register"]


def _free_axes(ndim: int, reduce: list[int]) -> list[int]:
    return [axis for axis in range(ndim) if axis not in reduce]


def _place(axis: int, affine: list[int]) -> tuple[Any, Any]:
    """Of a parameter and of its gradient, where x is sharded along this axis."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if axis in affine:
        return Shard(affine.index(axis)), Shard(affine.index(axis))
    return Replicate(), Partial()


def _forward_rule(
    x: Any,
    weight: Any,
    bias: Any,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    keep: bool,
    activation: int = 0,
) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    rest = (None,) * 6
    mean: Any
    parameter: Any
    replicated = (
        [Replicate()] * 3,
        [
            Replicate(),
            None if weight is None else Replicate(),
            None if bias is None else Replicate(),
            *rest,
        ],
    )
    rules: list[Any] = [replicated]
    for axis in _free_axes(len(x.shape), reduce):
        parameter, _ = _place(axis, affine)
        whole = weight is not None and len(weight.shape) != len(affine)
        if whole and axis in affine:
            parameter = Shard(axis)
        mean = Replicate() if rms else Shard(axis)
        rules.append(
            (
                [Shard(axis), mean, Shard(axis)],
                [
                    Shard(axis),
                    None if weight is None else parameter,
                    None if bias is None else parameter,
                    *rest,
                ],
            )
        )
    return rules


def _backward_rule(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    reduce: list[int],
    affine: list[int],
    rms: bool,
    wanted: list[bool],
    bias: Any = None,
    activation: int = 0,
) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    def rule(full: Any, parameter: Any, gradient: Any, average: Any) -> Any:
        return (
            [
                full if wanted[0] else None,
                gradient if wanted[1] else None,
                gradient if wanted[2] else None,
            ],
            [
                full,
                full,
                average,
                full,
                None if weight is None else parameter,
                *(None,) * 4,
                None if bias is None else parameter,
                None,
            ],
        )

    rules = [rule(Replicate(), Replicate(), Replicate(), Replicate())]
    for axis in _free_axes(len(x.shape), reduce):
        parameter, gradient = _place(axis, affine)
        rules.append(rule(Shard(axis), parameter, gradient, Replicate() if rms else Shard(axis)))
    return rules


def _statistics_rule(x: Any, reduce: list[int]) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    rules: list[Any] = [([Replicate()] * 2, [Replicate(), None])]
    for axis in _free_axes(len(x.shape), reduce):
        rules.append(([Shard(axis)] * 2, [Shard(axis), None]))
    return rules


@functools.cache
def register() -> bool:
    """Gives DTensor the rules, once; false where this torch takes none."""
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError:
        return False
    register_sharding(_ops.forward)(_forward_rule)
    register_sharding(_ops.backward)(_backward_rule)
    register_sharding(_ops.statistics)(_statistics_rule)
    _staged_sharding.register(register_sharding)
    return True
