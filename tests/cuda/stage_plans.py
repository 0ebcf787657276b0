"""Plans of the GPU backend with a modulation or a gate around the norm, without torch or a GPU.

As gpu_shim.Plan, whose methods they have; made of planish.h's structs by tests/cuda/shim.c.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, Plan, ShimError, lib

ROOT = pathlib.Path(__file__).parents[2]

if TYPE_CHECKING:
    from planish.library import structs
else:
    _spec = importlib.util.spec_from_file_location(
        "structs", ROOT / "python/planish/library/structs.py"
    )
    structs = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(structs)

SAMPLES, ROWS = 8, 2048
COLS = (96, 512, 768, 1024, 2048, 4096, 8192, 15872)


class StagePlan(Plan):
    """A plan of tensors; `shapes`: each one's sizes, of x's rank, and dtype; dense but for those
    that `strides` has."""

    def __init__(
        self,
        direction: int,
        op: structs.Norm,
        shapes: Mapping[str, tuple[Sequence[int], str]],
        *,
        arch: int,
        strides: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        structs.name_fields(lib())
        given, kept = structs.Tensors(ctypes.sizeof(structs.Tensors)), []
        for role, (sizes, dtype) in shapes.items():
            array = ctypes.c_int64 * len(sizes)
            steps = [1] * len(sizes)
            for i in reversed(range(len(sizes) - 1)):
                steps[i] = steps[i + 1] * sizes[i + 1]
            steps = [*(strides or {}).get(role, steps)]
            shape, lies = array(*sizes), array(*steps)
            device = structs.DLDevice(structs.CUDA_DEVICE, 0)
            kind = structs.DLDataType(0, 64, 1) if dtype == "i64" else structs.dtype_of(dtype)
            t = structs.DLTensor(None, device, len(sizes), kind, shape, lies, 0)
            kept += [shape, lies, t]
            setattr(given, role, ctypes.pointer(t))
        self.handle = ctypes.c_void_p()
        self._text = ctypes.create_string_buffer(600)
        room = ctypes.c_size_t(len(self._text))
        status = lib().shim_make(
            ctypes.byref(self.handle),
            ctypes.byref(op),
            direction,
            ctypes.byref(given),
            arch,
            self._text,
            room,
        )
        if status:
            raise ShimError(status, self._text.value.decode())
        self.set({})


def modulated(direction: int, cols: int, dtype: str, arch: int) -> StagePlan:
    """LayerNorm with scale and shift of samples; its statistics are f64, as torch keeps them."""
    full, column, row = (SAMPLES, ROWS, cols), (SAMPLES, 1, cols), (SAMPLES, ROWS, 1)
    roles = ("x", "y") if direction == FORWARD else ("x", "dy", "dx")
    columns = ("scale", "shift") if direction == FORWARD else ("scale", "dscale", "dshift")
    shapes = dict.fromkeys(roles, (full, dtype)) | dict.fromkeys(columns, (column, dtype))
    shapes |= dict.fromkeys(("mean", "rstd"), (row, "f64"))
    size = ctypes.sizeof(structs.Norm)
    op = structs.Norm(size, LAYER, 0, 4, 4, 1e-6, modulation_axes=5, column_axes=4)
    return StagePlan(direction, op, shapes, arch=arch)


def gated(direction: int, cols: int, dtype: str, arch: int) -> StagePlan:
    """RMSNorm with a weight and a gate behind it."""
    full, column, row = (SAMPLES, ROWS, cols), (1, 1, cols), (SAMPLES, ROWS, 1)
    roles = ("x", "gate", "y") if direction == FORWARD else ("x", "gate", "dy", "dx", "dgate")
    columns = ("weight",) if direction == FORWARD else ("weight", "dweight")
    shapes = dict.fromkeys(roles, (full, dtype)) | dict.fromkeys(columns, (column, dtype))
    shapes |= {"rstd": (row, "f32")}
    op = structs.Norm(ctypes.sizeof(structs.Norm), RMS, 0, 4, 4, 1e-6, column_axes=4)
    return StagePlan(direction, op, shapes, arch=arch)


def summed(kind: int, cols: int, dtype: str, arch: int) -> StagePlan:
    """A residual, forward; with dropout where the norm is RMSNorm of f16 or LayerNorm of bf16."""
    full, column, row = (ROWS, cols), (1, cols), (ROWS, 1)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    shapes |= dict.fromkeys(("x", "residual", "sum", "y"), (full, dtype))
    shapes |= dict.fromkeys(("weight", "bias") if kind == LAYER else ("weight",), (column, dtype))
    shapes |= dict.fromkeys(("mean", "rstd") if kind == LAYER else ("rstd",), (row, "f32"))
    op = structs.Norm(ctypes.sizeof(structs.Norm), kind, 0, 2, 2, 1e-6, column_axes=2)
    if (kind == LAYER) == (dtype == "bf16"):
        shapes["rng"], op.dropout_p = ((2,), "i64"), 0.1
    return StagePlan(FORWARD, op, shapes, arch=arch)


def stage_plans(arch: int) -> Iterator[tuple[str, StagePlan, int]]:
    """(name, plan, access): of the benches' lengths and some more, in both directions; sums only
    forward."""
    works = itertools.product((modulated, gated), (FORWARD, BACKWARD), COLS)
    for i, (make, direction, cols) in enumerate(works):
        dtype = "f16" if i % 5 == 4 else "bf16"
        word = "forward" if direction == FORWARD else "backward"
        name = f"{make.__name__} {word} {cols} {dtype}"
        yield name, make(direction, cols, dtype, arch), 16
    for kind, cols, dtype in itertools.product((LAYER, RMS), COLS, ("bf16", "f16")):
        name = f"sum {'layer' if kind == LAYER else 'rms'} forward {cols} {dtype}"
        yield name, summed(kind, cols, dtype, arch), 16
