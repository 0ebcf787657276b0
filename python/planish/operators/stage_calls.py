"""The norm with its stages in one call of planish's operators, for the functions of stage_norms.py,
gated.py and functional.py, which have checked their arguments.

A call that is known from before (kept.py) goes the short way.
"""

from __future__ import annotations

import operator
import sys
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from planish.library import counts
from planish.library.loaded import ERROR_UNAVAILABLE
from planish.library.seen import needs_graph
from planish.operators import asked, call, kept, limits, ops, placed, short
from planish.operators.arguments import with_offset
from planish.operators.call import Call, Tensors
from planish.operators.kept import Prepared
from planish.operators.records import Record, thrown
from planish.operators.ways import Way
from torch import Tensor

__all__ = [
    "as_rows",
    "described",
    "is_distributed",
    "known",
    "last_axes",
    "modulation_axes",
    "norm",
    "prepare",
    "run_plain",
    "saves_badly",
    "together",
    "whole_offset",
]

#: Seeds and offsets are below it.
_SEEDS = 2**63 - 1

#: call.py's Tensors, or as many in a tuple, which costs less to make.
Given = tuple[Any, ...]


def prepare(saving: Call, given: Tensors, graph: bool = True) -> Prepared:
    alone = saving._replace(options=saving.options & ~call.SAVE)
    return Prepared(Record(saving, given), alone, graph)


# ---- Calls that are known ------------------------------------------------------------------------


def run_plain(tensors: Tensors, prepared: Prepared) -> tuple[Tensor, Tensor | None] | None:
    """(y, sum or None) of tensors that only eager autograd looks at; None where autograd cannot
    save them, or the library cannot run it."""
    if prepared.alone.dropout_p and tensors.rng is None:
        tensors = tensors._replace(rng=_drawn(tensors.x.device))
    there = [tensor for tensor in tensors if tensor is not None]
    try:
        if needs_graph(*there):
            if not prepared.graph or saves_badly(*there):
                return None
            found = ops.record_forward(prepared.record, *there)
            return found if type(found) is tuple else (found, None)
        y, total, _, _ = short.FORWARD(*tensors, *prepared.alone)
        return y, total
    except RuntimeError:
        if thrown(ERROR_UNAVAILABLE):
            return None
        raise


def known(options: tuple[Any, ...], tensors: Given) -> tuple[Any, Any]:
    """(y, sum or None, ...) of a call that is known, or None, and what it is kept under: None for a
    call that goes the long way."""
    results, key, prepared = kept.run(options, tensors)
    if results is None and prepared is not None:
        results = run_plain(Tensors(*tensors), prepared)
    return results, key


def saves_badly(*tensors: Tensor | None) -> bool:
    """Autograd saves no tensor that was made in inference mode."""
    for tensor in tensors:  # noqa: SIM110 (a loop, as in ways.py)
        if tensor is not None and tensor.is_inference():
            return True
    return False


# ---- Axes and parameters -------------------------------------------------------------------------


def last_axes(ndim: int, parameter: Tensor | None) -> list[int]:
    """Those of a parameter with the sizes of the last axes."""
    return list(range(ndim - (1 if parameter is None else parameter.dim()), ndim))


def modulation_axes(x: Tensor, tensor: Tensor | None) -> list[int]:
    """Those along which a modulation varies that has x's rank or the last axis alone."""
    if tensor is None:
        return []
    if tensor.dim() != x.dim():
        return [x.dim() - 1]
    return [axis for axis, size in enumerate(tensor.shape) if size != 1]


def whole_offset(weight: Tensor | None, offset: float) -> tuple[Tensor | None, int]:
    """(weight, weight_offset) as the library has them: it adds 0 or 1."""
    if weight is None:
        return None, 0
    for whole in (0, 1):  # a float may be a graph's input: what it equals is a constant
        if offset == whole:
            return weight, whole
    return with_offset(weight, offset), 0


def together(one: Tensor | None, other: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Two parameters of the same axes: where their shapes differ they are seen in the one that both
    broadcast to."""
    if one is None or other is None or one.shape == other.shape:
        return one, other
    pairs = zip_longest(one.shape[::-1], other.shape[::-1], fillvalue=1)
    shape = [max(sizes) if 0 not in sizes else 0 for sizes in pairs][::-1]
    return one.expand(shape), other.expand(shape)


def _over_last(ndim: int, reduce: list[int], affine: list[int]) -> bool:
    """Whether the norm is over the last axes, and weights vary along them: for all else the library
    has its general kernels alone."""
    last = list(range(ndim - len(reduce), ndim))
    return reduce == last and affine[-len(reduce) :] == last


def as_rows(tensor: Tensor | None) -> Any:
    """With elements of the last axis as neighbours: a copy, as torch's own norm makes it, of an
    image whose channels are seen last."""
    if tensor is None or tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor
    return tensor.contiguous()


def is_distributed(x: Tensor) -> bool:
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(x, distributed.DTensor)


# ---- The long way --------------------------------------------------------------------------------


def _can_run(way: Way, tensors: Tensors, graph: bool) -> bool:
    """Whether there are kernels where these tensors are, and autograd can save what they read."""
    x, _, row_scale, *_ = tensors
    if graph and (
        (row_scale is not None and row_scale.requires_grad)  # it has no gradient
        or (way is Way.PLAIN and saves_badly(*tensors))
    ):
        return False
    why = asked.why_not(x.device)
    if why and way is Way.PLAIN:
        counts.count_composed("planish::norm_forward (stages)", why)
    return not why


class Described(NamedTuple):
    """What norm_forward is called with."""

    tensors: Tensors
    saving: Call  # for a derivative
    graph: bool  # whether there is one


def described(
    way: Way,
    given: Tensors,
    reduce: list[int],
    eps: float,
    rms: bool,
    *,
    affine: list[int] | None = None,
    column: list[int] | None = None,
    split: int = 0,
    weight_offset: float = 0,
    activation: int = 0,
    gate_before: bool = False,
    round_xhat: bool = False,
    dropout_p: float = 0.0,
    y_dtype: torch.dtype,
    sum_dtype: torch.dtype | None = None,
) -> Described | None:
    """None where the library, or the way of the call, wants the composition of torch's operators.
    ``given`` has no rng. ``affine`` and ``column``: the axes of weight and bias and of
    column_scale, by default the last as far as they have them; all axes are those of x as it is
    seen by ``split`` (call.py)."""
    if way is not Way.PLAIN and way is not Way.OPERATOR:
        return None
    x, residual, row_scale, column_scale, _, weight, bias, scale, shift, gate = given
    if way is Way.OPERATOR and placed.split_axis_of(x, reduce) is not None:
        return None  # the composition's norm is one of parts
    weight, offset = whole_offset(weight, weight_offset)
    weight, bias = together(weight, bias)
    scale, shift = together(scale, shift)
    tensors = Tensors(x, residual, row_scale, column_scale, None, weight, bias, scale, shift, gate)
    graph = needs_graph(*tensors)
    if not _can_run(way, tensors, graph):
        return None
    ndim = x.dim() + (split != 0)
    if affine is None:
        affine = last_axes(ndim, weight if weight is not None else bias)
    has_stages = any(t is not None for t in (residual, scale, shift, gate)) or round_xhat
    if has_stages and x.numel() > limits.GENERAL_ELEMENTS:
        if not _over_last(ndim, reduce, affine):
            return None
        tensors = tensors._replace(x=as_rows(x), residual=as_rows(residual), gate=as_rows(gate))
    if column is None:
        column = [] if column_scale is None else last_axes(ndim, column_scale)
    if dropout_p:
        if way is Way.OPERATOR and type(x) is not Tensor and is_distributed(x):
            return None  # each shard would draw the others' mask
        tensors = tensors._replace(rng=_drawn(x.device))
    saving = call.make_call(
        reduce,
        affine,
        column,
        modulation_axes(x, shift if scale is None else scale),
        split=split,
        eps=eps,
        dropout_p=dropout_p,
        rms=rms,
        weight_offset=offset,
        activation=activation,
        gate_before=gate_before,
        round_xhat=round_xhat,
        dtype=y_dtype,
        sum_dtype=sum_dtype,
    )
    return Described(tensors, saving, graph)


def norm(
    way: Way,
    given: Tensors,
    reduce: list[int],
    eps: float,
    rms: bool,
    *,
    key: Any = None,
    **more: Any,
) -> tuple[Tensor, Any] | None:
    """(y, sum or None) of what described() has, or None where it has none. ``key``: what the call
    is kept under."""
    found = described(way, given, reduce, eps, rms, **more)
    if found is None:
        return None
    tensors, saving, graph = found
    if way is Way.OPERATOR:
        y, total, _, _ = ops.FORWARD(*tensors, *saving)
        return y, total
    prepared = prepare(saving, tensors, graph)
    results = run_plain(tensors, prepared)
    if results is not None and all(map(operator.is_, given, tensors._replace(rng=None))):
        kept.keep(key, prepared)
    return results


def _drawn(device: torch.device) -> Tensor:
    """The seed and the offset of dropout, by torch's generator of the device; a CUDA graph draws
    new ones at each replay."""
    return torch.randint(_SEEDS, (2,), dtype=torch.int64, device=device)
