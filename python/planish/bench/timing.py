"""Time: interleaved trials and robust statistics. Knows nothing of what it times."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Seconds per call of several trials."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle trial."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile; the median twice for a single trial."""
        if len(self.seconds) < 2:
            return self.median, self.median
        q1, _, q3 = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return q1, q3

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a share of the median."""
        q1, q3 = self.quartiles
        return (q3 - q1) / self.median if self.median > 0 else 0.0


@dataclass(frozen=True)
class Effort:
    """How long to measure: trials per provider, the least seconds of one trial, and the seconds
    after which one case is cut short (never under 3 trials)."""

    trials: int = 15
    trial_seconds: float = 0.01
    case_seconds: float = 5.0


QUICK = Effort(trials=5, trial_seconds=0.002, case_seconds=1.0)
THOROUGH = Effort()
LEAST_TRIALS = 3

# "wall": seconds as they pass. "cpu": seconds that the process had a core; with one thread, on a
# machine with other work, this leaves out the time in which something else ran. A process takes it
# from its environment, so that a worker has the same as its parent.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CLOCK_VARIABLE = "PLANISH_BENCH_CLOCK"


def clock_name() -> str:
    """Which of the clocks this process measures with."""
    return os.environ.get(CLOCK_VARIABLE, "wall")


# Runs the work `count` times and returns the seconds that took.
Timed = Callable[[int], float]


def loop(call: Callable[[], object], warm: bool = True) -> Timed:
    """Times a plain call: one to warm the caches (if ``warm``), then `count` of them under the
    clock."""

    now = CLOCKS[clock_name()]

    def timed(count: int) -> float:
        if warm:
            call()
        collecting = gc.isenabled()
        gc.disable()
        try:
            begin = now()
            for _ in range(count):
                call()
            return now() - begin
        finally:
            if collecting:
                gc.enable()

    return timed


def calls_per_trial(timed: Timed, effort: Effort) -> int:
    """How many calls make a trial of at least ``effort.trial_seconds``."""
    count = 1
    while True:
        seconds = timed(count)
        if seconds >= effort.trial_seconds / 2 or count >= 1 << 20:
            per_call = max(seconds / count, 1e-9)
            return max(1, round(effort.trial_seconds / per_call))
        count *= 4


def interleave(
    works: Mapping[str, Timed],
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Sample]:
    """Measures several works by turns, so that whatever else the machine does hits all of them.

    Each round runs one trial of every work, in an order shuffled by a fixed seed.
    """
    begin = clock()
    counts = {name: calls_per_trial(timed, effort) for name, timed in works.items()}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    order: Sequence[str] = list(works)
    shuffle = random.Random(0)
    for trial in range(effort.trials):
        if trial >= LEAST_TRIALS and clock() - begin > effort.case_seconds:
            break
        order = shuffle.sample(order, len(order))
        for name in order:
            seconds[name].append(works[name](counts[name]) / counts[name])
    return {name: Sample(tuple(values)) for name, values in seconds.items()}
