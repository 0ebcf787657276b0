"""flax's layers by planish: parameters, names and results are flax's."""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax_support import array

import planish.jax
from planish.jax import linen as planish_linen
from planish.jax import nnx as planish_nnx

LAYERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "LayerNorm": ((8,), {}),
    "LayerNorm, no bias": ((8,), {"use_bias": False}),
    "LayerNorm, bf16": ((8,), {"dtype": jnp.bfloat16}),
    "LayerNorm, axes": ((8,), {"reduction_axes": (1, 2), "feature_axes": -1}),
    "RMSNorm": ((8,), {}),
    "RMSNorm, no scale": ((8,), {"use_scale": False}),
    "GroupNorm": ((8, 4), {}),
    "GroupNorm, size": ((8, None, 2), {"epsilon": 1e-3}),
    "GroupNorm, axes": ((8, 4), {"reduction_axes": (1, -1)}),
}


def _same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    room = 2e-2 if found.dtype == jnp.bfloat16 else 3e-6
    assert np.allclose(np.asarray(found, np.float32), np.asarray(wanted, np.float32), atol=room)


def _x(dtype: Any = "float32") -> Any:
    return array(0, (3, 4, 5, 8), dtype)


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nnx(case: str, dtype: str) -> None:
    arguments, options = LAYERS[case]
    kind = case.split(",")[0]
    theirs = getattr(nnx, kind)(*arguments, **options, rngs=nnx.Rngs(0))
    ours = getattr(planish_nnx, kind)(*arguments, **options, rngs=nnx.Rngs(0))
    assert nnx.state(theirs).flat_state().paths == nnx.state(ours).flat_state().paths
    _same(ours(_x(dtype)), theirs(_x(dtype)))


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linen(case: str, dtype: str) -> None:
    arguments, options = LAYERS[case]
    kind = case.split(",")[0]
    first = arguments[1:] if kind == "GroupNorm" else ()
    theirs, ours = (getattr(m, kind)(*first, **options) for m in (linen, planish_linen))
    variables = theirs.init(jax.random.key(0), _x(dtype))
    assert jax.tree.structure(variables) == jax.tree.structure(ours.init(jax.random.key(0), _x()))
    _same(ours.apply(variables, _x(dtype)), theirs.apply(variables, _x(dtype)))


BATCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no scale": {"use_scale": False, "momentum": 0.5},
    "no bias": {"use_bias": False, "epsilon": 1e-2},
    "bf16": {"dtype": jnp.bfloat16},
    "parameters of bf16": {"param_dtype": jnp.bfloat16},
    "axis": {"axis": 1},
}


def _assert_state(found: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype and np.allclose(np.asarray(a), np.asarray(b), atol=2e-6)


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nnx_batch_norm(case: str, dtype: str) -> None:
    """Three steps of training, then by the running statistics."""
    options = BATCHES[case]
    features = 4 if "axis" in options else 8
    theirs, ours = (m.BatchNorm(features, **options, rngs=nnx.Rngs(0)) for m in (nnx, planish_nnx))
    for step in range(3):
        x = _x(dtype) * (step + 1)
        _same(ours(x), theirs(x))
        _assert_state(nnx.state(ours, nnx.BatchStat), nnx.state(theirs, nnx.BatchStat))
    assert nnx.state(theirs).flat_state().paths == nnx.state(ours).flat_state().paths
    for layer in (theirs, ours):
        layer.eval()
    _same(ours(_x(dtype)), theirs(_x(dtype)))
    _same(ours(x, use_running_average=False), theirs(x, use_running_average=False))


@pytest.mark.parametrize("case", [*BATCHES, "axes"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linen_batch_norm(case: str, dtype: str) -> None:
    options = {"axis": (1, -1)} if case == "axes" else BATCHES[case]
    theirs, ours = (m.BatchNorm(**options) for m in (linen, planish_linen))
    variables = [m.init(jax.random.key(0), _x(), use_running_average=False) for m in (theirs, ours)]
    assert jax.tree.structure(variables[0]) == jax.tree.structure(variables[1])
    _assert_state(variables[1], variables[0])
    for step in range(3):
        x, results = _x(dtype) * (step + 1), []
        for i, layer in enumerate((theirs, ours)):
            y, new = layer.apply(
                variables[i], x, use_running_average=False, mutable=["batch_stats"]
            )
            variables[i] = {**variables[i], **new}
            results.append(y)
        _same(results[1], results[0])
        _assert_state(variables[1], variables[0])
    _same(*(m.apply(variables[0], x, use_running_average=True) for m in (ours, theirs)))


def test_one_value_a_channel() -> None:
    """flax's variance is 0 then."""
    x = array(3, (1, 8))
    theirs, ours = (m.BatchNorm(8, rngs=nnx.Rngs(0)) for m in (nnx, planish_nnx))
    _same(ours(x), theirs(x))
    _assert_state(nnx.state(ours), nnx.state(theirs))


def test_a_mask_is_flax_s() -> None:
    mask = jnp.arange(8) < 5
    theirs, ours = (m.LayerNorm(8, rngs=nnx.Rngs(0)) for m in (nnx, planish_nnx))
    assert np.array_equal(np.asarray(ours(_x(), mask=mask)), np.asarray(theirs(_x(), mask=mask)))
    theirs, ours = (m.BatchNorm(8, rngs=nnx.Rngs(0)) for m in (nnx, planish_nnx))
    mask = jnp.arange(5) < 3
    found, wanted = ours(_x(), mask=mask[:, None]), theirs(_x(), mask=mask[:, None])
    assert np.array_equal(np.asarray(found), np.asarray(wanted))
    for kind in (nnx, planish_nnx):
        with pytest.raises(ValueError, match="use_running_average"):
            kind.BatchNorm(8, use_running_average=None, rngs=nnx.Rngs(0))(_x())


def test_patch() -> None:
    """Layers that are there already run on planish: seen by what flax's fast variance loses."""
    layer, module = nnx.LayerNorm(8, rngs=nnx.Rngs(0)), linen.LayerNorm()
    x = _x() + 3e4
    variables = module.init(jax.random.key(0), x)
    wanted = planish.jax.layer_norm(x, eps=1e-6)
    mask = jnp.ones(8, bool)
    batch = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    with planish.jax.patch() as taken:
        assert {"flax.linen.GroupNorm", "flax.nnx.BatchNorm"} <= set(taken)
        by_planish = planish.jax.batch_norm(x, training=True, weight=jnp.ones(8)).y
        assert np.array_equal(np.asarray(batch(x)), np.asarray(by_planish))
        assert np.array_equal(np.asarray(layer(x)), np.asarray(wanted))
        assert np.array_equal(np.asarray(module.apply(variables, x)), np.asarray(wanted))
        assert layer(x, mask=mask).shape == x.shape  # flax's text, not this one for ever
    assert not np.allclose(np.asarray(layer(x)), np.asarray(wanted), atol=1e-2)
    assert flax.nnx.LayerNorm.__call__ is not planish_nnx.LayerNorm.__call__


@pytest.mark.parametrize("name", ["LayerNorm", "BatchNorm"])
def test_a_step_of_training(name: str) -> None:
    """Loss, gradients and running statistics of a small model."""

    class Model(nnx.Module):
        def __init__(self, kind: Any) -> None:
            rngs = nnx.Rngs(0)
            self.first, self.last = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
            self.norm = getattr(kind, name)(16, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(jax.nn.relu(self.norm(self.first(x))))

    results = []
    for kind in (nnx, planish_nnx):
        grad = nnx.jit(nnx.value_and_grad(lambda model: (model(_x()) ** 2).mean()))
        model = Model(kind)
        results.append(jax.tree.leaves((grad(model), nnx.state(model, nnx.BatchStat))))
    for a, b in zip(*results, strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), atol=1e-5)
