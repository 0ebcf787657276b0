"""Two norms over the last axis by one call, such as those of queries and keys: planish::norm_pair
(ops.py). What a caller may get wrong, heads.py checks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from planish.library.seen import needs_graph
from planish.operators import call, kept, ops, short
from planish.operators.arguments import rms_eps
from planish.operators.stage_calls import saves_badly
from planish.operators.ways import Way, way_of
from torch import Tensor

__all__ = ["eps_of_both", "known", "norms"]

#: first, second, first_weight, second_weight.
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class _Prepared(NamedTuple):
    """What norm_pair is called with: to save for a derivative, and without."""

    options: int
    alone: int
    eps: float


def _prepare(rms: bool, weight_offset: float, eps: float) -> _Prepared:
    options = call.pack_options(rms=rms, weight_offset=1 if weight_offset else 0)
    return _Prepared(options, options & ~call.SAVE, eps)


def _plain(tensors: Tensors, prepared: _Prepared) -> tuple[Tensor, Tensor]:
    """By tensors that only eager autograd looks at."""
    options, alone, eps = prepared
    if needs_graph(*tensors):
        both: tuple[Tensor, Tensor] = ops.record_pair((None, options, eps), *tensors)
        return both
    y, _, _, second_y, _, _ = short.PAIR(*tensors, alone, eps)
    return y, second_y


def _is_inference(tensors: Tensors) -> bool:
    """Autograd saves no tensor that was made in inference mode."""
    return needs_graph(*tensors) and saves_badly(*tensors)


def eps_of_both(first: Any, second: Any) -> float | None:
    """eps=None of RMS norms as a number, if it is the same for both; None also for what is no
    tensor."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    eps = rms_eps(None, first)
    return eps if eps == rms_eps(None, second) else None


def known(key: Any, tensors: Tensors) -> tuple[Tensor, Tensor] | None:
    """The norms of a call that is known by this key (kept.py); None otherwise."""
    prepared = kept.find(key)
    if prepared is None or _is_inference(tensors):
        return None
    return _plain(tensors, prepared)


def _takes(tensors: Tensors, weight_offset: float) -> bool:
    """Whether the operator has the result of each norm alone."""
    first, second, first_weight, second_weight = tensors
    if weight_offset not in (0, 1) or first.device != second.device:
        return False
    for x, weight in ((first, first_weight), (second, second_weight)):
        if x.device.type not in ("cpu", "cuda") or x.dim() < 1:
            return False
        if weight is None:
            continue
        if weight.device != x.device or not 1 <= weight.dim() <= x.dim():
            return False
        # What is computed in f64 is cast around the kernels.
        if torch.float64 in (x.dtype, weight.dtype) and x.dtype != weight.dtype:
            return False
    return True


def norms(
    key: Any, tensors: Tensors, eps: float, rms: bool, weight_offset: float
) -> tuple[Tensor, Tensor] | None:
    """Both norms of arguments that were looked at; None where they are for one call each."""
    way = way_of(*tensors)
    if way not in (Way.PLAIN, Way.OPERATOR) or not _takes(tensors, weight_offset):
        return None
    if way is Way.PLAIN:
        if _is_inference(tensors):
            return None
        prepared = _prepare(rms, weight_offset, eps)
        results = _plain(tensors, prepared)
        kept.keep(key, prepared)
        return results
    fakes = torch._subclasses.FakeTensor
    plain = (Tensor, torch.nn.Parameter, fakes)
    if not all(type(t) in plain for t in tensors if t is not None):
        return None  # DTensor has rules for the operators of one norm
    options = _prepare(rms, weight_offset, eps).options
    y, _, _, second_y, _, _ = ops.PAIR(*tensors, options, eps)
    return y, second_y
