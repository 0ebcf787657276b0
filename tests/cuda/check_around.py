"""The forward with stages around the norm, on a GPU: values, bits, neighbours of the outputs.

For every case: the values against double, the same bits as planish's own norm of the sum, guards around
every output, and, where PLANISH_LIBRARY's kernels are those for rows, the plan's name. Prints every
failure and ends with their number.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import sys

from around_backends import Library, StatusError, described
from around_cases import AroundCase, around_cases


class Gpu(ctypes.Structure):
    """planish_gpu of src/cuda/ahead.h."""

    _fields_ = (
        ("arch", ctypes.c_int),
        ("multiprocessors", ctypes.c_int),
        ("shared_per_block", ctypes.c_int),
        ("max_cluster", ctypes.c_int),
        ("cooperative", ctypes.c_int),
    )


def prepare(case: AroundCase) -> str:
    """Compiles to the disk cache what a run needs; what is said where that fails."""
    import torch

    lib = Library()
    given = {n: v for n, v in case.inputs().items()}
    tensors, _ = case.place(given, "cpu")
    text = ctypes.create_string_buffer(4000)
    t, kept = described(tensors)
    op = case.op()
    gpu = Gpu(90, 132, 232448, 16, 1)
    status = lib.lib.planish_pack_prepare(
        ctypes.byref(gpu), ctypes.byref(op), 0, ctypes.byref(t), text, len(text)
    )
    del kept, torch
    return text.value.decode(errors="replace") if status else ""


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few of everything")
    parser.add_argument("--processes", type=int, default=0, help="compile ahead in parallel")
    parser.add_argument("--names", action="store_true", help="print each case before it runs")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth case from the Ith on")
    arguments = parser.parse_args()
    first, step = map(int, arguments.share.split("/"))
    found = [c for c in around_cases(arguments.quick) if arguments.only in c.name()]
    todo = found[first::step]
    if arguments.processes:
        with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
            for case, error in zip(todo, pool.map(prepare, todo, chunksize=2), strict=True):
                if error:
                    print(f"not prepared: {case.name()}: {error}")
    library = Library()
    failures = refused = 0
    for case in todo:
        if arguments.names:
            print(case.name(), flush=True)
        try:
            wrong = case.check(library)
            tensors, _ = case.place(case.inputs(), library.device)
            plan = library.describe(case.op(), tensors)
            if case.kernel not in plan:
                wrong.append(f"planned as {plan}")
        except StatusError as e:
            print(f"REFUSED {case.name()}: {e}", flush=True)
            refused += 1
            continue
        if wrong:
            failures += 1
            print(f"WRONG {case.name()}: {'; '.join(wrong)}", flush=True)
    print(f"{len(todo)} cases, {failures} wrong, {refused} refused")
    return min(failures + refused, 99)


if __name__ == "__main__":
    sys.exit(main())
