"""Checks a case on every engine, then times them by turns beside their ceiling.

What it is given are engines (engine.py): anything with a name and plans that run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from planish.bench.timing import Effort, Ratio, Sample, Timed, interleave, loop, ratio

from .case import Case
from .engine import RefusedError
from .judge import Verdict, same_bits
from .problem import Problem

CEILING = "ceiling"
#: So slow that a call is a trial, whatever the caches hold; and not timed for what is larger than
#: the cache, which it writes like anything else, where there are other tiers.
PLAINEST = "portable"
#: Trials of each engine and of the ceiling. What is noise after them goes on for three times as
#: long, if there is as much time left.
EFFORT = Effort(trials=9, trial_seconds=0.001, case_seconds=0.3, patience=3.0)


class Runs(Protocol):
    """A plan of a problem."""

    described: str

    def run(self) -> None:
        """Writes the outputs."""

    def close(self) -> None:
        """Frees what it holds."""


class Engines(Protocol):
    """What makes plans: a tier of the CPU, or a GPU."""

    name: str

    def plan(self, problem: Problem) -> Runs:
        """Decides how to run a problem."""


@dataclass
class Outcome:
    """One case on one engine: right or wrong, and how fast."""

    case: Case
    engine: str
    bytes: int
    verdict: Verdict = field(default_factory=Verdict)
    #: Why it says nothing about the kernel that it is for: another plan, or none.
    astray: str = ""
    sample: Sample | None = None
    share: Ratio | None = None

    @property
    def failed(self) -> bool:
        """Whether the exit status is to say so."""
        return bool(self.verdict.wrong or self.astray)

    @property
    def noisy(self) -> bool:
        """Whether it was timed, and what it takes is not known all the same."""
        return self.sample is not None and (self.sample.noisy or not self.share or self.share.noisy)


def takes(case: Case, engine: str, described: str) -> bool:
    """Whether the plan is the one that the case is for."""
    if case.device == "cuda":
        return re.search(case.wanted, described) is not None
    return described.startswith(f"{case.wanted}/{engine} ")


class Budget:
    """The seconds that there are for timing, over the cases that are left."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._end = clock, clock() + seconds

    def effort(self, cases_left: int) -> Effort | None:
        """How long to measure the next case; None where nothing is left. One that is noise may take
        twice its share, of what others did not need."""
        left = self._end - self._clock()
        if left <= 0:
            return None
        most = 2 * left / max(cases_left, 2)
        return replace(EFFORT, case_seconds=min(EFFORT.case_seconds, most / EFFORT.patience))


def check(case: Case, engines: Sequence[Engines]) -> list[Outcome]:
    """Runs the case and its other shapes on each engine. The first one is held against the
    reference; the others, which have to have the same bits, are so only where they do not."""
    outcomes = [Outcome(case, engine.name, 0) for engine in engines]
    for one in case.checked():
        problem = Problem(one)
        first: tuple[str, Verdict, dict[str, torch.Tensor]] | None = None
        for engine, outcome in zip(engines, outcomes, strict=True):
            outcome.bytes = outcome.bytes or problem.bytes
            try:
                plan = engine.plan(problem)
            except RefusedError as error:
                outcome.astray = outcome.astray or f"{one.label}: planish refuses it: {error}"
                continue
            try:
                if not takes(one, engine.name, plan.described):
                    text = f"{one.label}: wanted {one.wanted}, planned is: {plan.described}"
                    outcome.astray = outcome.astray or text
                    continue
                problem.poison()
                plan.run()
            except RefusedError as error:
                outcome.astray = outcome.astray or f"{one.label}: planish does not run it: {error}"
                continue
            finally:
                plan.close()
            results = problem.results()
            differing = same_bits(results, first[2], first[0]) if first else ()
            verdict = problem.judged(results) if first is None or differing else first[1]
            first = first or (engine.name, verdict, results)
            differing = tuple(d for d in differing if d.role not in verdict.wrong_roles)
            wrong = (*verdict.wrong, *differing, *problem.strayed())
            at = "" if one.shape == case.shape else f"{one.label}: "
            verdict = replace(verdict, wrong=tuple(f"{at}{text}" for text in wrong))
            outcome.verdict = outcome.verdict.merged(verdict)
    return outcomes


def cpu_ceiling(case: Case, bytes_moved: int) -> Timed:
    """A copy of as many bytes, or where two tensors are read an add."""
    parts = 3 if case.direction in ("backward", "from-y") else 2
    first, *others = (torch.ones(bytes_moved // parts // 4) for _ in range(parts))
    if len(others) == 1:
        return loop(lambda: others[0].copy_(first), clock="cpu")
    return loop(lambda: torch.add(first, others[0], out=others[1]), clock="cpu")


def time_on_cpu(case: Case, engines: Sequence[Engines], effort: Effort) -> dict[str, Sample]:
    """Every engine and the ceiling by turns, in seconds that this process had a core."""
    problem = Problem(case)
    plans = {engine.name: engine.plan(problem) for engine in engines}
    works = {n: loop(plan.run, warm=n != PLAINEST, clock="cpu") for n, plan in plans.items()}
    works[CEILING] = cpu_ceiling(case, problem.bytes)
    try:
        return interleave(works, effort, settled=settled)
    finally:
        for plan in plans.values():
            plan.close()


def settled(samples: Mapping[str, Sample]) -> bool:
    """Whether it is known what each takes, and how that compares with the ceiling."""
    ceiling: Any = samples[CEILING]
    return not any(
        sample.noisy or ratio(ceiling, sample).noisy
        for name, sample in samples.items()
        if name != CEILING
    )


Timer = Callable[[Case, Sequence[Engines], Effort], dict[str, Sample]]


def run(
    case: Case, engines: Sequence[Engines], effort: Effort | None, timer: Timer = time_on_cpu
) -> list[Outcome]:
    """Checks a case, and times the engines that are right about it."""
    outcomes = check(case, engines)
    good = {outcome.engine for outcome in outcomes if not outcome.failed}
    if "stream" in case.words and len(good) > 1:
        good.discard(PLAINEST)
    if effort is None or not good:
        return outcomes
    samples = timer(case, [engine for engine in engines if engine.name in good], effort)
    for outcome in outcomes:
        if outcome.engine in good:
            outcome.sample = samples[outcome.engine]
            outcome.share = ratio(samples[CEILING], outcome.sample)
    return outcomes
