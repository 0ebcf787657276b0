"""SiLU and ReLU behind rows and behind norms over channels on a GPU, as cases against double.

Those behind groups are among axes_cases.image_cases().
"""

from __future__ import annotations

import itertools

from axes_cases import AnyCase
from gpu_shim import BACKWARD, FORWARD, LAYER, RELU, RMS, SILU

WIDE = {"weight": "f32", "bias": "f32", "dweight": "f32", "dbias": "f32"}


def rows(quick: bool) -> list[AnyCase]:
    """Rows within warps, blocks and clusters, with a mean in f32 and one in f64."""
    out = []
    lengths = (3, 24, 96, 200, 368, 769, 1024, 2048, 4096, 5632, 8192, 15872, 40960)
    for i, cols in enumerate(lengths[1::4] if quick else lengths):
        for j, (direction, dtype) in enumerate(
            itertools.product((FORWARD, BACKWARD), ("f16", "bf16", "f32"))
        ):
            count = 3001 if cols < 1000 else 301 if cols < 10000 else 41
            moments = {} if (i + j) % 3 == 2 else {"mean": "f32", "rstd": "f32"}
            out.append(
                AnyCase(
                    direction,
                    RMS if (i + j) % 4 == 3 else LAYER,
                    [99 if quick else count, cols],
                    2,
                    2,
                    {"x": dtype} | moments | (WIDE if (i + j) % 5 == 1 else {}),
                    skew=3 if j == 4 else 0,
                    activation=RELU if i % 3 == 1 else SILU,
                    kernel="cuda rows",
                )
            )
    return out


def channels(quick: bool) -> list[AnyCase]:
    """Images taken whole and by tiles, over a block and over a cluster."""
    out = []
    shapes = [(64, 3136), (96, 3025), (256, 784), (257, 225), (512, 196), (1024, 49), (96, 196)]
    for i, (c, hw) in enumerate(shapes[3::2] if quick else shapes):
        for j, (direction, dtype) in enumerate(
            itertools.product((FORWARD, BACKWARD), ("f16", "bf16", "f32"))
        ):
            out.append(
                AnyCase(
                    direction,
                    RMS if (i + j) % 4 == 3 else LAYER,
                    [2 if quick else 33, c, hw],
                    2,
                    2,
                    {"x": dtype} | (WIDE if (i + j) % 5 == 1 else {}),
                    out_order=[0, 2, 1] if direction == FORWARD and i % 2 else None,
                    activation=RELU if i % 3 == 1 else SILU,
                    kernel="cuda channels",
                )
            )
    return out


def behind_cases(quick: bool) -> list[AnyCase]:
    """All of them."""
    return rows(quick) + channels(quick)
