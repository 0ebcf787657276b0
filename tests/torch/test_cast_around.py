"""cast="xhat" of norms with what stands around them: the bits of the same in several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import planish
import torch
from torch import Tensor

HALF, SINGLE = torch.bfloat16, torch.float32
#: Dtypes of x (and gate), of the residual, and of the weight.
DTYPES = [
    (HALF, HALF, HALF),
    (torch.float16, torch.float16, torch.float16),
    (HALF, HALF, SINGLE),
    (HALF, SINGLE, HALF),
    (SINGLE, HALF, HALF),
    (SINGLE, SINGLE, SINGLE),
    (HALF, HALF, torch.float64),
]


def drawn(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("live", [False, True], ids=["values", "with a graph"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_a_sum_s_norm_is_rounded_otherwise_than_the_norm_alone(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype], offset: float, live: bool
) -> None:
    x, residual = drawn(dtypes[0], 2, 3, 64), drawn(dtypes[1], 2, 3, 64, seed=1)
    weight, bias = (drawn(dtypes[2], 64, seed=2 + i).requires_grad_(live) for i in range(2))
    total = (x.double() + residual.double()).to(dtypes[1])
    given: dict[str, Any] = {"weight_offset": offset, "cast": "xhat"}
    for _ in range(2):
        y, s = planish.add_rms_norm(x, residual, weight, **given)
        wanted = planish.rms_norm(total, -1, weight, **given)
        assert torch.equal(s, total)
        assert y.dtype == wanted.dtype and torch.equal(y, wanted)
        y, s = planish.add_layer_norm(x, residual, weight, bias, **given)
        wanted = planish.layer_norm(total, -1, weight, bias, **given)
        assert y.dtype == wanted.dtype and torch.equal(y, wanted)
        given_out = given | {"out_dtype": torch.float64}
        y, _ = planish.add_rms_norm(x, residual, weight, **given_out)
        assert torch.equal(y, planish.rms_norm(total, -1, weight, **given_out))


@pytest.mark.parametrize("groups", [None, 16], ids=["whole", "groups"])
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_a_gated_norm_is_rounded_otherwise_than_its_formula(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype], groups: int | None
) -> None:
    x, gate = drawn(dtypes[0], 2, 3, 64), drawn(dtypes[1], 2, 3, 64, seed=1)
    weight = drawn(dtypes[2], 64, seed=2)

    def xhat(t: Tensor) -> Tensor:
        wide = t.float().reshape(*t.shape[:-1], -1, groups or 64)
        y: Tensor = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return y.reshape(t.shape).to(x.dtype)

    silu = torch.nn.functional.silu(gate.float())
    functions: list[tuple[bool, Callable[[], Tensor]]] = [
        (False, lambda: weight * xhat(x.float() * silu)),
        (True, lambda: ((weight * xhat(x)).float() * silu).to(x.dtype)),
    ]
    for behind, wanted in functions:
        given: dict[str, Any] = {"norm_before_gate": behind, "group_size": groups, "cast": "xhat"}
        y, other = planish.gated_rms_norm(x, gate, weight, **given), wanted()
        assert y.dtype == other.dtype
        if x.dtype in (HALF, torch.float16):  # neighbours: mean and SiLU round differently
            assert float((y != other).double().mean()) <= 2e-2
        torch.testing.assert_close(y, other, rtol=2 * torch.finfo(x.dtype).eps, atol=1e-5)


def test_queries_and_keys_are_rounded_otherwise_than_alone() -> None:
    for dtype, held in ((HALF, HALF), (HALF, SINGLE), (SINGLE, SINGLE)):
        q, k = drawn(dtype, 2, 3, 4, 16), drawn(dtype, 2, 3, 2, 16, seed=1)
        weights = drawn(held, 16, seed=2), drawn(held, 16, seed=3)
        found = planish.qk_norm(q, k, *weights, 1e-6, cast="xhat")
        for one, x, weight in zip(found, (q, k), weights, strict=True):
            wanted = planish.rms_norm(x, -1, weight, eps=1e-6, cast="xhat")
            assert one.dtype == wanted.dtype and torch.equal(one, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 7), (9, 64), (5, 1000), (2, 3, 257), (40, 4096)], ids=str)
@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_rows_are_rounded_elsewhere_than_xhat_and_the_product(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Of usual rows, of such as leave the range of f32, and of zeros."""
    norm = getattr(planish, kind)
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    if dtype == torch.bfloat16:
        x[0] *= 2.0**120
        x[1] *= 2.0**-120
    x[-1] = 0
    assert torch.equal(norm(x, -1, weight, cast="xhat"), norm(x, -1) * weight)
    if kind == "rms_norm":
        residual = torch.randn(shape).to(dtype)
        y, total = planish.add_rms_norm(x, residual, weight, cast="xhat")
        assert torch.equal(total, x + residual)
        assert torch.equal(y, planish.rms_norm(total, -1) * weight)
