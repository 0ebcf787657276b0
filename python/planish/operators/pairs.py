"""Two norms over the last axis by one call, such as those of queries and keys: planish::norm_pair
(ops.py). What a caller may get wrong, fused.py checks."""

from __future__ import annotations

from typing import Any

import torch
from planish.operators import call, ops
from planish.operators.arguments import rms_eps
from planish.operators.stage_calls import holds_tensors, saves_badly
from planish.operators.ways import Way, below_autograd, is_plain, needs_graph, signature, way_of
from torch import Tensor

__all__ = ["Kept", "eps_of_both", "key_of", "known", "norms"]

#: first, second, first_weight, second_weight.
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

_forward_op = ops.PAIR._op


def _options(rms: bool, weight_offset: float, save: bool) -> int:
    return call.pack_options(rms=rms, weight_offset=int(weight_offset), save=save)


def _plain(tensors: Tensors, eps: float, rms: bool, weight_offset: float) -> tuple[Tensor, Tensor]:
    """By tensors that only eager autograd looks at."""
    if needs_graph(*tensors):
        options = _options(rms, weight_offset, True)
        both: tuple[Tensor, Tensor] = ops.record_pair(None, *tensors, options, eps)
        return both
    with below_autograd():
        y, _, _, second_y, _, _ = _forward_op(*tensors, _options(rms, weight_offset, False), eps)
    return y, second_y


# ---- Calls ---------------------------------------------------------------------------------------

#: So many combinations of options, dtypes, shapes and devices are kept; then it begins anew.
_ROOM = 4096

#: What a call is kept under, once its arguments were looked at.
Kept = tuple[Any, ...]

_kept: set[Kept] = set()


def key_of(options: tuple[Any, ...], tensors: Tensors) -> Kept | None:
    """What a call is kept under; None for one that has to go the long way."""
    if not is_plain(*tensors):
        return None
    return signature(options, tensors)


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


def known(
    key: Kept | None, tensors: Tensors, eps: float | None, rms: bool, weight_offset: float
) -> tuple[Tensor, Tensor] | None:
    """The norms of a call that is known by this key; None otherwise."""
    try:
        if key is None or eps is None or key not in _kept or _is_inference(tensors):
            return None
    except TypeError:  # an option without a hash is none that the function takes
        return None
    return _plain(tensors, eps, rms, weight_offset)


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
    key: Kept | None, tensors: Tensors, eps: float, rms: bool, weight_offset: float
) -> tuple[Tensor, Tensor] | None:
    """Both norms of arguments that were looked at; None where they are for one call each."""
    way = way_of(*tensors)
    if way not in (Way.PLAIN, Way.OPERATOR) or not _takes(tensors, weight_offset):
        return None
    if way is Way.PLAIN:
        if _is_inference(tensors):
            return None
        results = _plain(tensors, eps, rms, weight_offset)
        if key is not None and not holds_tensors(key[0]):
            if len(_kept) >= _ROOM:
                _kept.clear()
            _kept.add(key)
        return results
    fakes = torch._subclasses.FakeTensor
    plain = (Tensor, torch.nn.Parameter, fakes)
    if not all(type(t) in plain for t in tensors if t is not None):
        return None  # DTensor has rules for the operators of one norm
    options = _options(rms, weight_offset, True)
    y, _, _, second_y, _, _ = ops.PAIR(*tensors, options, eps)
    return y, second_y
