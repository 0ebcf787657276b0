"""Small models of ONNX, run with and without planish, and the formulas in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import planish.ort  # noqa: E402

MICROSOFT = "com.microsoft"
TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
}
#: Of the largest magnitude: a few units in the last place.
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "float16": 1.1e-3, "bfloat16": 8.5e-3}


def node(name: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(name, list(inputs), list(outputs), **attributes)


def model(
    nodes: Sequence[Any],
    inputs: dict[str, tuple[str, Sequence[Any]]],
    outputs: dict[str, str],
    constants: dict[str, Any] | None = None,
    opset: int = 23,
) -> bytes:
    """A model's bytes: inputs with dtypes and shapes (names are sizes that are not known), outputs
    with dtypes."""
    graph = helper.make_graph(
        list(nodes),
        "norms",
        [helper.make_tensor_value_info(n, TYPES[t], s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TYPES[t], None) for n, t in outputs.items()],
        [numpy_helper.from_array(array, n) for n, array in (constants or {}).items()],
    )
    versions = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    made = helper.make_model(graph, opset_imports=versions, ir_version=10)
    return made.SerializeToString()  # type: ignore[no-any-return]


def options() -> Any:
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 3
    made.intra_op_num_threads = 2
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return made


def session(text: bytes, given: Any = None) -> Any:
    """With planish."""
    return onnxruntime.InferenceSession(text, planish.ort.session_options(given or options()))


def own_session(text: bytes, optimised: bool = True) -> Any:
    """Without planish."""
    given = options()
    if not optimised:
        given.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(text, given, providers=["CPUExecutionProvider"])


def run(text: bytes, feeds: dict[str, Any], taken: Sequence[tuple[str, ...]]) -> list[Any]:
    """The results with planish, which must have taken these nodes and no others."""
    made = session(text)
    assert sorted(planish.ort.taken(made)) == sorted(taken)
    return made.run(None, feeds)  # type: ignore[no-any-return]


def close(found: Any, wanted: Any, dtype: str = "float32", times: float = 1) -> None:
    """Within the dtype's tolerance of the largest magnitude."""
    assert found.shape == wanted.shape
    found = numpy.asarray(found, numpy.float64)
    room = TOLERANCE[dtype] * times * max(float(numpy.abs(wanted).max(initial=0)), 1e-30)
    assert numpy.abs(found - wanted).max(initial=0) <= room


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Numbers that the dtype has, around 0.5."""
    made = numpy.random.default_rng(seed).standard_normal(shape) + 0.5
    return made.astype(dtype)


def normed(x: Any, axes: Sequence[int], eps: float, rms: bool = False) -> tuple[Any, Any, Any]:
    """xhat, mean and rstd in float64; an attribute epsilon is a float32."""
    eps = float(numpy.float32(eps))
    x = numpy.asarray(x, numpy.float64)
    mean = x.mean(tuple(axes), keepdims=True)
    centred = x if rms else x - mean
    rstd = 1 / numpy.sqrt((centred**2).mean(tuple(axes), keepdims=True) + eps)
    return centred * rstd, mean, rstd


def silu(x: Any) -> Any:
    return x / (1 + numpy.exp(-x))
