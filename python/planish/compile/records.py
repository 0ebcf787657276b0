"""What was chosen for the norms of compiled graphs, and why."""

from __future__ import annotations

import collections
import logging
import threading
from typing import NamedTuple

__all__ = ["Entry", "Report", "begin", "record", "report"]

_log = logging.getLogger("planish.compile")

#: So many norms are remembered; the oldest are forgotten first.
_ROOM = 4096


class Entry(NamedTuple):
    """One pass of one norm of a graph."""

    #: The number of the graph, from 0 on.
    graph: int
    #: The node's name in the graph.
    norm: str
    #: ``"forward"`` or ``"backward"``.
    direction: str
    shape: tuple[int | None, ...]
    dtype: str
    #: ``"planish"`` or ``"inductor"``.
    chosen: str
    why: str


_entries: collections.deque[Entry] = collections.deque(maxlen=_ROOM)
_graphs = 0
_lock = threading.Lock()


class Report(list[Entry]):
    """A list of entries, of which print() makes a table."""

    def __str__(self) -> str:
        if not self:
            return "no graph with norms was compiled yet"
        lines = [f"{'graph':>5}  {'pass':8}  {'chosen':8}  {'shape':24}  {'dtype':8}  why"]
        for entry in self:
            shape = "x".join("?" if size is None else str(size) for size in entry.shape)
            lines.append(
                f"{entry.graph:5}  {entry.direction:8}  {entry.chosen:8}  {shape:24}  "
                f"{entry.dtype:8}  {entry.why}"
            )
        return "\n".join(lines)


def begin() -> int:
    """The number of a graph that is looked at now."""
    global _graphs
    with _lock:
        _graphs += 1
        return _graphs - 1


def record(entry: Entry) -> None:
    with _lock:
        _entries.append(entry)
    _log.info(
        "graph %d: %s (%s of %s %s): %s: %s",
        entry.graph,
        entry.norm,
        entry.direction,
        entry.shape,
        entry.dtype,
        entry.chosen,
        entry.why,
    )


def report() -> Report:
    """What was chosen for each norm of the graphs that were compiled, in their order. A graph that
    torch took out of its cache on the disk was not compiled here, and is not among them.

    Example:

    >>> import planish.compile
    >>> isinstance(planish.compile.report(), list)
    True
    """
    with _lock:
        return Report(_entries)
