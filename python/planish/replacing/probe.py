"""Whether a module computes what a form says: its own forward against planish, on seeded inputs.

It looks at copies with seeded parameters on the CPU (inputs.py), so parameters may be anywhere, on
no device or in shards. What is found holds for a class with these settings and is kept; it says for
which dtypes and numbers of axes. edges.py sees to it that the class does nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any

import torch
from planish.library import counts
from planish.replacing import edges, families
from planish.replacing.edges import Changes
from planish.replacing.forms import Form
from planish.replacing.inputs import UNLIKE, apart
from planish.replacing.inputs import copied as _copy
from planish.replacing.inputs import seeded as _seeded
from planish.replacing.prober import (
    BOUND_ULP,
    DEFAULT_SIZE,
    DTYPES,
    FEW,
    GRADIENT_ULP,
    HALF,
    NEIGHBOUR_SHARE,
    NEIGHBOUR_ULP,
    Pair,
    Prober,
    Refuses,
)
from planish.replacing.prober import ulp as _ulp
from planish.replacing.runners import NotExact
from planish.replacing.settings import key_of
from torch import nn

__all__ = ["BOUND_ULP", "DEFAULT_SIZE", "DTYPES", "FEW", "GRADIENT_ULP", "HALF", "NEIGHBOUR_SHARE"]
__all__ += [
    "NEIGHBOUR_ULP",
    "Pair",
    "Proof",
    "_copy",
    "_seeded",
    "_ulp",
    "apart",
    "forget",
    "prove",
]


@dataclasses.dataclass(frozen=True)
class Proof:
    """The form that a class has, for which dtypes of x and weight, and numbers of axes."""

    form: Form
    pairs: frozenset[Pair]
    ranks: frozenset[int]
    #: Whether all dtypes are there, and 16-bit results the original's but for neighbours.
    same_rounding: bool
    #: Numbers of axes, with an axis that the original does not keep where its size is 1.
    dropped: frozenset[tuple[int, int]] = frozenset()
    #: Of the dtypes that are not there at the edges, which and why.
    note: str = ""

    def __str__(self) -> str:
        return f"{self.form} ({self.note})" if self.note else str(self.form)


class _Passing(str):
    """A refusal that says nothing of the mathematics: the class, or planish, raised each time, as
    it may for want of memory or of a package. It holds for one call of replace() or replaced()."""


_proofs: dict[Any, Proof | str] = {}
_passing: dict[Any, str] = {}
_lock = threading.RLock()


def _ranks(form: Form) -> tuple[int, ...]:
    if form.kind in (*UNLIKE, "convolution"):
        return (4,)
    if form.axis == 1:
        return (4, 3, 5, 2)
    return tuple(rank + form.count - 1 for rank in (3, 2, 4, 5))


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


def _first(prober: Prober) -> int | str:
    """A number of axes for which the mathematics are the same, or why there is none: in float64,
    where the original's own roundings are least."""
    why, compared = "", False
    for rank in _ranks(prober.form):
        for dtype in (torch.float64, torch.float32):
            try:
                pair = dtype, dtype if prober.has_parameters else None
                prober.first_calls(pair, rank)
                theirs, ours, axis = prober.results(pair, rank)
                compared = True
                prober.same_layout(theirs[0], ours[0])
                largest = float(_ulp(ours[0], theirs[0], axis, torch.float32).max())
                if largest <= BOUND_ULP:
                    return rank
                return f"its result is {largest:.3g} ULP from planish's"
            except Changes:
                raise
            except Exception as error:
                why = why or _why(error)
    return why if compared else _Passing(f"its forward raises {why}")


def _prove(cls: type[nn.Module], module: nn.Module) -> Proof | str:
    candidates: list[tuple[float, Proof, Prober]] = []
    nearest = ""
    settled: set[Any] = set()
    refuted: set[Any] = set()
    originals: dict[Any, Any] = {}
    for form in families.forms(module):
        mathematics = dataclasses.replace(form, order="", offset_in_weight=False)
        if mathematics in refuted or (settled and mathematics not in settled):
            continue  # not the mathematics of this class
        prober = Prober(cls, module, form, originals)
        rank = _first(prober)
        if isinstance(rank, str):
            passing = isinstance(rank, _Passing) and (not nearest or isinstance(nearest, _Passing))
            if passing:
                nearest = nearest or rank
            elif not nearest or isinstance(nearest, _Passing):
                nearest = f"not a {form}: {rank}"
            refuted.add(mathematics)
            continue
        settled.add(mathematics)
        proof, score = _prove_dtypes(prober, rank)
        if proof is not None:
            candidates.append((score, proof, prober))
            if proof.same_rounding:
                break
    if not candidates:
        return nearest or families.no_forms(module)
    return _whole(*max(candidates, key=lambda candidate: candidate[0])[1:])


def _prove_dtypes(prober: Prober, rank: int) -> tuple[Proof | None, float]:
    pairs: set[Pair] = set()
    same = refused = 0
    for dtype in DTYPES if prober.has_parameters else (None,):
        for x_dtype in DTYPES:
            try:
                same += prober.agrees((x_dtype, dtype), rank)
                pairs.add((x_dtype, dtype))
            except Refuses:
                refused += 1
            except Exception:
                continue
    if not pairs:
        return None, 0.0
    one = (torch.float32, torch.float32 if prober.has_parameters else None)
    ranks = {rank}
    for other in _ranks(prober.form):
        with contextlib.suppress(Exception):
            prober.agrees(one, other, gradients=False)
            ranks.add(other)
    every = len(DTYPES) * (len(DTYPES) if prober.has_parameters else 1)
    form = prober.form
    if form.axis == 1 and 4 in ranks:
        form = dataclasses.replace(form, channels_last=prober.gives_channels_last(one))
    dropped = prober.dropped(one, ranks)
    proof = Proof(form, frozenset(pairs), frozenset(ranks), same + refused == every, dropped)
    return proof, same + len(pairs) / 100


def _whole(proof: Proof, prober: Prober) -> Proof | str:
    """The proof for the dtypes in which the class does what planish does at the edges, too; or why
    it has none. Raises Changes."""
    form = prober.form
    more = prober.read - {form.weight, form.bias, form.eps}
    if more:
        raise Changes(
            f"its forward reads the buffer {min(map(str, more))!r}, which planish does not"
        )
    enough = 3 if form.axis == 1 else 2
    rank = min(proof.ranks, key=lambda rank: (rank < enough, rank))
    order = (*DTYPES, None)
    pairs = sorted(proof.pairs, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    prober.same_in_training(pairs[0], rank)
    failed: dict[Pair, str] = {}
    for pair in pairs:
        try:
            why = edges.at_edges(prober, pair, rank)
        except NotExact:
            continue  # its own forward runs there
        except Changes:
            raise
        except Exception as error:
            why = f"for numbers at the edges it raises {_why(error)}"
        if why:
            failed[pair] = why
    left = frozenset(proof.pairs.difference(failed))
    if not failed:
        return proof
    wide = [pair for pair in failed if not set(pair).intersection(HALF)]
    if wide or not left:
        return f"a {form} but for this: {failed[(wide or pairs)[0]]}"
    names = dict.fromkeys(str(pair[0]).removeprefix("torch.") for pair in failed)
    note = f"some {', '.join(names)} left to its own forward: {next(iter(failed.values()))}"
    return dataclasses.replace(proof, pairs=left, note=note)


def _asked(cls: type[nn.Module], module: nn.Module) -> Proof | str:
    """The proof, or the reason: empty for a class that is neither called a norm nor like one."""
    called = families.is_called_norm(module)
    size = next((p.numel() for p in module._parameters.values() if p is not None), DEFAULT_SIZE)
    try:
        if not called and not edges.is_norm_like(cls, module, size):
            return ""
        return _prove(cls, module)
    except Changes as error:
        return str(error)
    except Exception as error:
        return _Passing(f"looking at it raises {_why(error)}")


def prove(cls: type[nn.Module], module: nn.Module) -> Proof | str:
    """The proof of a module whose forward is that of ``cls``, or why there is none."""
    key = key_of(cls, module)
    with _lock:
        for kept in (_proofs, _passing):
            if key in kept:
                return kept[key]
        with counts.uncounted(), apart():
            found = _asked(cls, module)
        if isinstance(found, _Passing):
            _passing[key] = found
        else:
            _proofs[key] = found
        return found


def forget() -> None:
    """Forgets refusals that what is around a call may have caused."""
    with _lock:
        _passing.clear()
