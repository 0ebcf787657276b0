"""The structs of include/planish.h, planish/dlpack.h and src/cuda/ahead.h for ctypes."""

from __future__ import annotations

import ctypes

__all__ = ["DLDataType", "DLDevice", "DLTensor", "Gpu", "Norm", "Tensors"]

FLOAT_CODE, BFLOAT_CODE, CPU_DEVICE, CUDA_DEVICE = 2, 4, 1, 2
TENSOR_NAMES = (
    "x", "weight", "bias", "y", "mean", "rstd", "m2", "dy", "dx", "dweight", "dbias",
)  # fmt: skip


class DLDevice(ctypes.Structure):
    """DLPack's DLDevice."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    """DLPack's DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


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
    )


class Tensors(ctypes.Structure):
    """planish_tensors."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.POINTER(DLTensor)) for name in TENSOR_NAMES),
    )


class Gpu(ctypes.Structure):
    """planish_gpu."""

    _fields_ = (
        ("arch", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("shared_per_block", ctypes.c_int32),
        ("max_cluster", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
    )
