"""ONNX's node tests of norms, run through planish's C API: no torch in between.

    python -m pytest tests/peers/onnx_nodes.py

LayerNormalization, RMSNormalization, GroupNormalization, InstanceNormalization and
MeanVarianceNormalization, from onnx.backend.test in the installed onnx, with its own tolerances.
The "expanded" variants, in which a norm is a graph of other operators, are left out: there is no
norm in them. Prints one skip with its reason where onnx is not installed.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import numpy
import pytest

from planish.library.loaded import library
from planish.library.structs import (
    CPU_DEVICE,
    FLOAT_CODE,
    DLDataType,
    DLDevice,
    DLTensor,
    Norm,
    Tensors,
)

loader = pytest.importorskip("onnx.backend.test.loader", reason="onnx is not installed")

LAYER, RMS = 0, 1
NAMES = (
    "test_layer_normalization",
    "test_rms_normalization",
    "test_group_normalization",
    "test_instancenorm",
    "test_mvn",
)


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of other operators' examples
        found = loader.load_model_tests(kind="node")
    return [c for c in found if c.name.startswith(NAMES) and "expanded" not in c.name]


def dl_tensor(array: Any) -> DLTensor:
    assert array.flags.c_contiguous
    strides = [stride // array.itemsize for stride in array.strides]
    return DLTensor(
        array.ctypes.data,
        DLDevice(CPU_DEVICE, 0),
        array.ndim,
        DLDataType(FLOAT_CODE, 8 * array.itemsize, 1),
        (ctypes.c_int64 * array.ndim)(*array.shape),
        (ctypes.c_int64 * array.ndim)(*strides),
        0,
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
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_size_t),
        ("apart", ctypes.c_int),
    )


FORWARD = 0


def call(run: Any, workspace_bytes: Any, **arrays: Any) -> None:
    """Asks how much workspace the arguments need, and runs them with it."""
    given = {name: dl_tensor(a) for name, a in arrays.items() if a is not None}
    table = Tensors(ctypes.sizeof(Tensors), **{n: ctypes.pointer(t) for n, t in given.items()})
    message = ctypes.create_string_buffer(512)
    with_message = Exec(
        ctypes.sizeof(Exec), message=ctypes.cast(message, ctypes.c_char_p), message_bytes=512
    )
    room = ctypes.c_size_t()
    status = workspace_bytes(ctypes.byref(table), ctypes.byref(room), ctypes.byref(with_message))
    assert status == 0, message.value.decode()
    workspace = numpy.empty(room.value + 64, numpy.uint8)
    with_message.workspace = -(-workspace.ctypes.data // 64) * 64
    with_message.workspace_bytes = room.value
    status = run(ctypes.byref(table), ctypes.byref(with_message))
    assert status == 0, message.value.decode()


def norm(
    kind: int,
    x: Any,
    weight: Any,
    bias: Any,
    reduce: list[int],
    affine: list[int],
    eps: float,
    wants_statistics: bool = False,
) -> list[Any]:
    """y, and mean and rstd where they are wanted, by planish_norm_run."""
    lib = ctypes.CDLL(str(library().path))
    x, y = numpy.ascontiguousarray(x), numpy.empty_like(x)
    shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
    mean = rstd = None
    if wants_statistics:
        rstd = numpy.empty(shape, numpy.float32)
        mean = numpy.empty(shape, numpy.float32) if kind == LAYER else None
    masks = (sum(1 << axis for axis in axes) for axes in (reduce, affine))
    op = ctypes.byref(Norm(ctypes.sizeof(Norm), kind, 0, *masks, eps, 0))
    call(
        lambda tensors, with_: lib.planish_norm_run(op, FORWARD, tensors, with_),
        lambda tensors, room, with_: lib.planish_norm_workspace_bytes(
            op, FORWARD, tensors, room, with_
        ),
        x=x,
        weight=weight,
        bias=bias,
        y=y,
        mean=mean,
        rstd=rstd,
    )
    return [y, *(s for s in (mean, rstd) if s is not None)]


def group_norm(x: Any, weight: Any, bias: Any, groups: int, eps: float) -> Any:
    lib = ctypes.CDLL(str(library().path))
    count, number = ctypes.c_int64(groups), ctypes.c_double(eps)
    y = numpy.empty_like(x)
    call(
        lambda tensors, with_: lib.planish_group_norm_run(
            count, number, 0, FORWARD, tensors, with_
        ),
        lambda tensors, room, with_: lib.planish_group_norm_workspace_bytes(
            count, 0, FORWARD, tensors, room, with_
        ),
        x=x,
        weight=weight,
        bias=bias,
        y=y,
    )
    return y


def run(node: Any, inputs: list[Any], outputs: int) -> list[Any]:
    """What ONNX says that this node computes."""
    given = {a.name: a for a in node.attribute}
    x = inputs[0]
    eps = given["epsilon"].f if "epsilon" in given else 1e-5
    if node.op_type == "MeanVarianceNormalization":
        axes = list(given["axes"].ints) if "axes" in given else [0, 2, 3]
        return norm(LAYER, x, None, None, axes, axes, 0.0)
    if node.op_type == "GroupNormalization":
        return [group_norm(*inputs, given["num_groups"].i, eps)]
    if node.op_type == "InstanceNormalization":
        return norm(LAYER, *inputs, list(range(2, x.ndim)), [1], eps)
    assert node.op_type in ("LayerNormalization", "RMSNormalization")
    kind = LAYER if node.op_type == "LayerNormalization" else RMS
    first = given["axis"].i if "axis" in given else -1
    axes = list(range(first % x.ndim, x.ndim))
    weight, bias = [*inputs[1:], None, None][:2]
    return norm(kind, x, weight, bias, axes, axes, eps, outputs > 1)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_node_computes_something_else(case: Any) -> None:
    (node,) = case.model.graph.node
    for inputs, outputs in case.data_sets:
        ours = run(node, list(inputs), len(outputs))
        assert len(ours) == len(outputs)
        for found, wanted in zip(ours, outputs, strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            numpy.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)
