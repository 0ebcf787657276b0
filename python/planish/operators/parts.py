"""Norms of which each process of a group has a part of every row: statistics of the part, one
exchange of a few bytes a row, and the norm by what all parts together have; backward the same way
(planish::norm_part_message and those behind it, src/torch/norm_parts.c and norm_merge.c).

What is exchanged is gathered and put together in the order of the ranks, so that all of them have
the same bits, and the same again for each run. Arguments were checked by who calls."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch.distributed as dist

import torch
from planish.library.seen import is_plain, needs_graph
from planish.operators import call as packed
from planish.operators import ops, short
from torch import Tensor

__all__ = ["Norm", "gather", "gather_into", "is_traced", "norm", "norms", "sum_into"]


class Norm(NamedTuple):
    """A norm but for its tensors."""

    axes: int  # packed: reduce and affine
    options: int
    eps: float
    #: The axis of x along which it is seen in `pieces`, each with statistics of its own.
    cut: int = -1
    pieces: int = 1
    #: So many neighbours among the ranks have parts of the same rows; 0: all of them.
    among: int = 0

    def backward_options(self, wanted: int) -> int:
        """dx has x's dtype."""
        return self.options & ~packed.DTYPE | wanted << packed.WANTED_AT


class _Operators(NamedTuple):
    """The passes on both sides of each exchange, by their names in planish's namespace."""

    norm_part_message: Any
    norm_part_apply: Any
    norm_backward_statistics: Any
    norm_part_backward_apply: Any


_SEEN = _Operators(*(getattr(torch.ops.planish, name).default for name in _Operators._fields))
_ON_CPU, _ON_CUDA = (
    _Operators(*(short.at(keys, name) for name in _Operators._fields)) for keys in short.KEYS
)


def _way(plain: bool, x: Tensor) -> _Operators:
    """For all calls of one direction: by the short way, or by the dispatcher for what else may see
    them."""
    if not plain or short.is_profiled():
        return _SEEN
    return _ON_CPU if x.is_cpu else _ON_CUDA if x.is_cuda else _SEEN


def _operators(first: Tensor, *tensors: Tensor | None) -> _Operators:
    return _way(is_plain(first, *tensors), first)


# ---- The exchange --------------------------------------------------------------------------------


@functools.cache
def _options_of(kind: str) -> Any:
    """Of a collective on the stream of who asks for it; a sum where it is one."""
    from torch.distributed import distributed_c10d

    options = getattr(distributed_c10d, kind)()
    options.asyncOp = False
    return options


def gather_into(room: Tensor, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What all ranks have, one rank behind the other, in this room."""
    return _into(room, rows, group, _GATHER)


def sum_into(room: Tensor, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of this rank's part of rows, in this room."""
    return _into(room, rows, group, _SUM)


#: By torch's names, of which newer ones warn of the older, and the options' class.
_GATHER = "all_gather_single", "_allgather_base", "AllgatherOptions"
_SUM = "reduce_scatter_single", "_reduce_scatter_base", "ReduceScatterOptions"


def _into(
    room: Tensor, rows: Tensor, group: dist.ProcessGroup, names: tuple[str, str, str]
) -> Tensor:
    # The group itself: torch's function around it looks at the arguments again.
    name, older, options = names
    run = getattr(group, name, None) or getattr(group, older)
    work = run(room, rows, _options_of(options))
    if work is not None:
        work.wait()
    return room


def gather(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What all ranks have, one rank behind the other along axis 0."""
    size = group.size()
    if size == 1:
        return rows
    if is_traced():
        # Functional collectives are what compilers and modes trace.
        functional = torch.ops._c10d_functional
        made = functional.all_gather_into_tensor(rows, size, group.group_name)
        return functional.wait_tensor(made)  # type: ignore[no-any-return]
    return gather_into(rows.new_empty((size * rows.shape[0], *rows.shape[1:])), rows, group)


def is_traced() -> bool:
    """Whether collectives are to be those that compilers and modes trace."""
    return bool(torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack())


def _exchanged(norm: Norm, sent: Tensor, room: Tensor | None, group: dist.ProcessGroup) -> Tensor:
    """What the ranks that share rows send, one row each; in this room, where there is one."""
    gathered = gather(sent, group) if room is None else gather_into(room, sent, group)
    if not norm.among:
        return gathered
    first = group.rank() // norm.among * norm.among
    return gathered[first : first + norm.among]


# ---- One norm in one piece -----------------------------------------------------------------------

_Made = tuple[Tensor, Tensor | None, Tensor, Tensor]


def _ranks(run: _Operators, group: dist.ProcessGroup) -> int:
    """For how many a pass makes room: 0 where the exchange makes it."""
    size = 0 if run is _SEEN else group.size()
    return size if size > 1 else 0


class _Call(NamedTuple):
    norm: Norm
    group: dist.ProcessGroup
    run: _Operators  # of the forward
    bias_dtype: torch.dtype | None


def _forward(of: _Call, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> _Made:
    """(y, mean, rstd, shares): statistics of whole rows, and the share of each part in these."""
    norm, group, run, _ = of
    axes, options, eps, *_ = norm
    sent, room = run.norm_part_message(x, axes, options, _ranks(run, group))
    gathered = _exchanged(norm, sent, room, group)
    return run.norm_part_apply(x, gathered, weight, bias, axes, options, eps)  # type: ignore[no-any-return]


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    of, group, _, bias_dtype = ctx.of
    x, weight, mean, rstd, shares = ctx.saved_tensors
    _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    run = _operators(dy, x, weight)
    axes, options = of.axes, of.backward_options(needs_weight << 2 | needs_bias << 3)
    sent, room, dweight, dbias = run.norm_backward_statistics(
        dy, x, rstd, mean, weight, axes, options, _ranks(run, group), of.eps
    )
    dx = None
    if needs_x:
        gathered = _exchanged(of, sent, room, group)
        options = of.backward_options(1)
        dx = run.norm_part_backward_apply(
            dy, x, gathered, shares, rstd, mean, weight, axes, options
        )
    if needs_bias and dbias.dtype != bias_dtype:
        dbias = dbias.to(bias_dtype)
    return None, dx, dweight, dbias


_refusing = torch.autograd.function.once_differentiable(_backward)


class _Norm(torch.autograd.Function):
    """x, weight and bias behind the call."""

    @staticmethod
    def forward(
        ctx: Any, of: _Call, x: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        y, mean, rstd, shares = _forward(of, x, weight, bias)
        ctx.of = of
        ctx.save_for_backward(x, weight, mean, rstd, shares)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return (_refusing if torch.is_grad_enabled() else _backward)(ctx, dy)


_record = ops.record_of(_Norm)


def norm(
    of: Norm,
    group: dist.ProcessGroup,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    plain: bool = False,
) -> Tensor:
    """The norm of x, by one exchange each way. ``plain``: it is known that nothing but eager
    autograd sees the call."""
    if of.pieces != 1:
        return norms((of,), group, x, weight, bias)[0]
    plain = plain or is_plain(x, weight, bias)
    call = _Call(of, group, _way(plain, x), None if bias is None else bias.dtype)
    if not plain:
        return _Norm.apply(call, x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    if not needs_graph(x, weight, bias):
        return _forward(call, x, weight, bias)[0]
    return _record(call, x, weight, bias)  # type: ignore[no-any-return]


# ---- Several norms, or in pieces -----------------------------------------------------------------


def _pieces(tensor: Tensor, axis: int, count: int) -> list[Tensor]:
    return [tensor] if count == 1 else list(tensor.chunk(count, axis))


def _of_parameter(norm: Norm, parameter: Tensor | None, ndim: int) -> list[Tensor | None]:
    """Its pieces, where it varies along the axis that is cut; itself for each else."""
    if parameter is None or norm.pieces == 1:
        return [parameter] * norm.pieces
    affine = packed.axes_of(norm.axes, 1)
    cut = norm.cut % ndim
    if cut not in affine:
        return [parameter] * norm.pieces
    return list(_pieces(parameter, affine.index(cut), norm.pieces))


def _joined(norm: Norm, pieces: list[Tensor], ndim: int) -> Tensor | None:
    """A parameter's gradient from those of the pieces."""
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    affine = packed.axes_of(norm.axes, 1)
    cut = norm.cut % ndim
    if cut in affine:
        return torch.cat(pieces, affine.index(cut))
    return torch.stack(pieces).sum(0)


def _all_exchanged(sent: list[list[Tensor]], group: dist.ProcessGroup) -> list[Tensor]:
    """What all ranks send for each norm, a row of each piece; from this one's."""
    rows = [torch.cat(messages) if len(messages) > 1 else messages[0] for messages in sent]
    if len(rows) == 1:
        return [gather(rows[0], group)]
    lengths = [row.shape[1] for row in rows]
    return list(torch.split(gather(torch.cat(rows, 1), group), lengths, 1))


def _backward_statistics(
    run: _Operators, norm: Norm, dy: Tensor, saved: tuple[Any, ...], wanted: int
) -> tuple[list[Tensor], list[Tensor | None]]:
    """(what each piece sends backward, [dweight, dbias])."""
    x, weight, mean, rstd, _ = saved
    sent: list[Tensor] = []
    gradients: list[list[Tensor]] = [[], []]
    options = norm.backward_options(wanted)
    of_weight = _of_parameter(norm, weight, x.dim())
    dys, xs = (_pieces(tensor, norm.cut, norm.pieces) for tensor in (dy, x))
    for dy_piece, x_piece, w in zip(dys, xs, of_weight, strict=True):
        message, _, *made = run.norm_backward_statistics(
            dy_piece, x_piece, rstd, mean, w, norm.axes, options, 0, norm.eps
        )
        sent.append(message)
        for gradient, one in zip(gradients, made, strict=True):
            if one is not None:
                gradient.append(one)
    return sent, [_joined(norm, gradient, x.dim()) for gradient in gradients]


def _gradient(
    run: _Operators, norm: Norm, dy: Tensor, saved: tuple[Any, ...], sent: Tensor
) -> Tensor:
    """dx from what all parts sent."""
    x, weight, mean, rstd, shares = saved
    made, options = [], norm.backward_options(1)
    of_weight = _of_parameter(norm, weight, x.dim())
    dys, xs = (_pieces(tensor, norm.cut, norm.pieces) for tensor in (dy, x))
    for dy_piece, x_piece, w in zip(dys, xs, of_weight, strict=True):
        known = sent, shares, rstd, mean, w
        made.append(run.norm_part_backward_apply(dy_piece, x_piece, *known, norm.axes, options))
    return made[0] if len(made) == 1 else torch.cat(made, norm.cut)


class _Norms(torch.autograd.Function):
    """x, weight and bias of each norm behind what is no tensor."""

    @staticmethod
    def forward(
        ctx: Any, of: tuple[Norm, ...], group: dist.ProcessGroup, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        xs: Any = tensors[::3]
        weights, biases = tensors[1::3], tensors[2::3]
        run = _operators(*xs, *weights, *biases)
        sent = [
            [run.norm_part_message(piece, norm.axes, norm.options, 0)[0] for piece in pieces]
            for norm, pieces in zip(of, map(_pieces_of, of, xs), strict=True)
        ]
        saved: list[Tensor | None] = []
        ys = []
        for norm, x, weight, bias, gathered in zip(
            of, xs, weights, biases, _all_exchanged(sent, group), strict=True
        ):
            y, *known = run.norm_part_apply(
                x, gathered, weight, bias, norm.axes, norm.options, norm.eps
            )
            ys.append(y)
            saved += [x, weight, *known]
        ctx.of, ctx.group = of, group
        ctx.bias_dtypes = [None if bias is None else bias.dtype for bias in biases]
        ctx.save_for_backward(*saved)
        return tuple(ys)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> tuple[Any, ...]:
        of, group, saved = ctx.of, ctx.group, ctx.saved_tensors
        run = _operators(*dys, *saved)
        needs = ctx.needs_input_grad[2:]
        each = [(*saved[5 * i : 5 * i + 5],) for i in range(len(of))]
        results: list[Tensor | None] = []
        sent = []
        for i, (norm, dy) in enumerate(zip(of, dys, strict=True)):
            wanted = needs[3 * i + 1] << 2 | needs[3 * i + 2] << 3
            messages, (dweight, dbias) = _backward_statistics(run, norm, dy, each[i], wanted)
            sent.append(messages)
            dbias = None if dbias is None else dbias.to(ctx.bias_dtypes[i])
            results += [None, dweight, dbias]
        if any(needs[::3]):
            for i, gathered in enumerate(_all_exchanged(sent, group)):
                results[3 * i] = _gradient(run, of[i], dys[i], each[i], gathered)
        return None, None, *results


def _pieces_of(norm: Norm, x: Tensor) -> list[Tensor]:
    return _pieces(x, norm.cut, norm.pieces)


_record_all = ops.record_of(_Norms)


def norms(
    of: tuple[Norm, ...], group: dist.ProcessGroup, *tensors: Tensor | None
) -> tuple[Tensor, ...]:
    """The norms of x, weight and bias of each, by one exchange each way for all."""
    record = _record_all if is_plain(*tensors) else _Norms.apply
    return record(of, group, *tensors)  # type: ignore[no-any-return]
