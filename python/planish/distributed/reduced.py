"""An all-reduce, the sum with a residual and a norm, with the rows of the last two on one rank
each: the identity of sequence parallel. Large sums go by copies between the GPUs of a host where
there is a way (peers.py), else by the collectives of the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import torch
from planish.distributed import peers
from planish.distributed.agreement import agree, group_of
from planish.functions import quantized, stage_norms, stages
from planish.library.seen import needs_graph
from planish.operators import parts
from planish.operators.arguments import check_optional, check_tensor, eps_of, whole_of
from torch import Tensor

__all__ = ["all_reduce_add_rms_norm", "all_reduce_quantized_rms_norm"]

#: Newer torch has another name for it, and warns of this one.
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _own_rows(size: int, group: dist.ProcessGroup) -> tuple[int, int, int]:
    """How many rows a rank has, as torch.chunk cuts them, and the first and the last but one of
    this rank's, which may be fewer."""
    each, rank = -(-size // group.size()), dist.get_rank(group)
    return each, min(rank * each, size), min((rank + 1) * each, size)


def _padded(rows: Tensor, count: int) -> Tensor:
    """So many rows, which collectives want of every rank."""
    if rows.shape[0] != count:
        rows = torch.cat([rows, rows.new_zeros((count - rows.shape[0], *rows.shape[1:]))])
    return rows.contiguous()


def _room(rows: Tensor, size: int, group: dist.ProcessGroup) -> peers.Room | None:
    """Room for `size` rows like these."""
    return None if parts.is_traced() else peers.between(group, rows, size)


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of this rank's rows of axis 0."""
    ranks, size = group.size(), x.shape[0]
    if ranks == 1:
        return x.clone()
    if room := _room(x, size, group):
        return peers.reduce_scatter(x, room)
    each, first, last = _own_rows(size, group)
    padded = _padded(x, each * ranks)
    if parts.is_traced():
        functional = torch.ops._c10d_functional
        made = functional.reduce_scatter_tensor(padded, "sum", ranks, group.group_name)
        made = functional.wait_tensor(made)
    else:
        made = x.new_empty((each, *x.shape[1:]))
        _scatter(made, padded, group=group)
    own: Tensor = made[: last - first]
    return own


def _all_gather(own: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
    """All rows of axis 0, of which there are `size`, from each rank's own."""
    if room := _room(own, size, group):
        return peers.all_gather(own, room)
    return parts.gather(_padded(own, _own_rows(size, group)[0]), group)[:size]


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.size = group, x.shape[0]
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        return _all_gather(d, ctx.size, ctx.group), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(own, size, group)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        return _reduce_scatter(d, ctx.group), None, None


class _Shared(torch.autograd.Function):
    """A parameter that every rank has: its gradient is the sum of theirs, in the order of the
    ranks."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        wide = d if d.dtype == torch.float64 else d.float()
        return parts.gather(wide.contiguous()[None], ctx.group).sum(0).to(d.dtype), None


# ---- The ways ------------------------------------------------------------------------------------

_Norm = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
_Rows = tuple[Tensor, Tensor]


def _differentiable(
    x: Tensor, residual: Tensor, weight: Tensor | None, group: dist.ProcessGroup, norm: _Norm
) -> _Rows:
    if weight is not None:
        weight = _Shared.apply(weight, group)  # type: ignore[no-untyped-call]
    own = _ReduceScatter.apply(x, group)  # type: ignore[no-untyped-call]
    own, total = norm(own, residual, weight)
    return _AllGather.apply(own, x.shape[0], group), total  # type: ignore[no-untyped-call]


def _inferred(
    x: Tensor, residual: Tensor, weight: Tensor | None, group: dist.ProcessGroup, norm: _Norm
) -> _Rows:
    """Where no gradient is wanted."""
    size = x.shape[0]
    if room := _room(x, size, group):
        totals = []

        def of_piece(own: Tensor, rows: slice) -> Tensor:
            y, total = norm(own, residual[rows], weight)
            totals.append(total)
            return y

        y = peers.reduce_norm_gather(x, room, of_piece)
        return y, totals[0] if len(totals) == 1 else torch.cat(totals)
    own, total = norm(_reduce_scatter(x, group), residual, weight)
    return _all_gather(own, size, group), total


def _checked(
    function: str,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float | None,
    group: Any,
    dim: int,
    **options: Any,
) -> tuple[dist.ProcessGroup, int, float]:
    """(group, dim, eps); raises where one of them, a tensor, or ranks that disagree, cannot be."""
    stages.check_x(function, x)
    check_tensor(function, "residual", residual)
    check_optional(function, weight=weight)
    group = group_of(function, group)
    dim = whole_of(function, "dim", dim)
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise IndexError(
            f"{function}: dim is {dim}; wanted one of the axes of x before its last, of "
            f"{x.dim()} axes"
        )
    dim %= x.dim()
    _, first, last = _own_rows(x.shape[dim], group)
    wanted = [*x.shape[:dim], last - first, *x.shape[dim + 1 :]]
    if list(residual.shape) != wanted:
        raise RuntimeError(
            f"{function}: Expected residual to have this rank's own rows, of shape {wanted}, but "
            f"got residual of shape {list(residual.shape)}"
        )
    eps = eps_of(function, eps, True, residual.dtype)
    tensors = {"x": (x, ()), "residual": (residual, (dim,)), "weight": (weight, ())}
    agree(function, group, tensors, eps=eps, dim=dim, **options)
    return group, dim, eps


def all_reduce_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    group: Any = None,
    dim: int = 0,
    weight_offset: float = 0.0,
    cast: str = "once",
) -> tuple[Tensor, Tensor]:
    """The sum of x over the ranks of ``group``, added to a residual, and the root-mean-square norm
    of that over the last axis: ``(y, sum)``, as ``planish.add_rms_norm`` has it of an all-reduced
    x.

    x is each rank's summand and has all rows; ``residual`` has this rank's own rows of axis
    ``dim``, as ``torch.chunk`` deals them out, and so has the sum that is returned, the next call's
    residual. y has all rows again. A reduce-scatter by rows, the sum and the norm on the rows a
    rank owns, and an all-gather of the normalised rows: the bytes of the all-reduce, and each row
    is summed and normalised once in place of once on every rank.

    In the backward the gradient of y is each rank's share, as column-parallel layers give it; that
    of ``weight``, which every rank has, is summed over the ranks and has the same bits on all of
    them.

    Everything else, dtypes and errors among it, as ``planish.add_rms_norm`` and
    :func:`planish.distributed.layer_norm`.

    Example:

    >>> x = torch.randn(8, 64)
    >>> own = torch.randn(8 // torch.distributed.get_world_size(), 64)
    >>> y, own = planish.distributed.all_reduce_add_rms_norm(x, own)
    """
    group, dim, eps = _checked(
        "all_reduce_add_rms_norm", x, residual, weight, eps, group, dim,
        weight_offset=weight_offset, cast=cast,
    )  # fmt: skip

    def norm(x: Tensor, residual: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        return stage_norms.add_rms_norm(
            x, residual, weight, eps, weight_offset=weight_offset, cast=cast
        )

    tensors = x.movedim(dim, 0), residual.movedim(dim, 0), weight
    run = _differentiable if needs_graph(*tensors) else _inferred
    y, total = run(*tensors, group, norm)
    return y.movedim(0, dim), total.movedim(0, dim)


def all_reduce_quantized_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    group: Any = None,
    dim: int = 0,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: Tensor | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`all_reduce_add_rms_norm` with y quantised on the rank that owns a row:
    ``(q, scale, sum)``, as ``planish.quantized_rms_norm`` has it of an all-reduced x and the
    residual, for inference alone: no result has a gradient.

    q has all rows, and goes around as bytes: half of those of 16 bits. Each row has a scale of its
    own, and all ranks have all of them; or ``scale`` is that of the whole tensor, the same on every
    rank, and what is returned as it. The sum has this rank's own rows. ``dtype``: as there.

    Example:

    >>> x = torch.randn(8, 64)
    >>> own = torch.randn(8 // torch.distributed.get_world_size(), 64)
    >>> q, scale, own = planish.distributed.all_reduce_quantized_rms_norm(x, own)
    """
    group, dim, eps = _checked(
        "all_reduce_quantized_rms_norm", x, residual, weight, eps, group, dim,
        dtype=dtype, is_static=scale is not None, weight_offset=weight_offset,
    )  # fmt: skip
    with torch.no_grad():
        q, found, total = quantized.quantized_rms_norm(
            _reduce_scatter(x.movedim(dim, 0), group), weight, eps, dtype=dtype, scale=scale,
            residual=residual.movedim(dim, 0), weight_offset=weight_offset,
        )  # fmt: skip
        size = x.shape[dim]
        q = _all_gather(q.contiguous().view(torch.uint8), size, group).view(dtype)
        if scale is None:
            found = _all_gather(found, size, group).movedim(0, dim)
    return q.movedim(0, dim), found, total.movedim(0, dim)
