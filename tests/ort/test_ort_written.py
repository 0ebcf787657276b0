"""Norms that models have written out in other operators, as torch.onnx.export does for opset 20."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from ort_support import close, model, node, normed, own_session, random, session, silu

import planish.ort

RMS = ("Pow", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul", "Mul")
GROUP = ("Reshape", "InstanceNormalization", "Reshape", "Mul", "Add")


def rms_model(
    exponent: float = 2, axis: int = -1, keepdims: int = 1, other: bool = False, swap: bool = False
) -> bytes:
    """x * rsqrt(mean(x^2) + eps) * w; with `other`, what is inside is a result as well."""
    nodes = [
        node("Pow", ["x", "two"], ["p"]),
        node("ReduceMean", ["p", "axes"], ["m"], keepdims=keepdims),
        node("Add", ["eps", "m"] if swap else ["m", "eps"], ["e"]),
        node("Sqrt", ["e"], ["s"]),
        node("Reciprocal", ["s"], ["r"]),
        node("Mul", ["r", "x"] if swap else ["x", "r"], ["n"]),
        node("Mul", ["n", "w"] if swap else ["w", "n"], ["y"]),
    ]
    constants = {
        "two": numpy.array(exponent, "f4"),
        "axes": numpy.array([axis]),
        "eps": numpy.array(1e-3, "f4"),
        "w": random(64, seed=1),
    }
    outputs = {"y": "float32"} | ({"r": "float32"} if other else {})
    return model(nodes, {"x": ("float32", ["n", 64, 64])}, outputs, constants, opset=20)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("axis", [-1, 2])
def test_rms(axis: int, swap: bool) -> None:
    made, x = session(rms_model(axis=axis, swap=swap)), random(3, 64, 64)
    assert [sorted(group) for group in planish.ort.taken(made)] == [sorted(RMS)]
    close(made.run(None, {"x": x})[0], normed(x, [2], 1e-3, True)[0] * random(64, seed=1))


@pytest.mark.parametrize("change", [{"exponent": 3}, {"axis": 1}, {"other": True}])
def test_what_is_no_rms_norm_is_left(change: dict[str, Any]) -> None:
    made, x = session(rms_model(**change)), random(3, 64, 64)
    assert planish.ort.taken(made) == []
    power = (numpy.abs(x) if "exponent" in change else x).astype("f8") ** change.get("exponent", 2)
    mean = power.mean(change.get("axis", -1), keepdims=True)
    x = numpy.abs(x) if "exponent" in change else x
    y = made.run(None, {"x": x})[0]
    close(y, x / numpy.sqrt(mean + float(numpy.float32(1e-3))) * random(64, seed=1), times=5)


def layer_model(opset: int, divides: bool, change: str = "", gated: bool = False) -> bytes:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b, as torch.onnx.export wrote it once;
    ``gated``: SiLU of it."""
    axes = ["axes"] if opset >= 18 else []
    attributes = {} if axes else {"axes": [1 if change == "axis" else -1]}
    end = (
        [node("Div", ["s", "d"] if change == "upside down" else ["d", "s"], ["n"])]
        if divides
        else [node("Reciprocal", ["s"], ["r"]), node("Mul", ["d", "r"], ["n"])]
    )
    nodes = [
        node("Add", ["x", "other"], ["t"]),
        node("ReduceMean", ["t", *axes], ["m"], **attributes),
        node("Sub", ["m", "t"] if change == "negated" else ["t", "m"], ["d"]),
        node("Pow", ["d", "two"], ["p"]),
        node("ReduceMean", ["p", *axes], ["v"], **attributes),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["s"]),
        *end,
        node("Mul", ["n", "w"], ["g"]),
        node("Add", ["g", "b"], ["z" if gated else "y"]),
    ]
    if gated:
        nodes += [node("Sigmoid", ["z"], ["q"]), node("Mul", ["z", "q"], ["y"])]
    constants = {
        "two": numpy.array(2, "f4"),
        "axes": numpy.array([-1]),
        "eps": numpy.array(1e-3, "f4"),
        "w": random(64, seed=1),
        "b": random(64, seed=2),
    }
    inputs = {n: ("float32", ["n", 64, 64]) for n in ("x", "other")}
    outputs = {"y": "float32"} | ({"d": "float32"} if change == "other" else {})
    return model(nodes, inputs, outputs, constants, opset=opset)


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("opset", [11, 18])
def test_layer(opset: int, divides: bool) -> None:
    made, x = session(layer_model(opset, divides)), random(3, 64, 64)
    end = ["Div"] if divides else ["Reciprocal", "Mul"]
    wanted = ["Add", "ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", *end, "Mul", "Add"]
    # Before it asks, the runtime may have made one node of them.
    fused = [["Add", "LayerNormalization"]]
    assert [sorted(group) for group in planish.ort.taken(made)] in ([sorted(wanted)], fused)
    (y,) = made.run(None, {"x": x, "other": 3 * x})
    close(y, normed(4 * x, [2], 1e-3)[0] * random(64, seed=1) + random(64, seed=2))


def test_a_layer_norm_with_all_that_may_join_it_is_too_long() -> None:
    made, x = session(layer_model(11, False, gated=True)), random(3, 64, 64)
    (group,) = planish.ort.taken(made)
    assert len(group) == 13 or group == ("Add", "LayerNormalization", "Sigmoid", "Mul"), group
    (y,) = made.run(None, {"x": x, "other": 3 * x})
    close(y, silu(normed(4 * x, [2], 1e-3)[0] * random(64, seed=1) + random(64, seed=2)))


@pytest.mark.parametrize("change", ["axis", "upside down", "negated", "other"])
def test_what_is_no_layer_norm(change: str) -> None:
    """Left, or taken for the RMS norm of a difference, which it is: the values tell. The optimiser
    of onnxruntime 1.32 takes mean - x for x - mean, and is not asked."""
    text, x = layer_model(11, True, change), random(3, 64, 64)
    made, own = session(text), own_session(text, optimised=False)
    feeds = {"x": x, "other": 3 * x}
    if change == "upside down":  # whose values are those of differences near 0
        assert planish.ort.taken(made) == []
        return
    for found, wanted in zip(made.run(None, feeds), own.run(None, feeds), strict=True):
        close(found, wanted.astype("f8"), times=5)
    assert all("Sub" not in group for group in planish.ort.taken(made))


def group_model(
    weight: float = 1, bias: float = 0, batch: Any = 2, sizes: Any = (12, 1, 1)
) -> bytes:
    nodes = [
        node("Reshape", ["x", "inner"], ["a"]),
        node("InstanceNormalization", ["a", "one", "zero"], ["i"]),
        node("Reshape", ["i", "outer"], ["o"]),
        node("Mul", ["o", "w"], ["g"]),
        node("Add", ["g", "b"], ["z"]),
        node("Sigmoid", ["z"], ["q"]),
        node("Mul", ["z", "q"], ["y"]),
    ]
    constants = {
        "inner": numpy.array([0, 3, -1]),
        "outer": numpy.array([-1 if isinstance(batch, str) else batch, 12, 5, 7]),
        "one": numpy.full(3, weight, "f4"),
        "zero": numpy.full(3, bias, "f4"),
        "w": random(int(numpy.prod(sizes)), seed=1).reshape(sizes),
        "b": random(12, seed=2).reshape(12, 1, 1),
    }
    x = {"x": ("float32", [batch, 12, 5, 7])}
    return model(nodes, x, {"y": "float32"}, constants, opset=20)


def group_values(x: Any, weight: float = 1, bias: float = 0, sizes: Any = (12, 1, 1)) -> Any:
    inner = normed(x.reshape(x.shape[0], 3, -1), [2], 1e-5)[0] * weight + bias
    w = random(int(numpy.prod(sizes)), seed=1).reshape(sizes)
    return silu(inner.reshape(x.shape) * w + random(12, seed=2).reshape(12, 1, 1))


def test_group_norm_with_silu() -> None:
    made, x = session(group_model()), random(2, 12, 5, 7)
    wanted = sorted([*GROUP, "Sigmoid", "Mul"])
    assert [sorted(group) for group in planish.ort.taken(made)] == [wanted]
    close(made.run(None, {"x": x})[0], group_values(x))


@pytest.mark.parametrize("change", [{"weight": 2}, {"bias": 1}, {"sizes": (5, 7)}])
def test_another_formula_is_an_instance_norm_alone(change: dict[str, Any]) -> None:
    made, x = session(group_model(**change)), random(2, 12, 5, 7)
    assert planish.ort.taken(made) == [("InstanceNormalization",)]
    close(made.run(None, {"x": x})[0], group_values(x, **change), times=3)


def test_a_batch_that_is_not_known() -> None:
    """Whether the second Reshape gives x's sizes cannot be known; the values are right all the
    same."""
    made = session(group_model(batch="n"))
    for batch in (1, 4):
        x = random(batch, 12, 5, 7)
        close(made.run(None, {"x": x})[0], group_values(x), times=2)
