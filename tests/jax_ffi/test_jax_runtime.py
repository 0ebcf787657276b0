"""XLA's side: shardings, donated buffers, threads, export, errors of the handlers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax_support import array

import planish.jax as pj
from planish.jax import targets


def _loss(x: Any, weight: Any, bias: Any) -> Any:
    return jnp.sin(pj.layer_norm(x, weight, bias)).sum()


def test_rows_are_divided_without_a_gather() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    x, weight, bias = array(0, (6, 5, 32)), array(1, (32,)), array(2, (32,))
    divided = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    step = jax.jit(jax.grad(_loss, (0, 1, 2)))
    found, wanted = step(divided, weight, bias), step(x, weight, bias)
    assert found[0].sharding.spec[0] == "data"
    assert np.array_equal(np.asarray(found[0]), np.asarray(wanted[0]))
    for a, b in zip(found[1:], wanted[1:], strict=True):
        assert np.allclose(np.asarray(a), np.asarray(b), atol=1e-5)
    text = step.lower(divided, weight, bias).compile().as_text()
    assert "all-gather" not in text and "all-reduce" in text


def test_a_divided_row_is_gathered() -> None:
    mesh = jax.make_mesh((2,), ("model",))
    x = array(0, (6, 32))
    divided = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "model")))
    found = jax.jit(pj.rms_norm)(divided)
    assert np.array_equal(np.asarray(found), np.asarray(pj.rms_norm(x)))


def test_shard_map() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    x, weight = array(0, (6, 32)), array(1, (32,))
    spec = PartitionSpec("data")
    mapped = jax.shard_map(
        lambda x, w: pj.layer_norm(x, w),
        mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False,
    )  # fmt: skip
    divided = jax.device_put(x, NamedSharding(mesh, spec))
    found = jax.jit(mapped)(divided, weight)
    assert np.array_equal(np.asarray(found), np.asarray(pj.layer_norm(x, weight)))


def test_donated() -> None:
    x = array(0, (64, 256))
    wanted = np.asarray(pj.layer_norm(x))
    found = jax.jit(pj.layer_norm, donate_argnums=0)(x)
    assert np.array_equal(np.asarray(found), wanted)


def test_many_calls_at_once() -> None:
    """More calls than the pool has threads, each of which asks it for help."""
    step = jax.jit(jax.grad(_loss, (0, 1, 2)))
    inputs = [(array(i, (300, 515)), array(i, (515,)), array(i, (515,))) for i in range(4)]
    wanted = [[np.asarray(g) for g in step(*given)] for given in inputs]
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(5):
            for found, want in zip(
                pool.map(lambda given: step(*given), inputs), wanted, strict=True
            ):
                for a, b in zip(found, want, strict=True):
                    assert np.array_equal(np.asarray(a), b), round_


def test_export() -> None:
    x, weight = array(0, (4, 32)), array(1, (32,))
    name = targets.call.__globals__["_target"]()
    exported = jax.export.export(
        jax.jit(pj.rms_norm),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name)],
        platforms=("cpu",),
    )(x, weight)
    again = jax.export.deserialize(exported.serialize())
    assert np.array_equal(np.asarray(again.call(x, weight)), np.asarray(pj.rms_norm(x, weight)))


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"pass": np.int32(7)}, "pass"),
        ({"surprise": np.int32(1)}, "planish has none of this name"),
        ({"eps": np.float32(1)}, "attribute eps: found another type"),
        ({"given": np.uint64(3)}, "found 1 buffers, wanted 2"),
        ({"given": np.uint64(1 << 62)}, "tensors that are not known"),
        ({"reduce_axes": np.uint64(1 << 5)}, "reduce_axes is 0x20"),
    ],
)
def test_a_handler_says_what_is_wrong(attributes: dict[str, Any], sentence: str) -> None:
    right = {
        "pass": np.int32(0),
        "given": np.uint64(1),
        "made": np.uint64(8),
        "reduce_axes": np.uint64(2),
        "eps": np.float64(1e-5),
    }
    shapes = [jax.ShapeDtypeStruct((2, 4), jnp.float32)]
    target = targets.call.__globals__["_target"]()

    def run(**given: Any) -> Any:
        return np.asarray(jax.ffi.ffi_call(target, shapes)(jnp.ones((2, 4)), **given)[0])

    assert run(**right).shape == (2, 4)
    with pytest.raises(Exception, match=sentence):
        run(**{**right, **attributes})


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_a_dtype_that_planish_lacks(dtype: str) -> None:
    with pytest.raises(TypeError, match="layer_norm: x is"):
        pj.layer_norm(jnp.ones((2, 4), dtype))


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda x: pj.layer_norm(x, jnp.ones(5)),
            ValueError,
            r"weight has shape \(5,\); wanted \(8,",
        ),
        (lambda x: pj.layer_norm(x, axis=3), ValueError, "axis 3 is out of range"),
        (lambda x: pj.layer_norm(x, axis=(0, 0)), ValueError, "each once"),
        (lambda x: pj.layer_norm(x, activation="tanh"), ValueError, "activation is 'tanh'"),
        (lambda x: pj.layer_norm(x, eps=float("nan")), ValueError, "eps is nan"),
        (lambda x: pj.layer_norm([1.0]), TypeError, "x is a list"),
        (lambda x: pj.group_norm(x, 3), ValueError, "num_groups is 3"),
        (lambda x: pj.group_norm(x, 2, channel_axis=0), ValueError, "channel_axis is 0"),
        (lambda x: pj.add_rms_norm(x, x[:1]), ValueError, "residual has shape"),
        (lambda x: pj.rms_norm(x, cast="never"), ValueError, "cast is 'never'"),
        (lambda x: pj.rms_norm(x, weight_offset=0.5), ValueError, "weight_offset is 0.5"),
        (lambda x: pj.modulated_rms_norm(x, jnp.ones(3)), ValueError, "broadcast"),
        (lambda x: pj.modulated_rms_norm(x, None), ValueError, "wanted one or both"),
        (lambda x: pj.qk_norm(x, x, None, None, kind="group"), ValueError, "kind is 'group'"),
        (lambda x: pj.quantized_rms_norm(x, dtype="float32"), TypeError, "dtype is float32"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call(jnp.ones((4, 8)))
