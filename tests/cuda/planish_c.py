"""ctypes over planish's C API: passes on torch tensors of any device, by the names of their roles.

Used by the checks of the stages around a norm, on a GPU and in the emulation of one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch

ROLES = (
    *("x", "weight", "bias", "y", "mean", "rstd", "m2", "dy", "dx", "dweight", "dbias"),
    *("residual", "sum", "row_scale", "column_scale", "scale", "shift", "gate", "rng", "mask", "q"),
    *("y_scale", "y_scales", "amax", "branch", "dsum", "dresidual", "dscale", "dshift", "dgate"),
    "dcolumn_scale",
)
FORWARD, BACKWARD = 0, 1
LAYER, RMS = 0, 1
CODES = {
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
}


class DLTensor(ctypes.Structure):
    """DLPack's descriptor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Norm(ctypes.Structure):
    """planish_norm"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("weight_offset", ctypes.c_int32),
        ("reduce_axes", ctypes.c_uint64),
        ("affine_axes", ctypes.c_uint64),
        ("eps", ctypes.c_double),
        ("activation", ctypes.c_int),
        ("modulation_axes", ctypes.c_uint64),
        ("column_axes", ctypes.c_uint64),
        ("gate", ctypes.c_int),
        ("rounding", ctypes.c_int),
        ("dropout_p", ctypes.c_double),
        ("scale_block", ctypes.c_int64),
        ("scale_format", ctypes.c_int),
        ("scale_least", ctypes.c_double),
        ("scale_most", ctypes.c_double),
    )


class Tensors(ctypes.Structure):
    """planish_tensors"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((r, ctypes.POINTER(DLTensor)) for r in ROLES),
    )


class Exec(ctypes.Structure):
    """planish_exec"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_size_t),
        ("apart", ctypes.c_int),
    )


class PlanishError(RuntimeError):
    """A status, with its sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


def describe(t: torch.Tensor) -> tuple[DLTensor, list[object]]:
    """A descriptor, and what must live as long as it."""
    n = t.dim()
    shape, strides = (ctypes.c_int64 * n)(*t.shape), (ctypes.c_int64 * n)(*t.stride())
    cuda = t.device.type == "cuda"
    code, bits = CODES[t.dtype]
    d = DLTensor(t.data_ptr(), 2 if cuda else 1, t.device.index or 0, n, code, bits, 1)
    d.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    d.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    return d, [shape, strides]


class Library:
    """A library with planish's C API."""

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        for f in (self.lib.planish_norm_run, self.lib.planish_norm_workspace_bytes):
            f.restype = ctypes.c_int

    def run(self, op: Norm, direction: int, given: Mapping[str, torch.Tensor]) -> None:
        """Runs a pass on the tensors; on a GPU to its end."""
        op.struct_size = ctypes.sizeof(op)
        tensors, keep = Tensors(ctypes.sizeof(Tensors)), []
        for role, t in given.items():
            d, more = describe(t)
            keep += [d, more]
            setattr(tensors, role, ctypes.pointer(d))
        text = ctypes.create_string_buffer(600)
        device = next(iter(given.values())).device
        stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else None
        how = Exec(ctypes.sizeof(Exec), stream=stream, message_bytes=600)
        how.message = ctypes.cast(text, ctypes.c_char_p)
        size = ctypes.c_size_t()
        args = (ctypes.byref(op), direction, ctypes.byref(tensors))
        status = self.lib.planish_norm_workspace_bytes(*args, ctypes.byref(size), ctypes.byref(how))
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))
        work = torch.full((size.value + 256,), 0xFF, dtype=torch.uint8, device=device)
        how.workspace = (work.data_ptr() + 255) // 256 * 256 if size.value else None
        how.workspace_bytes = size.value
        status = self.lib.planish_norm_run(*args, ctypes.byref(how))
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))
        if device.type == "cuda":
            torch.cuda.synchronize()


def axes(mask: Sequence[int]) -> int:
    """A bit mask of axes."""
    return sum(1 << a for a in mask)
