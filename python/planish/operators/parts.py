"""Norms of which each process of a group has a part of every row: statistics of the part, one
exchange of a few bytes a row, and the norm by what all parts together have; backward the same way
(planish::norm_part_message and those behind it, src/torch/norm_parts.c).

What is exchanged is gathered and put together in the order of the ranks, so that all of them have
the same bits, and the same again for each run. Arguments were checked by who calls."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch.distributed as dist

import torch
from planish.library.seen import is_plain
from planish.operators import call, ops, short
from torch import Tensor

__all__ = ["Norm", "gather", "norms"]


class Norm(NamedTuple):
    """One of the norms that share an exchange, but for its tensors."""

    axes: int  # packed: reduce and affine
    options: int
    eps: float
    #: The axis of x along which it is seen in `pieces`, each with statistics of its own.
    cut: int = -1
    pieces: int = 1

    def backward_options(self, wanted: int) -> int:
        """dx has x's dtype."""
        return self.options & ~call.DTYPE | wanted << call.WANTED_AT


class _Operators(NamedTuple):
    """The passes of a norm and what is done between them, by their names in planish's namespace."""

    norm_part_message: Any
    norm_merge: Any
    norm_apply: Any
    norm_backward_statistics: Any
    norm_merge_sums: Any
    norm_backward_apply: Any


_PLAIN = _Operators(*map(short.of, _Operators._fields))
_SEEN = _Operators(*(getattr(torch.ops.planish, name).default for name in _Operators._fields))


def _operators(*tensors: Tensor) -> _Operators:
    """For all calls of one direction: by the short way, or by the dispatcher for what else may see
    them."""
    return _PLAIN if is_plain(*tensors) else _SEEN


# ---- The exchange --------------------------------------------------------------------------------


@functools.cache
def _gather_options() -> Any:
    """Of an all-gather on the stream of who asks for it."""
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d
    options = c10d.AllgatherOptions()
    options.asyncOp = False
    return options


def gather(message: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The messages of all ranks, in their order: (ranks, *message's shape)."""
    size = group.size()
    if size == 1:
        return message[None]
    shape = (size, *message.shape)
    flat = message.reshape(-1) if message.dim() > 1 else message
    if _is_traced():
        # Functional collectives are what compilers and modes trace.
        functional = torch.ops._c10d_functional
        made = functional.all_gather_into_tensor(flat, size, group.group_name)
        return functional.wait_tensor(made).view(shape)  # type: ignore[no-any-return]
    made = flat.new_empty(size * flat.numel())
    # The group itself: torch's function around it looks at the arguments again.
    all_gather = getattr(group, "all_gather_single", None) or group._allgather_base
    work = all_gather(made, flat, _gather_options())
    if work is not None:
        work.wait()
    return made.view(shape)


def _pieces(tensor: Tensor, axis: int, count: int) -> list[Tensor]:
    return [tensor] if count == 1 else list(tensor.chunk(count, axis))


def _of_parameter(norm: Norm, parameter: Tensor | None, ndim: int) -> list[Tensor | None]:
    """Its pieces, where it varies along the axis that is cut; itself for each else."""
    if parameter is None or norm.pieces == 1:
        return [parameter] * norm.pieces
    affine = call.axes_of(norm.axes, 1)
    cut = norm.cut % ndim
    if cut not in affine:
        return [parameter] * norm.pieces
    return list(_pieces(parameter, affine.index(cut), norm.pieces))


def _is_traced() -> bool:
    return bool(torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack())


def _statistics(run: _Operators, norm: Norm, x: Tensor) -> list[Tensor]:
    """What a part sends, for each piece."""
    pieces = _pieces(x, norm.cut, norm.pieces)
    return [run.norm_part_message(piece, norm.axes, norm.options) for piece in pieces]


def _by_part(norm: Norm, sent: Tensor) -> Tensor:
    """A row for each piece of each rank."""
    return sent if norm.pieces == 1 else sent.reshape(sent.shape[0] * norm.pieces, -1)


def _merge(
    run: _Operators, norm: Norm, x: Tensor, sent: Tensor
) -> tuple[Tensor | None, Tensor, Tensor]:
    """(mean, rstd, shares) of whole rows from the messages of all parts, (parts, length); the share
    of each part in a row's elements."""
    sent = _by_part(norm, sent)
    return run.norm_merge(x, sent, norm.axes, norm.options, norm.eps)  # type: ignore[no-any-return]


def _gathered(sent: list[list[Tensor]], group: dist.ProcessGroup) -> list[Tensor]:
    """What every rank sent, for each norm: (ranks, length)."""
    whole = [part for parts in sent for part in parts]
    gathered = gather(whole[0] if len(whole) == 1 else torch.cat(whole), group)
    if len(sent) == 1:
        return [gathered]
    lengths = [sum(part.numel() for part in parts) for parts in sent]
    return list(torch.split(gathered, lengths, 1))


# ---- Forward and backward ------------------------------------------------------------------------


def _backward_statistics(
    run: _Operators, norm: Norm, dy: Tensor, saved: tuple[Any, ...], wanted: int
) -> tuple[list[Tensor], list[Tensor | None]]:
    """(what a part sends backward, [dweight, dbias])."""
    x, weight, mean, rstd = saved
    sent: list[Tensor] = []
    gradients: list[list[Tensor]] = [[], []]
    options = norm.backward_options(wanted)
    of_weight = _of_parameter(norm, weight, x.dim())
    dys, xs = (_pieces(tensor, norm.cut, norm.pieces) for tensor in (dy, x))
    for dy_piece, x_piece, w in zip(dys, xs, of_weight, strict=True):
        message, *made = run.norm_backward_statistics(
            dy_piece, x_piece, rstd, mean, w, norm.axes, options
        )
        sent.append(message)
        for gradient, one in zip(gradients, made, strict=True):
            if one is not None:
                gradient.append(one)
    return sent, [_joined(norm, gradient, x.dim()) for gradient in gradients]


def _joined(norm: Norm, pieces: list[Tensor], ndim: int) -> Tensor | None:
    """A parameter's gradient from those of the pieces."""
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    affine = call.axes_of(norm.axes, 1)
    cut = norm.cut % ndim
    if cut in affine:
        return torch.cat(pieces, affine.index(cut))
    return torch.stack(pieces).sum(0)


def _gradient(
    run: _Operators, norm: Norm, dy: Tensor, saved: tuple[Any, ...], shares: Tensor, sent: Tensor
) -> Tensor:
    """dx from c1 and c2 of all parts; `shares`: of each of the whole row."""
    x, weight, mean, rstd = saved
    sent = _by_part(norm, sent)
    c1, c2 = run.norm_merge_sums(x, sent, shares, norm.axes, norm.options)
    made, options = [], norm.backward_options(1)
    of_weight = _of_parameter(norm, weight, x.dim())
    dys, xs = (_pieces(tensor, norm.cut, norm.pieces) for tensor in (dy, x))
    for dy_piece, x_piece, w in zip(dys, xs, of_weight, strict=True):
        beside = rstd, mean, c1, c2, None, None, w, None
        dx, *_ = run.norm_backward_apply(dy_piece, x_piece, *beside, norm.axes, options, norm.eps)
        made.append(dx)
    return made[0] if len(made) == 1 else torch.cat(made, norm.cut)


class _Norms(torch.autograd.Function):
    """x, weight and bias of each norm behind what is no tensor."""

    @staticmethod
    def forward(
        ctx: Any, of: tuple[Norm, ...], group: dist.ProcessGroup, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        xs: Any = tensors[::3]
        weights, biases = tensors[1::3], tensors[2::3]
        run = _operators(*xs)
        sent = [_statistics(run, norm, x) for norm, x in zip(of, xs, strict=True)]
        known = [
            _merge(run, norm, x, message)
            for norm, x, message in zip(of, xs, _gathered(sent, group), strict=True)
        ]
        ctx.of, ctx.group = of, group
        ctx.biases = [None if b is None else (b.shape, b.dtype) for b in biases]
        saved: list[Tensor | None] = []
        for x, weight, by in zip(xs, weights, known, strict=True):
            saved += [x, weight, *by]
        ctx.save_for_backward(*saved)
        return tuple(
            run.norm_apply(x, rstd, mean, None, weight, bias, norm.axes, norm.options, norm.eps)
            for norm, x, weight, bias, (mean, rstd, _) in zip(
                of, xs, weights, biases, known, strict=True
            )
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> tuple[Any, ...]:
        of, group, saved = ctx.of, ctx.group, ctx.saved_tensors
        run = _operators(*dys, *saved[::5])
        needs = ctx.needs_input_grad[2:]
        each = [(*saved[5 * i : 5 * i + 4],) for i in range(len(of))]
        results: list[Tensor | None] = []
        sent = []
        for i, (norm, dy) in enumerate(zip(of, dys, strict=True)):
            wanted = needs[3 * i + 1] << 2 | needs[3 * i + 2] << 3
            message, (dweight, dbias) = _backward_statistics(run, norm, dy, each[i], wanted)
            sent.append(message)
            like = ctx.biases[i]
            if dbias is not None and like is not None:
                dbias = dbias.to(like[1]).view(like[0])
            if dweight is not None:
                dweight = dweight.view(each[i][1].shape)
            results += [None, dweight, dbias]
        if any(needs[::3]):
            for i, gathered in enumerate(_gathered(sent, group)):
                results[3 * i] = _gradient(run, of[i], dys[i], each[i], saved[5 * i + 4], gathered)
        return None, None, *results


_record = ops.record_of(_Norms)


def norms(
    of: tuple[Norm, ...], group: dist.ProcessGroup, *tensors: Tensor | None
) -> tuple[Tensor, ...]:
    """The norms of x, weight and bias of each, by one exchange each way."""
    record = _record if is_plain(*tensors) else _Norms.apply
    return record(of, group, *tensors)  # type: ignore[no-any-return]
