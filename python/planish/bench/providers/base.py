"""What every provider of the bench looks like. Holds no provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from ..case import Case, Data
from ..timing import Timed, loop

Role = Literal["ceiling", "peer", "planish"]


class UnsupportedError(Exception):
    """The provider is there but does not do this case; the text says why."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Run:
    """A case made ready by one provider.

    ``timed(count)`` does the work ``count`` times and returns the seconds; ``outputs()`` does it
    once more and returns its results: ``y``, or ``dx``, ``dweight``, ``dbias``. ``call()`` does it
    once: what a CUDA graph is made of (gpu.py).
    """

    timed: Timed
    outputs: Callable[[], dict[str, torch.Tensor]]
    close: Callable[[], None] = field(default=_nothing)
    call: Callable[[], object] = field(default=_nothing)


def run_of(call: Callable[[], object], outputs: Callable[[], dict[str, torch.Tensor]]) -> Run:
    """A run that is a plain Python call."""
    return Run(timed=loop(call), outputs=outputs, call=call)


class Provider(ABC):
    """Something that can do the work: a ceiling, a peer, or planish itself."""

    name: str
    what: str
    role: Role = "peer"
    images = False  # whether it does cases with an image

    def missing(self) -> str | None:
        """Why this provider cannot be used at all on this machine; None if it can."""
        return None

    def version(self) -> str | None:
        """The version of the library behind it, where it has one."""
        return None

    @abstractmethod
    def prepare(self, case: Case, data: Data) -> Run:
        """Makes a case ready; raises UnsupportedError if the provider does not do it."""


class Absent(Provider):
    """A peer that is known of but cannot be used here; it is named in every report."""

    def __init__(self, name: str, what: str, reason: str) -> None:
        self.name = name
        self.what = what
        self.reason = reason

    def missing(self) -> str | None:
        """The reason given."""
        return self.reason

    def prepare(self, case: Case, data: Data) -> Run:
        """Never possible."""
        raise UnsupportedError(self.reason)
