"""The C API by ctypes, for the benches, `planish check` and the tests: plans over torch's tensors.

Nothing here looks for the library: who calls has it loaded, so that several builds of it can be
there at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from . import structs

ALIGNED = 256  #: what a workspace begins at a multiple of
#: DLPack's code and bits of each dtype.
CODES = {
    torch.float16: (structs.FLOAT_CODE, 16),
    torch.float32: (structs.FLOAT_CODE, 32),
    torch.float64: (structs.FLOAT_CODE, 64),
    torch.bfloat16: (structs.BFLOAT_CODE, 16),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.int8: (0, 8),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e8m0fnu: (14, 8),
}


class PlanishError(RuntimeError):
    """A status that is not PLANISH_OK, with its sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status, self.text = status, text


def load(path: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """A build of the library, with the signatures of what is called here."""
    return declared(ctypes.CDLL(path, mode=mode))


def declared(dll: ctypes.CDLL) -> ctypes.CDLL:
    """The same of one that is loaded."""
    structs.name_fields(dll)
    pointer, plan = ctypes.POINTER, ctypes.c_void_p
    text = (ctypes.c_char_p, ctypes.c_size_t)
    tensors = pointer(structs.Tensors)
    norm = (pointer(structs.Norm), ctypes.c_int, tensors)
    dll.planish_plan_create.argtypes = [*norm, pointer(plan), *text]
    dll.planish_plan_workspace_bytes.argtypes = [plan]
    dll.planish_plan_workspace_bytes.restype = ctypes.c_size_t
    dll.planish_plan_run.argtypes = [plan, pointer(structs.Buffers), pointer(structs.Exec)]
    dll.planish_plan_describe.argtypes = [plan, *text]
    dll.planish_plan_destroy.argtypes = [plan]
    dll.planish_plan_destroy.restype = None
    dll.planish_cpu_tier.restype = ctypes.c_char_p
    return dll


def norm(**fields: Any) -> structs.Norm:
    """planish_norm with these fields."""
    return structs.Norm(struct_size=ctypes.sizeof(structs.Norm), **fields)


def dl_tensor(t: torch.Tensor) -> structs.DLTensor:
    """A descriptor of a tensor. Its shape and strides live as long as it does."""
    sizes = ctypes.c_int64 * max(t.dim(), 1)
    kind = structs.CUDA_DEVICE if t.is_cuda else structs.CPU_DEVICE
    return structs.DLTensor(
        t.data_ptr(),
        structs.DLDevice(kind, t.device.index or 0),
        t.dim(),
        structs.DLDataType(*CODES[t.dtype], 1),
        sizes(*t.shape),
        sizes(*t.stride()),
        0,
    )


def described(tensors: Mapping[str, torch.Tensor]) -> tuple[structs.Tensors, list[object]]:
    """planish_tensors of these, by their roles, and what must live as long."""
    found = structs.Tensors(ctypes.sizeof(structs.Tensors))
    kept: list[object] = []
    for role, t in tensors.items():
        d = dl_tensor(t)
        kept.append(d)
        setattr(found, role, ctypes.pointer(d))
    return found, kept


def workspace(how: structs.Exec, size: int, device: str, *, filled: bool = False) -> torch.Tensor:
    """Gives `how` so many bytes, which live as long as what is returned; `filled`: with NaN."""
    work = torch.empty(size + ALIGNED, dtype=torch.uint8, device=device)
    if filled:
        work.fill_(0xFF)
    how.workspace = -(-work.data_ptr() // ALIGNED) * ALIGNED
    how.workspace_bytes = size
    return work


class Plan:
    """A plan over tensors, with its workspace, ready to be run again and again."""

    def __init__(
        self, dll: ctypes.CDLL, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        given, kept = described(tensors)
        self._dll, self._plan = dll, ctypes.c_void_p()
        self._text = ctypes.create_string_buffer(1024)
        status = dll.planish_plan_create(
            ctypes.byref(op),
            which,
            ctypes.byref(given),
            ctypes.byref(self._plan),
            self._text,
            len(self._text),
        )
        del kept
        self._check(status)
        device = next(iter(tensors.values())).device
        self._cuda = device.type == "cuda"
        self._tensors = dict(tensors)  # the buffers point into these
        self._exec = structs.Exec(ctypes.sizeof(structs.Exec), message_bytes=len(self._text))
        self._exec.message = ctypes.addressof(self._text)
        size = dll.planish_plan_workspace_bytes(self._plan)
        self._workspace = workspace(self._exec, size, str(device))
        self._buffers = structs.Buffers(
            ctypes.sizeof(structs.Buffers), **{role: t.data_ptr() for role, t in tensors.items()}
        )
        self._arguments: Any = (
            self._plan,
            ctypes.byref(self._buffers),
            ctypes.byref(self._exec),
        )

    def _check(self, status: int) -> None:
        if status:
            raise PlanishError(status, self._text.value.decode(errors="replace"))

    def describe(self) -> str:
        """The plan in one line."""
        text = ctypes.create_string_buffer(600)
        self._dll.planish_plan_describe(self._plan, text, len(text))
        return text.value.decode(errors="replace")

    def run(self) -> None:
        """Runs it, on a GPU on torch's current stream."""
        if self._cuda:
            self._exec.stream = torch.cuda.current_stream().cuda_stream
        if status := self._dll.planish_plan_run(*self._arguments):
            self._check(status)

    def close(self) -> None:
        """Frees it, when what it queued is done."""
        if self._cuda:
            torch.cuda.synchronize()
        self._dll.planish_plan_destroy(self._plan)
        self._plan = ctypes.c_void_p()
