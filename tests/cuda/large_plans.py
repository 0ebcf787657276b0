"""Plans of norms over groups of few large images, without a GPU.

What the kernels compute is for image_cases.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from gpu_shim import BACKWARD, FORWARD, LAYER, SILU, AnyPlan


def large_image_plans(arch: int) -> Iterator[tuple[str, AnyPlan, int]]:
    """Groups of few large images, of which no few blocks hold a strip; in the backward also stored
    by channel, of which no cluster holds a row."""
    groups = [(32, 4, 262144), (32, 8, 65536), (32, 10, 16384), (8, 64, 65536), (9, 4, 200000)]
    groups += [(32, 20, 65536), (3, 44, 100003), (32, 3, 262144)]
    ways = [(FORWARD, True), (BACKWARD, True), (BACKWARD, False)]
    works = itertools.product(ways, ("f16", "bf16", "f32"), groups, (0, SILU))
    for i, ((direction, last), dtype, (g, d, hw), activation) in enumerate(works):
        weight, c = "f32" if i % 5 == 4 else dtype, g * d
        roles = ["x", "y"] if direction == FORWARD else ["x", "dy", "dx"]
        affine = ["weight", "bias"] if direction == FORWARD else ["weight", "dweight", "dbias"]
        types = dict.fromkeys(roles, dtype) | dict.fromkeys(affine, weight)
        types |= {"mean": "f32", "rstd": "f32"}
        if activation:
            types |= {"bias": weight, "mean": "f64", "rstd": "f64"}
        full = [c * hw, d, 1, c] if last else [c * hw, d * hw, hw, 1]
        strides = dict.fromkeys(("x", "y", "dy", "dx"), full)
        strides |= {r: [g, 1, 0, 0] for r in ("mean", "rstd")}
        strides |= {r: [0, d, 1, 0] for r in ("weight", "bias", "dweight", "dbias")}
        name = f"large groups {direction} {g}x{d}x{hw} {dtype} {activation} {'last' * last}"
        follows = {"activation": activation, "arch": arch}
        yield name, AnyPlan(direction, LAYER, (2, g, d, hw), 12, 6, types, strides, **follows), 16
