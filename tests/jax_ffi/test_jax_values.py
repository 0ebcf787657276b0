"""Values of planish.jax's functions against long double, and their dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_support import array, assert_near, exact, normed, silu

import planish.jax as pj

DTYPES = ("float16", "bfloat16", "float32")
#: NUMERICS: 4 ULP for f32; for 16 bits the result rounded once, or its neighbour.
ULPS = {"float16": 1.0, "bfloat16": 1.0, "float32": 4.0, "float64": 4.0}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize("rms", [False, True])
def test_rows(dtype: str, mean: float, rms: bool) -> None:
    x, weight, bias = array(0, (7, 3, 65), dtype, mean), array(1, (65,)), array(2, (65,))
    z = normed(exact(x), -1, 1e-5, rms) * exact(weight)
    if rms:
        y = jax.jit(pj.rms_norm)(x, weight, 1e-5)
    else:
        y, z = jax.jit(pj.layer_norm)(x, weight, bias), z + exact(bias)
    assert y.dtype == x.dtype
    assert_near(y, z, ULPS[dtype])


def test_f64(x64: None) -> None:
    x, weight = array(0, (5, 33), "float64"), array(1, (33,), "float64")
    y = pj.layer_norm(x, weight, eps=1e-12)
    assert y.dtype == jnp.float64
    wide = np.asarray(x).astype(np.longdouble)
    z = normed(wide, -1, 1e-12, False) * np.asarray(weight).astype(np.longdouble)
    assert float(np.abs(np.asarray(y).astype(np.longdouble) - z).max()) < 4e-15 * float(
        abs(z).max()
    )


@pytest.mark.parametrize("axis", [0, 1, (1, 2), (0, 2), (0, 1, 2), -1])
def test_any_axes(axis: Any) -> None:
    x = array(3, (4, 5, 6))
    axes = (axis,) if isinstance(axis, int) else axis
    sizes = tuple(x.shape[i] for i in axes)
    weight = array(4, sizes)
    broadcast = [x.shape[i] if i in {a % 3 for a in axes} else 1 for i in range(3)]
    z = normed(exact(x), axes, 1e-5, False) * exact(weight).reshape(broadcast)
    y = pj.layer_norm(x, weight, axis=axis)
    assert np.allclose(np.asarray(y), z.astype(np.float64), atol=3e-6)


@pytest.mark.parametrize("name", ["silu", "relu", "gelu", "gelu_tanh", "relu6", "hardswish"])
def test_activations(name: str) -> None:
    x, weight, bias = array(5, (9, 40)), array(6, (40,)), array(7, (40,))
    act = {
        "silu": jax.nn.silu,
        "relu": jax.nn.relu,
        "gelu": lambda z: jax.nn.gelu(z, approximate=False),
        "gelu_tanh": jax.nn.gelu,
        "relu6": jax.nn.relu6,
        "hardswish": jax.nn.hard_swish,
    }[name]
    wanted = act(pj.layer_norm(x, weight, bias))
    found = pj.layer_norm(x, weight, bias, activation=name)
    assert np.allclose(np.asarray(found), np.asarray(wanted), atol=2e-6)


@pytest.mark.parametrize("channel_axis", [1, -1])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_groups(channel_axis: int, groups: int) -> None:
    shape = (3, 8, 5, 7) if channel_axis == 1 else (3, 5, 7, 8)
    x, weight, bias = array(8, shape, mean=3.0), array(9, (8,)), array(10, (8,))
    first = exact(x) if channel_axis == 1 else np.moveaxis(exact(x), -1, 1)
    seen = first.reshape(3, groups, 8 // groups, 5, 7)
    z = normed(seen, (2, 3, 4), 1e-5, False).reshape(first.shape)
    z = z * exact(weight).reshape(8, 1, 1) + exact(bias).reshape(8, 1, 1)
    if channel_axis == -1:
        z = np.moveaxis(z, 1, -1)
    y = pj.group_norm(x, groups, weight, bias, channel_axis=channel_axis)
    assert np.allclose(np.asarray(y), z.astype(np.float64), atol=5e-6)
    y = pj.group_norm(x, groups, weight, bias, channel_axis=channel_axis, activation="silu")
    assert np.allclose(np.asarray(y), silu(z).astype(np.float64), atol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum(dtype: str) -> None:
    x, residual, weight = array(11, (6, 48), dtype), array(12, (6, 48), "float32"), array(13, (48,))
    column, rows = array(14, (48,)), array(15, (6,))
    s = exact(x) * exact(column) * exact(rows)[:, None] + exact(residual)
    y, total = pj.add_rms_norm(x, residual, weight, row_scale=rows, column_scale=column)
    assert total.dtype == jnp.float32 and y.dtype == x.dtype
    assert_near(total, s, 4.0)
    assert_near(y, normed(exact(total), -1, 1e-6, True) * exact(weight), ULPS[dtype])
    y, total = pj.add_layer_norm(x, residual, weight, sum_dtype="bfloat16")
    assert total.dtype == jnp.bfloat16
    assert_near(y, normed(exact(total), -1, 1e-5, False) * exact(weight), ULPS[dtype])


@pytest.mark.parametrize("shape", [(1, 1, 24), (24,), (3, 1, 24), (3, 5, 24)])
def test_modulation(shape: tuple[int, ...]) -> None:
    x, scale, shift = array(16, (3, 5, 24)), array(17, shape), array(18, shape)
    z = normed(exact(x), -1, 1e-6, False) * (1 + exact(scale)) + exact(shift)
    y = pj.modulated_layer_norm(x, scale, shift)
    assert_near(y, z, 4.0)
    y = pj.modulated_rms_norm(x, scale)
    assert_near(y, normed(exact(x), -1, 1e-6, True) * (1 + exact(scale)), 4.0)


@pytest.mark.parametrize("before", [False, True])
def test_gate(before: bool) -> None:
    x, gate, weight = array(19, (6, 32)), array(20, (6, 32)), array(21, (32,))
    factor = silu(exact(gate))
    if before:
        z = normed(exact(x) * factor, -1, 1e-6, True) * exact(weight)
    else:
        z = normed(exact(x), -1, 1e-6, True) * exact(weight) * factor
    assert_near(pj.gated_rms_norm(x, gate, weight, norm_before_gate=not before), z, 4.0)


def test_queries_and_keys() -> None:
    q, k, weight = array(22, (2, 5, 4, 16)), array(23, (2, 5, 2, 16)), array(24, (16,))
    found = pj.qk_norm(q, k, weight, None)
    assert_near(found[0], normed(exact(q), -1, 1e-6, True) * exact(weight), 4.0)
    assert_near(found[1], normed(exact(k), -1, 1e-6, True), 4.0)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_quantised(dtype: str) -> None:
    x, weight = array(25, (6, 64)), array(26, (64,))
    q, scales = pj.quantized_rms_norm(x, weight, dtype=dtype)
    z = normed(exact(x), -1, 1e-6, True) * exact(weight)
    most = {"float8_e4m3fn": 448, "float8_e5m2": 57344, "int8": 127}[dtype]
    assert np.allclose(np.asarray(scales), np.abs(z).max(-1).astype(np.float64) / most, rtol=1e-6)
    step = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3, "int8": 0.5 / 127 * 1.01}[dtype]
    error = np.abs(exact(q) * exact(scales)[:, None] - z)
    least = np.abs(z) if dtype != "int8" else np.abs(z).max(-1, keepdims=True)
    assert (error <= step * least + 1e-6 * np.abs(z).max()).all()
    one, scale = pj.quantized_rms_norm(x, weight, y_scale=0.05, dtype=dtype)
    assert one.dtype == jnp.dtype(dtype) and float(scale[0]) == np.float32(0.05)
    blocks, scales = pj.quantized_rms_norm(x, weight, dtype=dtype, scale_block=16)
    assert scales.shape == (6, 4) and blocks.shape == x.shape


def test_weight_offset_and_casts() -> None:
    x, weight = array(27, (6, 32), "bfloat16"), array(28, (32,), "bfloat16")
    z = normed(exact(x), -1, 1e-6, True)
    assert_near(pj.rms_norm(x, weight, weight_offset=1), z * (1 + exact(weight)), 1.0)
    rounded = exact(jnp.asarray(z.astype(np.float64), jnp.bfloat16))
    found = pj.rms_norm(x, weight, cast="xhat")
    assert np.array_equal(
        np.asarray(found, np.float32),
        np.asarray(
            jnp.asarray((rounded * exact(weight)).astype(np.float32), jnp.bfloat16), np.float32
        ),
    )


def test_traced_eps() -> None:
    x = array(29, (5, 16))
    found = jax.jit(lambda x, eps: pj.layer_norm(x, eps=eps))(x, 0.25)
    assert np.allclose(np.asarray(found), np.asarray(pj.layer_norm(x, eps=0.25)), atol=1e-6)


def test_empty() -> None:
    assert pj.layer_norm(jnp.ones((0, 8)), jnp.ones(8)).shape == (0, 8)
    x, weight = jnp.ones((0, 8)), jnp.ones(8)
    grad = jax.grad(lambda weight: pj.layer_norm(x, weight).sum())(weight)
    assert np.array_equal(np.asarray(grad), np.zeros(8))
