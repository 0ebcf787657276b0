"""planish.compat.flash_attn: order of results, dtypes, masks, tensors given for results, errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from torch.autograd import gradcheck

import planish
import torch
from planish.compat.flash_attn import RMSNorm, layer_norm_fn, layer_norm_linear_fn, rms_norm_fn
from torch import Tensor

X, R, X1 = torch.randn(2, 3, 32), torch.randn(2, 3, 32), torch.randn(2, 3, 32)
W, B, W1, B1 = (torch.randn(32) for _ in range(4))


def exact(s: Tensor, weight: Tensor, bias: Tensor | None, rms: bool, offset: float = 0) -> Tensor:
    s = s.double()
    s = s if rms else s - s.mean(-1, keepdim=True)
    y = s * (s.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (weight.double() + offset)
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("rms", [True, False])
def test_results_come_in_another_order(rms: bool) -> None:
    function = rms_norm_fn if rms else layer_norm_fn
    bias, bias1 = (None, None) if rms else (B, B1)
    for second, prenorm, masks, dropout in itertools.product([False, True], repeat=4):
        torch.manual_seed(5)
        given: dict[str, Any] = {"weight1": W1, "bias1": bias1} if second else {}
        found = function(
            X,
            W,
            bias,
            residual=R,
            x1=X1,
            prenorm=prenorm,
            return_dropout_mask=masks,
            dropout_p=0.3 if dropout else 0.0,
            **given,
        )
        found = [found] if isinstance(found, Tensor) else list(found)
        torch.manual_seed(5)
        keep, keep1 = (torch.rand(X.shape) >= 0.3 for _ in range(2))
        total = R + X * keep / 0.7 + X1 * keep1 / 0.7 if dropout else X + X1 + R
        wanted = [exact(total, W, bias, rms)]
        if second:
            wanted.append(exact(total, W1, bias1, rms))
        if prenorm:
            wanted.append(total.double())
        if masks:
            pair = found[-2:]
            found = found[:-2]
            if dropout:
                assert torch.equal(pair[0], keep) and torch.equal(pair[1], keep1)
            else:
                assert pair == [None, None]
        assert len(found) == len(wanted)
        for ours, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, right.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_dtypes_of_y_or_of_the_sum_are_others(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    for given, y_dtype, sum_dtype in (
        ({}, dtype, dtype),
        ({"residual": R}, dtype, torch.float32),
        ({"residual": R.to(dtype)}, dtype, dtype),
        ({"residual_in_fp32": True}, dtype, torch.float32),
        ({"residual": R.to(dtype), "residual_in_fp32": True}, dtype, dtype),
        ({"out_dtype": torch.float32}, torch.float32, dtype),
    ):
        y, total = layer_norm_fn(x, W, B, prenorm=True, **given)  # type: ignore[arg-type]
        assert (y.dtype, total.dtype) == (y_dtype, sum_dtype)
    assert layer_norm_fn(x, W, B, prenorm=True)[1] is x
    y, total = rms_norm_fn(x, W, None, residual=R.to(dtype), prenorm=True)
    assert torch.equal(y, planish.rms_norm(x + R.to(dtype), -1, W, eps=1e-6))


def test_rowscale_or_a_zero_centered_weight_has_no_effect() -> None:
    scale = torch.randn(2, 3)
    y, total = layer_norm_fn(X, W, B, rowscale=scale, zero_centered_weight=True, prenorm=True)
    torch.testing.assert_close(total, X * scale[..., None])
    torch.testing.assert_close(y, exact(total, W, B, False, 1.0).float(), rtol=1e-5, atol=1e-5)


def test_tensors_given_for_results_are_not_written() -> None:
    out, total_out = torch.empty(6, 32, dtype=torch.float64), torch.empty(2, 3, 32)
    y, total = layer_norm_fn(X, W, B, R, prenorm=True, out=out, residual_out=total_out)
    assert y.data_ptr() == out.data_ptr() and y.shape == X.shape
    assert total.data_ptr() == total_out.data_ptr()
    torch.testing.assert_close(total_out, X + R)
    torch.testing.assert_close(out.view(X.shape), exact(X + R, W, B, False))
    x = X.clone()  # the sum in place of x
    _, total = layer_norm_fn(x, W, B, R, prenorm=True, residual_out=x)
    assert torch.equal(x, X + R) and total.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("rms", [True, False])
def test_gradients_are_wrong(rms: bool) -> None:
    def run(x: Tensor, x1: Tensor, r: Tensor, w: Tensor, w1: Tensor) -> Any:
        torch.manual_seed(2)
        return layer_norm_fn(
            x, w, None, r, x1, w1, eps=1e-3, dropout_p=0.2, prenorm=True, is_rms_norm=rms
        )

    leaves = [torch.randn(3, 6).double().requires_grad_() for _ in range(3)]
    leaves += [torch.randn(6).double().requires_grad_() for _ in range(2)]
    assert gradcheck(run, leaves)


def test_the_module_has_another_state_or_drops_in_eval() -> None:
    norm = RMSNorm(32, dropout_p=0.5)
    assert list(norm.state_dict()) == ["weight"] and norm.bias is None
    assert not RMSNorm(32, zero_centered_weight=True).weight.any()
    assert not torch.equal(norm(X, R, True)[1], X + R)
    norm.eval()
    y, total = norm(X, residual=R, prenorm=True)
    assert torch.equal(total, X + R)
    torch.testing.assert_close(y, planish.rms_norm(total, -1, norm.weight, eps=1e-5))
    assert norm(X.half(), residual_in_fp32=True, prenorm=True)[1].dtype == torch.float32


def test_the_linear_layer_is_not_behind_the_norm() -> None:
    weight, bias = torch.randn(8, 32), torch.randn(8)
    result, total = layer_norm_linear_fn(X, W, B, weight, bias, R, prenorm=True)
    y = layer_norm_fn(X, W, B, R)
    assert torch.equal(result, torch.nn.functional.linear(y, weight, bias))
    assert torch.equal(total, X + R)
    with torch.autocast("cpu", torch.bfloat16):
        half = layer_norm_linear_fn(X, W, B, weight, bias, R)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), result, rtol=0.05, atol=0.2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"residual": R[:1]}, "Expected residual to have x's shape"),
        ({"x1": X1[0]}, "Expected x1 to have x's shape"),
        ({"weight": W[:3]}, r"Expected weight of shape \[32\], but got \[3\]"),
        ({"bias1": B[:3]}, "Expected bias1 of shape"),
        ({"x1": X1, "rowscale": torch.ones(2, 3)}, "not supported with parallel LayerNorm"),
        ({"rowscale": torch.ones(2)}, "a value for each of 6 rows, but got 2"),
        ({"out": torch.empty(3)}, "Expected out to have x's shape"),
    ],
)
def test_what_does_not_fit_is_no_assertion_error(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AssertionError, match="layer_norm_fn: .*" + sentence):
        layer_norm_fn(**{"x": X, "weight": W, "bias": B, **given})
