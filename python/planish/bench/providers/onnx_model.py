"""Writes an ONNX model of one operator, so that ONNX Runtime needs no other package to be measured.

Knows just enough of the protobuf wire format and of ONNX's field numbers (onnx.proto) for that.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

ELEMENT_TYPES = {"f32": 1, "f16": 10, "f64": 11, "bf16": 16}
OPSET = 17
IR_VERSION = 8


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        if not value:
            out.append(low)
            return bytes(out)
        out.append(low | 0x80)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _block(field: int, payload: bytes | str) -> bytes:
    data = payload.encode() if isinstance(payload, str) else payload
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _float_attribute(name: str, value: float) -> bytes:
    return _block(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)


def _int_attribute(name: str, value: int) -> bytes:
    return _block(1, name) + _number(3, value) + _number(20, 2)


def _value(name: str, dtype: str, sizes: Sequence[int]) -> bytes:
    shape = b"".join(_block(1, _number(1, size)) for size in sizes)
    tensor = _number(1, ELEMENT_TYPES[dtype]) + _block(2, shape)
    return _block(1, name) + _block(2, _block(1, tensor))


def norm_model(kind: str, rows: int, cols: int, dtype: str, eps: float) -> bytes:
    """A model of LayerNormalization (inputs x, weight, bias) or of ONNX Runtime's
    SimplifiedLayerNormalization (inputs x, weight), over the last axis; output y."""
    inputs = ["x", "weight", "bias"] if kind == "layer" else ["x", "weight"]
    operator = "LayerNormalization" if kind == "layer" else "SimplifiedLayerNormalization"
    node = b"".join(_block(1, name) for name in inputs) + _block(2, "y") + _block(4, operator)
    node += _block(5, _int_attribute("axis", 1)) + _block(5, _float_attribute("epsilon", eps))
    graph = _block(1, node) + _block(2, "norm")
    for name in inputs:
        graph += _block(11, _value(name, dtype, [rows, cols] if name == "x" else [cols]))
    graph += _block(12, _value("y", dtype, [rows, cols]))
    opset = _block(1, "") + _number(2, OPSET)
    return _number(1, IR_VERSION) + _block(7, graph) + _block(8, opset)
