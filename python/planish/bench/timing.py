"""Time: interleaved trials, robust statistics, and what they do not tell. Knows nothing of what it
times.

On a machine with other work a trial may take many times what the next one takes. So each figure
comes with the interval that its median lies in and with the share of the time in which the calling
thread had a core. Measuring goes on for a while where the one is wide or the other small; what
stays so is said to be too noisy and not shown.
"""

from __future__ import annotations

import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: A median whose interval has ends further apart than this factor is noise.
NOISE_LIMIT = 1.25
#: Trials whose thread had a core for less than this share of them are about others' work. It shows
#: what a spread does not: an operator of two threads waits for the other one's core each time.
LEAST_ON_CORE = 0.7
TOO_NOISY = "too noisy"
NO_DIFFERENCE = "no difference"


class Seconds(float):
    """The seconds of a trial, and the share of them in which the thread that called had a core."""

    on_core: float

    def __new__(cls, value: float, on_core: float) -> Seconds:
        """A float that knows the share."""
        made = super().__new__(cls, value)
        made.on_core = on_core
        return made


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The two values between which the median of what these are drawn from lies in 95 of 100 cases,
    however that is distributed: of n values in order, as far from both ends as a fair coin's n
    throws allow. Fewer than six values: the smallest and the largest (five: 94 of 100)."""
    ordered = sorted(values)
    count = len(ordered)
    below, cut = 0.0, 0
    while 2 * (below + math.comb(count, cut) / 2**count) <= 0.05:
        below += math.comb(count, cut) / 2**count
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[count - 1 - cut]


def _factor(interval: tuple[float, float]) -> float:
    low, high = interval
    return high / low if low > 0 else math.inf


@dataclass(frozen=True)
class Sample:
    """Seconds per call of several trials; the share of each on a core, where that is known."""

    seconds: tuple[float, ...]
    on_core: tuple[float, ...] = ()

    @property
    def starved(self) -> bool:
        """Whether other work had the core for too much of the time."""
        return bool(self.on_core) and statistics.median(self.on_core) < LEAST_ON_CORE

    @property
    def noisy(self) -> bool:
        """Whether the trials leave open what a call takes."""
        return self.starved or _factor(median_interval(self.seconds)) > NOISE_LIMIT

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
class Ratio:
    """How many times as long ``before`` takes as ``after``: the median over the rounds, in which
    both ran shortly after each other, and the interval that it lies in. ``contrary``: the medians
    of all trials say the opposite of ``value``."""

    value: float
    low: float
    high: float
    starved: bool = False
    contrary: bool = False

    @property
    def noisy(self) -> bool:
        """Whether the rounds leave open what it is."""
        return self.starved or _factor((self.low, self.high)) > NOISE_LIMIT

    @property
    def even(self) -> bool:
        """Whether none of the two is known to be the faster: the interval holds 1."""
        return self.low <= 1 <= self.high or self.contrary

    def __str__(self) -> str:
        if self.noisy:
            return TOO_NOISY
        return NO_DIFFERENCE if self.even else f"{self.value:.2f}x"


def ratio(before: Sample, after: Sample) -> Ratio:
    """Of two samples of the same :func:`interleave`, round by round."""
    rounds = [b / a for b, a in zip(before.seconds, after.seconds, strict=True) if a > 0]
    if not rounds:
        return Ratio(math.nan, 0.0, math.inf)
    starved = before.starved or after.starved
    value = statistics.median(rounds)
    contrary = (value - 1) * (before.median - after.median) < 0
    return Ratio(value, *median_interval(rounds), starved, contrary)


@dataclass(frozen=True)
class Effort:
    """How long to measure: trials per provider, the least seconds of one trial, and the seconds
    after which one case is cut short (never under 3 trials). Where the result is noise by then,
    ``patience`` times as many trials and seconds are spent on it."""

    trials: int = 15
    trial_seconds: float = 0.01
    case_seconds: float = 5.0
    patience: float = 3.0


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


def loop(call: Callable[[], object], warm: bool = True, clock: str | None = None) -> Timed:
    """Times a plain call: one to warm the caches (if ``warm``), then `count` of them under the
    clock, by default the process's."""

    name = clock or clock_name()
    now = CLOCKS[name]

    def timed(count: int) -> float:
        if warm:
            call()
        collecting = gc.isenabled()
        gc.disable()
        try:
            on_core, begin = time.thread_time(), now()
            for _ in range(count):
                call()
            seconds = now() - begin
            on_core = time.thread_time() - on_core
            # The other clock leaves out by itself what was not on a core.
            return Seconds(seconds, on_core / seconds if name == "wall" and seconds > 0 else 1.0)
        finally:
            if collecting:
                gc.enable()

    return timed


def calls_per_trial(timed: Timed, effort: Effort) -> int:
    """How many calls make a trial of at least ``effort.trial_seconds``."""
    count = 1
    while True:
        seconds = timed(count)
        if effort.trial_seconds / 2 <= seconds < 20 * effort.trial_seconds:
            seconds = min(seconds, timed(count))  # one of them may have waited for a core
        if seconds >= effort.trial_seconds / 2 or count >= 1 << 20:
            per_call = max(seconds / count, 1e-9)
            return max(1, round(effort.trial_seconds / per_call))
        count *= 4


Samples = dict[str, Sample]


class OutOfTimeError(Exception):
    """The time was over before there were enough trials to say anything."""


def _until(timed: Timed, deadline: float, clock: Callable[[], float]) -> Timed:
    """The work, but no trial of it begins after the deadline."""

    def run(count: int) -> float:
        if clock() >= deadline:
            raise OutOfTimeError
        return timed(count)

    return run


def all_settled(samples: Mapping[str, Sample]) -> bool:
    """Whether each work's own time is known."""
    return not any(sample.noisy for sample in samples.values())


def ratio_settled(before: str, after: str) -> Callable[[Mapping[str, Sample]], bool]:
    """Whether it is known how the times of these two works compare."""
    return lambda samples: not ratio(samples[before], samples[after]).noisy


def interleave(
    works: Mapping[str, Timed],
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
    settled: Callable[[Mapping[str, Sample]], bool] = all_settled,
    alike: bool = False,
    deadline: float = math.inf,
) -> Samples:
    """Measures several works by turns, so that whatever else the machine does hits all of them.

    Each round runs one trial of every work, in an order shuffled by a fixed seed. After the rounds
    of ``effort`` there are more, up to its patience, while ``settled`` says no. ``alike``: a trial
    of each work has the same number of calls. At ``deadline``, by ``clock``, it ends with the whole
    rounds so far, or where they are fewer than LEAST_TRIALS with OutOfTimeError.
    """
    begin = clock()
    if deadline < math.inf:
        works = {name: _until(timed, deadline, clock) for name, timed in works.items()}
    counts = {name: calls_per_trial(timed, effort) for name, timed in works.items()}
    if alike:
        counts = dict.fromkeys(counts, max(counts.values(), default=1))
    seconds: dict[str, list[float]] = {name: [] for name in works}
    on_core: dict[str, list[float]] = {name: [] for name in works}
    order: Sequence[str] = list(works)
    shuffle = random.Random(0)

    def samples() -> Samples:
        return {n: Sample(tuple(v), tuple(on_core[n])) for n, v in seconds.items()}

    trial, most = 0, max(LEAST_TRIALS, round(effort.trials * effort.patience))
    while works:
        enough = trial >= effort.trials
        late = trial >= LEAST_TRIALS and clock() - begin > effort.case_seconds
        if enough or late:
            last = trial >= most or clock() - begin > effort.case_seconds * effort.patience
            if last or settled(samples()):
                break
        order = shuffle.sample(order, len(order))
        taken: dict[str, float] = {}
        try:
            for name in order:
                taken[name] = works[name](counts[name])
        except OutOfTimeError:
            if trial < LEAST_TRIALS:
                raise
            break
        for name, value in taken.items():
            seconds[name].append(value / counts[name])
            if isinstance(value, Seconds):
                on_core[name].append(value.on_core)
        trial += 1
    return samples()
