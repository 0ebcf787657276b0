"""planish.compat.quack: results and their order, backward with a residual's gradient, errors."""

from __future__ import annotations

from typing import Any

import pytest
from support import HALVES, NARROW

import planish
import torch
from planish.compat import quack
from torch import Tensor

X, R, W, B = torch.randn(6, 48), torch.randn(6, 48), torch.randn(48), torch.randn(48)


def exact(
    s: Tensor, weight: Tensor | None, bias: Tensor | None = None, offset: float = 0
) -> Tensor:
    s = s.double()
    y = s * (s.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    y = y if weight is None else y * (weight.double() + offset)
    return y if bias is None else y + bias.double()


def close(ours: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(ours, right.to(ours.dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_rmsnorm_returns_another_sum_or_dtype(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    y = quack.rmsnorm(x, W, B, weight_offset=1.0)
    assert isinstance(y, Tensor) and y.dtype == dtype
    close(y, exact(x, W, B, 1.0))
    y, total = quack.rmsnorm(x, W, residual=R, prenorm=True)
    assert total.dtype == torch.float32 and torch.equal(total, x.float() + R)
    close(y, exact(total, W))
    y, total = quack.rmsnorm(
        x, W, residual=R, prenorm=True, out_dtype=torch.float32, residual_dtype=dtype
    )
    assert (y.dtype, total.dtype) == (torch.float32, dtype)
    _, same = quack.rmsnorm(x, prenorm=True)
    assert same is x
    _, cast = quack.rmsnorm(x, prenorm=True, residual_dtype=torch.float32)
    assert torch.equal(cast, x.float()) and cast.dtype == torch.float32


def test_a_weight_for_each_head_is_one_for_all() -> None:
    x, weight, bias = torch.randn(2, 3, 4, 8), torch.randn(4, 8), torch.randn(4, 8)
    close(quack.rmsnorm(x, weight, bias), exact(x, weight, bias))


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_forward_and_backward_do_not_belong_together(dtype: torch.dtype, head: bool) -> None:
    x = torch.randn(5, 3, 16) if head else torch.randn(6, 48)
    x = x.to(dtype)
    weight, bias = torch.randn(x.shape[1:]), torch.randn(x.shape[1:])
    if not head:
        weight, bias = weight[-48:].reshape(48), bias.reshape(48)
    residual, dout = torch.randn_like(x), torch.randn_like(x)
    dsum = torch.randn_like(x)
    y, total, rstd = quack.rmsnorm_fwd(
        x, weight, bias, residual, store_rstd=True, weight_offset=1.0
    )
    assert rstd is not None and rstd.shape == x.shape[:-1] and rstd.dtype == torch.float32
    assert torch.equal(total, x + residual)
    close(y, exact(total, weight, bias, 1.0))
    assert quack.rmsnorm_fwd(x, weight)[1] is x and quack.rmsnorm_fwd(x, weight)[2] is None
    dx, dw, db, dresidual = quack.rmsnorm_bwd(total, weight, dout, rstd, dsum, True, True, 1.0)
    leaves = [t.double().requires_grad_() for t in (total, weight, bias)]
    right = torch.autograd.grad(
        [exact_graph(*leaves), leaves[0] * 1], leaves, [dout.double(), dsum.double()]
    )
    for ours, wanted in zip((dx, dw, db), right, strict=True):
        assert ours is not None
        torch.testing.assert_close(
            ours,
            wanted.to(ours.dtype),
            rtol=2e-2 if dtype in HALVES else 1e-5,
            atol=1e-2 if dtype in HALVES else 1e-5,
        )
    assert dresidual is dx
    wide = dsum.double().float() if dtype in HALVES else dsum.bfloat16()
    dx, _, none, dresidual = quack.rmsnorm_bwd(total, weight, dout, rstd, wide, weight_offset=1.0)
    assert none is None and dresidual is not None and dresidual.dtype == wide.dtype
    torch.testing.assert_close(dresidual.float(), dx.float(), rtol=1e-2, atol=1e-2)
    assert quack.rmsnorm_bwd(total, weight, dout, rstd)[3] is None


def exact_graph(s: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return s * (s.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (weight + 1) + bias


def test_gradients_of_rmsnorm_are_wrong() -> None:
    leaves = [t.clone().requires_grad_() for t in (X, W, B, R)]
    y, total = quack.rmsnorm(*leaves[:3], residual=leaves[3], prenorm=True, weight_offset=1.0)
    ours = torch.autograd.grad((y.sin() + total.cos()).sum(), leaves)
    wide = [t.double().detach().requires_grad_() for t in leaves]
    total = wide[0] + wide[3]
    right = torch.autograd.grad((exact_graph(total, *wide[1:3]).sin() + total.cos()).sum(), wide)
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_layer_norms_return_in_another_order(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    out, rstd, mean = quack.layernorm_fwd(x, W, B, return_rstd=True, return_mean=True)
    close(out, torch.layer_norm(x.double(), (48,), W.double(), B.double(), 1e-6))
    torch.testing.assert_close(mean, x.float().mean(-1))
    torch.testing.assert_close(rstd, (x.float().var(-1, unbiased=False) + 1e-6).rsqrt())
    assert isinstance(quack.layernorm_fwd(x, W), Tensor)
    assert torch.equal(quack.layernorm_fwd(x, W, B, return_rstd=True)[1], rstd)
    assert torch.equal(quack.layernorm_fwd(x, W, B, return_mean=True)[1], mean)
    dout = torch.randn(6, 48).to(dtype)
    ours = quack.layernorm_bwd(x, W, dout, rstd, mean)
    leaves = [t.double().requires_grad_() for t in (x, W, B)]
    right = torch.autograd.grad(
        torch.layer_norm(leaves[0], (48,), *leaves[1:], 1e-6), leaves, dout.double()
    )
    for one, other in zip(ours, right, strict=True):
        assert one is not None
        torch.testing.assert_close(
            one,
            other.to(one.dtype),
            rtol=1e-2 if dtype in HALVES else 1e-5,
            atol=1e-2 if dtype in HALVES else 1e-5,
        )
    assert quack.layernorm_bwd(x, W, dout, rstd, mean, has_bias=False)[2] is None


def test_the_module_is_no_rms_norm_of_torch() -> None:
    norm = quack.QuackRMSNorm(48)
    assert isinstance(norm, torch.nn.RMSNorm) and norm.eps == 1e-6
    assert list(norm.state_dict()) == ["weight"]
    assert torch.equal(norm(X), planish.rms_norm(X, -1, norm.weight, eps=1e-6))
    assert quack.QuackRMSNorm(48, elementwise_affine=False)(X).shape == X.shape


@pytest.mark.parametrize("has_bias", [False, True])
def test_no_rows_are_not_taken(has_bias: bool) -> None:
    x, weight, rstd = torch.empty(0, 48).bfloat16(), W.bfloat16(), torch.empty(0)
    y, total, found = quack.rmsnorm_fwd(x, weight, store_rstd=True)
    assert y.shape == total.shape == x.shape and found is not None and found.shape == (0,)
    dx, dw, db, _ = quack.rmsnorm_bwd(x, weight, x, rstd, has_bias=has_bias)
    assert dx.shape == x.shape and dw is not None and not dw.any() and dw.dtype == torch.bfloat16
    assert (db is not None and not db.any()) if has_bias else db is None


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: quack.rmsnorm(X.double(), W), AssertionError, "Unsupported dtype"),
        (lambda: quack.rmsnorm(X, W.double()), AssertionError, "Weight must be float32, float16"),
        (lambda: quack.rmsnorm(X, W, residual=R.double()), AssertionError, "Residual must be"),
        (lambda: quack.rmsnorm(X, W[:5]), ValueError, r"Mismatched weight.shape \[5\]"),
        (lambda: quack.rmsnorm(X, W, residual=R[:2]), ValueError, "Mismatched residual.shape"),
        (lambda: quack.rmsnorm(X, weight_offset=1.0), AssertionError, "requires a weight"),
        (lambda: quack.rmsnorm_bwd(X[0], W, X[0], X[0, 0]), AssertionError, "2D or 3D, but is 1D"),
        (lambda: quack.layernorm_fwd(X[None], W), AssertionError, "Input must be 2D, but is 3D"),
        (lambda: quack.layernorm_fwd(X, W.half()), AssertionError, "Weight must be float32"),
        (lambda: quack.layernorm_fwd(X, W, B.half()), AssertionError, "Bias must be float32"),
    ],
)
def test_what_does_not_fit_raises_another_exception(
    call: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        call()
