"""Derivatives of every function to the second order, and JAX's transforms over them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from jax_support import array

import planish.jax as pj

F64 = "float64"


def _arrays(*shapes: tuple[int, ...]) -> list[Any]:
    return [array(i, shape, F64) for i, shape in enumerate(shapes)]


ROW = (4, 3, 12)
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "layer_norm": (pj.layer_norm, [ROW, (12,), (12,)]),
    "layer_norm, axes": (functools.partial(pj.layer_norm, axis=(0, 2)), [ROW, (4, 12), (4, 12)]),
    "layer_norm, gelu": (functools.partial(pj.layer_norm, activation="gelu"), [ROW, (12,), (12,)]),
    "rms_norm": (pj.rms_norm, [ROW, (12,)]),
    "rms_norm, offset": (functools.partial(pj.rms_norm, weight_offset=1), [ROW, (12,)]),
    "group_norm": (lambda x, w, b: pj.group_norm(x, 3, w, b), [(2, 5, 12), (12,), (12,)]),
    "group_norm, first": (
        lambda x, w, b: pj.group_norm(x, 2, w, b, channel_axis=1, activation="silu"),
        [(2, 4, 3, 3), (4,), (4,)],
    ),
    "add_rms_norm": (pj.add_rms_norm, [ROW, ROW, (12,)]),
    "add_layer_norm": (pj.add_layer_norm, [ROW, ROW, (12,), (12,)]),
    "add_layer_norm, scales": (
        lambda x, r, w, b, c: pj.add_layer_norm(x, r, w, b, column_scale=c,
                                                row_scale=jnp.linspace(0.5, 2, 12).reshape(4, 3)),
        [ROW, ROW, (12,), (12,), (12,)],
    ),
    "modulated_layer_norm": (pj.modulated_layer_norm, [ROW, (4, 1, 12), (4, 1, 12)]),
    "modulated, weights": (pj.modulated_layer_norm, [ROW, (12,), (12,), (12,), (12,)]),
    "modulated_rms_norm": (pj.modulated_rms_norm, [ROW, (4, 1, 12)]),
    "gated_rms_norm": (pj.gated_rms_norm, [ROW, ROW, (12,)]),
    "gated before": (
        lambda x, g, w: pj.gated_rms_norm(x, g, w, norm_before_gate=False),
        [ROW, ROW, (12,)],
    ),
    "qk_norm": (pj.qk_norm, [ROW, (4, 2, 12), (12,), (12,)]),
    "batch_norm": (
        lambda x, w, b: pj.batch_norm(x, None, None, w, b, training=True).y,
        [ROW, (12,), (12,)],
    ),
    "batch_norm, silu": (
        lambda x, w, b, a: pj.batch_norm(x, None, None, w, b, training=True, channel_axis=1,
                                         activation="silu", addend=a).y,
        [(4, 3, 5), (3,), (3,), (4, 3, 5)],
    ),
    "batch_norm, relu": (
        lambda x, w, b, a: pj.batch_norm(x, None, None, w, b, training=True, activation="relu",
                                         addend=a).y,
        [ROW, (12,), (12,), ROW],
    ),
    "batch_norm, running": (
        lambda x, w, b, a: pj.batch_norm(x, jnp.arange(12.0), jnp.arange(1, 13.0), w, b,
                                         activation="gelu", addend=a).y,
        [ROW, (12,), (12,), ROW],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_orders(name: str, x64: None) -> None:
    function, shapes = FUNCTIONS[name]
    check_grads(function, _arrays(*shapes), order=2, modes=["rev"], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(name: str) -> None:
    """The first argument batched alone, the others, all: the same as one after the other."""
    function, shapes = FUNCTIONS[name]
    ones = [array(i, shape) for i, shape in enumerate(shapes)]
    many = [array(10 + i, (3, *shape)) for i, shape in enumerate(shapes)]

    def both(*given: Any) -> Any:
        out, pull = jax.vjp(function, *given)
        return out, pull(jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size).reshape(y.shape)), out))

    single = jax.jit(both)
    others = (True,) * (len(ones) - 1)
    for mask in ((True, *(False for _ in others)), (False, *others), (True, *others)):
        given = [m if is_batched else o for o, m, is_batched in zip(ones, many, mask, strict=True)]
        found = jax.jit(jax.vmap(both, [0 if is_batched else None for is_batched in mask]))(*given)
        for part in range(3):
            one = single(
                *(g[part] if is_batched else g for g, is_batched in zip(given, mask, strict=True))
            )
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True):
                assert np.allclose(np.asarray(a[part]), np.asarray(b), atol=2e-5), mask


def test_a_batch_has_the_bits_of_its_parts() -> None:
    x, weight = array(0, (3, 4, 40)), array(1, (3, 40))
    found = jax.vmap(lambda x, w: pj.layer_norm(x, w))(x, weight)
    for part in range(3):
        assert np.array_equal(
            np.asarray(found[part]), np.asarray(pj.layer_norm(x[part], weight[part]))
        )


def test_scan_and_remat() -> None:
    x, weights = array(0, (4, 16)), array(1, (5, 16))

    def model(x: Any, weights: Any, wrap: Any) -> Any:
        def step(carry: Any, weight: Any) -> Any:
            y, total = pj.add_rms_norm(jnp.tanh(carry), carry, weight)
            return total + 0.1 * y, None

        return jax.lax.scan(wrap(step), x, weights)[0].sum()

    plain = jax.jit(jax.grad(lambda x, w: model(x, w, lambda f: f), (0, 1)))(x, weights)
    again = jax.jit(jax.grad(lambda x, w: model(x, w, jax.checkpoint), (0, 1)))(x, weights)
    for a, b in zip(plain, again, strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), atol=1e-6)

    def by_hand(x: Any, weights: Any) -> Any:
        for weight in weights:
            s = jnp.tanh(x) + x
            y = s * jax.lax.rsqrt(jnp.square(s).mean(-1, keepdims=True) + 1e-6) * weight
            x = s + 0.1 * y
        return x.sum()

    for a, b in zip(plain, jax.grad(by_hand, (0, 1))(x, weights), strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), atol=1e-5)


def test_quantised_has_no_derivative() -> None:
    x = array(0, (4, 16))
    with pytest.raises(TypeError, match="has no derivative"):
        jax.grad(lambda x: pj.quantized_rms_norm(x)[1].sum())(x)
