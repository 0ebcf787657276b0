"""The classes of norms that `planish bench choices` measures: one shape stands for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from planish.compile import table

__all__ = ["Class", "classes"]


@dataclass(frozen=True)
class Class:
    """One pass of norms that one shape stands for."""

    layout: str
    dtype: str
    direction: str
    shape: tuple[int, ...]
    columns: tuple[int, int | None]
    elements: tuple[int, int | None]
    groups: int = 0

    @property
    def rms(self) -> bool:
        """Whether it is an RMS norm."""
        return self.layout.startswith("rms")

    @property
    def staged(self) -> bool:
        """Whether something stands beside the norm."""
        return self.layout.endswith("stages")


#: On a GPU both 16-bit types take as long; f32 has no row there.
_DTYPES = {"cuda": ("bf16",), "cpu": ("f32", "bf16")}
#: Rows of these columns stand for those from the first number on. Up to 1024 inductor holds a row.
_GPU_COLUMNS = {320: 160, 704: 474, 1600: 1025, 4608: 2715, 10240: 6869}
_CPU_COLUMNS = {160: 80, 640: 320, 2560: 1280}


def _bounds(sizes: Sequence[int], at: int) -> tuple[int, int | None]:
    """From the geometric middle to the size before, to that of the next; the last has no end."""
    low = sizes[at] // 2 if at == 0 else math.isqrt(sizes[at - 1] * sizes[at])
    return low, None if at == len(sizes) - 1 else math.isqrt(sizes[at] * sizes[at + 1])


def _passes(
    device: str,
    layout: str,
    dtype: str,
    shapes: Sequence[tuple[int, ...]],
    columns: Any,
    groups: int = 0,
) -> Iterator[Class]:
    """Forward and backward of norms of these shapes, which differ in their elements."""
    kind = table.device_kind(torch.device(device))
    for backward in (False, True):
        by: dict[str, list[tuple[int, ...]]] = {}
        for shape in shapes:
            counts = shape[1], math.prod(shape)
            direction = table.direction_of(kind, layout, *counts, backward)
            by.setdefault(direction, []).append(shape)
        for direction, own in by.items():
            sizes = [math.prod(shape) for shape in own]
            for at, shape in enumerate(own):
                bounds = _bounds(sizes, at)
                yield Class(layout, dtype, direction, shape, columns, bounds, groups)


def _rows(device: str, dtype: str, quick: bool) -> Iterator[Class]:
    cuda = device == "cuda"
    columns = _GPU_COLUMNS if cuda else _CPU_COLUMNS
    starts = [*columns.values(), None]
    elements = (
        [1 << 19, 1 << 22, 1 << 23, 1 << 25, 1 << 28] if cuda else [1 << 15, 1 << 18, 1 << 22]
    )
    if quick:
        elements = elements[1:2]
    kinds = ["layer rows", "layer rows with stages", "rms rows", "rms rows with stages"]
    for layout in kinds:
        for at, cols in enumerate(columns):
            shapes = [(max(count // cols, 1), cols) for count in elements]
            bounds = starts[at], starts[at + 1]
            yield from _passes(device, layout, dtype, shapes, bounds)


def _images(device: str, dtype: str, quick: bool) -> Iterator[Class]:
    cuda = device == "cuda"
    batch, channels, groups = (16, 192, 32) if cuda else (2, 48, 8)
    sides = [12, 48] if quick else [12, 48, 144] if cuda else [8, 24, 96]
    shapes = [(batch, channels, side, side) for side in sides]
    for layout in ("nchw", "nhwc"):
        for behind in ("", " with stages"):
            name = f"layer groups {layout}{behind}"
            yield from _passes(device, name, dtype, shapes, (0, None), groups)
    yield from _passes(device, "layer channels", dtype, shapes, (0, None))


def classes(device: str, quick: bool) -> list[Class]:
    """What is measured on a kind of device."""
    return [
        one
        for dtype in _DTYPES[device]
        for one in (*_rows(device, dtype, quick), *_images(device, dtype, quick))
    ]
