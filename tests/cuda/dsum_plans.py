"""Plans of backwards of images to whose dx a residual stream's gradient is added, without a GPU.

Norms over groups of channels and over channels, of tensors stored by channel and by pixel, in every
way that those kernels have. What the kernels compute is for stage_joined_cases.py.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

from gpu_shim import BACKWARD, LAYER, RMS, SILU
from stage_plans import StagePlan, structs

FULL = ("x", "dy", "dx", "dsum")
AFFINE = ("weight", "bias", "dweight", "dbias")
#: Groups, channels of each, pixels: whole rows in a block and in a cluster, pieces, tiles, strips
#: over few blocks, clusters and blocks anywhere.
GROUPS = (
    (32, 10, 4096),
    (32, 20, 1024),
    (32, 40, 256),
    (32, 16, 4096),
    (1, 64, 9216),
    (32, 2, 12544),
    (256, 1, 784),
    (32, 8, 3136),
    (32, 8, 49),
    (9, 3, 225),
    (8, 5, 3025),
    (2, 64, 16384),
)
#: Channels and pixels: tiles, shifted ones, whole images in a block and in a cluster.
CHANNELS = ((64, 3136), (256, 784), (512, 196), (256, 49), (1200, 196), (257, 225), (256, 3025))


def groups_plan(
    sizes: tuple[int, int, int, int], dtype: str, last: bool, activation: int, *, arch: int,
    types: dict[str, str] | None = None,
) -> StagePlan:  # fmt: skip
    """GroupNorm of (images, groups, channels of a group, pixels); `types`: other dtypes."""
    _, g, d, hw = sizes
    full = [g * d * hw, d, 1, g * d] if last else [g * d * hw, d * hw, hw, 1]
    saved, affine = (sizes[0], g, 1, 1), (1, g, d, 1)
    digits = "f64" if activation else "f32"
    shapes = dict.fromkeys(FULL, (sizes, dtype))
    shapes |= dict.fromkeys(("mean", "rstd"), (saved, digits))
    shapes |= {r: (affine, dtype) for r in AFFINE if activation or r != "bias"}
    shapes |= {r: (shapes[r][0], t) for r, t in (types or {}).items()}
    op = structs.Norm(ctypes.sizeof(structs.Norm), LAYER, 0, 12, 6, 1e-5, activation=activation)
    return StagePlan(BACKWARD, op, shapes, arch=arch, strides=dict.fromkeys(FULL, full))


def channels_plan(
    sizes: tuple[int, int, int], kind: int, dtype: str, *, arch: int,
    types: dict[str, str] | None = None,
) -> StagePlan:  # fmt: skip
    """A norm over the channels of (images, channels, pixels)."""
    saved, affine = (sizes[0], 1, sizes[2]), (1, sizes[1], 1)
    shapes = dict.fromkeys(FULL, (sizes, dtype)) | {"rstd": (saved, "f32")}
    shapes |= dict.fromkeys(("weight", "dweight"), (affine, dtype))
    if kind == LAYER:
        shapes |= {"mean": (saved, "f32"), "dbias": (affine, dtype)}
    shapes |= {r: (shapes[r][0], t) for r, t in (types or {}).items()}
    op = structs.Norm(ctypes.sizeof(structs.Norm), kind, 0, 2, 2, 1e-5)
    return StagePlan(BACKWARD, op, shapes, arch=arch)


def dsum_plans(arch: int) -> Iterator[tuple[str, StagePlan, int]]:
    """(name, plan, access): every size and dtype, by channel and by pixel, half with SiLU."""
    works = itertools.product(GROUPS, ("bf16", "f16", "f32"), (False, True), (0, SILU))
    for i, ((g, d, hw), dtype, last, activation) in enumerate(works):
        if (i + i // 2 + i // 4) % 2:
            continue
        types = {"dsum": "f32"} if i % 7 == 6 else {}
        plan = groups_plan((64, g, d, hw), dtype, last, activation, arch=arch, types=types)
        name = f"groups backward dsum {g}x{d}x{hw} {dtype} {'last' * last} {activation} {types}"
        yield name, plan, 2 if i % 5 == 4 and dtype != "f32" else 16
    for i, ((c, hw), dtype) in enumerate(itertools.product(CHANNELS, ("bf16", "f16", "f32"))):
        kind = RMS if i % 4 == 3 else LAYER
        types = {"dsum": "f32"} if i % 7 == 6 else {}
        plan = channels_plan((64, c, hw), kind, dtype, arch=arch, types=types)
        yield f"channels backward dsum {c}x{hw} {dtype} {types}", plan, 16
