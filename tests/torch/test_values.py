"""planish's numbers under torch: near the exact result, and never further from it than torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch.nn.functional as F
from support import (
    FLOATS,
    LAYER,
    LAYER_BACKWARD,
    RMS,
    RMS_BACKWARD,
    Exact,
    exact_norm,
    on_planish,
    row_error,
    wide,
)

import planish
import torch
from torch import Tensor

#: rows, columns
SHAPES = [(4, 2), (1, 8), (3, 5), (7, 33), (64, 96), (13, 769), (5, 4096), (2, 15872)]

RESULTS = ("y", "dx", "dweight", "dbias")

#: The bounds of docs/guide/reproducibility.md, in ULP of the largest magnitude in the row.
BOUND = {torch.float32: 4.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}


def inputs(
    shape: tuple[int, int], dtype: torch.dtype, mixed: bool, mean: float = 0.0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(shape[0] * 100003 + shape[1])
    parameter = torch.float32 if mixed else dtype

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    x = (random(*shape) + mean).to(dtype)
    return [
        x,
        random(shape[1]).to(parameter),
        random(shape[1]).to(parameter),
        random(*shape).to(dtype),
    ]


def layer(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = F.layer_norm(leaves[0], leaves[1].shape, leaves[1], leaves[2])
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def rms(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    y = F.rms_norm(leaves[0], leaves[1].shape, leaves[1], 1e-5)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def exact(norm: str, given: list[Tensor]) -> list[Exact]:
    x, weight, bias, dy = given
    if norm == "layer_norm":
        return exact_norm(x, weight, bias, dy)
    return exact_norm(x, weight, None, dy, rms=True)


NORMS = {
    "layer_norm": (layer, LAYER, LAYER_BACKWARD),
    "rms_norm": (rms, RMS, RMS_BACKWARD),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_forward_and_backward_leave_the_bounds_or_are_worse_than_torch(
    norm: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    function, forward, backward = NORMS[norm]
    given = inputs(shape, dtype, mixed=False)
    native = function(*given)
    with on_planish(forward, backward):
        ours = function(*given)
    wanted = exact(norm, given)
    for name, mine, theirs, right in zip(RESULTS, ours, native, wanted, strict=False):
        assert mine.dtype == theirs.dtype
        axis = -1 if name in ("y", "dx") else 0
        error, torchs = (row_error(t, right, axis) for t in (mine, theirs))
        assert error <= max(torchs, BOUND[dtype]), f"{name}: {error} ULP, torch {torchs}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_half_input_with_float_weights_is_rounded_more_than_once(
    norm: str, dtype: torch.dtype
) -> None:
    function, forward, backward = NORMS[norm]
    given = inputs((64, 769), dtype, mixed=True)
    with on_planish(forward, backward):
        ours = function(*given)
    wanted = exact(norm, given)
    for mine, right in zip(ours[:2], wanted[:2], strict=True):
        once = torch.from_numpy(right.astype("float64")).to(dtype)
        wrong = (mine != once).sum().item()
        assert wrong <= mine.numel() / 1000, f"{wrong} of {mine.numel()} are not rounded once"
    assert [t.dtype for t in ours[2:]] == [torch.float32] * len(ours[2:])


@pytest.mark.parametrize("mean", [0.0, 10.0, 1e4])
def test_a_large_mean_costs_digits(mean: float) -> None:
    x, weight, bias, dy = inputs((32, 1024), torch.float32, mixed=False, mean=mean)
    native = layer(x, weight, bias, dy)
    with on_planish(LAYER, LAYER_BACKWARD):
        ours = layer(x, weight, bias, dy)
    wanted = exact_norm(x, weight, bias, dy)
    assert row_error(ours[0], wanted[0], -1) <= 4
    for mine, theirs, right in zip(ours, native, wanted, strict=True):
        axis = -1 if mine.dim() == 2 else 0
        assert row_error(mine, right, axis) <= max(4.0, row_error(theirs, right, axis))


def test_a_constant_row_is_not_the_bias() -> None:
    x = torch.full((3, 100), 7.25)
    weight, bias = torch.randn(100), torch.randn(100)
    with on_planish(LAYER):
        y = F.layer_norm(x, (100,), weight, bias)
    assert torch.equal(y, bias.expand(3, 100))


def test_nan_and_inf_spread_to_other_rows() -> None:
    x = torch.randn(6, 40)
    clean = F.layer_norm(x, (40,))
    x[1, 3], x[4, 39] = float("nan"), float("inf")
    with on_planish(LAYER, RMS):
        y = F.layer_norm(x, (40,))
        z = F.rms_norm(x, (40,))
    spoilt = torch.tensor([False, True, False, False, True, False])
    assert torch.equal(y.isnan().all(1), spoilt)
    assert not y[~spoilt].isnan().any()
    assert not z[~spoilt].isnan().any()
    assert row_error(y[~spoilt], wide(clean[~spoilt]), -1) <= 4


@pytest.mark.parametrize("norm", NORMS)
def test_thread_counts_change_bits(norm: str) -> None:
    function, forward, backward = NORMS[norm]
    given = inputs((4096, 257), torch.float32, mixed=False)
    results = []
    with on_planish(forward, backward):
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            results.append(function(*given))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)


def test_a_row_depends_on_its_neighbours() -> None:
    x = torch.randn(67, 500)
    with on_planish(LAYER):
        whole = F.layer_norm(x, (500,))
        alone = torch.cat([F.layer_norm(x[i : i + 1], (500,)) for i in range(67)])
    assert torch.equal(whole, alone)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_column_has_gradients(dtype: torch.dtype) -> None:
    x, weight, bias, dy = inputs((5, 1), dtype, mixed=False)
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        y, dx, dweight, dbias = layer(x, weight, bias, dy)
        ours = rms(x, weight, bias, dy)
    assert torch.equal(y, bias.expand(5, 1))
    assert not dx.any()
    assert not dweight.any()
    wanted = exact_norm(x, weight, None, dy, rms=True)
    # xhat is 1 but for eps: dx is what is left of two terms of this size
    term = wide(dy * weight) / np.abs(wide(x))
    assert row_error(ours[0], wanted[0], -1) <= BOUND[dtype]
    assert row_error(ours[1], wanted[1], -1, scale=term) <= BOUND[dtype]
    sum_of_magnitudes = np.abs(wide(dy)).sum(0)
    assert row_error(dbias, wide(dy).sum(0), 0, scale=sum_of_magnitudes) <= BOUND[dtype]


def test_a_tensor_made_in_inference_mode_trains_no_weights() -> None:
    with torch.inference_mode():
        features = torch.randn(3, 8)
    norm = torch.nn.RMSNorm(8)
    norm(features.clone()).pow(2).sum().backward()
    wanted, norm.weight.grad = norm.weight.grad, None
    with planish.enabled():
        norm(features).pow(2).sum().backward()
    torch.testing.assert_close(norm.weight.grad, wanted)
