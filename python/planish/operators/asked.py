"""Whether the library runs norms on a device at all. It has kernels for every dtype, stage and
layout that the functions let pass, so that nothing else is asked. Nothing runs here."""

from __future__ import annotations

import ctypes

import torch
from planish.library import structs
from planish.library.loaded import library

__all__ = ["why_not"]

_RMS, _FORWARD = 1, 0
#: By the number of a GPU.
_known: dict[int, str] = {}


def _ask(kind: int, number: int) -> str:
    """Of a norm of one number on a device by its kind and number: what a GPU lacks (a driver, its
    architecture), it lacks for all."""
    x = structs.DLTensor(
        device=structs.DLDevice(kind, number),
        ndim=1,
        dtype=structs.dtype_of("f32"),
        shape=(ctypes.c_int64 * 1)(1),
    )
    size = ctypes.sizeof(structs.Norm)
    norm = structs.Norm(struct_size=size, kind=_RMS, reduce_axes=1, affine_axes=1)
    tensors = structs.Tensors(struct_size=ctypes.sizeof(structs.Tensors))
    for name in ("x", "y"):
        setattr(tensors, name, ctypes.pointer(x))
    return library().why_not(norm, _FORWARD, tensors)


def why_not(device: torch.device) -> str:
    """Why norms of tensors on this device cannot be run, in one sentence; empty where they can."""
    if device.type != "cuda":
        return ""
    gpu = torch.cuda.current_device() if device.index is None else device.index
    if gpu not in _known:
        _known[gpu] = _ask(structs.CUDA_DEVICE, gpu)
    return _known[gpu]


#: What torch.compiler.assume_constant_result does, which would import all of torch's compiler: the
#: function is called while a graph is traced, and is no part of it.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]
