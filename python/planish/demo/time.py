"""The demo's time: so many seconds for all of it, and what is left out when they are over.

What a busy machine does not let be measured in time is not measured, and said. Results are checked
all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds for the whole demo, the picture and what began before the deadline included: a step of a
#: model that runs is not cut short.
SECONDS = 160.0
#: A model is not begun with less: to build it and to run one training step takes as much.
MODEL_SECONDS = 8.0
#: The share of a model's time that goes to its norms, one by one; its steps have the rest.
NORMS_SHARE = 0.35


class Budget:
    """The seconds that are left, and what was left out for want of them."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.begin = clock()
        self.end = self.begin + seconds
        self.left_out: list[str] = []

    def left(self, until: float | None = None) -> float:
        """Seconds until then, or until the end; 0 where that is over."""
        return max(0.0, (self.end if until is None else until) - self.clock())

    def part(self, shares: int, until: float | None = None) -> float:
        """When the first of so many equal shares of what is left is over."""
        return self.clock() + self.left(until) / max(shares, 1)

    def leave_out(self, what: str) -> None:
        """Notes what there was no time for."""
        self.left_out.append(what)

    @property
    def used(self) -> float:
        """Seconds since the begin."""
        return self.clock() - self.begin
