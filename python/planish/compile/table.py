"""The table of choices: where planish's kernels were measured to be faster in a compiled graph than
what inductor makes of the same norm and what stands around it. The numbers are in choices.json,
which `planish bench choices` measures and writes, and in a file of the user's that PLANISH_CHOICES
names, whose kinds of device stand in the place of those in ours."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from planish.compile.reading import Norm, hint, is_by_channel, is_by_pixel
from planish.library.loaded import library
from planish.operators import call
from torch import Tensor

__all__ = [
    "BACKWARD",
    "FORWARD",
    "MARGIN",
    "NAMES",
    "ONE_KERNEL",
    "Row",
    "Site",
    "digest",
    "direction_of",
    "look_up",
    "rows",
    "site",
    "site_of",
]

_FILE = Path(__file__).with_name("choices.json")

#: planish is taken where it was faster by this factor at the least: what is less is noise.
MARGIN = 1.03

#: The rows of channels are of images of 144 pixels and more.
_LEAST_PIXELS = 128

#: Both dtypes of 16 bits have the same kernels, but for the conversion of a number; rows of the one
#: hold for the other.
NAMES = {
    torch.float16: "16 bits",
    torch.bfloat16: "16 bits",
    torch.float32: "f32",
    torch.float64: "f64",
}

#: Which pass a row is of. Inductor has two ways to a backward of rows on a GPU: gradients of x and
#: of the parameters in one kernel, and in several.
FORWARD, BACKWARD, ONE_KERNEL = "forward", "backward", "backward in one kernel"


class Row(NamedTuple):
    """Norms of one class, and how many times as fast as inductor's own planish was there. The
    bounds hold: from the first number on, below the second (None: without end)."""

    device: str
    layout: str
    dtype: str
    direction: str
    columns: tuple[int, int | None]
    elements: tuple[int, int | None]
    speedup: float


class Site(NamedTuple):
    """What the table asks of a norm."""

    device: str
    layout: str
    dtype: str
    direction: str
    columns: int
    elements: int


def _files() -> list[Path]:
    """The user's, if there is one, and ours."""
    named = os.environ.get("PLANISH_CHOICES")
    return [Path(named), _FILE] if named else [_FILE]


def _rows_of(path: Path) -> list[Row]:
    try:
        return [
            Row(device, layout, dtype, direction, tuple(columns), tuple(elements), float(speedup))
            for device, layout, dtype, direction, columns, elements, speedup in json.loads(
                path.read_text()
            )["rows"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        whose = "" if path == _FILE else "PLANISH_CHOICES: "
        raise ValueError(
            f"{whose}{path} has no table of choices: {error!r}; wanted a file that "
            "`planish bench choices --table` wrote"
        ) from error


@functools.cache
def rows() -> list[Row]:
    found: list[Row] = []
    for path in _files():
        kinds = {row.device for row in found}
        found += [row for row in _rows_of(path) if row.device not in kinds]
    return found


@functools.cache
def digest() -> str:
    """Of all that a choice depends on: the table, and this package's text."""
    rows()  # a file that has none is said first
    found = hashlib.sha256(b"".join(path.read_bytes() for path in _files()))
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


@functools.cache
def device_kind(device: torch.device) -> str:
    """The kind of device that a row is measured on: a GPU's architecture, or the instruction set
    that planish uses on the CPU."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    return f"cpu {library().cpu_tier()}"


def _pixels(x: Tensor) -> int:
    """Of an image whose channels are the last axis, and lie so far apart."""
    return hint(x.stride(-1)) or 0


def _layout(kind: str, x: Tensor, reduce: list[int], split: int, staged: bool) -> str | None:
    """The kind of norm, and of rows, channels (of NCHW, however its axes are ordered) or groups of
    images by their layout; None for any other."""
    behind = " with stages" if staged else ""
    ndim = x.dim() + (split != 0)
    if reduce == list(range(ndim - len(reduce), ndim)) and split <= 0:
        if hint(x.stride(-1)) == 1 or hint(x.shape[-1]) == 1:
            return f"{kind} rows{behind}"
        if len(reduce) > 1 or split or not is_by_channel(x) or _pixels(x) < _LEAST_PIXELS:
            return None
        return f"{kind} channels{behind}"
    if reduce == [1] and not split and ndim > 2:
        return f"{kind} {'rows' if is_by_pixel(x) else 'channels'}{behind}"
    if reduce == list(range(2, ndim)) and split > 0:
        return f"{kind} groups {'nhwc' if is_by_pixel(x) else 'nchw'}{behind}"
    return None


def site_of(norm: Norm) -> Site | None:
    """None where a size is not known, or there are no rows for such a norm."""
    return site(norm.x, norm.call, norm.is_staged, norm.is_backward)


def direction_of(device: str, layout: str, columns: int, elements: int, backward: bool) -> str:
    """The pass, with inductor's way to it. Its one kernel (config.triton.mix_order_reduction) is
    for many rows, at least twice as many as columns, past the L2."""
    if not backward:
        return FORWARD
    rows = elements // max(columns, 1)
    tall = elements >= 5 << 20 and rows >= max(4096, 2 * columns) and columns <= 16384
    if not tall or "rows" not in layout or not device.startswith("sm_"):
        return BACKWARD
    from torch._inductor import config

    has_it = getattr(config.triton, "mix_order_reduction", False) and not config.cpp_wrapper
    return ONE_KERNEL if has_it else BACKWARD


def site(x: Tensor, made: call.Call, staged: bool, backward: bool) -> Site | None:
    """Of a pass of a norm of x; ``staged``: with other tensors than weight and bias."""
    reduce = call.axes_of(made.axes, 0)
    kind = "rms" if made.options & call.RMS else "layer"
    staged = staged or bool(call.activation_in(made.options))
    layout = _layout(kind, x, reduce, made.split, staged)
    sizes = [hint(size) for size in x.shape]
    if layout is None or any(size is None for size in sizes):
        return None
    elements = columns = 1
    for axis, size in enumerate(call.seen_shape(sizes, made.split)):
        elements *= size
        columns *= size if axis in reduce else 1
    device = device_kind(x.device)
    direction = direction_of(device, layout, columns, elements, backward)
    return Site(device, layout, NAMES[x.dtype], direction, columns, elements)


def _holds(bounds: tuple[int, int | None], number: int) -> bool:
    least, end = bounds
    return least <= number and (end is None or number < end)


def _fitting(site: Site) -> Iterator[Row]:
    for row in rows():
        if row[:4] != site[:4] or not _holds(row.columns, site.columns):
            continue
        if _holds(row.elements, site.elements):
            yield row


def look_up(site: Site) -> Row | None:
    """The row that holds for a norm, if one was measured."""
    return next(_fitting(site), None)
