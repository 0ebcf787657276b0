"""Plans of batch norms, without a GPU: both layouts, every pass, what is behind, every dtype.

What the kernels compute is for emulation/table_batch.c and batch_stages.py.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

from gpu_shim import APPLY, BACKWARD, FORWARD, LAYER, RELU, SILU
from stage_plans import StagePlan, structs

FULL = ("x", "y", "dy", "dx", "addend", "daddend")
#: Images, channels, pixels: held whole or in part, pieces; slabs of one block and of clusters.
SHAPES = ((64, 256, 3136), (64, 64, 12544), (32, 96, 784), (64, 2048, 49), (64, 512, 49))
SHAPES += ((64, 512, 9), (64, 256, 25), (64, 1024, 196), (32, 36, 49), (512, 2048, 49))
SHAPES += ((2000, 128, 3), (64, 512, 16))
WORDS = {FORWARD: "forward", BACKWARD: "backward", APPLY: "apply"}
#: Of each pass: the activation, and the roles beside those of a norm alone.
WAYS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (FORWARD, 0, ()),
    (FORWARD, RELU, ("addend", "running_mean", "running_var")),
    (FORWARD, SILU, ()),
    (APPLY, RELU, ("addend",)),
    (APPLY, SILU, ()),
    (BACKWARD, 0, ()),
    (BACKWARD, RELU, ("y",)),
    (BACKWARD, RELU, ("y", "daddend")),
    (BACKWARD, RELU, ("addend", "daddend")),
    (BACKWARD, SILU, ()),
)


def batch_plan(
    passed: int, sizes: tuple[int, int, int], last: bool, dtype: str, activation: int,
    more: tuple[str, ...], *, arch: int,
) -> StagePlan:  # fmt: skip
    """A batch norm of (images, channels, pixels); weights of f32, as are statistics where nothing
    is computed again of them."""
    _, c, hw = sizes
    full = [c * hw, 1, c] if last else [c * hw, hw, 1]
    roles = {"x", *more} | ({"dy", "dx"} if passed == BACKWARD else {"y"})
    of_channels = {"weight", "mean", "rstd"}
    of_channels |= {"dweight", "dbias"} if passed == BACKWARD else {"bias"}
    if activation and "y" not in more:
        of_channels.add("bias")
    digits = "f64" if activation and passed == BACKWARD else "f32"
    shapes = {r: (sizes, dtype) for r in roles if r in FULL}
    shapes |= {
        r: ((1, c, 1), digits if r in ("mean", "rstd") else "f32")
        for r in of_channels | (roles - set(FULL))
    }
    size = ctypes.sizeof(structs.Norm)
    op = structs.Norm(size, LAYER, 0, 5, 2, 1e-5, activation=activation, momentum=0.1)
    return StagePlan(passed, op, shapes, arch=arch, strides=dict.fromkeys(FULL, full))


def batch_plans(arch: int) -> Iterator[tuple[str, StagePlan, int]]:
    """(name, plan, access) of every shape, each in some ways and dtypes."""
    works = itertools.product(range(len(SHAPES)), (False, True), range(len(WAYS)))
    for i, (shape, last, way) in enumerate(works):
        if last and shape > 4:
            continue
        passed, activation, more = WAYS[way]
        dtype = ("f16", "bf16", "f32")[(i + shape + way // 3) % 3]
        access = (16, 2, 8)[i // 7 % 3] if dtype != "f32" and not last else 16
        behind = " ".join([str(activation), *more])
        name = f"batch {WORDS[passed]} {SHAPES[shape]} {dtype} {behind} {'last' * last}".strip()
        plan = batch_plan(passed, SHAPES[shape], last, dtype, activation, more, arch=arch)
        yield name, plan, access
