"""The kernels for two sets of rows at once spill nothing, and as many blocks fit as are planned.

Runs without a GPU, as test_compile.py: NVRTC makes the machine code and its report is read. Every
other case is compiled for one of the architectures in turn; PLANISH_TEST_FULL=1 takes them all.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator

import pytest
from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, Plan, ShimError
from test_compile import ARCHS, head_plans, same, without
from test_plans import needs_shim

#: Of a multiprocessor; each thread's come in eights.
_REGISTERS, _GRANULE = 65536, 8


def plans(arch: int) -> Iterator[tuple[str, Plan]]:
    """Heads of packed queries, and dense rows of every number of lanes that pairs."""
    yield from ((name, plan) for name, plan, _ in head_plans(arch))
    works = itertools.product((FORWARD, BACKWARD), (32, 64, 80, 128, 192, 320, 384, 512))
    for i, (direction, cols) in enumerate(works):
        types = same(("bf16", "f16", "f32")[i % 3], direction)
        kind = (RMS, LAYER)[i // 3 % 2]
        types = types if kind == LAYER else without(types, "mean", "bias", "dbias")
        yield f"rows {direction} {cols}", Plan(direction, kind, 1 << 14, cols, types, arch=arch)


def numbers(report: str, what: str) -> list[int]:
    """Those that the compiler's report has of something."""
    return [int(n) for n in re.findall(what, report)]


def wrong_with(name: str, arch: int, plan: Plan) -> list[str]:
    """What is wrong with the kernels for two problems of the plan, if there are such."""
    found: list[str] = []
    for number in itertools.count():
        report = plan.compile_pair(arch, number)
        if report is None:
            return found
        spilt = numbers(report, r"(\d+) bytes spill") + numbers(report, r"(\d+) bytes stack frame")
        taken = numbers(report, r"Used (\d+) registers")
        if not spilt or not taken:
            found.append(f"sm_{arch} {name}: no report of registers: {report}")
            continue
        block = 32 * plan.get("WARPS") * -(-max(taken) // _GRANULE) * _GRANULE
        if any(spilt) or (number == 0 and _REGISTERS // block < plan.get("MIN_BLOCKS")):
            found.append(f"sm_{arch} {name}: spills {spilt}, registers {taken}")
    return found


@needs_shim
def test_no_spill_and_no_more_registers() -> None:
    full = bool(os.environ.get("PLANISH_TEST_FULL"))
    try:
        next(plans(90))[1].compile_pair(90)
    except ShimError as e:
        pytest.skip(f"no NVRTC here (pip install nvidia-cuda-nvrtc): {e}")
    found: list[str] = []
    for i in range(0, sum(1 for _ in plans(90)), 1 if full else 2):
        for arch in ARCHS if full else (ARCHS[i % len(ARCHS)],):
            found += wrong_with(*_of(i, arch))
    assert found == []


@needs_shim
def test_heads_of_the_usual_sizes_have_a_kernel_for_two() -> None:
    sizes = [f" {cols} " for cols in (64, 96, 128, 256)]
    for name, plan, _ in head_plans(90):
        if any(size in name for size in sizes):
            assert plan.pairs(), name


def _of(index: int, arch: int) -> tuple[str, int, Plan]:
    name, plan = next(itertools.islice(plans(arch), index, None))
    return name, arch, plan
