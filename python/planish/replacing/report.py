"""What replace() took and what it left, and why."""

from __future__ import annotations

import collections
import dataclasses

__all__ = ["Entry", "Report"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """The modules of one class with one outcome."""

    #: Package and class, as ``transformers.LlamaRMSNorm``.
    name: str
    #: What planish computes, or why the class was left.
    what: str
    modules: int


@dataclasses.dataclass(frozen=True)
class Report:
    """What of a model runs on planish and what does not; ``str()`` is for reading."""

    taken: tuple[Entry, ...]
    left: tuple[Entry, ...]
    #: Activations that a norm before them does.
    fused: int = 0

    @property
    def modules_taken(self) -> int:
        """How many modules."""
        return sum(entry.modules for entry in self.taken)

    @property
    def modules_left(self) -> int:
        """How many modules."""
        return sum(entry.modules for entry in self.left)

    def __str__(self) -> str:
        lines = [f"{self.modules_taken} norms on planish, {self.modules_left} left alone"]
        if self.fused:
            lines[0] += f", {self.fused} activations in a norm"
        for word, entries in (("on planish", self.taken), ("left", self.left)):
            for entry in entries:
                lines.append(f"  {word:10}  {entry.modules:4} x {entry.name}: {entry.what}")
        return "\n".join(lines)


class Counter:
    """Collects entries."""

    def __init__(self) -> None:
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._left: collections.Counter[tuple[str, str]] = collections.Counter()

    def took(self, name: str, what: str) -> None:
        """One module more."""
        self._taken[name, what] += 1

    def left(self, name: str, why: str) -> None:
        """One module more."""
        self._left[name, why] += 1

    def report(self, fused: int) -> Report:
        """All of them, as they came."""
        taken, left = (
            tuple(Entry(name, what, count) for (name, what), count in found.items())
            for found in (self._taken, self._left)
        )
        return Report(taken, left, fused)
