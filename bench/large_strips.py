"""Variants of the strips of large images (src/cuda/groups/strips_large.c), for gpu_channels.py.

    python bench/gpu_channels.py large --dtype bf16 --variants bench/large_strips.py --only nhwc

The kernels without blocks anywhere, and every width of a strip, number of strips at once and of
blocks in a multiprocessor that has room.
"""

from __future__ import annotations

import math
from typing import Protocol

MULTIPROCESSORS, ROOM, RESERVE = 132, 233472, 1024
LOOSE_BYTES = 24 << 20


class Shape(Protocol):
    """A shape of gpu_channels.py."""

    direction: int
    what: str
    layout: str
    images: int
    channels: int
    groups: int
    pixels: int
    dtype: str
    silu: bool


def strip(s: Shape, tile: int, fit: int, at_once: int, warps: int) -> dict[str, int]:
    """The constants of strips of `tile` channels; none where they cannot be."""
    size, depth = (4 if s.dtype == "f32" else 2), s.channels // s.groups
    width = 16 // size
    while s.channels % width:
        width //= 2
    blocks, lanes = MULTIPROCESSORS * fit // at_once, tile // width
    if tile % width or tile % depth or not 1 <= lanes <= 32 or blocks < 2:
        return {}
    planes, piece = 32 // lanes, -(-s.pixels // blocks)
    each = size * (1 + s.direction)
    alone = s.direction or math.gcd(depth, width) == 1
    kinds = 3 if not s.direction or (s.dtype == "f32" and not s.silu) else 2
    sums = kinds * warps * tile // (1 if alone else math.gcd(depth, width)) * 4
    room = ROOM // fit - RESERVE - 64 - sums - tile // depth * 16
    held = min(room // (warps * planes * tile * each), -(-piece // (warps * planes)))
    loose = max(0, piece - held * warps * planes) * tile * each * blocks * at_once
    if held < 4 or loose > LOOSE_BYTES or (blocks - 1) * piece >= s.pixels:
        return {}
    found = {"COOPERATING_BLOCKS": blocks, "CLUSTER": 1, "TILE_CHANNELS": tile, "LANES": lanes}
    found |= {"PLANES": planes, "PIECE": piece, "WARPS": warps, "MIN_BLOCKS": fit}
    return found | {"HOLD": held if loose else 0}  # plans without strips have no such constants


def variants(s: Shape) -> list[dict[str, int]]:
    """Those that have room and leave no great part of it empty."""
    found: list[dict[str, int]] = []
    if s.what != "groups" or s.layout != "nhwc" or s.silu:
        return found
    size = 4 if s.dtype == "f32" else 2
    for tile in sorted({b // size for b in (32, 64, 128, 256)} | {80}):
        strips = s.images * s.channels // tile
        all_bytes = strips * s.pixels * tile * size * (1 + s.direction)
        if s.channels % tile or (tile * size < 64 and all_bytes < 100 << 20):
            continue
        for fit in (1, 2):
            for at_once in (1, 2, 3, 4, 6, 8, 16):
                at_once_bytes = all_bytes * min(at_once, strips) // strips
                if at_once > strips or at_once_bytes < min(all_bytes // 2, 14 << 20):
                    continue
                for warps in (16,) if fit == 1 else (12, 10, 8):
                    if c := strip(s, tile, fit, at_once, warps):
                        found.append(c)
    ahead = [c | {"AHEAD": 1} for c in found if c["WARPS"] in (16, 10)]
    late = [c | {"LATE_HALF": 1} for c in found if c["MIN_BLOCKS"] == 2 and c["WARPS"] == 10]
    found = [c | {"AHEAD": 0, "LATE_HALF": 0} for c in found]
    return [{"COOPERATING_BLOCKS": 1}, *found, *ahead, *late]  # without blocks anywhere first
