"""Norms of groups, of channels and of batches through planish's execution provider."""

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
    silu,
)

import planish.ort

GROUP, INSTANCE, BATCH = "GroupNormalization", "InstanceNormalization", "BatchNormalization"


def grouped(x: Any, groups: int, eps: float = 1e-5) -> Any:
    split = x.reshape(x.shape[0], groups, -1)
    return normed(split, [2], eps)[0].reshape(x.shape)


def of_channels(values: Any, rank: int) -> Any:
    return values.astype("f8").reshape(-1, *[1] * (rank - 2))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("sizes", [(9,), (5, 7), (2, 3, 4)])
@pytest.mark.parametrize("groups", [1, 3, 12])
def test_groups(groups: int, sizes: tuple[int, ...], dtype: str) -> None:
    x = random(2, 12, *sizes, dtype=dtype)
    weight, bias = random(12, seed=1, dtype=dtype), random(12, seed=2, dtype=dtype)
    text = model(
        [node(GROUP, ["x", "w", "b"], ["y"], num_groups=groups, epsilon=1e-3)],
        {"x": (dtype, ["n", 12, *["size"] * len(sizes)])},
        {"y": dtype},
        {"w": weight, "b": bias},
    )
    (y,) = run(text, {"x": x}, [(GROUP,)])
    wanted = grouped(x, groups, 1e-3) * of_channels(weight, x.ndim) + of_channels(bias, x.ndim)
    close(y, wanted, dtype)


def test_weights_of_groups() -> None:
    """Version 18, in which there is one weight for a group."""
    x, weight, bias = random(2, 12, 5, 7), random(3, seed=1), random(3, seed=2)
    text = model(
        [node(GROUP, ["x", "w", "b"], ["y"], num_groups=3)],
        {"x": ("float32", x.shape)},
        {"y": "float32"},
        {"w": weight, "b": bias},
        opset=18,
    )
    (y,) = run(text, {"x": x}, [(GROUP,)])
    w, b = (of_channels(numpy.repeat(v, 4), 4) for v in (weight, bias))
    close(y, grouped(x, 3) * w + b)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", [GROUP, INSTANCE])
def test_silu_behind_it(name: str, swapped: bool) -> None:
    x, weight, bias = random(2, 12, 5, 7), random(12, seed=1), random(12, seed=2)
    attributes = {"num_groups": 3} if name == GROUP else {}
    text = model(
        [
            node(name, ["x", "w", "b"], ["z"], **attributes),
            node("Sigmoid", ["z"], ["q"]),
            node("Mul", ["q", "z"] if swapped else ["z", "q"], ["y"]),
        ],
        {"x": ("float32", x.shape)},
        {"y": "float32"},
        {"w": weight, "b": bias},
    )
    (y,) = run(text, {"x": x}, [(name, "Sigmoid", "Mul")])
    groups = 3 if name == GROUP else 12
    close(y, silu(grouped(x, groups) * of_channels(weight, 4) + of_channels(bias, 4)))


def test_an_activation_of_what_others_read_is_left() -> None:
    x, weight, bias = random(2, 12, 5, 7), random(12, seed=1), random(12, seed=2)
    text = model(
        [
            node(INSTANCE, ["x", "w", "b"], ["z"]),
            node("Sigmoid", ["z"], ["q"]),
            node("Mul", ["z", "q"], ["y"]),
        ],
        {"x": ("float32", x.shape)},
        {"y": "float32", "z": "float32"},
        {"w": weight, "b": bias},
    )
    y, z = run(text, {"x": x}, [(INSTANCE,)])
    close(y, silu(z.astype("f8")))


@pytest.mark.parametrize("name", [INSTANCE, BATCH])
def test_relu_behind_it(name: str) -> None:
    x, numbers = random(2, 12, 5, 7), {n: random(12, seed=i) for i, n in enumerate("wbmv", 1)}
    numbers["v"] = abs(numbers["v"]) + 0.5
    inputs = ["x", *"wb"] if name == INSTANCE else ["x", *"wbmv"]
    text = model(
        [node(name, inputs, ["z"]), node("Relu", ["z"], ["y"])],
        {"x": ("float32", x.shape)},
        {"y": "float32"},
        numbers,
    )
    (y,) = run(text, {"x": x}, [(name, "Relu")])
    assert (y >= 0).all() and (y == 0).any()
    w, b, m, v = (of_channels(numbers[n], 4) for n in "wbmv")
    xhat = grouped(x, 12) if name == INSTANCE else (x - m) / numpy.sqrt(v + 1e-5)
    close(y, numpy.maximum(xhat * w + b, 0))


def contributed(
    x: Any, w: Any, b: Any, groups: int, last: bool, activation: int, skip: Any = None
) -> bytes:
    """com.microsoft's GroupNorm, or SkipGroupNorm with a sum."""
    inputs = {"x": (str(x.dtype), x.shape)}
    if skip is not None:
        inputs["skip"] = (str(x.dtype), skip.shape)
    name = "GroupNorm" if skip is None else "SkipGroupNorm"
    made = node(
        name, ["x", "w", "b", *(["skip", "early"] if skip is not None else [])],
        ["y"] if skip is None else ["y", "s"], domain=MICROSOFT,
        groups=groups, channels_last=int(last), activation=activation, epsilon=1e-4,
    )  # fmt: skip
    early = random(w.size, seed=3, dtype=str(x.dtype))
    outputs = {"y": str(x.dtype)} | ({} if skip is None else {"s": str(x.dtype)})
    return model([made], inputs, outputs, {"w": w, "b": b, "early": early})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("last", [True, False])
def test_group_norm_of_the_runtime(last: bool, activation: int, dtype: str) -> None:
    """Which the runtime itself cannot run on a CPU."""
    x, w, b = random(2, 12, 5, 7, dtype=dtype), random(12, seed=1), random(12, seed=2)
    wanted = grouped(x, 3, 1e-4) * of_channels(w, 4) + of_channels(b, 4)
    wanted = silu(wanted) if activation else wanted
    if last:
        x, wanted = numpy.ascontiguousarray(x.transpose(0, 2, 3, 1)), wanted.transpose(0, 2, 3, 1)
    (y,) = run(contributed(x, w, b, 3, last, activation), {"x": x}, [("GroupNorm",)])
    close(y, wanted, dtype)


@pytest.mark.parametrize("shape", [(2, 5, 7, 12), (2, 1, 1, 12), (2, 12)])
def test_skip_group_norm(shape: tuple[int, ...]) -> None:
    x, w, b = random(2, 5, 7, 12), random(12, seed=1), random(12, seed=2)
    skip = random(*shape, seed=4)
    text = contributed(x, w, b, 3, True, 1, skip)
    y, total = run(text, {"x": x, "skip": skip}, [("SkipGroupNorm",)])
    wide = skip.reshape(2, 1, 1, 12) if skip.ndim == 2 else skip
    wanted = x.astype("f8") + wide + random(12, seed=3)
    close(total, wanted)
    normal = grouped(wanted.transpose(0, 3, 1, 2), 3, 1e-4)
    close(y, silu(normal * of_channels(w, 4) + of_channels(b, 4)).transpose(0, 2, 3, 1), times=2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("sizes", [(9,), (5, 7), (2, 3, 4)])
def test_instances(sizes: tuple[int, ...], dtype: str) -> None:
    x = random(2, 6, *sizes, dtype=dtype)
    weight, bias = random(6, seed=1, dtype=dtype), random(6, seed=2, dtype=dtype)
    text = model(
        [node(INSTANCE, ["x", "w", "b"], ["y"])],
        {"x": (dtype, x.shape)},
        {"y": dtype},
        {"w": weight, "b": bias},
    )
    (y,) = run(text, {"x": x}, [(INSTANCE,)])
    close(y, grouped(x, 6) * of_channels(weight, x.ndim) + of_channels(bias, x.ndim), dtype)


def batch_model(x: Any, dtype: str, training: bool, opset: int = 15) -> bytes:
    numbers = {n: random(6, seed=i, dtype=dtype) for i, n in enumerate("wbmv", 1)}
    numbers["v"] = abs(numbers["v"]) + numbers["v"].dtype.type(0.5)
    outputs = ["y", "rm", "rv"] if training else ["y"]
    attributes = {"training_mode": 1, "momentum": 0.75} if training else {}
    return model(
        [node(BATCH, ["x", *"wbmv"], outputs, **attributes)],
        {"x": (dtype, x.shape)},
        dict.fromkeys(outputs, dtype),
        numbers,
        opset=opset,
    )


def batch_numbers(dtype: str, rank: int) -> list[Any]:
    w, b, m, v = (of_channels(random(6, seed=i, dtype=dtype), rank) for i in range(1, 5))
    return [w, b, m, abs(v) + 0.5]


@pytest.mark.parametrize("opset", [9, 15])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(), (9,), (5, 7), (2, 3, 4)])
def test_batches_in_inference(sizes: tuple[int, ...], dtype: str, opset: int) -> None:
    x = random(4, 6, *sizes, dtype=dtype)
    (y,) = run(batch_model(x, dtype, False, opset), {"x": x}, [(BATCH,)])
    w, b, m, v = batch_numbers(dtype, x.ndim)
    close(y, (x - m) / numpy.sqrt(v + float(numpy.float32(1e-5))) * w + b, dtype, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(), (5, 7)])
def test_batches_in_training(sizes: tuple[int, ...], dtype: str) -> None:
    x = random(4, 6, *sizes, dtype=dtype)
    y, mean, var = run(batch_model(x, dtype, True), {"x": x}, [(BATCH,)])
    w, b, m, v = batch_numbers(dtype, x.ndim)
    axes = [0, *range(2, x.ndim)]
    xhat, now, _ = normed(x, axes, 1e-5)
    close(y, xhat * w + b, dtype)
    close(mean, (0.75 * m.ravel() + 0.25 * now.ravel()), dtype)
    variance = x.astype("f8").var(tuple(axes)).ravel()
    close(var, 0.75 * v.ravel() + 0.25 * variance, dtype)


def test_large_images_on_the_runtimes_threads() -> None:
    x, weight, bias = random(2, 64, 64, 64), random(64, seed=1), random(64, seed=2)
    text = model(
        [node(GROUP, ["x", "w", "b"], ["y"], num_groups=8)],
        {"x": ("float32", ["n", "c", "h", "w"])},
        {"y": "float32"},
        {"w": weight, "b": bias},
    )
    made = session(text)
    assert planish.ort.taken(made) == [(GROUP,)]
    (y,), (wanted,) = (s.run(None, {"x": x}) for s in (made, own_session(text)))
    close(y, wanted.astype("f8"), times=10)
    again = made.run(None, {"x": x})[0]
    assert (again == y).all()
