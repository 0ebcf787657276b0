"""The GPU kernels against double, on a GPU: values, neighbours of the outputs, and reproducibility.

For every case: outputs are poisoned first and lie between guard elements that must not change;
the run is repeated and must give the same bits; a slice of the rows, at another alignment, must
give the bits those rows had. Prints every failure and ends with their number.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys

from axes_cases import AnyCase, any_cases
from batch_cases import batch_cases
from behind_cases import behind_cases
from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, ShimError
from image_cases import image_cases, large_image_cases
from large_cases import large
from row_cases import Case, at_once, cooperative_cases, types_of
from row_tables import cases


def small_cases() -> list[Case | AnyCase]:
    """A few of everything, for the sanitizers."""
    out: list[Case | AnyCase] = []
    for direction in (FORWARD, BACKWARD):
        for i, cols in enumerate((3, 24, 200, 769, 2048, 16384, 40008, 300000)):
            for j, dtype in enumerate(("f16", "f32", "bf16")):
                if (i + j) % 3 == 0 or cols in (200, 2048):
                    rows = 333 if cols < 1000 else 9
                    kind = RMS if i % 4 == 3 else LAYER
                    out.append(Case(direction, kind, rows, cols, types_of(direction, kind, dtype)))
        out.append(Case(direction, LAYER, 41, 520, types_of(direction, LAYER, "f16"), skew=1))
        out.append(Case(direction, LAYER, 700, 4096, types_of(direction, LAYER, "f32")))
        out.append(Case(direction, LAYER, 9, 1000, types_of(direction, LAYER, "f64")))
    return (
        out + any_cases(True)[::3] + image_cases(True) + behind_cases(True) + batch_cases(True)[::4]
    )


def prepare(case: Case | AnyCase) -> str:
    """What is said where a case's kernels do not compile."""
    return case.prepare()


def prepare_all(todo: list[Case | AnyCase], processes: int) -> None:
    """Compiles in parallel processes, into the disk cache."""
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        for case, error in zip(todo, pool.map(prepare, todo, chunksize=2), strict=True):
            if error:
                print(f"not prepared: {case.name()}: {error}")


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small sizes, as for a sanitizer")
    parser.add_argument("--small", action="store_true", help="a few of everything")
    parser.add_argument("--batch", action="store_true", help="only batch norms and their like")
    parser.add_argument("--images", action="store_true", help="only channels and groups")
    parser.add_argument("--large-images", action="store_true", help="only groups of large images")
    parser.add_argument(
        "--given", action="store_true", help="the backward, with statistics that are not x's own"
    )
    parser.add_argument("--large", action="store_true", help="also more than 2^32 elements")
    parser.add_argument("--processes", type=int, default=0, help="compile ahead in parallel")
    parser.add_argument("--names", action="store_true", help="print each case before it runs")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument(
        "--share",
        default="0/1",
        help="I/N: every Nth case from the Ith on, for N processes at once",
    )
    parser.add_argument("--json", help="where to write every case's worst errors")
    arguments = parser.parse_args()
    found: list[Case | AnyCase] = [*cases(arguments.quick), *any_cases(arguments.quick)]
    found += cooperative_cases(arguments.quick)
    found += behind_cases(arguments.quick)
    if arguments.batch:
        found = [*batch_cases(arguments.quick)]
    elif arguments.large_images:
        found = large_image_cases()
    elif arguments.images:
        found = [*image_cases(arguments.small)]
    else:
        found += [*image_cases(arguments.quick), *batch_cases(arguments.quick)]
    some = arguments.images or arguments.batch or arguments.large_images
    if arguments.small and not some:
        found = small_cases()
    if arguments.given:
        found = [c for c in found if c.direction == BACKWARD]
        for case in found:
            case.given = True
    first, step = map(int, arguments.share.split("/"))
    todo = [c for c in found if arguments.only in c.name()][first::step]
    if arguments.processes:
        prepare_all(todo, arguments.processes)
    failures = refused = 0
    results = []
    for case in todo:
        if arguments.names:
            print(case.name(), flush=True)
        try:
            wrong, worst = case.check()
        except ShimError as e:
            print(f"REFUSED {case.name()}: {e}")
            refused += 1
            continue
        results.append({"case": case.name(), "wrong": wrong, "worst": worst})
        if wrong:
            failures += 1
            print(f"WRONG {case.name()}: {'; '.join(wrong)}")
    for problem in [] if some or arguments.given or first else at_once():
        failures += 1
        print(f"WRONG {problem}")
    for name, wrong in large() if arguments.large else []:
        failures += bool(wrong)
        print(f"{'WRONG' if wrong else 'large'} {name}: {'; '.join(wrong) or 'right'}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=0)
    tops: dict[str, float] = {}
    for r in results:
        for k, v in r["worst"].items():
            tops[k] = max(tops.get(k, 0.0), v)
    print("worst:", {k: float(f"{v:.3g}") for k, v in tops.items()})
    print(f"{len(todo)} cases, {failures} wrong, {refused} refused")
    return min(failures, 99)


if __name__ == "__main__":
    sys.exit(main())
