"""Norms over trailing axes, with the sum before them, through planish's execution provider."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from ort_support import (
    MICROSOFT,
    close,
    model,
    node,
    normed,
    own_session,
    random,
    run,
    session,
)

import planish.ort

LAYER, RMS = "LayerNormalization", "RMSNormalization"


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("axis", [-1, 1, 0, -2])
@pytest.mark.parametrize("name", [LAYER, RMS, "SimplifiedLayerNormalization"])
def test_values(name: str, axis: int, dtype: str) -> None:
    x = random(3, 5, 40, dtype=dtype)
    rms = name != LAYER
    shape = x.shape[axis:]
    weight, bias = random(*shape, seed=1, dtype=dtype), random(*shape, seed=2, dtype=dtype)
    inputs = ["x", "w"] if rms else ["x", "w", "b"]
    text = model(
        [node(name, inputs, ["y"], axis=axis, epsilon=1e-3)],
        {"x": (dtype, x.shape)},
        {"y": dtype},
        {"w": weight, "b": bias},
    )
    (y,) = run(text, {"x": x}, [(name,)])
    axes = range(axis % 3, 3)
    wanted = normed(x, axes, 1e-3, rms)[0] * weight.astype("f8")
    close(y, wanted if rms else wanted + bias.astype("f8"), dtype)


@pytest.mark.parametrize("name", [LAYER, RMS])
def test_bfloat16(name: str) -> None:
    x = random(4, 96)
    inputs = ["xb", "wb"] if name == RMS else ["xb", "wb", "bb"]
    casts = [node("Cast", [n], [n + "b"], to=16) for n in "xwb"]
    text = model(
        [*casts, node(name, inputs, ["yb"]), node("Cast", ["yb"], ["y"], to=1)],
        {n: ("float32", s) for n, s in {"x": [4, 96], "w": [96], "b": [96]}.items()},
        {"y": "float32"},
    )
    exact = {n: numpy.round(random(*s, seed=i) * 16) / 16 for i, (n, s) in
             enumerate({"x": (4, 96), "w": (96,), "b": (96,)}.items())}  # fmt: skip
    (y,) = run(text, exact, [(name,)])
    wanted = normed(exact["x"], [1], 1e-5, name == RMS)[0] * exact["w"]
    close(y, wanted + (exact["b"] if name == LAYER else 0), "bfloat16")
    assert x.shape == y.shape


def test_mean_and_inverse_deviation() -> None:
    x, weight = random(3, 5, 40), random(5, 40, seed=1)
    text = model(
        [node(LAYER, ["x", "w"], ["y", "mean", "rstd"], axis=1)],
        {"x": ("float32", x.shape)},
        {"y": "float32", "mean": "float32", "rstd": "float32"},
        {"w": weight},
    )
    y, mean, rstd = run(text, {"x": x}, [(LAYER,)])
    xhat, wanted_mean, wanted_rstd = normed(x, [1, 2], 1e-5)
    close(y, xhat * weight)
    close(mean, wanted_mean)
    close(rstd, wanted_rstd)


def test_inverse_deviation_alone() -> None:
    x, weight = random(6, 48), random(48, seed=1)
    text = model(
        [node(LAYER, ["x", "w"], ["y", "", "rstd"])],
        {"x": ("float32", x.shape)},
        {"y": "float32", "rstd": "float32"},
        {"w": weight},
    )
    _, rstd = run(text, {"x": x}, [(LAYER,)])
    close(rstd, normed(x, [1], 1e-5)[2])


@pytest.mark.parametrize("shape", [(40,), (5, 1), (1, 40), (2, 5, 40), (2, 1, 1), (1,)])
def test_weights_that_are_broadcast(shape: tuple[int, ...]) -> None:
    x, weight, bias = random(2, 5, 40), random(*shape, seed=1), random(5, 40, seed=2)
    text = model(
        [node(LAYER, ["x", "w", "b"], ["y"], axis=1)],
        {"x": ("float32", x.shape)},
        {"y": "float32"},
        {"w": weight, "b": bias},
    )
    (y,) = run(text, {"x": x}, [(LAYER,)])
    close(y, normed(x, [1, 2], 1e-5)[0] * weight + bias)


@pytest.mark.parametrize("uses_sum", [True, False])
@pytest.mark.parametrize("name", [LAYER, RMS])
def test_the_sum_before_it(name: str, uses_sum: bool) -> None:
    x, other, weight = random(2, 7, 64), random(2, 7, 64, seed=3), random(64, seed=1)
    nodes = [node("Add", ["x", "r"], ["s"]), node(name, ["s", "w"], ["y"])]
    outputs = {"y": "float32"}
    if uses_sum:
        nodes.append(node("Neg", ["s"], ["n"]))
        outputs |= {"n": "float32", "s": "float32"}
    inputs = {"x": ("float32", ["batch", 7, 64]), "r": ("float32", ["batch", 7, 64])}
    text = model(nodes, inputs, outputs, {"w": weight})
    results = run(text, {"x": x, "r": other}, [("Add", name)])
    close(results[0], normed(x + other, [2], 1e-5, name == RMS)[0] * weight)
    if uses_sum:
        assert (results[1] == -(x + other)).all()
        assert (results[2] == x + other).all()


@pytest.mark.parametrize(
    "left, right",
    [((2, 7, 64), (64,)), ((7, 64), (2, 7, 64)), ((2, 1, 64), (1, 7, 1)), ((2, 7, 64), (2, 1, 1))],
)
def test_a_sum_that_is_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b, weight = random(*left), random(*right, seed=3), random(64, seed=1)
    text = model(
        [node("Add", ["a", "b"], ["s"]), node(LAYER, ["s", "w"], ["y"])],
        {"a": ("float32", left), "b": ("float32", right)},
        {"y": "float32", "s": "float32"},
        {"w": weight},
    )
    y, total = run(text, {"a": a, "b": b}, [("Add", LAYER)])
    assert (total == a + b).all()
    close(y, normed(a + b, [2], 1e-5)[0] * weight)


def test_two_norms_of_one_sum() -> None:
    x, other, weight = random(3, 64), random(3, 64, seed=3), random(64, seed=1)
    text = model(
        [
            node("Add", ["x", "r"], ["s"]),
            node(LAYER, ["s", "w"], ["y"]),
            node(RMS, ["s", "w"], ["z"]),
        ],
        {"x": ("float32", [3, 64]), "r": ("float32", [3, 64])},
        {"y": "float32", "z": "float32"},
        {"w": weight},
    )
    made = session(text)
    taken = {operator for group in planish.ort.taken(made) for operator in group}
    assert len(planish.ort.taken(made)) == 2 and taken == {"Add", LAYER, RMS}
    y, z = made.run(None, {"x": x, "r": other})
    close(y, normed(x + other, [1], 1e-5)[0] * weight)
    close(z, normed(x + other, [1], 1e-5, True)[0] * weight)


def test_a_weight_made_of_the_sum_keeps_the_sum_apart() -> None:
    x, other = random(64), random(64, seed=3)
    text = model(
        [
            node("Add", ["x", "r"], ["s"]),
            node("Neg", ["s"], ["w"]),
            node(LAYER, ["s", "w"], ["y"]),
        ],
        {"x": ("float32", [64]), "r": ("float32", [64])},
        {"y": "float32"},
    )
    (y,) = run(text, {"x": x, "r": other}, [(LAYER,)])
    close(y, normed(x + other, [0], 1e-5)[0] * -(x + other))


def skip_model(rms: bool, dtype: str, skip: Any, has_bias: bool, outputs: list[str]) -> bytes:
    name = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
    inputs = ["x", "skip", "w"] + ([] if rms else ["b"]) + (["early"] if has_bias else [])
    return model(
        [node(name, inputs, outputs, domain=MICROSOFT, epsilon=1e-5)],
        {"x": (dtype, [2, 7, 64]), "skip": (dtype, skip)},
        {o: "float32" if o in ("mean", "rstd") else dtype for o in outputs if o},
        {n: random(64, seed=i, dtype=dtype) for i, n in enumerate(["w", "b", "early"], 1)},
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize("wants_sum", [True, False])
def test_skip(rms: bool, has_bias: bool, wants_sum: bool, dtype: str) -> None:
    x, skip = random(2, 7, 64, dtype=dtype), random(2, 7, 64, seed=5, dtype=dtype)
    text = skip_model(rms, dtype, [2, 7, 64], has_bias, ["y", "", "", "s"] if wants_sum else ["y"])
    name = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
    results = run(text, {"x": x, "skip": skip}, [(name,)])
    w, b, early = (random(64, seed=i, dtype=dtype).astype("f8") for i in (1, 2, 3))
    total = x.astype("f8") + skip.astype("f8") + (early if has_bias else 0)
    wanted = normed(total, [2], 1e-5, rms)[0] * w + (0 if rms else b)
    # The sum is rounded to x's dtype before the norm.
    close(results[0], wanted, dtype, 3)
    if wants_sum:
        close(results[1], total, dtype)


@pytest.mark.parametrize("shape", [(7, 64), (1, 7, 64)])
def test_a_skip_for_every_sample(shape: tuple[int, ...]) -> None:
    x, skip = random(2, 7, 64), random(*shape, seed=5)
    text = skip_model(False, "float32", shape, False, ["y", "mean", "rstd", "s"])
    y, mean, rstd, total = run(text, {"x": x, "skip": skip}, [("SkipLayerNormalization",)])
    xhat, wanted_mean, wanted_rstd = normed(x + skip, [2], 1e-5)
    close(y, xhat * random(64, seed=1) + random(64, seed=2), times=2)
    close(total, (x + skip).astype("f8"))
    close(mean, wanted_mean)
    close(rstd, wanted_rstd)


def test_sizes_that_change_from_run_to_run() -> None:
    text = model(
        [node(LAYER, ["x", "w"], ["y"])],
        {"x": ("float32", ["a", "b", 96])},
        {"y": "float32"},
        {"w": random(96, seed=1)},
    )
    made, own = session(text), own_session(text)
    assert planish.ort.taken(made) == [(LAYER,)]
    for a, b in ((1, 1), (3, 50), (0, 4), (7, 1), (600, 3), (1, 1)):
        x = random(a, b, 96, seed=a)
        (y,), (wanted,) = made.run(None, {"x": x}), own.run(None, {"x": x})
        close(y, wanted.astype("f8"), times=3)


def test_many_rows_on_the_runtimes_threads() -> None:
    x, weight = random(5000, 320), random(320, seed=1)
    text = model(
        [node(RMS, ["x", "w"], ["y"])],
        {"x": ("float32", [5000, 320])},
        {"y": "float32"},
        {"w": weight},
    )
    (y,) = run(text, {"x": x}, [(RMS,)])
    close(y, normed(x, [1], 1e-5, True)[0] * weight)
