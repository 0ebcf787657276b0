"""The kernels of quantised outputs of rows fit their registers, on every architecture.

How many blocks a multiprocessor is to hold, and so how many registers a thread has, is planned by
what stands around the norm (src/cuda/stages/stages_registers.c). Needs NVRTC, and no GPU.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu_shim
import pytest
from gpu_shim import ShimError, find_nvrtc

if TYPE_CHECKING:
    from planish.library import structs
else:
    from c_api import structs

CODES = {
    "bf16": (4, 16), "f32": (2, 32), "e4m3": (10, 8), "e5m2": (12, 8), "i8": (0, 8),
    "e8m0": (14, 8),
}  # fmt: skip
ROWS, UNAVAILABLE = 4096, 12
Shapes = dict[str, tuple[tuple[int, ...], str]]
SCALES: dict[str, tuple[int, str]] = {
    "rows": (0, "f32"),
    "blocks": (128, "f32"),
    "mx": (32, "e8m0"),
}
STAGES: dict[str, dict[str, str]] = {
    "alone": {},
    "sum": {"residual": "bf16", "sum": "bf16"},
    "sum f32": {"residual": "f32", "sum": "f32"},
    "gate": {"gate": "bf16"},
    "y": {"y": "bf16"},
}


def shapes(cols: int, scale: str, layer: bool, stage: str, q: str) -> Shapes:
    """Tensors by role."""
    found: Shapes = {"x": ((ROWS, cols), "bf16"), "weight": ((1, cols), "bf16")}
    found["q"] = (ROWS, cols), q
    found |= {name: ((ROWS, cols), dtype) for name, dtype in STAGES[stage].items()}
    if layer:
        found["bias"] = (1, cols), "bf16"
    if scale == "given":
        found["y_scale"] = (), "f32"
    else:
        block, dtype = SCALES[scale]
        found["y_scales"] = (ROWS, -(-cols // block) if block else 1), dtype
    return found


def described(of: Mapping[str, tuple[tuple[int, ...], str]]) -> tuple[Any, list[object]]:
    """planish_tensors without memory, and what must live as long."""
    found = structs.Tensors(ctypes.sizeof(structs.Tensors))
    kept: list[object] = []
    for role, (shape, dtype) in of.items():
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        strides = (ctypes.c_int64 * max(len(shape), 1))(*((shape[-1], 1) if shape else ()))
        device, code = structs.DLDevice(2, 0), structs.DLDataType(*CODES[dtype], 1)
        d = structs.DLTensor(None, device, len(shape), code, sizes, strides, 0)
        kept += [sizes, strides, d]
        setattr(found, role, ctypes.pointer(d))
    return found, kept


def report(lib: ctypes.CDLL, arch: int, of: Shapes, scale: str, layer: bool) -> str:
    """What the compiler says of the problem's kernel."""
    block = SCALES.get(scale, (0, ""))[0]
    op = structs.Norm(
        struct_size=ctypes.sizeof(structs.Norm), kind=int(not layer), reduce_axes=2, affine_axes=2,
        modulation_axes=2, column_axes=2, eps=1e-6, scale_block=block,
        scale_format=int(scale == "mx"),
    )  # fmt: skip
    tensors, kept = described(of)
    plan, log = ctypes.c_void_p(), ctypes.create_string_buffer(1 << 16)
    text = ctypes.create_string_buffer(2000)
    make = lib.shim_make
    status = make(ctypes.byref(plan), ctypes.byref(op), 0, ctypes.byref(tensors), arch, text, 2000)
    if not status:
        status = lib.shim_compile(plan, 0, arch, 16, log, len(log), text, len(text))
        lib.shim_free(plan)
    del kept
    if status:
        raise ShimError(status, text.value.decode())
    return log.value.decode()


def opened() -> ctypes.CDLL:
    """The shim, with NVRTC; skips without one of them."""
    if not (Path(gpu_shim.BUILT).exists() or "PLANISH_GPU_SHIM" in gpu_shim.os.environ):
        pytest.skip(f"{gpu_shim.BUILT} is not built; make test builds it")
    find_nvrtc()
    lib = gpu_shim.lib()
    structs.name_fields(lib)
    return lib


@pytest.mark.parametrize("arch", [80, 89, 90, 100])
def test_no_kernel_spills(arch: int) -> None:
    lib, bad, count = opened(), [], 0
    for i, cols in enumerate((96, 512, 1024, 4096, 5120, 15872)):
        for j, scale in enumerate((*SCALES, "given")):
            for k, stage in enumerate(STAGES):
                if arch != 90 and (i + j + k + arch) % 3:  # a third of them: each takes a second
                    continue
                layer, q = (i + j // 3 + k) % 3 == 2, ("e4m3", "e5m2", "e4m3", "i8")[(i + k) % 4]
                if (i + j + k + arch) % 2 and stage not in ("alone", "sum"):
                    continue
                of = shapes(cols, scale, layer, stage, q)
                try:
                    said = report(lib, arch, of, scale, layer)
                except ShimError as e:
                    if e.status == UNAVAILABLE:
                        pytest.skip(f"no NVRTC here (pip install nvidia-cuda-nvrtc): {e}")
                    raise
                count += 1
                found = re.findall(r"(\d+) bytes (?:spill|stack frame)", said)
                if not found or any(map(int, found)):
                    used = re.findall(r"Used (\d+) registers", said)
                    name = f"{cols} {scale} {stage} layer {layer} {q}"
                    bad.append(f"{name}: spilt {found}, registers {used}")
    print(f"{count} kernels compiled")
    assert not bad, "\n".join(bad)
