"""The structs of include/planish.h, planish/dlpack.h and src/cuda/ahead.h for ctypes."""

from __future__ import annotations

import ctypes

__all__ = [
    *("Buffers", "DLDataType", "DLDevice", "DLTensor", "Exec", "Gpu", "Norm", "Tensors"),
    *("DTYPES", "dtype_of", "name_fields"),
]

FLOAT_CODE, BFLOAT_CODE, CPU_DEVICE, CUDA_DEVICE = 2, 4, 1, 2
#: Names of the dtypes of x, y and the parameters, in the order of src/dtypes.h.
DTYPES = ("f32", "f16", "bf16", "f64")


class DLDevice(ctypes.Structure):
    """DLPack's DLDevice."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    """DLPack's DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


def dtype_of(name: str) -> DLDataType:
    """That of one of DTYPES."""
    code = BFLOAT_CODE if name == "bf16" else FLOAT_CODE
    return DLDataType(code, int(name.removeprefix("b")[1:]), 1)


class DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Norm(ctypes.Structure):
    """planish_norm."""

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
        ("reserved", ctypes.c_int32),
        ("scale_least", ctypes.c_double),
        ("scale_most", ctypes.c_double),
        ("momentum", ctypes.c_double),
    )


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
        ("not_read", ctypes.c_int),
        ("load_only", ctypes.c_int),
        ("reserved", ctypes.c_int),
    )


class Tensors(ctypes.Structure):
    """planish_tensors, once name_fields was called."""


class Buffers(ctypes.Structure):
    """planish_buffers, likewise."""


def name_fields(dll: ctypes.CDLL) -> None:
    """Gives Tensors and Buffers the fields that the library has; _library.Library does."""
    if hasattr(Tensors, "_fields_"):
        return
    name_of = dll.planish_tensor_name
    name_of.restype = ctypes.c_char_p
    names: list[str] = []
    while name := name_of(len(names)):
        names.append(name.decode())
    size = ("struct_size", ctypes.c_size_t)
    Tensors._fields_ = (size, *((name, ctypes.POINTER(DLTensor)) for name in names))
    Buffers._fields_ = (size, *((name, ctypes.c_void_p) for name in names))


class Gpu(ctypes.Structure):
    """planish_gpu."""

    _fields_ = (
        ("arch", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("shared_per_block", ctypes.c_int32),
        ("max_cluster", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
    )
