"""The GPU's plans of the benches' shapes are those of plans.txt, on every architecture.

No GPU is needed: planning is a function of the problem and of the device's limits. plans.txt holds
the shapes and, below each, for each architecture what the plan says of itself and what it launches,
so that no change of a planner sends a shape to other kernels unseen. A plan that is meant to change
is written anew by `python tests/cuda/test_plans.py --write`, and the difference goes into the
review.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gpu_shim
import pytest
from dsum_plans import channels_plan, groups_plan
from gpu_shim import BACKWARD, BUILT, FORWARD, L2, LAYER, RMS, SILU, AnyPlan, Plan

from planish.operators import limits

GOLDEN = Path(__file__).with_name("plans.txt")
ARCHS = (80, 89, 90, 100, 120)
needs_shim = pytest.mark.skipif(
    not os.environ.get("PLANISH_GPU_SHIM") and not BUILT.exists(),
    reason=f"{BUILT} is not built; make test builds it",
)
FULL, AFFINE, STATISTICS = ("x", "y", "dy", "dx"), ("weight", "bias"), ("mean", "rstd")


def dtypes_of(direction: int, kind: int, dtype: str, silu: bool) -> dict[str, str]:
    """The tensors of a bench's work: RMSNorm has neither mean nor bias."""
    affine = ["weight", "bias"] if kind == LAYER else ["weight"]
    forward, backward = ["x", "y", *affine], ["x", "dy", "dx", "weight"]
    backward += [f"d{role}" for role in affine] + ["bias"] * silu
    types = dict.fromkeys(forward if direction == FORWARD else backward, dtype)
    statistics = ["mean", "rstd"] if kind == LAYER else ["rstd"]
    # The backward of an activation is fast where the mean has all its digits.
    return types | dict.fromkeys(statistics, "f64" if silu else "f32")


def plan_of(shape: str, arch: int) -> tuple[Plan, dict[str, str]]:
    """The plan of a line of plans.txt and the dtypes of its tensors.

    "PASS KIND rows DTYPE ROWS COLS", "PASS KIND channels DTYPE LAYOUT IMAGES CHANNELS PIXELS",
    "PASS KIND groups DTYPE LAYOUT IMAGES CHANNELS GROUPS PIXELS", and "silu" behind the last,
    "PASS KIND batch DTYPE LAYOUT IMAGES CHANNELS PIXELS", or
    "PASS KIND heads DTYPE LAYOUT TOKENS HEADS COLS": x and dx are one of three packed parts, with
    one weight or one of each head ("own"), or (IMAGES TOKENS HEADS COLS) seen with the heads in
    front of the tokens ("first"). "dsum" behind the last of a backward of channels or groups: a
    gradient joins its dx.
    """
    words = shape.split()
    if words[-1] == "dsum":
        return joined(words[:-1], arch)
    silu = words[-1] == "silu"
    pass_name, kind_name, what, dtype = words[:4]
    rest = words[4 : len(words) - silu]
    direction = FORWARD if pass_name == "forward" else BACKWARD
    kind = {"layer": LAYER, "rms": RMS, "l2": L2}[kind_name]
    types = dtypes_of(direction, kind, dtype, silu)
    if what == "rows":
        return Plan(direction, kind, int(rest[0]), int(rest[1]), types, arch=arch), types
    layout, sizes = rest[0], [int(size) for size in rest[1:]]
    strides: dict[str, list[int]] = {}
    if what == "heads":
        return heads_of(direction, kind, layout, sizes, types, arch), types
    if what in ("channels", "batch"):
        n, c, hw = sizes
        last = {"nchw": (), "view": ("y",), "nhwc": FULL}[layout]
        strides |= {r: [c * hw, 1, c] if r in last else [c * hw, hw, 1] for r in FULL}
        strides |= {r: [0, 1, 0] for a in AFFINE for r in (a, f"d{a}")}
        strides |= {r: [0, 1, 0] if what == "batch" else [hw, 0, 1] for r in STATISTICS}
        axes = [n, c, hw], 5 if what == "batch" else 2, 2
    else:
        n, c, g, hw = sizes
        d = c // g
        full = [c * hw, d, 1, c] if layout == "nhwc" else [c * hw, d * hw, hw, 1]
        strides |= dict.fromkeys(FULL, full)
        strides |= {r: [0, d, 1, 0] for a in AFFINE for r in (a, f"d{a}")}
        strides |= {r: [g, 1, 0, 0] for r in STATISTICS}
        axes = [n, g, d, hw], 12, 6
    activation = SILU if silu else 0
    plan = AnyPlan(direction, kind, *axes, types, strides, activation=activation, arch=arch)
    return plan, types


def joined(words: list[str], arch: int) -> tuple[Plan, dict[str, str]]:
    """The same of a backward to whose dx dsum is added."""
    silu = words[-1] == "silu"
    _, kind, what, dtype, layout = words[:5]
    n, c, *sizes = (int(size) for size in words[5 : len(words) - silu])
    if what == "channels":
        plan = channels_plan((n, c, sizes[0]), LAYER if kind == "layer" else RMS, dtype, arch=arch)
    else:
        g, hw = sizes
        follows = SILU if silu else 0
        plan = groups_plan((n, g, c // g, hw), dtype, layout == "nhwc", follows, arch=arch)
    return plan, dict.fromkeys(("x", "dy", "dx"), dtype)


def heads_of(
    direction: int, kind: int, layout: str, sizes: list[int], types: dict[str, str], arch: int
) -> AnyPlan:
    """Rows of the heads of a part of packed queries, keys and values."""
    *images, tokens, heads, cols = sizes
    one, part = heads * cols, 3 * heads * cols
    if layout == "first":
        shape = (*images, heads, tokens, cols)
        packed, dense = [tokens * part, cols, part, 1], [tokens * one, tokens * cols, cols, 1]
        saved = [heads * tokens, tokens, 1, 0]
    else:
        shape, packed, dense, saved = (
            (tokens, heads, cols),
            [part, cols, 1],
            [one, cols, 1],
            [heads, 1, 0],
        )
    last, head = 1 << len(shape) - 1, 2 * (layout == "own")
    weight = [0] * (len(shape) - 1) + [1]
    if head:
        weight[1] = cols
    strides = {"x": packed, "dx": packed, "y": dense, "dy": dense}
    strides |= dict.fromkeys(STATISTICS, saved)
    strides |= {r: weight for a in AFFINE for r in (a, f"d{a}")}
    return AnyPlan(direction, kind, shape, last, last | head, types, strides, arch=arch)


def answer(shape: str, arch: int) -> list[str]:
    """The plan in its own words, and its kernels."""
    plan, types = plan_of(shape, arch)
    room = f", {plan.workspace_bytes} bytes of workspace" if plan.workspace_bytes else ""
    kernels = plan.launches(dict.fromkeys(types, 4096))
    return [plan.describe() + room, *(f"    {kernel}" for kernel in kernels)]


def answers(shape: str) -> list[str]:
    """What plans.txt says below a shape: once for architectures that are alike."""
    found: dict[tuple[str, ...], str] = {}
    for arch in ARCHS:
        plan = tuple(answer(shape, arch))
        found[plan] = f"{found[plan]} sm_{arch}" if plan in found else f"sm_{arch}"
    return [line for plan, archs in found.items() for line in (f"  {archs}: {plan[0]}", *plan[1:])]


def golden() -> dict[str, list[str]]:
    """The file: each shape's answers."""
    found: dict[str, list[str]] = {}
    for line in GOLDEN.read_text().splitlines():
        if line.startswith(" "):
            found[list(found)[-1]].append(line)
        elif line:
            found[line] = []
    return found


@needs_shim
@pytest.mark.parametrize("shape", golden())
def test_plan_is_as_it_was(shape: str) -> None:
    """Which kernels take the shape, cut how, in which grid."""
    assert answers(shape) == golden()[shape]


@needs_shim
@pytest.mark.parametrize(("arch", "row"), [(87, 86), (121, 120)])
def test_architecture_without_a_row_takes_the_one_below(arch: int, row: int) -> None:
    """A device newer than the table is planned as the newest it knows."""
    for shape in golden():
        assert answer(shape, arch) == answer(shape, row), shape


@needs_shim
def test_a_general_plan_says_why() -> None:
    """Every family that was asked says what it does not take, and no other plan says anything."""
    for shape in golden():
        for arch in (80, 90):
            plan, _ = plan_of(shape, arch)
            assert bool(plan.why_general()) == ("general" in plan.describe()), shape
    types = dtypes_of(FORWARD, LAYER, "f16", False)
    rows = Plan(FORWARD, LAYER, 8, 1024, types, arch=90)
    assert rows.why_general() == ""
    plan, _ = plan_of("forward layer channels f16 nchw 0 128 49", 90)
    why = plan.why_general()
    for family in ("rows", "channels", "rows at several strides", "groups"):
        assert f"kernels of {family} do not take " in why
    statistics = {role: types[role] for role in ("x", "mean")} | {"m2": "f32"}
    assert Plan(gpu_shim.STATISTICS, LAYER, 8, 1024, statistics, arch=90).why_general() == ""
    from_y = dict.fromkeys(("y", "dy", "dx"), "f16") | {"rstd": "f32"}
    plan = Plan(gpu_shim.FROM_Y, LAYER, 8, 1024, from_y, arch=90)
    assert plan.why_general() == "pass is PLANISH_BACKWARD_FROM_Y"


def is_activated(direction: int, cols: int, dtype: str, arch: int) -> bool:
    """Whether fast kernels have a norm of rows with SiLU behind it."""
    types = dtypes_of(direction, LAYER, dtype, True)
    rows = {r: [cols, 1] if r in FULL else [1, 0] if r in STATISTICS else [0, 1] for r in types}
    plan = AnyPlan(direction, LAYER, [512, cols], 2, 2, types, rows, activation=SILU, arch=arch)
    return not plan.why_general()


@needs_shim
@pytest.mark.parametrize(("dtype", "size"), [("f64", 8), ("f32", 4), ("bf16", 2), ("f16", 2)])
def test_rows_that_python_activates_have_no_kernels(dtype: str, size: int) -> None:
    """planish/operators/limits.py has the longest rows that have them on every architecture, which
    those of f64 decide."""
    most = limits.ACTIVATED_BYTES // size
    for arch in ARCHS:
        for direction in (FORWARD, BACKWARD):
            assert is_activated(direction, most, dtype, arch), (arch, direction)
    if dtype == "f64":
        assert not all(is_activated(BACKWARD, 2 * most, dtype, arch) for arch in ARCHS)


@needs_shim
def test_only_a_backward_with_sums_launches_without_rows() -> None:
    """Of no rows there is nothing to write but zeros in dweight and dbias, whichever kernels."""
    types = dtypes_of(FORWARD, LAYER, "f16", False)
    assert Plan(FORWARD, LAYER, 0, 1024, types, arch=90).launches({}) == []
    types = dtypes_of(BACKWARD, LAYER, "f16", False)
    assert Plan(BACKWARD, LAYER, 0, 1024, types, arch=90).launches({})
    bare = {role: types[role] for role in ("x", "dy", "dx", "mean", "rstd")}
    assert Plan(BACKWARD, LAYER, 0, 1024, bare, arch=90).launches({}) == []
    plan, _ = plan_of("forward layer channels f16 nchw 0 128 49", 90)
    assert "general" in plan.describe() and plan.launches({}) == []


@needs_shim
def test_a_seen_image_has_other_kernels_than_the_image() -> None:
    """A norm over the last axis of an image by channel, as graphs have it, for each pass; of a
    gradient that lies in rows there is no such backward, so that a graph copies it."""
    images, pixels, channels = 8, 4096, 320
    by_channel, in_rows = [pixels * channels, 1, pixels], [pixels * channels, channels, 1]
    for direction, name in ((FORWARD, "forward"), (BACKWARD, "backward")):
        types = dtypes_of(direction, LAYER, "bf16", False)
        strides = dict.fromkeys(FULL, by_channel) | {r: [pixels, 1, 0] for r in STATISTICS}
        strides |= {role: [0, 0, 1] for a in AFFINE for role in (a, f"d{a}")}
        for arch in ARCHS:
            sizes = f"{images} {channels} {pixels}"
            image, _ = plan_of(f"{name} layer channels bf16 nchw {sizes}", arch)

            plans = {}
            for role in ("", "y", "dy"):
                laid = strides | ({role: in_rows} if role else {})
                shape = images, pixels, channels
                plan = AnyPlan(direction, LAYER, shape, 4, 4, types, laid, arch=arch)
                plans[role] = plan.describe()
            assert plans[""] == image.describe()
            assert ("general" in plans["dy"]) == (direction == BACKWARD)
            assert direction == BACKWARD or "to channels last" in plans["y"]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    GOLDEN.write_text("\n".join(line for s in golden() for line in [s, *answers(s)]) + "\n")
