"""Plans of the passes over dense rows of which each device has a part, without a GPU: statistics,
apply, and the halves of a backward. What the kernels compute is for emulation/table_parts.c."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

from gpu_shim import APPLY, BACKWARD, LAYER, RMS, STATISTICS
from stage_plans import StagePlan, structs

BACKWARD_STATISTICS = 5
ROWS = 1 << 14
COLS = (96, 512, 769, 1000, 1024, 2048, 4096, 8192, 16384)
#: Of each pass the tensors as x, as weight, and of the statistics.
TENSORS = {
    STATISTICS: (("x",), (), ("mean", "m2")),
    APPLY: (("x", "y"), ("weight", "bias"), ("mean", "rstd")),
    BACKWARD_STATISTICS: (
        ("x", "dy"),
        ("weight", "dweight", "dbias"),
        ("mean", "rstd", "c1", "c2"),
    ),
    BACKWARD: (("x", "dy", "dx"), ("weight",), ("mean", "rstd", "c1", "c2")),
}
WORDS = {
    STATISTICS: "statistics",
    APPLY: "apply",
    BACKWARD_STATISTICS: "backward statistics",
    BACKWARD: "backward apply",
}
OF_LAYER = ("mean", "c1", "bias", "dbias")


def part_plan(
    which: int, kind: int, cols: int, dtype: str, weight: str, *, arch: int, rows: int = ROWS
) -> StagePlan:
    """Statistics are f64, as torch keeps them; RMSNorm has no bias."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    parts = zip(TENSORS[which], ((rows, cols), (1, cols), (rows, 1)), strict=True)
    for (roles, sizes), of in zip(parts, (dtype, weight, "f64"), strict=True):
        shapes |= {r: (sizes, of) for r in roles if kind == LAYER or r not in OF_LAYER}
    op = structs.Norm(ctypes.sizeof(structs.Norm), kind, 0, 2, 2, 1e-6)
    return StagePlan(which, op, shapes, arch=arch)


def part_plans(arch: int) -> Iterator[tuple[str, StagePlan, int]]:
    """(name, plan, access): every pass and length of both norms, dtypes in turn."""
    works = itertools.product(TENSORS, (LAYER, RMS), COLS, ("bf16", "f16", "f32"))
    for i, (which, kind, cols, dtype) in enumerate(works):
        weight = "f32" if i % 4 == 3 else dtype
        access = 2 if i % 7 == 6 and dtype != "f32" else 16
        name = f"parts {WORDS[which]} {'layer' if kind == LAYER else 'rms'} {cols} {dtype} {weight}"
        yield name, part_plan(which, kind, cols, dtype, weight, arch=arch), access
