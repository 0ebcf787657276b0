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
    #: Norms that blocks call together with what stands around them, by the class of the block, and
    #: those that they call alone, with the reason; the latter where something was fused.
    together: tuple[Entry, ...] = ()
    alone: tuple[Entry, ...] = ()
    #: Batch norms that are part of the convolution before them.
    folded: int = 0

    @property
    def modules_taken(self) -> int:
        """How many modules."""
        return sum(entry.modules for entry in self.taken)

    @property
    def modules_left(self) -> int:
        """How many modules."""
        return sum(entry.modules for entry in self.left)

    @property
    def places_fused(self) -> int:
        """How many places of blocks."""
        return sum(entry.modules for entry in self.together)

    def __str__(self) -> str:
        lines = [f"{self.modules_taken} norms on planish, {self.modules_left} left alone"]
        if self.fused:
            lines[0] += f", {self.fused} activations in a norm"
        if self.folded:
            lines[0] += f", {self.folded} batch norms in a convolution"
        if self.together:
            lines[0] += f", {self.places_fused} with what stands around them"
        parts = {"on planish": self.taken, "left": self.left}
        parts |= {"fused": self.together, "apart": self.alone}
        for word, entries in parts.items():
            for entry in entries:
                lines.append(f"  {word:10}  {entry.modules:4} x {entry.name}: {entry.what}")
        return "\n".join(lines)


class Counter:
    """Collects entries."""

    def __init__(self) -> None:
        self._taken: collections.Counter[tuple[str, str]] = collections.Counter()
        self._left: collections.Counter[tuple[str, str]] = collections.Counter()
        self._together: collections.Counter[tuple[str, str]] = collections.Counter()
        self._alone: collections.Counter[tuple[str, str]] = collections.Counter()

    def took(self, name: str, what: str) -> None:
        """One module more."""
        self._taken[name, what] += 1

    def left(self, name: str, why: str) -> None:
        """One module more."""
        self._left[name, why] += 1

    def together(self, name: str, what: str) -> None:
        """One place more that is fused."""
        self._together[name, what] += 1

    def alone(self, name: str, why: str) -> None:
        """One place more that is not."""
        self._alone[name, why] += 1

    def report(self, fused: int, folded: int) -> Report:
        """All of them, as they came."""
        taken, left, together, alone = (
            tuple(Entry(name, what, count) for (name, what), count in found.items())
            for found in (self._taken, self._left, self._together, self._alone)
        )
        return Report(taken, left, fused, together, alone, folded)
