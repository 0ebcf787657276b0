"""Batch norm under JAX: values against long double, statistics, and batches in parts."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax_support import ULP, WIDE, array, assert_near, exact, normed, silu

import planish.jax as pj
from planish.jax import targets

CHANNELS = 8
ACTIVATIONS = {None: lambda z: z, "relu": lambda z: np.maximum(z, 0), "silu": silu}
#: Rounded once, or its neighbour; 4 ULP for f32.
ULPS = {"float16": 1.0, "bfloat16": 1.0, "float32": 4.0}


def _vectors() -> dict[str, Any]:
    names = ("running_mean", "running_var", "weight", "bias")
    return {name: jnp.abs(array(i, (CHANNELS,))) + 0.5 for i, name in enumerate(names)}


def _formula(x: Any, vectors: dict[str, Any], training: bool = True, addend: Any = 0) -> Any:
    """y before the activation, channels last, in long double."""
    given = {name: exact(vector) for name, vector in vectors.items()}
    axes = tuple(range(x.ndim - 1))
    if training:
        z = normed(exact(x), axes, 1e-5, False)
    else:
        z = (exact(x) - given["running_mean"]) / np.sqrt(given["running_var"] + WIDE(1e-5))
    return z * given["weight"] + given["bias"] + addend


two_devices = pytest.mark.skipif(jax.device_count() < 2, reason="one device: no batch to divide")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mean", [0.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("first", [False, True])
def test_values(dtype: str, mean: float, training: bool, first: bool) -> None:
    x, vectors = array(7, (5, 6, 7, CHANNELS), dtype, mean), _vectors()
    run = functools.partial(pj.batch_norm, training=training, channel_axis=1 if first else -1)
    given = jnp.moveaxis(x, -1, 1) if first else x
    y = jax.jit(run)(given, **vectors).y
    assert y.dtype == x.dtype
    found = jnp.moveaxis(y, 1, -1) if first else y
    wanted = _formula(x, vectors, training)
    # Within ULPs of the largest magnitude of a channel.
    assert_near(found.reshape(-1, CHANNELS).T, wanted.reshape(-1, CHANNELS).T, ULPS[dtype])


def test_statistics() -> None:
    """The running ones in f64, rounded once; what was given stays as it was."""
    x, vectors = array(8, (30, CHANNELS), mean=5.0), _vectors()
    before = {name: np.array(vector) for name, vector in vectors.items()}
    found = pj.batch_norm(x, **vectors, training=True, momentum=0.25)
    mean, var = exact(x).mean(0), exact(x).var(0)
    for name, new in (("running_mean", mean), ("running_var", var * 30 / 29)):
        wanted = 0.75 * before[name].astype(WIDE) + 0.25 * new
        assert np.allclose(
            np.asarray(getattr(found, name)), wanted.astype(float), rtol=ULP["float32"], atol=0
        )
        assert np.array_equal(np.asarray(vectors[name]), before[name])
    assert np.allclose(np.asarray(found.mean), mean.astype(float), rtol=1e-7)
    rstd = (1 / np.sqrt(var + WIDE(1e-5))).astype(float)
    assert np.allclose(np.asarray(found.rstd), rstd, rtol=2e-7)
    again = pj.batch_norm(x, found.running_mean, found.running_var)
    assert again.running_var is found.running_var and again.mean is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("added", [False, True])
def test_what_stands_behind(activation: Any, added: bool, training: bool) -> None:
    x, addend, vectors = array(9, (6, 5, CHANNELS)), array(10, (6, 5, CHANNELS)), _vectors()
    z = _formula(x, vectors, training, exact(addend) if added else 0)
    y = pj.batch_norm(
        x,
        **vectors,
        training=training,
        activation=activation,
        addend=addend if added else None,
    ).y
    wanted = ACTIVATIONS[activation](z).astype(np.float64)
    assert np.allclose(np.asarray(y), wanted, atol=3e-6)


def test_f64(x64: None) -> None:
    x = array(11, (40, CHANNELS), "float64", 3.0)
    found = pj.batch_norm(x, training=True)
    wide = np.asarray(x).astype(WIDE)
    error = np.abs(np.asarray(found.y).astype(WIDE) - normed(wide, 0, 1e-5, False)).max()
    assert found.y.dtype == found.mean.dtype == jnp.float64 and error < 4e-15


def _loss(x: Any, addend: Any, vectors: Any, **options: Any) -> Any:
    found = pj.batch_norm(x, **vectors, addend=addend, training=True, **options)
    return jnp.sin(found.y).sum(), found


def _divided(array: Any) -> Any:
    return jax.device_put(
        array, NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec("data"))
    )


def _assert_close(found: Any, wanted: Any, room: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= room * max(1, np.abs(b).max())


@two_devices
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("added", [False, True])
def test_a_divided_batch(activation: Any, added: bool) -> None:
    """Results and gradients of the whole batch, and no device has all of x."""
    x, vectors = array(12, (6, 5, CHANNELS), mean=2.0), _vectors()
    addend = array(13, (6, 5, CHANNELS)) if added else None
    step = jax.jit(
        jax.value_and_grad(functools.partial(_loss, activation=activation), (0, 1, 2), has_aux=True)
    )
    parts = _divided(x), _divided(addend) if added else None
    found, wanted = step(*parts, vectors), step(x, addend, vectors)
    _assert_close(found, wanted)
    assert found[1][0].sharding.spec[0] == "data"
    text = step.lower(*parts, vectors).compile().as_text()
    gathers = [line for line in text.splitlines() if " all-gather(" in line]
    assert "all-reduce" in text and all("f64[2,2,8]" in line for line in gathers)


@two_devices
def test_a_divided_batch_far_from_zero() -> None:
    """Where f32 holds no digit of the variance: parts tell each other f64."""
    x = array(14, (64, CHANNELS), mean=1e4)
    found = jax.jit(functools.partial(pj.batch_norm, training=True))(_divided(x))
    assert_near(found.y.T, normed(exact(x), 0, 1e-5, False).T, 4.0)


@two_devices
def test_a_divided_batch_by_running_statistics() -> None:
    x, vectors = array(15, (6, CHANNELS)), _vectors()
    grad = jax.jit(jax.grad(lambda x, v: jnp.sin(pj.batch_norm(x, **v).y).sum(), (0, 1)))
    text = grad.lower(_divided(x), vectors).compile().as_text()
    assert "all-gather" not in text and "all-reduce" in text
    _assert_close(grad(_divided(x), vectors), grad(x, vectors))


@two_devices
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_named_axes(activation: Any) -> None:
    """shard_map and vmap: statistics, and first and second derivatives, of the whole batch."""
    x, addend, vectors = array(16, (6, 5, CHANNELS)), array(17, (6, 5, CHANNELS)), _vectors()
    spec, none = PartitionSpec("data"), PartitionSpec()

    def norm(x: Any, addend: Any, vectors: Any, **options: Any) -> Any:
        found = pj.batch_norm(
            x, **vectors, addend=addend, training=True, activation=activation, **options
        )
        return found.y, found.running_mean, found.running_var

    named = functools.partial(norm, axis_name="data")
    mapped = jax.jit(
        jax.shard_map(
            named, mesh=jax.make_mesh((2,), ("data",)), in_specs=(spec, spec, none),
            out_specs=(spec, none, none), check_vma=False,
        )
    )  # fmt: skip
    wanted = norm(x, addend, vectors)
    _assert_close(mapped(_divided(x), _divided(addend), vectors), wanted)
    halves = [each.reshape(2, 3, 5, CHANNELS) for each in (x, addend)]
    y, mean, var = jax.vmap(named, (0, 0, None), axis_name="data")(*halves, vectors)
    _assert_close((y.reshape(x.shape), mean[1], var[1]), wanted)

    def second(norm: Any) -> Any:
        def first(x: Any, addend: Any, vectors: Any) -> Any:
            grads = jax.grad(lambda *given: jnp.sin(norm(*given)[0]).sum(), (0, 1, 2))
            return sum(
                jnp.square(each).sum() for each in jax.tree.leaves(grads(x, addend, vectors))
            )

        return jax.jit(jax.value_and_grad(first, (0, 1, 2)))

    found = second(mapped)(_divided(x), _divided(addend), vectors)
    _assert_close(found, second(norm)(x, addend, vectors))


@two_devices
def test_groups_of_a_named_axis_are_flax_s() -> None:
    """Two groups of one part each: nothing is merged."""
    linen = pytest.importorskip("flax.linen")
    planish_linen = pytest.importorskip("planish.jax.linen")
    x = array(18, (6, CHANNELS))
    results = []
    for kind in (linen, planish_linen):
        for groups in ([[0], [1]], [[0, 1]]):
            layer = kind.BatchNorm(
                use_running_average=False, axis_name="data", axis_index_groups=groups
            )
            variables = layer.init(jax.random.key(0), x)
            run = functools.partial(layer.apply, variables, mutable=["batch_stats"])
            spec = PartitionSpec("data")
            results.append(
                jax.shard_map(
                    lambda x, run=run: jax.tree.map(jnp.atleast_2d, run(x)),
                    mesh=jax.make_mesh((2,), ("data",)), in_specs=spec, out_specs=spec,
                    check_vma=False,
                )(_divided(x))
            )  # fmt: skip
    _assert_close(results[2:], results[:2])


def test_steps_in_a_scan() -> None:
    """Running statistics as what is carried, with and without remat."""
    xs, weight = array(19, (4, 10, CHANNELS), mean=1.0), jnp.ones(CHANNELS)
    zeros = jnp.zeros(CHANNELS)

    def model(xs: Any, weight: Any, wrap: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            found = pj.batch_norm(x, *carry, weight, training=True, activation="silu")
            return (found.running_mean, found.running_var), found.y.sum()

        carry, sums = jax.lax.scan(wrap(step), (zeros, weight), xs)
        return sums.sum() + 0 * carry[0].sum(), carry

    grads = [
        jax.jit(jax.grad(functools.partial(model, wrap=wrap), (0, 1), has_aux=True))(xs, weight)
        for wrap in (lambda f: f, jax.checkpoint)
    ]
    _assert_close(grads[0], grads[1], 1e-6)
    mean = np.zeros(CHANNELS)
    for x in np.asarray(xs, np.float64):
        mean = 0.9 * mean + 0.1 * x.mean(0)
    assert np.allclose(np.asarray(grads[0][1][0]), mean, atol=1e-6)


def test_export() -> None:
    """Statistics of f64 and a result with names in a program that is written down."""
    x, vectors = array(21, (6, CHANNELS)), _vectors()
    run = jax.jit(functools.partial(pj.batch_norm, training=True, activation="silu"))
    name = targets.call.__globals__["_target"]()
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name)]
    exported = jax.export.export(run, disabled_checks=allowed, platforms=("cpu",))(x, **vectors)
    again = jax.export.deserialize(exported.serialize()).call(x, **vectors)
    for a, b in zip(again, run(x, **vectors), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_donated_statistics_are_written_where_they_lie() -> None:
    x, mean, var = array(22, (6, CHANNELS)), jnp.arange(8.0), jnp.arange(1, 9.0)
    place, wanted = mean.unsafe_buffer_pointer(), pj.batch_norm(x, mean, var, training=True)
    run = jax.jit(functools.partial(pj.batch_norm, training=True), donate_argnums=(1, 2))
    found = run(x, mean, var)
    assert found.running_mean.unsafe_buffer_pointer() == place
    assert np.array_equal(np.asarray(found.running_mean), np.asarray(wanted.running_mean))


def test_statistics_have_no_gradient() -> None:
    x, vectors = array(20, (9, CHANNELS)), _vectors()

    def loss(x: Any, vectors: Any, training: bool) -> Any:
        found = pj.batch_norm(x, **vectors, training=training)
        statistics = found[1:] if training else (found.y,)
        return sum(jnp.sin(each).sum() for each in statistics)

    dx, dvectors = jax.grad(loss, (0, 1))(x, vectors, True)
    assert not any(np.asarray(each).any() for each in (dx, *dvectors.values()))
    dx, dvectors = jax.grad(loss, (0, 1))(x, vectors, False)
    assert np.asarray(dx).all() and np.asarray(dvectors["weight"]).all()
    assert not np.asarray(dvectors["running_mean"]).any()


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({}, ValueError, "running_mean and running_var is None; wanted both, as training is False"),
        ({"training": True, "running_mean": jnp.ones(8)}, ValueError, "running_var is None"),
        ({"training": True, "weight": jnp.ones(3)}, ValueError, r"weight has shape \(3,\)"),
        ({"training": True, "addend": jnp.ones(3)}, ValueError, r"addend has shape \(3,\)"),
        ({"training": True, "channel_axis": 2}, ValueError, "axis 2 is out of range"),
        ({"training": True, "activation": "tanh"}, ValueError, "activation is 'tanh'"),
        ({"training": True, "momentum": None}, TypeError, "momentum is a NoneType"),
        ({"training": True, "eps": float("inf")}, ValueError, "eps is inf"),
    ],
)
def test_bad_arguments(options: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        pj.batch_norm(jnp.ones((4, 8)), **options)
    with pytest.raises(ValueError, match="x has 1 axis; wanted 2 or more"):
        pj.batch_norm(jnp.ones(8), training=True)
