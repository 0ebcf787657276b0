"""The stages around a norm on a GPU: values against double, bits, neighbours of the outputs.

    python tests/cuda/check_stages.py --quick --processes 12
    python tests/cuda/check_stages.py --pass backward --large

The cases are those of stage_forward_cases.py and stage_backward_cases.py, which are emulated, too
(test_stages.py). PLANISH_LIBRARY names the library, if it is not what `make test` builds. Prints
every failure and ends with their number. Whether the kernels are fast is not its question.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
from collections.abc import Mapping

from c_api import Library, PlanishError, structs
from stage_backward import BackwardCase
from stage_backward_cases import TABLES, backward_cases
from stage_forward import ForwardCase
from stage_forward_cases import forward_cases

import torch

Case = ForwardCase | BackwardCase


class Ahead(Library):
    """Compiles in place of running, to the disk cache; where tensors are is of no matter."""

    device = "cpu"

    def run(self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compiles what the run would need on a H100 or H200."""
        self.prepare(op, which, tensors)


def prepare(case: Case) -> str:
    """Compiles what a case needs; what is said where that fails."""
    try:
        case.write(Ahead())
    except PlanishError as e:
        return f"{case.name()}: {e}"
    return ""


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Those that were asked for."""
    found: list[Case] = []
    if arguments.direction != "backward" and not (arguments.large or arguments.table):
        found += forward_cases(arguments.quick)
    if arguments.direction != "forward":
        tables = ["large"] if arguments.large else [arguments.table] * bool(arguments.table)
        found += backward_cases(*tables)
    first, step = map(int, arguments.share.split("/"))
    return [case for case in found if arguments.only in case.name()][first::step]


def wrong_with(case: Case, library: Library) -> list[str]:
    """What is wrong with a case, the kernels that it is planned for included."""
    wrong = case.check(library)
    if case.kernel:
        plan = library.describe(case.op(), case.passed, case.place(library.device)[0])
        wrong += [f"planned as {plan}"] * (case.kernel not in plan)
    return wrong


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pass", dest="direction", choices=("forward", "backward"))
    parser.add_argument("--quick", action="store_true", help="the forward's shorter list")
    parser.add_argument("--table", default="", choices=sorted(TABLES), help="of the backward")
    parser.add_argument("--large", action="store_true", help="only the backward's larger cases")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth case from the Ith on")
    parser.add_argument("--names", action="store_true", help="print each case before it runs")
    parser.add_argument("--processes", type=int, default=0, help="compile ahead by so many")
    arguments = parser.parse_args()
    cases = cases_of(arguments)
    if not cases:
        parser.error("no such cases")
    if arguments.processes:
        with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
            for text in filter(None, pool.map(prepare, cases, chunksize=2)):
                print(f"not prepared: {text}", flush=True)
    library = Library()
    wrong = refused = 0
    for case in cases:
        if arguments.names:
            print(case.name(), flush=True)
        try:
            problems = wrong_with(case, library)
        except PlanishError as e:
            print(f"REFUSED {case.name()}: {e}", flush=True)
            refused += 1
            continue
        if problems:
            wrong += 1
            print(f"WRONG {case.name()}: {'; '.join(problems)}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong, {refused} refused")
    return min(wrong + refused, 99)


if __name__ == "__main__":
    sys.exit(main())
