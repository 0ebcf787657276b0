"""Calls that are known: what a call comes to depends on options, dtypes, sizes and devices alone,
so it is found once for each combination of these and kept. What is special, dropout and tensors in
unusual strides among it, is not kept, and goes the long way each time."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from torch.compiler import is_compiling

from planish.library import quick
from torch import Tensor

__all__ = ["Prepared", "find", "keep", "key_of", "run"]

#: So many combinations are kept; then it begins anew. Sequences of many lengths would fill memory.
_ROOM = 4096

_calls: dict[Any, Any] = {}


class Prepared(NamedTuple):
    """What norm_forward is called with: to save for a derivative (records.py), and without."""

    record: Any
    alone: Any  # of call.py's Call; C takes it out by its place
    #: Whether its derivative has kernels, too.
    graph: bool = True


def key_of(
    options: tuple[Any, ...],
    tensors: tuple[Tensor | None, ...],
    dense: tuple[Tensor | None, ...] = (),
) -> Any:
    """What a call is kept under: its options, and dtype, shape and device of each tensor. None for
    one that is not plain (seen.py) and goes the long way. ``dense``: those that have to be."""
    return None if is_compiling() else quick.key_of(options, tensors, dense)


def run(options: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> tuple[Any, Any, Any]:
    """(norm_forward's results, what the call is kept under, what is kept), of options and tensors.
    No results: the call is not known, or wants a graph or anything else that is not asked for here.
    The tensors are those of norm_forward, or three: x, weight and bias."""
    if is_compiling():
        return None, None, None
    found: tuple[Any, Any, Any] = quick.known(_calls, Prepared, options, tensors)
    return found


def find(key: Any) -> Any:
    """What is kept under this key; None where nothing is."""
    try:
        return None if key is None else _calls.get(key)
    except TypeError:  # an option without a hash is none that the functions take
        return None


def keep(key: Any, call: Any) -> None:
    """But for options that are numbers in tensors, which may be others the next time."""
    quick.know_tensors()
    if key is None or any(isinstance(option, Tensor) for option in key[0]):
        return
    if len(_calls) >= _ROOM:
        _calls.clear()
    with contextlib.suppress(TypeError):  # as above
        _calls[key] = call
