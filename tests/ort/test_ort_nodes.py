"""ONNX's own node tests of norms, as models of one node, through planish's execution provider.

The "expanded" variants, in which a norm is a graph of other operators, are left out: there is no
norm in them.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
from ort_support import session

import planish.ort

loader = pytest.importorskip("onnx.backend.test.loader", reason="onnx is not installed")

NAMES = (
    "test_layer_normalization",
    "test_rms_normalization",
    "test_group_normalization",
    "test_instancenorm",
    "test_batchnorm",
)


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of other operators' examples
        found = loader.load_model_tests(kind="node")
    return [c for c in found if c.name.startswith(NAMES) and "expanded" not in c.name]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_node_computes_something_else(case: Any) -> None:
    made = session(case.model.SerializeToString())
    (node,) = case.model.graph.node
    assert planish.ort.taken(made) == [(node.op_type,)]
    names = [value.name for value in made.get_inputs()]
    for inputs, outputs in case.data_sets:
        ours = made.run(None, dict(zip(names, inputs, strict=True)))
        assert len(ours) == len(outputs)
        for found, wanted in zip(ours, outputs, strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            numpy.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)
