"""A GPU under a check: whether there is one, its ceiling, its clock.

Kernels are compiled ahead by several processes, as NVRTC compiles one at a time. A trial is the
replay of a CUDA graph over buffers that exceed the L2, as in planish.bench (bench/gpu.py).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from planish.bench import gpu
from planish.bench.case import Case as BenchCase
from planish.bench.case import make_data
from planish.bench.timing import Effort, Sample, Timed, interleave
from planish.library.loaded import library

from . import ahead
from .case import Case
from .engine import Engine, cuda_engine
from .problem import Problem
from .runner import CEILING, Engines, settled

TRIAL_SECONDS = 0.005
CASE_SECONDS = 0.4
#: Sets of buffers at most: the smallest case's are not so small that it took more.
MOST_SETS = 12


def missing(timed: bool = True) -> str:
    """Why the kernels of a GPU cannot be checked here, in a sentence; empty if they can."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "there is no NVIDIA GPU that this torch can use"
    report = library().gpu_report()
    for part in (report["driver"], report["nvrtc"], *report["devices"]):
        if "problem" in part:
            return str(part["problem"])
    if timed and importlib.util.find_spec("triton") is None:
        return "the ceiling needs Triton, which comes with torch for CUDA; --no-time does without"
    return ""


def capability() -> int:
    """90 for 9.0."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def here(cases: Sequence[Case]) -> list[Case]:
    """Those that this GPU has the hardware for; what is left out is said."""
    if capability() >= 90:
        return list(cases)
    found = [case for case in cases if "cluster" not in case.words]
    if len(found) < len(cases):
        print(f"{len(cases) - len(found)} cases left out: no clusters before 9.0", file=sys.stderr)
    return found


def prepare(cases: Sequence[Case]) -> None:
    """Compiles what the cases need into the kernel cache, where one is kept."""
    if library().cache_path() is None:
        return
    for name, problem in ahead.compile_all(cases):
        print(f"not compiled ahead: {name}: {problem}", file=sys.stderr)


def engine() -> Engine:
    """planish on this GPU."""
    return cuda_engine()


def _ceiling(case: Case, bytes_moved: int) -> Timed:
    from planish.bench.providers.gpu_ceilings import GpuAdd, GpuCopy

    adds = case.direction in ("backward", "from-y")
    rows = max(1, bytes_moved // (3 if adds else 2) // 2 // 1024)
    like = BenchCase(rows, 1024, "f16", "backward" if adds else "forward", device="cuda")
    provider = GpuAdd() if adds else GpuCopy()
    sets = gpu.data_sets(like, make_data(like))
    return gpu.replayed([provider.prepare(like, one).call for one in sets])


def time_on_cuda(case: Case, engines: Sequence[Engines], effort: Effort) -> dict[str, Sample]:
    """The kernel and the ceiling by turns, by the GPU's clock."""
    first = Problem(case)
    count = max(1, min(MOST_SETS, -(-gpu.ROTATE_BYTES // first.bytes)))
    problems = [first, *(Problem(case, seed) for seed in range(1, count))]
    plans = {one.name: [one.plan(problem) for problem in problems] for one in engines}
    works = {name: gpu.replayed([plan.run for plan in several]) for name, several in plans.items()}
    works[CEILING] = _ceiling(case, first.bytes)
    seconds = min(CASE_SECONDS, effort.case_seconds * CASE_SECONDS / 0.3)
    effort = replace(effort, trial_seconds=TRIAL_SECONDS, case_seconds=seconds)
    try:
        return interleave(works, effort, settled=settled)
    finally:
        del works
        for several in plans.values():
            for plan in several:
                plan.close()
