"""What became of the calls of torch's and planish's operators: planish.stats().

C counts (src/torch/calls.c) and never begins anew; what is not to be seen is taken off here. Calls
of planish's own that the library says it cannot run are counted here, with its reason.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator

from planish.library.loaded import OperatorStats, library

__all__ = ["Stats", "count_compiled", "reset_stats", "stats", "uncounted"]


class Stats(dict[str, OperatorStats]):
    """A dict, ``{operator: {"planish": n, "unboxed": n, "torch": {reason: n}}}``, of which print()
    makes a table of the operators that were called."""

    def __str__(self) -> str:
        called = {
            name: counts for name, counts in self.items() if counts["planish"] or counts["torch"]
        }
        if not called:
            return "no norm was called yet"
        width = max(len("operator"), *map(len, called))
        lines = [f"{'operator':{width}}  {'planish':>8}  {'torch':>8}  why torch"]
        for name, counts in called.items():
            handed = sum(counts["torch"].values())
            reasons = [f"{why} ({count})" for why, count in counts["torch"].items()]
            line = f"{name:{width}}  {counts['planish']:8}  {handed:8}  "
            lines.append((line + (reasons[0] if reasons else "")).rstrip())
            lines += [" " * len(line) + reason for reason in reasons[1:]]
        return "\n".join(lines)


#: Calls that are not shown: those before the last reset, and those inside of uncounted().
_gone: dict[str, OperatorStats] = {}
#: What C had counted at the last reset, and how many resets there were.
_at_reset: dict[str, OperatorStats] = {}
_resets = 0
_lock = threading.Lock()


#: Norms of the graphs that were compiled, by their pass: those that run on planish there, and those
#: that inductor makes itself.
_compiled: dict[str, OperatorStats] = {}


def count_compiled(direction: str, planish: bool, why: str) -> None:
    """Counts one norm of a graph; ``why`` inductor makes it itself."""
    with _lock:
        name = f"in compiled graphs ({direction})"
        counts = _compiled.setdefault(name, OperatorStats(planish=0, unboxed=0, torch={}))
        if planish:
            counts["planish"] += 1
        else:
            counts["torch"][why] = counts["torch"].get(why, 0) + 1


#: Calls that were composed of torch's operators at once, by operator and reason.
_composed: dict[tuple[str, str], int] = {}


def count_composed(operator: str, why: str) -> None:
    """Counts a call of planish's own that is none of this operator, by the reason."""
    with _lock:
        _composed[operator, why] = _composed.get((operator, why), 0) + 1


def _counted() -> dict[str, OperatorStats]:
    """By C, and what never came to it."""
    found = {**library().stats(), **copy.deepcopy(_compiled)}
    for (operator, why), calls in _composed.items():
        torch = found[operator]["torch"]
        torch[why] = torch.get(why, 0) + calls
    return found


def _less(now: dict[str, OperatorStats], then: dict[str, OperatorStats]) -> Stats:
    """The calls of ``now`` that are none of ``then``."""
    left = Stats()
    for operator, counts in now.items():
        gone = then.get(operator, OperatorStats(planish=0, unboxed=0, torch={}))
        torch = {why: n - gone["torch"].get(why, 0) for why, n in counts["torch"].items()}
        left[operator] = OperatorStats(
            planish=counts["planish"] - gone["planish"],
            unboxed=counts["unboxed"] - gone["unboxed"],
            torch={why: n for why, n in torch.items() if n},
        )
    return left


def stats() -> Stats:
    """What became of every call so far, or since :func:`reset_stats`: a dict
    ``{operator: {"planish": n, "unboxed": n, "torch": {reason: n}}}``, which print() shows as a
    table. It is a copy: later calls do not change it.

    ``rms_norm (autograd)`` counts the calls that went on to ``_fused_rms_norm``, which counts them
    again. ``in compiled graphs`` counts norms where torch.compile looked at them, not their calls.
    ``unboxed`` counts those that came without torch's boxed stack, wherever they ran.

    Example:

    >>> planish.reset_stats()
    >>> with planish.enabled():
    ...     y = torch.nn.functional.layer_norm(torch.randn(4, 64), (64,))
    >>> planish.stats()["native_layer_norm"]["planish"]
    1
    """
    with _lock:
        return _less(_counted(), _gone)


def reset_stats() -> None:
    """From now on :func:`stats` counts from zero, in the whole process.

    Example:

    >>> planish.reset_stats()
    >>> planish.stats()["native_layer_norm"]["planish"]
    0
    """
    global _resets
    with _lock:
        now = _counted()
        for kept in (_gone, _at_reset):
            kept.clear()
            kept.update(now)
        _resets += 1


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """What runs inside is missing in :func:`stats`: probes are no calls of the user's.

    The counters are the process's: calls of other threads in the meantime go missing, too.
    """
    with _lock:
        before, resets = _counted(), _resets
    try:
        yield
    finally:
        with _lock:
            since = before if resets == _resets else _at_reset
            for operator, counts in _less(_counted(), since).items():
                gone = _gone.setdefault(operator, OperatorStats(planish=0, unboxed=0, torch={}))
                torch = dict(gone["torch"])
                for why, calls in counts["torch"].items():
                    torch[why] = torch.get(why, 0) + calls
                _gone[operator] = OperatorStats(
                    planish=gone["planish"] + counts["planish"],
                    unboxed=gone["unboxed"] + counts["unboxed"],
                    torch=torch,
                )
