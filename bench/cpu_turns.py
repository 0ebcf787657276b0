"""Two builds of the library on one core of a CPU, every kernel by turns:

    python bench/cpu_turns.py BEFORE.so AFTER.so [--only WORD,...] [--csv FILE]

The cases are those of `planish check`, without the stages around a norm, on the best tier of each.
Prints the cases of which AFTER takes more than 1.05 times as long as BEFORE for sure, and the
median of all ratios. Whether the results are right is the question of `planish check`.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import statistics
import sys
from pathlib import Path

import torch
from planish.bench.timing import interleave, loop, ratio
from planish.check import cpu_table
from planish.check.engine import Engine, RefusedError, one_thread
from planish.check.problem import Problem
from planish.check.runner import EFFORT

LIMIT = 1.05


def main() -> int:
    """Times everything; 1 where a case is slower for sure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("builds", type=Path, nargs=2, metavar="BUILD")
    parser.add_argument("--only", default="", help="comma-separated words of `planish check`")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engines = [
        Engine(ctypes.CDLL(str(path.resolve())), name)
        for name, path in zip(("before", "after"), arguments.builds, strict=True)
    ]
    for engine in engines:
        one_thread(engine.dll)
    wanted = [word for word in arguments.only.split(",") if word]
    cases = [
        case
        for case in cpu_table.cases()
        if not case.stage and (not wanted or any(word in case.names for word in wanted))
    ]
    found: list[tuple[str, str, float, float, float, float, float]] = []
    slower = noisy = 0
    for case in cases:
        problem = Problem(case)
        try:
            plans = {engine.name: engine.plan(problem) for engine in engines}
        except RefusedError as error:
            print(f"{case.name}: {error}")
            continue
        works = {name: loop(plan.run, clock="cpu") for name, plan in plans.items()}
        samples = interleave(works, EFFORT, alike=True)
        times = ratio(samples["after"], samples["before"])
        for plan in plans.values():
            plan.close()
        noisy += times.noisy
        before, after = (samples[name].median * 1e6 for name in ("before", "after"))
        found.append((case.name, case.label, before, after, times.value, times.low, times.high))
        if times.low > LIMIT:
            slower += 1
            open_ends = f"{times.low:.3f} to {times.high:.3f}"
            print(f"{case.name:44}{case.label:16}{times.value:6.3f}, {open_ends}")
    values = sorted(row[4] for row in found)
    print(
        f"{len(found)} cases: median ratio {statistics.median(values):.3f}, {values[0]:.3f} to "
        f"{values[-1]:.3f}; above {LIMIT} for sure {slower}, too noisy {noisy}"
    )
    if arguments.csv:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["case", "shape", "before_us", "after_us", "ratio", "low", "high"])
            writer.writerows((*row[:2], *(f"{v:.4g}" for v in row[2:])) for row in found)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
