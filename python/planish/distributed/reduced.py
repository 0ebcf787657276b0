"""An all-reduce, the sum with a residual and a norm, with the rows of the last two on one rank
each: the identity of sequence parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

import torch
from planish.distributed import peers
from planish.distributed.agreement import agree, group_of, is_asked
from planish.distributed.rows import (
    AllGather,
    ReduceScatter,
    Shared,
    all_gather,
    own_rows,
    record_at_once,
    reduce_scatter,
    room_for,
)
from planish.functions import quantized, stage_norms, stages
from planish.library.seen import needs_graph
from planish.operators import kept, stage_calls
from planish.operators.arguments import DTYPES, check_optional, check_tensor, eps_of, whole_of
from planish.operators.call import Tensors
from planish.operators.ways import Way
from torch import Tensor

__all__ = ["all_reduce_add_rms_norm", "all_reduce_quantized_rms_norm"]


# ---- The ways ------------------------------------------------------------------------------------

_Norm = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
_Rows = tuple[Tensor, Tensor]


def _differentiable(
    x: Tensor, residual: Tensor, weight: Tensor | None, group: dist.ProcessGroup, norm: _Norm
) -> _Rows:
    if weight is not None:
        weight = Shared.apply(weight, group)  # type: ignore[no-untyped-call]
    own = ReduceScatter.apply(x, group)  # type: ignore[no-untyped-call]
    own, total = norm(own, residual, weight)
    return AllGather.apply(own, x.shape[0], group), total  # type: ignore[no-untyped-call]


def _inferred(
    x: Tensor, residual: Tensor, weight: Tensor | None, group: dist.ProcessGroup, norm: _Norm
) -> _Rows:
    """Where no gradient is wanted."""
    size = x.shape[0]
    if room := room_for(x, size, group):
        totals = []

        def of_piece(own: Tensor, rows: slice) -> Tensor:
            y, total = norm(own, residual[rows], weight)
            totals.append(total)
            return y

        y = peers.reduce_norm_gather(x, room, of_piece)
        return y, totals[0] if len(totals) == 1 else torch.cat(totals)
    own, total = norm(reduce_scatter(x, group), residual, weight)
    return all_gather(own, size, group), total


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
    _, first, last = own_rows(x.shape[dim], group)
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


class _Known(NamedTuple):
    """A call that was made before with tensors like these."""

    place: tuple[int, int]  # how many ranks there are, and which this is
    dim: int
    eps: float
    record: Any  # of the sum and the norm; None where they are no one call of planish's


def _first(tensor: Tensor, dim: int) -> Tensor:
    return tensor.movedim(dim, 0) if dim else tensor


def _record_of(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    cast: str,
) -> Any:
    """Of rows that are dealt out along axis 0."""
    if cast != "once" or weight_offset not in (0, 1) or residual.dtype not in DTYPES:
        return None
    if weight is not None and (weight.shape != x.shape[-1:] or weight.dtype not in DTYPES):
        return None  # planish.add_rms_norm says what is wrong
    own = x[: residual.shape[0]]
    found = stage_calls.described(
        Way.PLAIN,
        Tensors(own, residual, None, None, None, weight),
        [own.dim() - 1],
        eps,
        True,
        weight_offset=weight_offset,
        y_dtype=own.dtype,
        sum_dtype=residual.dtype,
    )
    return found and stage_calls.prepare(found.saving, found.tensors).record


def _run(
    known: _Known,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    group: dist.ProcessGroup,
    weight_offset: float,
    cast: str,
) -> _Rows:
    there = (x, residual) if weight is None else (x, residual, weight)
    is_recorded = needs_graph(*there)
    if is_recorded and known.record is not None and not stage_calls.saves_badly(*there):
        y, total = record_at_once((known.record, group), *there)
        return y, total

    def norm(x: Tensor, residual: Tensor, weight: Tensor | None) -> _Rows:
        return stage_norms.add_rms_norm(
            x, residual, weight, known.eps, weight_offset=weight_offset, cast=cast
        )

    way = _differentiable if is_recorded else _inferred
    return way(x, residual, weight, group, norm)


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
    options = "all_reduce_add_rms_norm", eps, dim, weight_offset, cast, type(dim)
    key = None if is_asked() else kept.key_of(options, (x, residual, weight))
    known = kept.find(key)
    if known is not None:
        group = group_of("all_reduce_add_rms_norm", group)
    if known is None or known.place != (group.size(), group.rank()):
        group, dim, eps = _checked(
            "all_reduce_add_rms_norm", x, residual, weight, eps, group, dim,
            weight_offset=weight_offset, cast=cast,
        )  # fmt: skip
        record = None
        if key is not None:
            rows = _first(x, dim), _first(residual, dim)
            record = _record_of(*rows, weight, eps, weight_offset, cast)
        known = _Known((group.size(), group.rank()), dim, eps, record)
        kept.keep(key, known)
    tensors = _first(x, known.dim), _first(residual, known.dim), weight
    y, total = _run(known, *tensors, group, weight_offset, cast)
    if known.dim == 0:
        return y, total
    return y.movedim(0, known.dim), total.movedim(0, known.dim)


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
            reduce_scatter(x.movedim(dim, 0), group), weight, eps, dtype=dtype, scale=scale,
            residual=residual.movedim(dim, 0), weight_offset=weight_offset,
        )  # fmt: skip
        size = x.shape[dim]
        q = all_gather(q.contiguous().view(torch.uint8), size, group).view(dtype)
        if scale is None:
            found = all_gather(found, size, group).movedim(0, dim)
    return q.movedim(0, dim), found, total.movedim(0, dim)
