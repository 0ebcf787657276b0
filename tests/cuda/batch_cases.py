"""Cases of rows that lie spread over memory on a GPU: batch norms, and others like them."""

from __future__ import annotations

import itertools

from axes_cases import AnyCase
from gpu_shim import APPLY, BACKWARD, FORWARD, LAYER, RELU, RMS, SILU

#: (images, channels, pixels): lines of every alignment, few and many channels, long and short rows.
SHAPES = [
    (64, 64, 12544), (16, 256, 3136), (64, 128, 784), (32, 1024, 196), (64, 2048, 49),
    (8, 96, 4096), (7, 33, 225), (3, 1, 5000), (5, 1000, 9), (300, 24, 4), (2, 17, 70001),
    (9, 40, 100), (4096, 72, 1), (1000, 130, 1), (2, 3, 200000), (33, 8, 3025), (12, 320, 81),
    (64, 512, 49), (37, 168, 49), (129, 72, 9), (48, 104, 25), (24, 36, 49), (16, 640, 196),
    (700, 64, 49), (2000, 128, 3), (64, 512, 16),
]  # fmt: skip
F32_WEIGHTS = dict.fromkeys(("weight", "bias", "dweight", "dbias"), "f32")


def batch_case(
    direction: int,
    sizes: tuple[int, int, int],
    dtype: str,
    last: bool,
    activation: int = 0,
    skew: int = 0,
    kind: int = LAYER,
) -> AnyCase:
    """A batch norm of images stored by channel or by pixel."""
    images, channels, pixels = sizes
    # What is of few pixels by channel is a norm of neighbours; strips take some by pixel.
    spread = pixels > 1 and images > 1 and channels > 1 and not last
    weights = F32_WEIGHTS if dtype != "f64" else {}
    return AnyCase(
        direction,
        kind,
        [images, channels, pixels],
        5,
        2,
        # Sums over many images are beyond f16.
        {"x": dtype} | (weights if sizes[1] % 3 != 1 or dtype == "f16" else {}),
        [0, 2, 1] if last else None,
        skew=skew,
        activation=activation,
        kernel="cuda batch" if spread else "",
    )


def batch_cases(quick: bool) -> list[AnyCase]:
    """Batch norms in both layouts, with and without an activation, training and inference; and
    norms over other axes with a kept one between."""
    out = []
    shapes = [s for s in SHAPES if s[0] * s[1] * s[2] < 400000] if quick else SHAPES
    for i, sizes in enumerate(shapes):
        for direction, last in itertools.product((FORWARD, BACKWARD, APPLY), (False, True)):
            for j, dtype in enumerate(("f16", "bf16", "f32", "f64")):
                if sizes[0] * sizes[1] * sizes[2] > 20000000 and dtype == "f64":
                    continue
                activation = (0, RELU, 0, SILU)[(i + j + direction) % 4]
                kind = RMS if i % 5 == 4 and j == 2 else LAYER
                skew = i % 7 if (i + j) % 3 == 2 else 0
                out.append(batch_case(direction, sizes, dtype, last, activation, skew, kind))
    for i, direction in enumerate((FORWARD, BACKWARD)):
        # Rows by two axes; the second of three axes kept; no weights.
        for dtype in ("f16", "bf16", "f32"):
            types = {"x": dtype, **F32_WEIGHTS}
            out.append(
                AnyCase(direction, LAYER, [6, 24, 10, 56], 10, 5, types, kernel="cuda batch")
            )
            out.append(
                AnyCase(direction, LAYER, [6, 24, 10, 49], 10, 1, {"x": dtype})
                if i == 0
                else AnyCase(direction, LAYER, [6, 24, 10, 49], 10, 5, {"x": dtype})
            )
            out.append(AnyCase(direction, LAYER, [50, 128, 64], 5, 2, types, kernel="cuda batch"))
    return out
