"""Two norms at once on a GPU: bits of each alone, nothing else written, and one launch.

    python tests/cuda/check_pairs.py

The cases are those of pair_cases.py, which are emulated, too (test_pairs.py), and larger ones.
PLANISH_LIBRARY names the library, if it is not what `make test` builds. Prints every failure and
ends with their number. Whether it is fast is not its question.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator

from c_api import LAYER, Library, PlanishError
from pair_cases import PairCase, pair_cases

import torch


def large_cases() -> Iterator[PairCase]:
    """As in training: many blocks of each set, partial rows of all of them, and 100 repeats' worth
    of rows that end in the middle of a block."""
    for backward in (False, True):
        for own in (False, True):
            more = {"backward": backward, "own": own, "heads": (32, 8), "seed": 3}
            yield PairCase(batch=4, tokens=1023, **more)
            yield PairCase(batch=4, tokens=1023, cols=64, x="f32", kind=LAYER, **more)
            yield PairCase(batch=3, tokens=2048, layout="dense", **more)
            yield PairCase(batch=64, tokens=1, **more)


def kernels_of(case: PairCase, library: Library) -> list[str]:
    """The names of the kernels that the pair of a case launches."""
    inputs = case.inputs(library.device)
    q, k = map(case.given, inputs)
    out_q, out_k, _ = case.outputs(inputs)
    both = {**q, **out_q}, {**k, **out_k}
    library.run_pair(case.op(), case.passed, *both)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        library.run_pair(case.op(), case.passed, *both)
    return [event.name for event in seen.events() if event.name.startswith("planish_")]


def wrong_with(case: PairCase, library: Library) -> list[str]:
    """What is wrong with a case."""
    wrong = case.check(library)
    names = kernels_of(case, library)
    main = f"planish_{'backward' if case.backward else 'forward'}_pair"
    if case.together != (names[:1] == [main]) or (case.together and names.count(main) != 1):
        wrong.append(f"launched {names}")
    return wrong


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--small", action="store_true", help="only those that are emulated, too")
    arguments = parser.parse_args()
    cases = [*pair_cases()] + [*large_cases()] * (not arguments.small)
    # Plans are those of this GPU.
    cases = [dataclasses.replace(case, arch=90) for case in cases if arguments.only in case.name()]
    library = Library()
    wrong = 0
    for case in cases:
        try:
            problems = wrong_with(case, library)
        except PlanishError as e:
            problems = [str(e)]
        if problems:
            wrong += 1
            print(f"WRONG {case.name()}: {'; '.join(problems)}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong")
    return min(wrong, 99)


if __name__ == "__main__":
    sys.exit(main())
