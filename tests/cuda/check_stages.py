"""The backward with stages around the norm on a GPU, against double: check_stages.py [LIBRARY].

The cases are those of stage_cases.py, which the emulation runs, too, and larger ones. Prints every
failure and ends with their number.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from planish_c import RMS, Library, PlanishError
from stage_cases import NORM, RMSN, StageCase, all_cases, with_stages


def large_cases() -> Iterator[StageCase]:
    """More rows than a device has blocks, in every way to share a row."""
    for i, cols in enumerate((96, 512, 769, 1024, 2048, 4096, 5632, 8192, 15872, 16384, 32768)):
        for j, dtype in enumerate(("bf16", "f16", "f32")):
            rows = max(700, (1 << 22) // cols // (1 + j))
            kind = RMS if (i + j) % 2 else 0
            has = (*(RMSN if kind == RMS else NORM), "dsum")
            yield StageCase((rows, cols), has, kind=kind, dtype=dtype)
            if j == i % 3:
                c = StageCase((4, rows // 4, cols), has[:-1], kind=kind, dtype=dtype)
                yield with_stages(("dropout", "dsum"), c)
                yield with_stages(("modulation",), c, modulation=(0, 2))
                yield with_stages(("gate",), c)
                yield with_stages(("column_scale", "dsum", "gate"), c)
    yield StageCase((600, 65536), (*NORM, "dsum"), dtype="bf16")
    yield StageCase((300, 131072), (*NORM, "dsum"), dtype="bf16")
    yield StageCase((300, 131072), (*RMSN, "dsum"), dtype="f32", kind=RMS)
    yield StageCase((20, 300000), (*NORM, "dsum"), dtype="f16")


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", nargs="?", default=os.environ.get("PLANISH_LIBRARY"))
    parser.add_argument("--table", default="", help="residual, stages or any")
    parser.add_argument("--large", action="store_true", help="only the larger cases")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth case from the Ith on")
    parser.add_argument("--names", action="store_true", help="print each case before it runs")
    arguments = parser.parse_args()
    library = Library(arguments.library)
    cases = [] if arguments.large else all_cases(arguments.table)
    if arguments.large:
        cases += large_cases()
    first, step = map(int, arguments.share.split("/"))
    cases = [c for c in cases if arguments.only in c.name()][first::step]
    wrong = refused = 0
    for case in cases:
        if arguments.names:
            print(case.name(), flush=True)
        try:
            problems = case.check(library, "cuda")
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
