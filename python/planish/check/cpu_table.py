"""The kernels of the CPU as cases: every family, dtype and pass, each with the path that it takes.

The tiers are not here: every case is run by each that is there. The sizes are of a core's second
and third cache, so that a case takes a fraction of a second, but for those of "stream".
planish_plan_describe names a path and no kernel within it; which rows are short, in steps, in
groups or alone follows from their length (src/cpu/rows: FEW_COLS of rows.h, rows_few.h,
rows_forward.h).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planish.library.structs import DTYPES

from .case import Activation, Case, Direction, Kind

#: Elements of x, about, and of one that its y is written by non-temporal stores.
ELEMENTS = 1 << 18
ALSO = 40000  # of those that are only checked, but for 7 rows
STREAM_BYTES = 21 << 20
BOTH: tuple[Direction, Direction] = ("forward", "backward")
#: Memory order of images that are stored by pixel: (N, C, H, W), and with channels in groups.
BY_PIXEL = (0, 2, 3, 1)
GROUPS_BY_PIXEL = (0, 3, 4, 1, 2)


def _rows(
    kernel: str, words: str, dtype: str, cols: int, direction: Direction, *also: int,
    kind: Kind = "layer", elements: int = ELEMENTS, **more: object,
) -> Case:  # fmt: skip
    """Rows of so many columns; ``also``: other lengths, of which there are a few rows each."""
    elements //= 4 if dtype == "f64" else 1  # long double takes its time
    named = tuple(w for w in (words, kind, direction) if w)
    return Case(
        kernel,
        named,
        dtype,
        (max(elements // cols, 4) + 3, cols),
        (1,),
        (1,),
        direction,
        "rows",
        kind,
        also=tuple((max(7, min(37, ALSO // n)), n) for n in also),
        **more,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class _Lengths:
    """Of rows that are short, and in steps: timed in the cache, past it, and checked besides."""

    short: int
    step: int
    step_stream: int
    short_also: tuple[int, ...]
    step_also: tuple[int, ...]


_OF_16_BITS = _Lengths(24, 100, 100, (1, 2, 7, 8, 16, 31, 32), (97, 120, 127))
_LENGTHS = {
    "f32": _Lengths(24, 200, 96, (1, 2, 7, 8, 16, 31, 32), (65, 127, 129, 255, 256)),
    "f64": _Lengths(12, 100, 48, (1, 2, 5, 7, 8, 13, 16), (33, 65, 96, 127, 128)),
    "f16": _OF_16_BITS,
    "bf16": _OF_16_BITS,
}


def _row_cases(dtype: str) -> Iterator[Case]:
    lengths, halves = _LENGTHS[dtype], dtype in ("bf16", "f16")
    for direction in BOTH:
        yield _rows("short-rows", "", dtype, lengths.short, direction, *lengths.short_also)
        yield _rows("short-rows", "", dtype, lengths.short, direction, 3, 15, kind="rms")
        yield _stream("short-rows", dtype, lengths.short, direction, 4099)
        # Forward rows of 16 bits are short or in groups.
        if direction == "backward" or not halves:
            yield _rows("step-rows", "", dtype, lengths.step, direction, *lengths.step_also)
            yield _rows("step-rows", "", dtype, lengths.step, direction, 127, kind="rms")
            yield _stream("step-rows", dtype, lengths.step_stream, direction, 499)
        yield _rows("rows", "", dtype, 1024, direction, 257, 520, 1000, 1023, 1025)
        yield _rows("rows", "", dtype, 1024, direction, 769, kind="rms")
        yield _rows("rows", "long", dtype, 12288, direction, 4097, 9001, 40001)
        if halves:
            yield _rows("rows", "f32-weights", dtype, 1024, direction, 24, 200, 12288,
                        weight_dtype="f32")  # fmt: skip
        yield _stream("rows", dtype, 1024, direction, 61)
    yield _rows("rows", "", dtype, 1024, "statistics", 24, 200, 12288)
    yield _rows("rows", "", dtype, 1024, "apply", 24, 200, 12288)


def _stream(kernel: str, dtype: str, cols: int, direction: Direction, sample: int) -> Case:
    """Rows whose output is larger than the cache. Few of them are looked at, all others are copies
    of these; a prime number, so that no two of a step are."""
    item = {"f32": 4, "f64": 8}.get(dtype, 2)
    repeats = math.ceil(STREAM_BYTES / (sample * cols * item))
    case = _rows(kernel, "stream", dtype, cols, direction)
    return replace(case, shape=(sample * repeats, cols), repeats=repeats)


def _channels(
    dtype: str, kind: Kind, direction: Direction, shape: tuple[int, ...], *also: tuple[int, ...]
) -> Case:
    return Case(
        "channels",
        (kind, direction),
        dtype,
        shape,
        (1,),
        (1,),
        direction,
        "channels",
        kind,
        also=also,
    )


def _channel_cases(dtype: str) -> Iterator[Case]:
    usual, others = (4, 96, 24, 28), ((3, 24, 7, 7), (1, 1200, 5, 9), (5, 3, 1, 2))
    for direction in BOTH:
        yield _channels(dtype, "layer", direction, usual, *others)
        yield _channels(dtype, "rms", direction, usual, *others)
    case = _channels(dtype, "layer", "forward", usual, *others)
    yield replace(case, words=("to-last", "layer", "forward"), result_order=BY_PIXEL)


def _groups(
    kernel: str, words: str, dtype: str, direction: Direction, path: str,
    order: tuple[int, ...] = (), activation: Activation = "", **more: object,
) -> Case:  # fmt: skip
    named = tuple(w for w in (words, activation, "layer", direction) if w)
    case = Case(
        kernel,
        named,
        dtype,
        (2, 8, 8, 48, 48),
        (2, 3, 4),
        (1, 2),
        direction,
        path,
        activation=activation,
        order=order,
        also=((3, 4, 6, 7, 7), (2, 2, 16, 20, 31), (3, 3, 1, 13, 11)),
    )
    return replace(case, **more)  # type: ignore[arg-type]


def _group_cases(dtype: str) -> Iterator[Case]:
    activations: tuple[Activation, ...] = ("", "silu", "relu")
    for direction in BOTH:
        for activation in activations:
            yield _groups("groups", "", dtype, direction, "groups", activation=activation)
            yield _groups("pixels", "", dtype, direction, "pixels", GROUPS_BY_PIXEL, activation)
        yield _groups("groups", "instance", dtype, direction, "groups", shape=(4, 64, 1, 32, 33))
        yield _groups("planes", "", dtype, direction, "planes", GROUPS_BY_PIXEL,
                      result_order=(0, 1, 2, 3, 4))  # fmt: skip


def _stage_cases(dtype: str) -> Iterator[Case]:
    """What stands around the norm: a residual alone by the kernels of rows, the rest staged."""
    for direction in BOTH:
        yield _rows("rows", "residual", dtype, 1024, direction, 24, 200, 1023, stage="residual")
    yield _rows("rows", "residual", dtype, 1024, "forward", 24, kind="rms", stage="residual")
    for stage in ("modulated", "gated"):
        case = _rows("stages", stage, dtype, 1024, "forward", 24, 200, 1023, stage=stage)
        yield replace(case, wanted="stages")


def _strided_cases(dtype: str) -> Iterator[Case]:
    """What has no kernels of its own: strides, dtypes that differ, backward from y."""
    for direction in BOTH:
        case = _rows("strided", "strides", dtype, 1024, direction, 200, 12288, step=2)
        yield replace(case, wanted="strided", shape=(64, 1024))
        other = "f32" if dtype != "f32" else "bf16"
        case = _rows("strided", "mixed", dtype, 1024, direction, 24, result_dtype=other)
        yield replace(case, wanted="strided", shape=(64, 1024))
    case = _rows("strided", "", dtype, 1024, "from-y", 24, 200)
    yield replace(case, wanted="strided", shape=(64, 1024))


def _overflow_cases(dtype: str) -> Iterator[Case]:
    """Rows that leave the range of the arithmetic: squares of x in forward, sums of dy in backward.
    They are right only where src/cpu/common/overflow.c does them (f64 backward, which that file
    does in f64, too: where it is thought to be beyond, from 1e300). No f16 row is so large; dweight
    and dbias are in range because the rows cancel."""
    if dtype == "f16":
        return
    for direction in BOTH:
        if direction == "forward":
            scales = {"scale": 1e200 if dtype == "f64" else 1e30}
        else:
            scales = {"dy_scale": 1e303 if dtype == "f64" else 1e36}
        for case in (
            replace(_rows("", "rows", dtype, 1024, direction), shape=(19, 1024)),
            _channels(dtype, "layer", direction, (2, 1200, 3, 4)),
            _groups("", "groups", dtype, direction, "groups", shape=(2, 2, 2, 32, 32), also=()),
            _groups("", "pixels", dtype, direction, "pixels", GROUPS_BY_PIXEL,
                    shape=(2, 2, 2, 32, 32), also=()),
        ):  # fmt: skip
            words = (case.wanted, "layer", direction)
            yield replace(case, kernel="overflow", words=words, **scales)  # type: ignore[arg-type]


def cases() -> list[Case]:
    """All of them, a kernel's together."""
    found = [
        case
        for dtype in DTYPES
        for make in (
            _row_cases,
            _stage_cases,
            _channel_cases,
            _group_cases,
            _strided_cases,
            _overflow_cases,
        )
        for case in make(dtype)
    ]
    kernels = list(dict.fromkeys(case.kernel for case in found))
    return sorted(found, key=lambda case: kernels.index(case.kernel))
