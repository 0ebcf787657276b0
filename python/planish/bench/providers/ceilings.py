"""Ceilings: the same memory footprint with no arithmetic worth speaking of.

Forward reads one tensor and writes one: a copy. Backward reads two and writes one: an add.
"""

from __future__ import annotations

import torch

from ..case import Case, Data
from .base import Provider, Role, Run, UnsupportedError, run_of


class Copy(Provider):
    """y = x, by torch's own threaded copy."""

    name = "copy"
    what = "copies x to y: the footprint of a forward"
    role: Role = "ceiling"
    images = True

    def prepare(self, case: Case, data: Data) -> Run:
        """Forward only."""
        if case.direction != "forward":
            raise UnsupportedError("the ceiling of a backward is add")
        out = data.result
        return run_of(lambda: out.copy_(data.x), lambda: {"copy": out.copy_(data.x)})


class Add(Provider):
    """dx = dy + x, by torch's own threaded add."""

    name = "add"
    what = "adds dy and x into dx: the footprint of a backward"
    role: Role = "ceiling"
    images = True

    def prepare(self, case: Case, data: Data) -> Run:
        """Backward only."""
        if case.direction != "backward" or data.dy is None:
            raise UnsupportedError("the ceiling of a forward is copy")
        dy, out = data.dy, data.result
        return run_of(
            lambda: torch.add(dy, data.x, out=out), lambda: {"add": torch.add(dy, data.x, out=out)}
        )
