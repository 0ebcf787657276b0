"""The command line of `planish check`: which cases, the table, the exit status."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence

import torch
from planish.bench.timing import TOO_NOISY
from planish.commands import command_lines
from planish.commands.command_lines import UsageError
from planish.library.structs import DTYPES

from . import cpu_table, cuda, cuda_table
from .case import Case
from .engine import TIERS, cpu_engines
from .exact import LONG_DOUBLE
from .runner import Budget, Engines, Outcome, Timer, run, time_on_cpu

_HEAD = (
    f"{'kernel':11}{'variant':32}{'dtype':6}{'on':11}{'shape':>16}  {'worst error':18}"
    f"{'GB/s':>9}  {'of ceiling':>10}"
)
_NOTE = """\
worst error: of the output that is nearest to its bound, in ULP of the largest magnitude in its row
(dweight, dbias: of the sum of magnitudes added; y of 16 bits: values beside the exact one rounded).
"""
_NOTE_OF_TIMES = """\
GB/s: every tensor once. Ceiling: a copy of as many bytes, where two tensors are read an add.
"""


def chosen(
    cases: Sequence[Case], engines: Sequence[str], names: Sequence[str]
) -> tuple[list[Case], list[str]]:
    """The cases and engines that the names stand for. Names of the same sort (kernels, dtypes,
    words of a variant, tiers) are alternatives; of different sorts, all have to fit."""
    sorts: list[tuple[str, list[str]]] = [
        ("kernel", list(dict.fromkeys(case.kernel for case in cases))),
        ("dtype", list(DTYPES)),
        ("variant", list(dict.fromkeys(word for case in cases for word in case.words))),
    ]
    wanted: dict[str, list[str]] = {}
    for name in names:
        sort = next((s for s, known in sorts if name in known), "")
        if not sort and name in engines:
            sort = "engine"
        if not sort and name in TIERS:
            raise UsageError(
                f"{name} does not run here: this CPU and build have {', '.join(engines)}"
            )
        if not sort:
            known = ", ".join(word for _, words in sorts for word in words)
            raise UsageError(f"no {name!r}; known are {known}, {', '.join(engines)}")
        wanted.setdefault(sort, []).append(name)
    found = [
        case
        for case in cases
        if case.kernel in wanted.get("kernel", [case.kernel])
        and case.dtype in wanted.get("dtype", [case.dtype])
        and ("variant" not in wanted or _has_words(case, wanted["variant"], names))
    ]
    if not found:
        raise UsageError(f"no case is all of {', '.join(names)} (planish check --list)")
    return found, [name for name in engines if name in wanted.get("engine", [name])]


#: Words of a variant of which a case has one: as names they are alternatives.
_EITHER = (
    ("forward", "backward", "from-y", "statistics", "apply"),
    ("layer", "rms"),
    ("silu", "relu"),
)


def _has_words(case: Case, wanted: Iterable[str], names: Sequence[str]) -> bool:
    for name in wanted:
        group = next((words for words in _EITHER if name in words), (name,))
        if not any(word in case.words for word in group if word in names):
            return False
    return True


def listing(cases: Sequence[Case], engines: Sequence[str]) -> str:
    """What there is, by kernel."""
    lines = []
    for kernel in dict.fromkeys(case.kernel for case in cases):
        mine = [case for case in cases if case.kernel == kernel]
        lines.append(f"{kernel}")
        for variant in dict.fromkeys(case.variant for case in mine):
            dtypes = [case.dtype for case in mine if case.variant == variant]
            lines.append(f"    {variant:34} {' '.join(dtypes)}")
    return "\n".join([*lines, f"on: {' '.join(engines)}"])


def row(outcome: Outcome) -> str:
    """One line of the table, and what is wrong under it."""
    case = outcome.case
    worst = "-" if outcome.astray else outcome.verdict.text
    figure, share = "-", "-"
    if outcome.sample is not None:
        noisy = outcome.sample.noisy
        figure = TOO_NOISY if noisy else f"{outcome.bytes / outcome.sample.median / 1e9:.1f}"
        unknown = noisy or outcome.share is None or outcome.share.noisy
        share = TOO_NOISY if unknown or outcome.share is None else f"{outcome.share.value:.0%}"
    lines = [
        f"{case.kernel:11}{case.variant:32}{case.dtype:6}{outcome.engine:11}{case.label:>16}  "
        f"{worst:18}{figure:>9}  {share:>10}"
    ]
    lines += [f"    WRONG: {text}" for text in outcome.verdict.wrong]
    if outcome.astray:
        lines.append(f"    NOT WHAT THE TABLE SAYS: {outcome.astray}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome], untimed: int, seconds: float) -> str:
    """What came out, in a sentence or two."""
    wrong = sum(bool(o.verdict.wrong) for o in outcomes)
    astray = sum(bool(o.astray) for o in outcomes)
    noisy = sum(o.noisy for o in outcomes)
    text = f"{len(outcomes)} runs, {wrong} wrong"
    if astray:
        text += f", {astray} not of the kernel that the table says"
    if noisy:
        text += f", {noisy} too noisy to say how fast (other work has the machine)"
    if untimed:
        text += f"; no time was left to time {untimed} cases (--seconds)"
    return f"{text}; {seconds:.0f} s"


def run_all(
    cases: Sequence[Case],
    engines: Sequence[Engines],
    budget: Budget | None,
    timer: Timer = time_on_cpu,
) -> int:
    """Runs the cases and prints the table as it goes; the exit status. Without a budget nothing is
    timed."""
    begin = time.perf_counter()
    outcomes: list[Outcome] = []
    untimed = 0
    print(_HEAD, flush=True)
    for done, case in enumerate(cases):
        effort = budget.effort(len(cases) - done) if budget else None
        untimed += budget is not None and effort is None
        for outcome in run(case, engines, effort, timer):
            outcomes.append(outcome)
            print(row(outcome), flush=True)
    note = _NOTE + (_NOTE_OF_TIMES if budget else "")
    print(f"\n{note}{summary(outcomes, untimed, time.perf_counter() - begin)}")
    return int(any(outcome.failed for outcome in outcomes))


def _on_cpu(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    engines = cpu_engines()
    cases = cpu_table.cases()
    if not LONG_DOUBLE:
        cases = [case for case in cases if not case.is_double]
        print("f64 is left out: NumPy's long double is no wider than double here", file=sys.stderr)
    found, tiers = chosen(cases, [engine.name for engine in engines], arguments.names)
    if arguments.list:
        print(listing(found, tiers))
        return 0
    budget = None if arguments.no_time else Budget(arguments.seconds)
    return run_all(found, [engine for engine in engines if engine.name in tiers], budget)


def _on_cuda(arguments: argparse.Namespace) -> int:
    found, names = chosen(cuda_table.cases(), ["cuda"], arguments.names)
    if arguments.list:
        print(listing(found, names))
        return 0
    if missing := cuda.missing(timed=not arguments.no_time):
        raise UsageError(f"--cuda: {missing}")
    found = cuda.here(found)
    cuda.prepare(found)
    budget = None if arguments.no_time else Budget(arguments.seconds)
    return run_all(found, [cuda.engine()], budget, cuda.time_on_cuda)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 0: all is right, 1: something is wrong."""
    arguments = command_lines.parse("check", argv)
    return _on_cuda(arguments) if arguments.cuda else _on_cpu(arguments)
