"""Every kind of specialisation compiles for every supported architecture, and none spills.

Runs without a GPU: NVRTC makes the machine code and its report is read. A spill costs 20 to 50%
of a kernel's speed (docs/notebook), so it is a failure, not a warning. By default every case
is compiled for one of the architectures in turn; `test_compile.py --full` takes them all.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_plans import batch_plans
from dsum_plans import dsum_plans
from gpu_shim import (
    APPLY,
    BACKWARD,
    BUILT,
    FORWARD,
    FROM_Y,
    GELU,
    GELU_TANH,
    HARDSWISH,
    L2,
    LAYER,
    RELU6,
    RMS,
    SILU,
    STATISTICS,
    AnyPlan,
    Plan,
    ShimError,
)
from large_plans import large_image_plans
from part_plans import part_plans
from spilled import SPILLED
from stage_plans import stage_plans

ARCHS = (80, 89, 90, 100, 120)
UNAVAILABLE = 12


def same(dtype: str, direction: int, weight: str | None = None) -> dict[str, str]:
    """All tensors of one dtype, f32 statistics (f64 ones for f64)."""
    statistics = "f64" if dtype == "f64" else "f32"
    roles = ["x", "y"] if direction == FORWARD else ["x", "dy", "dx"]
    affine = ["weight", "bias"] if direction == FORWARD else ["weight", "dweight", "dbias"]
    types = dict.fromkeys(roles, dtype) | dict.fromkeys(affine, weight or dtype)
    return types | {"mean": statistics, "rstd": statistics}


def without(types: dict[str, str], *roles: str) -> dict[str, str]:
    """The same without some tensors."""
    return {r: t for r, t in types.items() if r not in roles}


def cases() -> list[tuple[str, int, int, int, dict[str, str], int]]:
    """(name, direction, kind, cols, dtypes, access)."""
    forward_cols = (1, 3, 24, 40, 64, 96, 100, 128, 256, 267, 368, 512, 769, 1024, 1536, 4096, 6656)
    forward_cols += (
        200,
        5632,
        7680,
        8192,
        8704,
        12289,
        12800,
        15872,
        32768,
        131072,
        262144,
        802816,
    )
    backward_cols = (1, 3, 24, 40, 96, 128, 200, 267, 512, 769, 1000, 1024, 3072, 4096, 8192, 15872)
    backward_cols += (4608, 5632, 6144, 13312, 14336, 802816)
    out = []
    for direction, cols_list in ((FORWARD, forward_cols), (BACKWARD, backward_cols)):
        word = "forward" if direction == FORWARD else "backward"
        for cols in cols_list:
            for dtype in ("f16", "bf16", "f32"):
                out.append(
                    (f"{word} {cols} {dtype}", direction, LAYER, cols, same(dtype, direction), 16)
                )
    for direction in (FORWARD, BACKWARD):
        word = "forward" if direction == FORWARD else "backward"
        for cols in (24, 769, 4096):
            meanless = without(same("bf16", direction), "mean", "bias", "dbias")
            out.append((f"{word} rms {cols}", direction, RMS, cols, meanless, 16))
            out.append((f"{word} l2 {cols}", direction, L2, cols, meanless, 16))
            out.append((f"{word} {cols} f64", direction, LAYER, cols, same("f64", direction), 16))
            out.append(
                (
                    f"{word} {cols} f16, f32 weight",
                    direction,
                    LAYER,
                    cols,
                    same("f16", direction, "f32"),
                    16,
                )
            )
            bare = without(same("f16", direction), "weight", "bias", "dweight", "dbias")
            out.append((f"{word} {cols} bare", direction, LAYER, cols, bare, 16))
            for access in (2, 4, 8):
                out.append(
                    (
                        f"{word} {cols} f16 at {access} bytes",
                        direction,
                        LAYER,
                        cols,
                        same("f16", direction),
                        access,
                    )
                )
    for cols in (2048, 32768, 131072):
        out.append((f"backward {cols} bf16", BACKWARD, LAYER, cols, same("bf16", BACKWARD), 16))
    for cols, dtype in itertools.product((33, 65, 130, 385, 1023), ("f16", "bf16")):
        out.append((f"forward {cols} {dtype}", FORWARD, LAYER, cols, same(dtype, FORWARD), 16))
    # In runs of words, of every number of lanes and of words.
    for cols, dtype in itertools.product((321, 500, 543, 900, 1087, 1537, 2111), ("f16", "bf16")):
        out.append((f"forward {cols} {dtype}", FORWARD, LAYER, cols, same(dtype, FORWARD), 16))
    for cols, dtype in itertools.product((147, 201, 385, 513, 1001, 1537, 1729), ("f16", "bf16")):
        out.append((f"backward {cols} {dtype}", BACKWARD, LAYER, cols, same(dtype, BACKWARD), 16))
    for cols, access in itertools.product((267, 1001), (2, 4, 8)):
        types = same("bf16", BACKWARD, "f32")
        out.append((f"backward {cols} at {access}", BACKWARD, LAYER, cols, types, access))
    return out


def general_cases() -> list[tuple[str, int, int, dict[str, str]]]:
    """(name, pass, kind, dtypes) of the kernels that take any problem."""
    inputs = {
        FORWARD: ["x", "weight", "bias", "y", "mean", "rstd"],
        BACKWARD: ["x", "weight", "mean", "rstd", "dy", "dx", "dweight", "dbias"],
        FROM_Y: ["y", "weight", "bias", "rstd", "dy", "dx", "dweight", "dbias"],
        STATISTICS: ["x", "mean", "m2"],
        APPLY: ["x", "weight", "bias", "y", "mean", "rstd"],
    }
    out = []
    for direction, roles in inputs.items():
        for kind in (LAYER, RMS, L2):
            for dtype in ("f16", "f64"):
                types = {r: dtype for r in roles if r != "mean" or kind == LAYER}
                out.append((f"general {direction} {kind} {dtype}", direction, kind, types))
    return out


def image_plans(arch: int) -> Iterator[tuple[str, AnyPlan, int]]:
    """Norms over channels and over groups: every way the plan has, of each dtype."""
    channels = [(64, 3136, ""), (96, 3136, "last"), (256, 784, ""), (320, 4096, "last")]
    channels += [(512, 196, ""), (1024, 49, "last"), (1200, 196, ""), (257, 225, ""), (2, 100, "")]
    channels += [
        (256, 49, ""),
        (256, 196, ""),
        (256, 225, ""),
        (4096, 784, ""),
        (4096, 196, "last"),
        (256, 3025, ""),
        (96, 3025, ""),
        (1000, 1521, ""),
    ]
    groups = [(32, 8, 3136), (32, 10, 4096), (1, 256, 784), (64, 1, 12544), (9, 3, 225), (2, 8, 1)]
    groups += [(32, 2, 12544), (32, 40, 1024), (8, 40, 9216)]
    # Small images, groups of a few channels, odd numbers of pixels.
    few = [(32, 8, 49), (512, 1, 49), (256, 1, 196), (20, 5, 196), (256, 1, 784), (32, 3, 784)]
    few += [(96, 1, 3136), (32, 2, 3136), (4096, 1, 4), (1, 128, 196)]
    few += [(32, 32, 49), (8, 125, 225), (16, 8, 3025), (64, 1, 3025)]
    groups += few
    for direction, dtype in itertools.product((FORWARD, BACKWARD), ("f16", "bf16", "f32")):
        word = "forward" if direction == FORWARD else "backward"
        for i, (c, hw, last) in enumerate(channels):
            kind = RMS if i % 4 == 3 else LAYER
            types = without(same(dtype, direction, "f32" if i % 2 else None), "m2")
            types = types if kind == LAYER else without(types, "mean")
            strides = {r: [c * hw, hw, 1] for r in ("x", "y", "dy", "dx")}
            if last:
                strides["y"] = [c * hw, 1, c]
            strides |= {r: [hw, 0, 1] for r in ("mean", "rstd")}
            strides |= {r: [0, 1, 0] for r in ("weight", "bias", "dweight", "dbias")}
            name = f"channels {word} {c}x{hw} {dtype} {last}"
            plan = AnyPlan(direction, kind, (64, c, hw), 2, 2, types, strides, arch=arch)
            yield name, plan, (2, 4, 16)[i % 3] if dtype != "f32" else 16
        # Some with an activation, too.
        some = (0, 1, 3, 5, 7, *range(len(groups) - len(few), len(groups), 3))
        works = [(i, 0) for i in range(len(groups))] + [(i, SILU) for i in some]
        for i, activation in works:
            g, d, hw = groups[i]
            types, c = same(dtype, direction, "f32" if i % 2 else None), g * d
            if activation:
                types |= {"bias": types["weight"], "mean": "f64", "rstd": "f64"}
            sizes = (64, g, d, hw)
            for full in ([c * hw, d * hw, hw, 1], [c * hw, d, 1, c]):
                strides = dict.fromkeys(("x", "y", "dy", "dx"), full)
                strides |= {r: [g, 1, 0, 0] for r in ("mean", "rstd")}
                strides |= {r: [0, d, 1, 0] for r in ("weight", "bias", "dweight", "dbias")}
                name = f"groups {word} {g}x{d}x{hw} {dtype} {full} {activation}"
                follows = {"activation": activation, "arch": arch}
                yield name, AnyPlan(direction, LAYER, sizes, 12, 6, types, strides, **follows), 16


def behind_plans(arch: int) -> Iterator[tuple[str, AnyPlan, int]]:
    """Backward of rows and of channels, and forward of channels, with an activation behind them."""
    rows = itertools.product((24, 96, 200, 768, 1024, 4096, 8192), ("f16", "bf16", "f32"))
    for i, (cols, dtype) in enumerate(rows):
        types = same(dtype, BACKWARD, "f32" if i % 4 == 3 else None)
        types |= {"bias": types["weight"], "mean": "f64" if i % 3 == 1 else "f32"}
        strides = {r: [cols, 1] for r in ("x", "dy", "dx")}
        strides |= {r: [1, 0] for r in ("mean", "rstd")}
        strides |= {r: [0, 1] for r in ("weight", "bias", "dweight", "dbias")}
        follows = {"activation": SILU, "arch": arch}
        plan = AnyPlan(BACKWARD, LAYER, (1 << 14, cols), 2, 2, types, strides, **follows)
        yield f"rows backward {cols} {dtype} silu", plan, 16
    images = itertools.product(((64, 3136), (96, 3025), (256, 784), (257, 225)), ("f16", "f32"))
    for direction, ((c, hw), dtype) in itertools.product((FORWARD, BACKWARD), images):
        types = same(dtype, direction)
        types |= {"bias": dtype, "mean": "f64", "rstd": "f64"}
        strides = {r: [c * hw, hw, 1] for r in ("x", "y", "dy", "dx")}
        strides |= {r: [hw, 0, 1] for r in ("mean", "rstd")}
        strides |= {r: [0, 1, 0] for r in ("weight", "bias", "dweight", "dbias")}
        follows = {"activation": SILU, "arch": arch}
        plan = AnyPlan(direction, LAYER, (64, c, hw), 2, 2, types, strides, **follows)
        yield f"channels {direction} {c}x{hw} {dtype} silu", plan, 16


def head_plans(arch: int) -> Iterator[tuple[str, AnyPlan, int]]:
    """Rows that two and three strides lead to, with one weight and with one for each head."""
    works = itertools.product(
        (FORWARD, BACKWARD), (64, 96, 128, 256, 72, 77), ("f16", "bf16", "f32")
    )
    for i, (direction, cols, dtype) in enumerate(works):
        kind = RMS if i % 4 == 3 else LAYER
        types = without(same(dtype, direction, "f32" if i % 5 == 4 else None), "m2")
        types = types if kind == LAYER else without(types, "mean", "bias", "dbias")
        tokens, heads, part = 4096, 32, 3 * 32 * cols
        own, batch = i % 3 == 1, i % 3 == 2
        packed = [tokens * part, cols, part, 1] if batch else [0, part, cols, 1]
        dense = (
            [tokens * heads * cols, tokens * cols, cols, 1] if batch else [0, 32 * cols, cols, 1]
        )
        saved = [heads * tokens, tokens, 1, 0] if batch else [0, heads, 1, 0]
        weight = [0, 0, cols if own else 0, 1]
        strides = {"x": packed, "dx": packed, "y": dense, "dy": dense}
        strides |= dict.fromkeys(("mean", "rstd"), saved)
        strides |= dict.fromkeys(("weight", "bias", "dweight", "dbias"), weight)
        shape = (2, heads, tokens, cols) if batch else (1, tokens, heads, cols)
        plan = AnyPlan(direction, kind, shape, 8, 8 | 4 * own, types, strides, arch=arch)
        yield (
            f"heads {direction} {cols} {dtype} {'own' if own else 'batch' if batch else ''}",
            plan,
            16,
        )


def gelu_plans(arch: int) -> Iterator[tuple[str, AnyPlan, int]]:
    """GELUs, ReLU6 and Hardswish behind rows, channels and groups, forward and backward."""
    works = itertools.product(
        (FORWARD, BACKWARD), (GELU, GELU_TANH, RELU6, HARDSWISH), ("f16", "bf16", "f32"), range(6)
    )
    for i, (direction, activation, dtype, which) in enumerate(works):
        types = same(dtype, direction, "f32" if i % 5 == 4 else None)
        types |= {"bias": types["weight"], "mean": "f64", "rstd": "f64"}
        follows = {"activation": activation, "arch": arch}
        if which < 3:
            cols = (96, 768, 4096)[which]
            full, saved, along = [cols, 1], [1, 0], [0, 1]
            shape, axes, affine = (1 << 14, cols), 2, 2
        elif which == 3:
            full, saved, along = [256 * 784, 784, 1], [784, 0, 1], [0, 1, 0]
            shape, axes, affine = (64, 256, 784), 2, 2
        else:
            g, d, hw = 32, 8, 784
            full = [g * d * hw, d * hw, hw, 1] if which == 4 else [g * d * hw, d, 1, g * d]
            saved, along = [g, 1, 0, 0], [0, d, 1, 0]
            shape, axes, affine = (64, g, d, hw), 12, 6
        strides = dict.fromkeys(("x", "y", "dy", "dx"), full)
        strides |= dict.fromkeys(("mean", "rstd"), saved)
        strides |= dict.fromkeys(("weight", "bias", "dweight", "dbias"), along)
        plan = AnyPlan(direction, LAYER, shape, axes, affine, types, strides, **follows)
        yield f"gelu {activation} {direction} {shape} {dtype}", plan, 16


def plans(arch: int) -> Iterator[tuple[str, Plan, int]]:
    """(name, plan, access) of every case on an architecture."""
    for name, direction, kind, cols, types, access in cases():
        yield name, Plan(direction, kind, 1 << 14, cols, types, arch=arch), access
    for i, (name, direction, kind, types) in enumerate(general_cases()):
        strides = (1, 64, 1280) if i // 2 % 2 else (800, 40, 1)
        full = dict.fromkeys(("x", "y", "dy", "dx"), strides)
        full |= dict.fromkeys(("mean", "rstd", "m2"), (1, 0, 0))
        full |= dict.fromkeys(("weight", "bias", "dweight", "dbias"), (0, 0, 1))
        yield name, AnyPlan(direction, kind, (64, 20, 40), 6, 4, types, full, arch=arch), 16
    yield from image_plans(arch)
    yield from behind_plans(arch)
    yield from head_plans(arch)
    yield from gelu_plans(arch)
    yield from stage_plans(arch)
    yield from dsum_plans(arch)
    yield from part_plans(arch)
    yield from batch_plans(arch)
    yield from large_image_plans(arch)


def compile_case(arch: int, index: int) -> tuple[int, list[str]]:
    """How many kernels one case has, and what is wrong with them."""
    name, plan, access = next(itertools.islice(plans(arch), index, None))
    bad, number = [], 0
    while True:
        try:
            report = plan.compile(arch, access, number)
        except ShimError as e:
            if e.status == UNAVAILABLE:
                raise
            return number + 1, [*bad, f"sm_{arch} {name}: {e}"]
        if report is None:
            return number, bad
        number += 1
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
        stack = [int(n) for n in re.findall(r"(\d+) bytes stack frame", report)]
        registers = re.findall(r"Used (\d+) registers", report)
        if not spills or not registers:
            bad.append(f"sm_{arch} {name}: no report of registers: {report}")
        elif max(spills + stack) > SPILLED.get((arch, name), 0):
            bad.append(
                f"sm_{arch} {name}: spills {spills}, stack {stack}, registers {registers}; "
                f"{plan.describe()}"
            )


def jobs(full: bool) -> list[tuple[int, int]]:
    """(arch, index): every case on every architecture; else every sixth one, on one in its turn."""
    count = sum(1 for _ in plans(90))
    if full:
        return [(arch, i) for i in range(count) for arch in ARCHS]
    return [(ARCHS[i // 6 % len(ARCHS)], i) for i in range(0, count, 6)]


def compile_all(todo: list[tuple[int, int]]) -> list[tuple[int, list[str]]]:
    """What compile_case says of each, by several processes: NVRTC compiles one kernel at a time."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        return list(pool.map(compile_case, *zip(*todo, strict=True), chunksize=8))


@pytest.mark.timeout(1800)
def test_every_kind_compiles_without_a_spill() -> None:
    """All of it with PLANISH_TEST_FULL=1."""
    if not os.environ.get("PLANISH_GPU_SHIM") and not BUILT.exists():
        pytest.skip(f"{BUILT} is not built; make test builds it")
    try:
        compile_case(90, 0)
    except ShimError as e:
        pytest.skip(f"no NVRTC here (pip install nvidia-cuda-nvrtc): {e}")
    todo = jobs(bool(os.environ.get("PLANISH_TEST_FULL")))
    results = compile_all(todo)
    print(f"{sum(n for n, _ in results)} kernels of {len(todo)} plans compiled")
    assert not [text for _, bad in results for text in bad]


def test_no_load_takes_the_read_only_path() -> None:
    """A kernel starts while the one before it still writes, and waits for it in its own text. The
    assembler takes what is read by ld.global.nc to be constant and moves it ahead of that."""
    texts = sorted((Path(__file__).parents[2] / "src/cuda/kernels").rglob("*.cu"))
    read_only = re.compile(r"ld\.global(\.\w+)*\.nc\.|ld\.const|__ldg|__restrict__")
    assert len(texts) > 30
    assert not [t.name for t in texts if read_only.search(t.read_text())]


def test_no_lambda_is_generic() -> None:
    """NVRTC of CUDA 13.0 refuses one as a function of the host; later ones do not."""
    texts = sorted((Path(__file__).parents[2] / "src/cuda/kernels").rglob("*.cu"))
    generic = re.compile(r"\[[&=]?\]\s*\([^)]*\bauto\b")
    assert generic.search("[&](int k, const auto &...dsum) {")
    assert not [t.name for t in texts if generic.search(t.read_text())]


if __name__ == "__main__":
    results = compile_all(jobs("--full" in sys.argv))
    wrong = [text for _, bad in results for text in bad]
    print("\n".join([*wrong, f"{sum(n for n, _ in results)} kernels compiled, {len(wrong)} bad"]))
    sys.exit(min(len(wrong), 99))
