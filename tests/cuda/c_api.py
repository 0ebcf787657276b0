"""ctypes over planish's C API: passes on torch tensors of any device, by the names of their roles.

For the checks of the stages around a norm, on a GPU and in the emulation of one. The structs are
those of the package, which is not imported for them: it would load the library and register
operators.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

ROOT = Path(__file__).parents[2]

if TYPE_CHECKING:
    from planish.library import structs as _structs

    structs = _structs
else:
    _spec = importlib.util.spec_from_file_location(
        "structs", ROOT / "python/planish/library/structs.py"
    )
    structs = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(structs)

FORWARD, BACKWARD = 0, 1
LAYER, RMS = 0, 1
IDENTITY, SILU, RELU, GELU, GELU_TANH = range(5)
#: DLPack's code and bits of each dtype.
CODES = {
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.int8: (0, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e8m0fnu: (14, 8),
}
CPU, CUDA = 1, 2
#: By architecture: multiprocessors, shared memory of a block, blocks of a cluster, cooperative.
LIMITS = {80: (108, 166912, 1, 1), 90: (132, 232448, 16, 1)}
ALIGNED = 256  # what a workspace begins at a multiple of


class Exec(ctypes.Structure):
    """planish_exec."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_size_t),
        ("apart", ctypes.c_int),
    )


class PlanishError(RuntimeError):
    """A status that is not PLANISH_OK, with its sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


def norm(**fields: Any) -> structs.Norm:
    """planish_norm with these fields."""
    return structs.Norm(struct_size=ctypes.sizeof(structs.Norm), **fields)


def described(tensors: Mapping[str, torch.Tensor]) -> tuple[structs.Tensors, list[object]]:
    """planish_tensors of these, and what must live as long."""
    found = structs.Tensors(ctypes.sizeof(structs.Tensors))
    kept: list[object] = []
    for role, t in tensors.items():
        sizes = ctypes.c_int64 * max(t.dim(), 1)
        shape, strides = sizes(*t.shape), sizes(*t.stride())
        device = structs.DLDevice(CUDA if t.is_cuda else CPU, t.device.index or 0)
        dtype = structs.DLDataType(*CODES[t.dtype], 1)
        d = structs.DLTensor(t.data_ptr(), device, t.dim(), dtype, shape, strides, 0)
        kept += [shape, strides, d]
        setattr(found, role, ctypes.pointer(d))
    return found, kept


class Library:
    """The library as it is built: PLANISH_LIBRARY, or what `make test` builds; on a GPU."""

    device = "cuda"

    def __init__(self, path: str | Path = "", mode: int = ctypes.DEFAULT_MODE) -> None:
        built = ROOT / "build/release/libplanish.so"
        path = path or os.environ.get("PLANISH_LIBRARY") or built
        self.lib = ctypes.CDLL(str(path), mode=mode)
        structs.name_fields(self.lib)

    def queue(
        self,
        op: structs.Norm,
        which: int,
        tensors: Mapping[str, torch.Tensor],
        second: Mapping[str, torch.Tensor] | None = None,
    ) -> object:
        """Queues a pass on the current stream, of two problems if there is a second; what is
        returned has to live until it has run: the workspace, which holds NaN."""
        given = [described(t) for t in (tensors, second) if t is not None]
        of_two = "_pair" * (second is not None)
        text = ctypes.create_string_buffer(600)
        how = Exec(ctypes.sizeof(Exec), message_bytes=len(text))
        how.message = ctypes.addressof(text)
        if self.device == "cuda":
            how.stream = torch.cuda.current_stream().cuda_stream
        size = ctypes.c_size_t()
        problem = (ctypes.byref(op), which, *(ctypes.byref(found) for found, _ in given))
        status = getattr(self.lib, f"planish_norm{of_two}_workspace_bytes")(
            *problem, ctypes.byref(size), ctypes.byref(how)
        )
        work = None
        if not status:
            if size.value:
                bytes_of = size.value + ALIGNED
                work = torch.full((bytes_of,), 0xFF, dtype=torch.uint8, device=self.device)
                how.workspace = -(-work.data_ptr() // ALIGNED) * ALIGNED
                how.workspace_bytes = size.value
            status = getattr(self.lib, f"planish_norm{of_two}_run")(*problem, ctypes.byref(how))
        del given
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))
        return work

    def run(self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Runs a pass, to its end."""
        work = self.queue(op, which, tensors)
        if self.device == "cuda":
            torch.cuda.synchronize()
        del work

    def run_pair(
        self,
        op: structs.Norm,
        which: int,
        first: Mapping[str, torch.Tensor],
        second: Mapping[str, torch.Tensor],
    ) -> None:
        """Runs a pass of two problems, to its end."""
        work = self.queue(op, which, first, second)
        if self.device == "cuda":
            torch.cuda.synchronize()
        del work

    def runner(
        self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]
    ) -> Callable[[], None]:
        """A plan that is made once: what queues it on the stream that is current now, as often as
        it is called."""
        given, kept = described(tensors)
        plan, text = ctypes.c_void_p(), ctypes.create_string_buffer(600)
        status = self.lib.planish_plan_create(
            ctypes.byref(op), which, ctypes.byref(given), ctypes.byref(plan), text, len(text)
        )
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))
        self.lib.planish_plan_workspace_bytes.restype = ctypes.c_size_t
        size = self.lib.planish_plan_workspace_bytes(plan)
        work = torch.empty(size + ALIGNED, dtype=torch.uint8, device=self.device)
        data = structs.Buffers(
            ctypes.sizeof(structs.Buffers), **{role: t.data_ptr() for role, t in tensors.items()}
        )
        how = Exec(ctypes.sizeof(Exec), message_bytes=len(text), workspace_bytes=size)
        how.message, how.apart = ctypes.addressof(text), 1
        how.workspace = -(-work.data_ptr() // ALIGNED) * ALIGNED
        if self.device == "cuda":
            how.stream = torch.cuda.current_stream().cuda_stream
        run, arguments = self.lib.planish_plan_run, (plan, ctypes.byref(data), ctypes.byref(how))

        def once(_kept: object = (kept, work, data, how, text)) -> None:
            status = run(*arguments)
            if status:
                raise PlanishError(status, text.value.decode(errors="replace"))

        return once

    def describe(self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]) -> str:
        """The plan in one line."""
        given, kept = described(tensors)
        plan, text = ctypes.c_void_p(), ctypes.create_string_buffer(600)
        status = self.lib.planish_plan_create(
            ctypes.byref(op), which, ctypes.byref(given), ctypes.byref(plan), text, len(text)
        )
        del kept
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))
        self.lib.planish_plan_describe(plan, text, len(text))
        self.lib.planish_plan_destroy(plan)
        return text.value.decode()

    def prepare(
        self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor], arch: int = 90
    ) -> None:
        """Compiles to the disk cache what a run on an A100, an H100 or H200 needs; asks no GPU."""
        given, kept = described(tensors)
        text = ctypes.create_string_buffer(4000)
        gpu = structs.Gpu(arch, *LIMITS[arch])
        status = self.lib.planish_pack_prepare(
            ctypes.byref(gpu), ctypes.byref(op), which, ctypes.byref(given), text, len(text)
        )
        del kept
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))


def axes(of: tuple[int, ...]) -> int:
    """A set of axes as bits."""
    return sum(1 << a for a in of)
