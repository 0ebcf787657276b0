"""Whether the library can run a norm with these stages, which it is asked once for each combination
of dtypes and stages, by rows as they are in most models. Nothing runs here."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from planish.library import structs
from planish.library.dtypes import BY_NAME
from planish.library.loaded import library

__all__ = ["Question", "why_not"]

#: rms, weight_offset, activation, gate_before, round_xhat, dropout_p > 0, a quantised result.
Question = tuple[bool, int, int, bool, bool, bool, bool]

_ROWS, _COLUMNS = 4, 64
_NAMES = {dtype: name for name, dtype in BY_NAME.items()}
_INT, _E4M3, _FORWARD, _BACKWARD = 0, 10, 0, 1
_FULL, _COLUMN, _ROW = (_ROWS, _COLUMNS), (_COLUMNS,), (_ROWS, 1)
#: In the order in which their dtypes are given, with the shape each has here.
_FORWARD_ROLES = (
    ("x", _FULL),
    ("residual", _FULL),
    ("row_scale", _ROW),
    ("column_scale", _COLUMN),
    ("weight", _COLUMN),
    ("bias", _COLUMN),
    ("scale", _COLUMN),
    ("shift", _COLUMN),
    ("gate", _FULL),
    ("y", _FULL),
    ("sum", _FULL),
)

_known: dict[Any, str] = {}


def _describe(dtype: structs.DLDataType, shape: tuple[int, ...], device: str) -> Any:
    kind = structs.CUDA_DEVICE if device == "cuda" else structs.CPU_DEVICE
    number = torch.cuda.current_device() if device == "cuda" else 0
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    return structs.DLTensor(
        data=None,
        device=structs.DLDevice(kind, number),
        ndim=len(shape),
        dtype=dtype,
        shape=sizes,
        strides=None,
        byte_offset=0,
    )


def _ask(
    direction: int,
    device: str,
    dtypes: tuple[torch.dtype | None, ...],
    question: Question,
) -> str:
    rms, weight_offset, activation, gate_before, round_xhat, drops, quantised = question
    given = {
        name: _describe(structs.dtype_of(_NAMES[dtype]), shape, device)
        for (name, shape), dtype in zip(_FORWARD_ROLES, dtypes, strict=True)
        if dtype is not None
    }
    f32 = structs.dtype_of("f32")
    if drops:
        given["rng"] = _describe(structs.DLDataType(_INT, 64, 1), (2,), device)
    given["rstd"] = _describe(f32, _ROW, device)
    if not rms:
        given["mean"] = _describe(f32, _ROW, device)
    if quantised:
        given["q"] = _describe(structs.DLDataType(_E4M3, 8, 1), _FULL, device)
        del given["y"]
        given["y_scales"] = _describe(f32, _ROW, device)
    if direction == _BACKWARD:
        given["dy"] = given.pop("y")
        given["dx"] = given["x"]
        total, residual = given.pop("sum", None), given.pop("residual", None)
        if total is not None:
            given["x"] = given["dsum"] = total
        if residual is not None:
            given["dresidual"] = residual
        if not (activation or "scale" in given or "gate" in given):
            given.pop("bias", None)
        for name in ("weight", "scale", "shift", "gate"):
            if name in given:
                given["d" + name] = given[name]
    norm = structs.Norm(
        struct_size=ctypes.sizeof(structs.Norm),
        kind=int(rms),
        weight_offset=weight_offset,
        reduce_axes=2,
        affine_axes=2,
        eps=1e-5,
        activation=activation,
        modulation_axes=2 if "scale" in given or "shift" in given else 0,
        column_axes=2 if "column_scale" in given else 0,
        gate=int(gate_before),
        rounding=int(round_xhat),
        dropout_p=0.5 if drops else 0.0,
    )
    tensors = structs.Tensors(struct_size=ctypes.sizeof(structs.Tensors))
    for name, tensor in given.items():
        setattr(tensors, name, ctypes.pointer(tensor))
    return library().why_not(norm, direction, tensors)


def why_not(
    device: str, dtypes: tuple[torch.dtype | None, ...], question: Question, backward: bool
) -> str:
    """Why the forward (or the backward, if that is asked) of such tensors cannot be run, in one
    sentence; empty where it can.

    ``dtypes``: of x, residual, row_scale, column_scale, weight, bias, scale, shift, gate, y and
    sum, None for what is absent.
    """
    key = device, dtypes, question, backward
    known = _known.get(key)
    if known is None:
        known = "" if device == "meta" else _ask(_FORWARD, device, dtypes, question)
        if backward and not known and device != "meta":
            known = _ask(_BACKWARD, device, dtypes, question)
        _known[key] = known
    return known


#: What torch.compiler.assume_constant_result does, which would import all of torch's compiler: the
#: function is called while a graph is traced, and is no part of it.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]
