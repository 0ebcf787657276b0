"""The same bits under JAX and under torch, on one machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: A Python that has torch; `make test` has it in .venv.
OTHER = Path(os.environ.get("PLANISH_TORCH_PYTHON", Path(__file__).parents[2] / ".venv/bin/python"))
CASES = [(3, 17), (64, 768), (200, 1000)]


def numbers(rows: int, columns: int) -> tuple[np.ndarray, ...]:
    """x, residual, weight, bias and the incoming gradient."""
    made = np.random.default_rng(rows)
    shapes = [(rows, columns), (rows, columns), (columns,), (columns,), (rows, columns)]
    return tuple(made.standard_normal(shape).astype(np.float32) for shape in shapes)


def digest(*arrays: Any) -> str:
    """Of the bytes of all."""
    return hashlib.sha256(b"".join(np.asarray(a, np.float32).tobytes() for a in arrays)).hexdigest()


def by_torch() -> Iterator[str]:
    """One digest for each case and dtype."""
    import planish
    import torch

    for case in CASES:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x, residual, weight, bias, dy = (torch.from_numpy(a).to(dtype) for a in numbers(*case))
            given = [t.requires_grad_() for t in (x, residual, weight, bias)]
            y, total = planish.add_layer_norm(*given, 1e-5)
            z = planish.rms_norm(total, -1, weight, eps=1e-6)
            (y * dy + z * dy).sum().backward()
            found = (y, total, z, *(t.grad for t in given[:2]))
            yield digest(*(t.detach().float().numpy() for t in found))
            for activation in (None, "relu", "silu"):
                given = [t.detach().requires_grad_() for t in given]
                x, addend, weight, bias = given
                running = weight.detach().clone(), bias.detach().abs()
                y = planish.batch_norm(
                    x, *running, weight, bias, True, activation=activation, addend=addend
                )
                y.backward(dy)
                found = (y, *running, *(t.grad for t in given))
                yield digest(*(t.detach().float().numpy() for t in found))


def by_jax() -> Iterator[str]:
    """The same."""
    import jax
    import jax.numpy as jnp

    import planish.jax as pj

    def step(x: Any, residual: Any, weight: Any, bias: Any, dy: Any) -> Any:
        y, total = pj.add_layer_norm(x, residual, weight, bias, 1e-5)
        z = pj.rms_norm(total, weight, 1e-6)
        return (y * dy + z * dy).sum(), (y, total, z)

    def batch(activation: Any, x: Any, addend: Any, weight: Any, bias: Any, dy: Any) -> Any:
        def norm(*given: Any) -> Any:
            x, addend, *affine = given
            running = weight, abs(bias)
            return pj.batch_norm(
                x, *running, *affine, training=True, activation=activation, addend=addend
            )

        found, pull = jax.vjp(norm, x, addend, weight, bias)
        zeros = (jnp.zeros_like(each) for each in found[1:])
        return (*found[:3], *pull(pj.BatchNormResult(dy, *zeros)))

    for case in CASES:
        for dtype in ("float32", "bfloat16", "float16"):
            given = [jnp.asarray(a, dtype) for a in numbers(*case)]
            (_, found), grads = jax.value_and_grad(step, (0, 1), has_aux=True)(*given)
            yield digest(*(np.asarray(a, np.float32) for a in (*found, *grads)))
            for activation in (None, "relu", "silu"):
                found = batch(activation, *given)
                yield digest(*(np.asarray(a, np.float32) for a in found))


def test_bits_of_torch() -> None:
    """y, the sum, and the gradients of x and of the residual; batch norm's results and all of its
    gradients: f32, bf16, f16."""
    if not OTHER.exists():
        pytest.skip(f"no Python with torch: neither $PLANISH_TORCH_PYTHON nor {OTHER}")
    found = subprocess.run([OTHER, __file__], capture_output=True, text=True, check=True)
    assert found.stdout.split() == list(by_jax())


if __name__ == "__main__":
    sys.stdout.write("\n".join(by_torch()))
