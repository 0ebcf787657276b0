"""planish's handlers under XLA's FFI, and one call of them.

A call is one pass over tensors that are named by their roles. What an operator is besides its
tensors goes as attributes, each a field of planish_norm (src/jax/planish_jax.h).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from planish.library import structs
from planish.library.loaded import Library, library

__all__ = ["APPLY", "BACKWARD", "FORWARD", "STATISTICS", "call"]

#: planish_pass.
FORWARD, BACKWARD, STATISTICS, APPLY = 0, 1, 3, 4
_CODES = {
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "int8": (0, 8),
    "uint8": (1, 8),
    "bool": (6, 8),
    "uint64": (1, 64),
    "int64": (0, 64),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
}
_ATTRIBUTES: dict[Any, Any] = {
    ctypes.c_int32: np.int32,
    ctypes.c_int64: np.int64,
    ctypes.c_uint64: np.uint64,
    ctypes.c_double: np.float64,
}


@functools.cache
def _target() -> str:
    """Registers the handlers, once. The name has planish's version: an executable that was kept
    runs on the version it was made for, or says that its target is not there."""
    found: Library = library()
    name = f"planish_norm_{found.version}"
    for platform, handler in (("cpu", "planish_jax_cpu"), ("CUDA", "planish_jax_cuda")):
        address = ctypes.cast(getattr(found.functions, handler), ctypes.c_void_p)
        jax.ffi.register_ffi_target(
            name, jax.ffi.pycapsule(address), platform=platform, api_version=1
        )
    return name


@functools.cache
def _places() -> dict[str, int]:
    """The bit of each role."""
    library()
    return {field[0]: bit for bit, field in enumerate(structs.Tensors._fields_[1:])}


def _sorted(tensors: Mapping[str, Any]) -> tuple[list[str], np.uint64]:
    places = _places()
    names = sorted(tensors, key=places.__getitem__)
    return names, np.uint64(sum(1 << places[name] for name in names))


def _attributes(op: structs.Norm) -> dict[str, Any]:
    """The fields that are not 0, as numpy's scalars."""
    given: dict[str, Any] = {}
    for name, kind in structs.Norm._fields_[1:]:
        value = getattr(op, name)
        if value:
            given[name] = _ATTRIBUTES[kind](value)
    return given


def _scratch_bytes(op: structs.Norm, direction: int, tensors: Mapping[str, Any]) -> int:
    """The workspace on a GPU; 0 where this machine has none, on which XLA then runs nothing."""
    kept, views = [], structs.Tensors(struct_size=ctypes.sizeof(structs.Tensors))
    for name, tensor in tensors.items():
        shape = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
        code, bits = _CODES[str(tensor.dtype)]
        view = structs.DLTensor(
            device=structs.DLDevice(structs.CUDA_DEVICE, 0),
            ndim=len(tensor.shape),
            dtype=structs.DLDataType(code, bits, 1),
            shape=shape,
        )
        kept.append((view, shape))
        setattr(views, name, ctypes.pointer(view))
    return library().workspace_bytes(op, direction, views)


def call(
    op: structs.Norm, direction: int, given: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """One pass: arrays by role, and the results, whose shapes and dtypes ``made`` has. What is in
    both is brought up to date where it lies."""
    target = _target()
    names, given_set = _sorted(given)
    results, made_set = _sorted(made)
    attributes = _attributes(op)
    attributes |= {"pass": np.int32(direction), "given": given_set, "made": made_set}
    shapes = [jax.ShapeDtypeStruct(made[name].shape, made[name].dtype) for name in results]
    aliases = {names.index(name): results.index(name) for name in results if name in given}

    def ffi(shapes: Any) -> Any:
        return jax.ffi.ffi_call(target, shapes, input_output_aliases=aliases)

    def on_cpu(*arrays: Any) -> Any:
        return tuple(ffi(shapes)(*arrays, **attributes))

    def on_gpu(*arrays: Any) -> Any:
        scratch = _scratch_bytes(op, direction, {**given, **made})
        room = jax.ShapeDtypeStruct((scratch,), np.uint8)
        found = ffi([*shapes, room])(*arrays, **attributes)
        return tuple(found[:-1])

    arrays = [given[name] for name in names]
    found = jax.lax.platform_dependent(*arrays, cpu=on_cpu, cuda=on_gpu)
    return dict(zip(results, found, strict=True))
