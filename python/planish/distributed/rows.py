"""Rows that are dealt out over the ranks of a group: their sums, and all of them again, with the
derivatives of both, and the sum and the norm of a rank's own rows between the two as one step.
Large ones go by copies between the GPUs of a host where there is a way (peers.py), else by the
collectives of the backend."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import torch
from planish.distributed import peers
from planish.operators import ops, parts, records, short
from torch import Tensor

__all__ = [
    "AllGather",
    "ReduceScatter",
    "Shared",
    "all_gather",
    "own_rows",
    "record_at_once",
    "reduce_scatter",
    "room_for",
]


def own_rows(size: int, group: dist.ProcessGroup) -> tuple[int, int, int]:
    """How many rows a rank has, as torch.chunk cuts them, and the first and the last but one of
    this rank's, which may be fewer."""
    each, rank = -(-size // group.size()), group.rank()
    return each, min(rank * each, size), min((rank + 1) * each, size)


def _padded(rows: Tensor, count: int) -> Tensor:
    """So many rows, which collectives want of every rank."""
    if rows.shape[0] != count:
        rows = torch.cat([rows, rows.new_zeros((count - rows.shape[0], *rows.shape[1:]))])
    return rows.contiguous()


def room_for(rows: Tensor, size: int, group: dist.ProcessGroup) -> peers.Room | None:
    """Room for `size` rows like these."""
    return None if parts.is_traced() else peers.between(group, rows, size)


def reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of this rank's rows of axis 0."""
    ranks, size = group.size(), x.shape[0]
    if ranks == 1:
        return x.clone()
    if room := room_for(x, size, group):
        return peers.reduce_scatter(x, room)
    each, first, last = own_rows(size, group)
    padded = _padded(x, each * ranks)
    if parts.is_traced():
        functional = torch.ops._c10d_functional
        made = functional.reduce_scatter_tensor(padded, "sum", ranks, group.group_name)
        made = functional.wait_tensor(made)
    else:
        made = parts.sum_into(x.new_empty((each, *x.shape[1:])), padded, group)
    own: Tensor = made[: last - first]
    return own


def all_gather(own: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
    """All rows of axis 0, of which there are `size`, from each rank's own."""
    if room := room_for(own, size, group):
        return peers.all_gather(own, room)
    return parts.gather(_padded(own, own_rows(size, group)[0]), group)[:size]


def _summed(d: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The gradient of a parameter that every rank has: the sum of theirs, in the order of the
    ranks."""
    wide = d if d.dtype == torch.float64 else d.float()
    return parts.gather(wide.contiguous()[None], group).sum(0).to(d.dtype)


class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.size = group, x.shape[0]
        return reduce_scatter(x, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        return all_gather(d, ctx.size, ctx.group), None


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return all_gather(own, size, group)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        return reduce_scatter(d, ctx.group), None, None


class Shared(torch.autograd.Function):
    """A parameter that every rank has."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        return _summed(d, ctx.group), None


class _AtOnce(torch.autograd.Function):
    """All of it, of tensors that only eager autograd looks at: the record of the sum and the norm
    of a rank's own rows with the group, x, residual, and weight where there is one."""

    @staticmethod
    def forward(
        ctx: Any, of: tuple[Any, dist.ProcessGroup], x: Tensor, *rest: Tensor
    ) -> tuple[Tensor, Tensor]:
        record, group = of
        given = record.spread((reduce_scatter(x, group), *rest, None))
        results = short.FORWARD(*given, *record.call)
        records.save(ctx, record, given, results)
        ctx.size, ctx.group = x.shape[0], group
        return all_gather(results[0], ctx.size, group), results[1]

    @staticmethod
    def backward(ctx: Any, *d: Tensor | None) -> tuple[Any, ...]:
        return (_refusing if torch.is_grad_enabled() else _backward)(ctx, *d)


def _backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
    own = None if dy is None else reduce_scatter(dy, ctx.group)
    _, dx, *rest = records.differentiate(ctx, own, dsum)
    if dx is not None:
        dx = all_gather(dx, ctx.size, ctx.group)
    if len(rest) == 2 and rest[1] is not None:
        rest[1] = _summed(rest[1], ctx.group)
    return None, dx, *rest


_refusing = torch.autograd.function.once_differentiable(_backward)
record_at_once = ops.record_of(_AtOnce)
