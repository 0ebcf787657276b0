"""Values at the edges of what functions take, as torch takes them: dropout of everything, the sizes
of several axes, modulations of one element, a scale beside per, whole numbers for Apex's norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planish
import torch
from planish import apex
from planish.apex.normalization import fused_layer_norm as apex_norms
from planish.compat import flash_attn, flashinfer
from torch import Tensor, nn

X, R = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
W, B = torch.randn(8), torch.randn(8)

# ---- dropout_p -----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 1.0])
@pytest.mark.parametrize("sum_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("norm", [planish.add_layer_norm, planish.add_rms_norm])
def test_dropout_of_everything_is_not_torchs(norm: Any, sum_dtype: Any, p: float) -> None:
    x = X.clone()
    x[0, 0, 0] = float("inf")
    tensors = [t.clone().requires_grad_() for t in (x, R, W, B)]
    y, total = norm(
        *tensors[:3], dropout_p=p, column_scale=tensors[3], sum_dtype=sum_dtype, eps=1e-3
    )
    residual = R if sum_dtype is None else R.to(sum_dtype)
    assert torch.equal(total, residual)
    gradients = torch.autograd.grad(y.sum() + total.float().sum(), tensors)
    assert not gradients[0].any()
    assert not gradients[3][1:].any()  # 0 * inf in the first, as the formula has it
    rest = [t.clone().requires_grad_() for t in (R, W)]
    wanted = norm(torch.zeros_like(X), *rest, sum_dtype=sum_dtype, eps=1e-3)
    torch.testing.assert_close(y, wanted[0])
    theirs = torch.autograd.grad(wanted[0].sum() + wanted[1].float().sum(), rest)
    torch.testing.assert_close(gradients[1:3], theirs)


@pytest.mark.parametrize("p", [0, 0.0, 1, 0.5])
def test_dropout_in_eval_drops(p: float) -> None:
    for _ in range(2):
        total = planish.add_rms_norm(X, R, W, dropout_p=p, training=False)[1]
        assert torch.equal(total, X + R)


def test_a_module_drops_a_part_of_everything() -> None:
    norm = planish.AddLayerNorm(8, dropout_p=1)
    assert torch.equal(norm(X, R)[1], R)
    assert torch.equal(norm.eval()(X, R)[1], X + R)
    _, total, mask = flash_attn.rms_norm_fn(
        X, W, None, residual=R, dropout_p=1.0, prenorm=True, return_dropout_mask=True
    )[:3]
    assert torch.equal(total, R)
    assert not mask.any()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("p", "kind"),
    [(-0.1, ValueError), (1.5, ValueError), (float("nan"), ValueError), (None, TypeError),
     ("0.5", TypeError), ([0.5], TypeError), (W, TypeError)],
    ids=lambda given: type(given).__name__ if isinstance(given, Tensor) else str(given),
)  # fmt: skip
def test_no_probability_is_taken_for_one(p: Any, kind: type[Exception], training: bool) -> None:
    planish.add_rms_norm(X, R, W, training=training)
    for call in (
        lambda: planish.add_layer_norm(X, R, W, B, dropout_p=p, training=training),
        lambda: planish.add_rms_norm(X, R, W, dropout_p=p, training=training),
        lambda: planish.AddLayerNorm(8, dropout_p=p),
        lambda: planish.AddRMSNorm(8, dropout_p=p),
    ):
        with pytest.raises(kind, match="dropout_p"):
            call()


# ---- normalized_shape ----------------------------------------------------------------------------

MODULES = [
    planish.AddLayerNorm,
    planish.AddRMSNorm,
    planish.ModulatedLayerNorm,
    planish.GatedRMSNorm,
]


def run(module: nn.Module, x: Tensor, other: Tensor) -> Any:
    return module(x, other, None) if "Modulated" in type(module).__name__ else module(x, other)


@pytest.mark.parametrize("size", [8, [8], (8,), torch.Size([8]), np.int64(8), (np.int64(8),)])
@pytest.mark.parametrize("kind", MODULES)
def test_a_size_in_another_form_is_refused(kind: type[nn.Module], size: Any) -> None:
    module, plain = kind(size, elementwise_affine=True), kind(8, elementwise_affine=True)
    assert (repr(module), module.dim, module.normalized_shape) == (repr(plain), 8, (8,))
    assert [p.shape for p in module.parameters()] == [p.shape for p in plain.parameters()]
    torch.testing.assert_close(run(module, X, R), run(plain, X, R))


def test_a_norm_over_two_axes_is_not_torchs() -> None:
    shape = (6, 8)
    layer, rms = nn.LayerNorm(shape), nn.RMSNorm(shape)
    for parameter in (*layer.parameters(), *rms.parameters()):
        nn.init.normal_(parameter)
    add_layer, add_rms = planish.AddLayerNorm(shape), planish.AddRMSNorm(list(shape), eps=None)
    modulated = planish.ModulatedLayerNorm(shape, eps=1e-5, elementwise_affine=True)
    gated = planish.GatedRMSNorm(torch.Size(shape), eps=None)
    for ours, theirs in ((add_layer, layer), (modulated, layer), (add_rms, rms), (gated, rms)):
        ours.load_state_dict(theirs.state_dict())
    y, total = add_layer(X, R, row_scale=torch.full((4,), 2.0), column_scale=B)
    assert total.shape == X.shape
    torch.testing.assert_close(total, X * 2 * B + R)
    torch.testing.assert_close(y, layer(total))
    y, total = add_rms(X, R)
    torch.testing.assert_close(y, rms(X + R))
    torch.testing.assert_close(gated(X, R), rms(X) * nn.functional.silu(R))
    for scale, shift in ((W, R), (R, None), (torch.randn(4, 1, 1), torch.randn(1, 6, 1))):
        wanted = layer(X) * (1 + scale) + (0 if shift is None else shift)
        torch.testing.assert_close(modulated(X, scale, shift), wanted)
    y, total = modulated(X, W, None, residual=R, gate=B)
    torch.testing.assert_close(y, layer(R + B * X) * (1 + W))
    assert "(6, 8)" in repr(gated)


@pytest.mark.parametrize("kind", MODULES)
def test_what_does_not_go_with_the_axes_has_no_sentence(kind: type[nn.Module]) -> None:
    for size in (None, 8.0, "8", True, W, (8, 1.5), b"8"):
        with pytest.raises(TypeError, match=f"{kind.__name__}: Expected dim to be a whole number"):
            kind(size)
    for size in (0, -1, (4, 0), ()):
        with pytest.raises(ValueError, match=f"{kind.__name__}: dim is"):
            kind(size)
    for size in (7, (6, 7), (4, 8)):
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: Expected x with"):
            run(kind(size, elementwise_affine=False), X, R)
    with pytest.raises(RuntimeError, match=r"Expected the last axes of \w+ to have the sizes"):
        run(kind((6, 8)), X, R[..., :5])


# ---- Modulations of one element ------------------------------------------------------------------

HALF = torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("given", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", [(1,), (1, 1, 1), (4, 1, 1), (1, 1, 8)], ids=str)
@pytest.mark.parametrize("norm", [planish.modulated_layer_norm, planish.modulated_rms_norm])
def test_a_modulation_of_one_element_is_wrong_or_refused(
    norm: Any, shape: tuple[int, ...], residual: bool, given: torch.dtype, dtype: torch.dtype
) -> None:
    x, r = X.to(dtype), R.to(dtype)
    scale, shift, gate = (torch.rand(shape).add(0.5).to(given) for _ in range(3))
    tensors = [t.clone().requires_grad_() for t in (x, scale, shift, gate, r)]
    around = {"residual": tensors[4], "gate": tensors[3]} if residual else {}
    for _ in range(2):  # the second is a known call
        y = norm(*tensors[:3], W, B, **around)
    y = y[0] if residual else y
    exact = [t.detach().double().requires_grad_() for t in tensors]
    s = exact[0]
    if residual:
        s = exact[4] + exact[3] * s
        s = s + (s.detach().to(dtype).double() - s.detach())  # the sum as it is rounded
    centred = s if norm is planish.modulated_rms_norm else s - s.mean(-1, keepdim=True)
    z = centred * (centred.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * W + B
    wanted = z * (1 + exact[1]) + exact[2]
    close = {"rtol": 8e-3, "atol": 8e-3} if HALF in (dtype, given) else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(y.double(), wanted, **close)
    dy = torch.rand(X.shape).to(dtype)
    used = 5 if residual else 3
    ours = torch.autograd.grad(y, tensors[:used], dy)
    theirs = torch.autograd.grad(wanted, exact[:used], dy.double())
    for mine, their, tensor in zip(ours, theirs, tensors, strict=False):
        assert (mine.shape, mine.dtype) == (tensor.shape, tensor.dtype)
        room = close["atol"] * max(their.abs().max().item(), 1.0)
        torch.testing.assert_close(mine.double(), their, rtol=close["rtol"], atol=room)


@pytest.mark.parametrize("columns", [1, 8])
def test_one_column_or_a_weight_for_each_head_meets_a_gate_of_one_element(columns: int) -> None:
    x, r, weight = torch.randn(3, 2, columns), torch.randn(3, 2, columns), torch.randn(2, columns)
    for shape in ((1,), (1, 1, 1)):
        gate = torch.full(shape, 0.5)
        for _ in range(2):
            y, total = planish.modulated_rms_norm(x, gate, gate, weight, residual=r, gate=gate)
        torch.testing.assert_close(total, r + 0.5 * x)
        normed = nn.functional.rms_norm(total, (columns,), None, 1e-6) * weight
        torch.testing.assert_close(y, normed * 1.5 + 0.5)


# ---- Wrong in silence ----------------------------------------------------------------------------


def test_per_is_dropped_beside_a_scale() -> None:
    scale = torch.tensor(0.1)
    for norm in (planish.quantized_rms_norm, planish.quantized_layer_norm):
        for per in ("row", 128, 64, 32):
            with pytest.raises(ValueError, match="a static scale is one for the whole tensor"):
                norm(X, W, per=per, scale=scale)
        q, given = norm(X, W, scale=scale)
        wanted, _ = norm(X, W, per="tensor", scale=scale)
        assert torch.equal(q.float(), wanted.float())
        assert given is scale
        assert norm(X, W)[1].shape == norm(X, W, per="row")[1].shape == (4, 6, 1)
        for per in (W, [128], 1.5, True, b"row"):
            with pytest.raises(ValueError, match="per is"):
                norm(X, W, per=per)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("on", [False, True])
def test_apexs_norms_round_to_whole_numbers(on: bool, dtype: torch.dtype) -> None:
    x = torch.arange(16).reshape(2, 8).to(dtype)
    with planish.enabled() if on else torch.enable_grad():
        for kind in (
            apex.FusedLayerNorm,
            apex.FusedRMSNorm,
            apex.MixedFusedLayerNorm,
            apex.MixedFusedRMSNorm,
            apex.FastLayerNorm,
        ):
            with pytest.raises(NotImplementedError, match="not implemented"):
                kind(8)(x)
        with pytest.raises(NotImplementedError, match="weight"):
            apex_norms.mixed_dtype_fused_rms_norm_affine(x.float(), x[0], (8,))


def test_a_sum_without_a_residual_is_a_norm_alone() -> None:
    for call in (
        lambda: flashinfer.fused_add_rmsnorm(X.clone(), None, W),
        lambda: flashinfer.gemma_fused_add_rmsnorm(X.clone(), None, W),
        lambda: flashinfer.fused_add_rmsnorm_quant(
            torch.empty(X.shape, dtype=torch.float8_e4m3fn), X, None, W, 1.0
        ),
    ):
        with pytest.raises(TypeError, match="Expected residual to be a tensor, but got NoneType"):
            call()


TRUTHS = {
    "training": lambda given: planish.batch_norm(X.flatten(0, 1), None, None, training=given),
    "norm_before_gate": lambda given: planish.gated_rms_norm(X, X, W, norm_before_gate=given),
    "transposed_scales": lambda given: planish.quantized_rms_norm(X, W, transposed_scales=given),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_what_is_neither_true_nor_false_is_named(name: str) -> None:
    good = name == "training"
    wanted = TRUTHS[name](good)
    for given in (int(good), np.bool_(good)):
        found = TRUTHS[name](given)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for given in ("False", None, 0.5, (), [True], torch.tensor(True), object()):
        with pytest.raises(TypeError, match=f"Expected {name} to be True or False, but got"):
            TRUTHS[name](given)
    if name == "training":
        with pytest.raises(TypeError, match="training to be True or False"):
            planish.add_rms_norm(X, X, W, dropout_p=0.1, training="no")  # type: ignore[arg-type]
