"""Batch norms with kept or given statistics and with an addend, on a GPU: values, bits.

    python tests/cuda/check_batch.py
    for i in 0 1 2 3; do python tests/cuda/check_batch.py --share $i/4 & done; wait

The cases are those of batch_stages.py, which are emulated, too (test_batch_stages.py), in larger
sizes. PLANISH_GPU_SHIM names the GPU backend with its test door (bench/gpu_build.sh). Prints every
failure and ends with their number.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Mapping

import gpu_shim
from batch_stages import batch_stage_cases
from c_api import Library, PlanishError, described, structs

import torch
from planish.library.driver import ALIGNED


class Backend(Library):
    """The GPU backend alone."""

    def __init__(self) -> None:
        self.lib = gpu_shim.lib()
        structs.name_fields(self.lib)
        self.planned = ""

    def run(self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Plans and runs a pass, to its end."""
        given, kept = described(tensors)
        plan, text = ctypes.c_void_p(), ctypes.create_string_buffer(600)
        status = self.lib.shim_make(
            ctypes.byref(plan), ctypes.byref(op), which, ctypes.byref(given), 0, text, len(text)
        )
        if not status:
            names = [name for name, _ in structs.Tensors._fields_[1:]]
            addresses = (tensors[n].data_ptr() if n in tensors else None for n in names)
            array = (ctypes.c_void_p * len(names))(*addresses)
            size = self.lib.shim_workspace(plan)
            work = torch.full((size + ALIGNED,), 0xFF, dtype=torch.uint8, device="cuda")
            start = -(-work.data_ptr() // ALIGNED) * ALIGNED
            stream = torch.cuda.current_stream().cuda_stream
            status = self.lib.shim_run(plan, array, stream, start, text, len(text))
            torch.cuda.synchronize()
            line = ctypes.create_string_buffer(300)
            self.lib.shim_describe(plan, line, len(line))
            self.planned = line.value.decode()
            self.lib.shim_free(plan)
        del kept
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", default="0/1", help="I/N: every Nth case from the Ith on")
    first, step = map(int, parser.parse_args().share.split("/"))
    backend, wrong = Backend(), 0
    cases = batch_stage_cases(large=True)[first::step]
    for case in cases:
        try:
            problems = case.check(backend)
        except PlanishError as e:
            problems = [str(e)]
        if case.kernel not in backend.planned:
            problems.append(f"planned as {backend.planned}")
        if problems:
            wrong += 1
            print(f"WRONG {case.name()}: {'; '.join(problems)}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong")
    return min(wrong, 99)


if __name__ == "__main__":
    sys.exit(main())
