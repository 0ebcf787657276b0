"""Two builds of the library by turns, every kernel of `planish check`:

    python bench/turns.py BEFORE.so AFTER.so [--device cpu|cuda] [--only WORD,...] [--csv FILE]

The CPU's are without the stages around a norm, on the best tier of each build and on one core; a
GPU's are replays of CUDA graphs by the GPU's clock, beside the ceiling of the check. Prints the
cases of which AFTER takes more than 1.05 times as long as BEFORE for sure, and the median of all
ratios. Whether the results are right is the question of `planish check`.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from planish.bench.timing import Sample, interleave, loop, ratio
from planish.check import cpu_table, cuda, cuda_table
from planish.check.case import Case
from planish.check.engine import Engine, RefusedError, one_thread
from planish.check.problem import Problem
from planish.check.runner import EFFORT

LIMIT = 1.05


class Turns(NamedTuple):
    """A case's row of the table."""

    case: str
    shape: str
    before_us: float
    after_us: float
    ratio: float
    low: float
    high: float


def cases_of(device: str, words: Sequence[str]) -> list[Case]:
    """Those that are timed there, of which one of the words is a name; without words all."""
    if device == "cuda":
        found = cuda.here(cuda_table.cases())
    else:
        found = [case for case in cpu_table.cases() if not case.stage]
    return [case for case in found if not words or any(word in case.names for word in words)]


def time_on_cpu(case: Case, engines: Sequence[Engine]) -> dict[str, Sample]:
    """Both builds on the tensors of one problem."""
    problem = Problem(case)
    plans = {engine.name: engine.plan(problem) for engine in engines}
    works = {name: loop(plan.run, clock="cpu") for name, plan in plans.items()}
    try:
        return interleave(works, EFFORT, alike=True)
    finally:
        for plan in plans.values():
            plan.close()


def measure(case: Case, engines: Sequence[Engine], device: str) -> tuple[Turns, bool]:
    """Both builds by turns; and whether that is noise."""
    if device == "cuda":
        samples = cuda.time_on_cuda(case, engines, EFFORT)
    else:
        samples = time_on_cpu(case, engines)
    before, after = samples["before"], samples["after"]
    times = ratio(after, before)
    beside = before.median * 1e6, after.median * 1e6, times.value, times.low, times.high
    return Turns(case.name, case.label, *beside), times.noisy


def main() -> int:
    """Times everything; 1 where a case is slower for sure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("builds", type=Path, nargs=2, metavar="BUILD")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="comma-separated words of `planish check`")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and (problem := cuda.missing()):
        sys.exit(problem)
    torch.set_num_threads(1)
    engines = [
        Engine(ctypes.CDLL(str(path.resolve())), name)
        for name, path in zip(("before", "after"), arguments.builds, strict=True)
    ]
    for engine in engines:
        one_thread(engine.dll)
    found: list[Turns] = []
    slower = noisy = 0
    for case in cases_of(device, [word for word in arguments.only.split(",") if word]):
        try:
            turns, is_noise = measure(case, engines, device)
        except RefusedError as error:
            print(f"{case.name}: {error}")
            continue
        noisy += is_noise
        found.append(turns)
        if turns.low > LIMIT:
            slower += 1
            open_ends = f"{turns.low:.3f} to {turns.high:.3f}"
            print(f"{turns.case:44}{turns.shape:16}{turns.ratio:6.3f}, {open_ends}")
    if not found:
        sys.exit("no case has such a name")
    values = sorted(turns.ratio for turns in found)
    print(
        f"{len(found)} cases: median ratio {statistics.median(values):.3f}, {values[0]:.3f} to "
        f"{values[-1]:.3f}; above {LIMIT} for sure {slower}, too noisy {noisy}"
    )
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Turns._fields)
            writer.writerows((*row[:2], *(f"{v:.4g}" for v in row[2:])) for row in found)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
