"""planish.compat.liger: values of each casting mode, modules and their states, patching, errors."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from support import HALVES, NARROW
from torch.autograd import gradcheck

import planish
import torch
from planish.compat import liger, liger_models
from torch import Tensor, nn


def llama(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The order of rounding of Llama's RMSNorm in Transformers."""
    wide = x.float()
    xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * xhat.to(x.dtype)


def gemma(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (xhat * (1.0 + weight.float())).type_as(x)


def mostly_equal(ours: Tensor, theirs: Tensor) -> None:
    """The float statistics' last bit may differ, and round a value to its neighbour."""
    assert ours.dtype == theirs.dtype
    assert (ours == theirs).float().mean() > 0.995
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_casting_mode_rounds_in_another_order(dtype: torch.dtype) -> None:
    x, weight = torch.randn(64, 96).to(dtype), torch.randn(96).to(dtype)
    mostly_equal(liger.liger_rms_norm(x, weight, 1e-6), llama(x, weight, 1e-6))
    ours = liger.liger_rms_norm(x, weight, 1e-6, 1.0, "gemma")
    mostly_equal(ours, gemma(x, weight, 1e-6))
    none = liger.liger_rms_norm(x, weight, 1e-6, 1.0, "none")
    assert torch.equal(none, ours)
    assert liger.liger_rms_norm(x, weight.float(), 1e-6).dtype == dtype
    assert torch.equal(
        liger.liger_rms_norm(x, weight, 1e-6, 0.0, 0),
        liger.liger_rms_norm(x, weight, 1e-6, 0.0, "llama"),
    )


@pytest.mark.parametrize("mode", ["llama", "gemma", "none"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_sum_is_not_in_xs_dtype(dtype: torch.dtype, mode: str) -> None:
    x, residual = torch.randn(8, 32).to(dtype), torch.randn(8, 32).to(dtype)
    weight = torch.randn(32)
    y, total = liger.liger_fused_add_rms_norm(x, residual, weight, 1e-6, 1.0, mode)
    assert torch.equal(total, x + residual) and total.dtype == dtype
    assert torch.equal(y, liger.liger_rms_norm(total, weight, 1e-6, 1.0, mode))


@pytest.mark.parametrize("mode", ["llama", "gemma"])
@pytest.mark.parametrize("rows", [(32,), (1, 32), (4, 32), (4, 1, 32), (12, 32), (4, 3, 32)])
def test_a_modulation_is_of_other_rows(rows: tuple[int, ...], mode: str) -> None:
    x, weight = torch.randn(4, 3, 32), torch.randn(32)
    scale, shift = torch.randn(rows), torch.randn(rows)
    y = liger.liger_modulated_rms_norm(x, weight, scale, shift, casting_mode=mode)
    count = scale.numel() // 32
    spread = [
        t.reshape(count, 1, 32).expand(count, 12 // count, 32).reshape(x.shape)
        for t in (scale, shift)
    ]
    wanted = planish.rms_norm(x, -1, weight, eps=1e-6) * (1 + spread[0]) + spread[1]
    torch.testing.assert_close(y, wanted)
    alone = liger.liger_modulated_rms_norm(x, None, scale, casting_mode=mode)
    torch.testing.assert_close(alone, planish.rms_norm(x, -1, eps=1e-6) * (1 + spread[0]))


def test_gradients_are_wrong() -> None:
    x, r, s = (torch.randn(2, 3, 6).double().requires_grad_() for _ in range(3))
    w = torch.randn(6).double().requires_grad_()
    w3, b = (torch.randn(n).double().requires_grad_() for n in (3, 1))
    assert gradcheck(lambda x, w: liger.liger_rms_norm(x, w, 1e-3, 1.0), (x, w))
    assert gradcheck(lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, 1e-3), (x, r, w))
    assert gradcheck(lambda x, w, s: liger.liger_modulated_rms_norm(x, w, s, s), (x, w, s))
    assert gradcheck(lambda x, w, b: liger.liger_poly_norm(x, w, b), (x, w3, b))
    assert gradcheck(lambda x, w: liger.liger_layer_norm(x, w, w, 1e-3), (x, w))


def test_poly_norm_is_another_polynomial() -> None:
    x, module = torch.randn(5, 40), liger.LigerPolyNorm()
    wide = x.double()
    norms = [
        p / (p.square().mean(-1, keepdim=True) + 1e-6).sqrt() for p in (wide**3, wide**2, wide)
    ]
    wanted = sum(norms) / 3 + 1
    torch.testing.assert_close(module(x), wanted.float(), rtol=1e-5, atol=1e-5)
    assert {k: tuple(v.shape) for k, v in module.state_dict().items()} == {
        "weight": (3,),
        "bias": (),
    }


PRESETS: list[tuple[str, float, str, float, bool]] = [
    ("LigerRMSNorm", 0.0, "llama", 1.0, True),
    ("LigerRMSNormForGemma", 1.0, "gemma", 0.0, True),
    ("LigerRMSNormForGemma2", 1.0, "gemma", 0.0, False),
    ("LigerRMSNormForGemma3", 1.0, "gemma", 0.0, False),
    ("LigerRMSNormForGemma4", 0.0, "gemma", 1.0, False),
    ("LigerRMSNormForOlmo2", 0.0, "llama", 1.0, False),
    ("LigerRMSNormForGlm4", 0.0, "llama", 1.0, False),
    ("LigerRMSNormForQwen3Next", 1.0, "gemma", 0.0, False),
]


@pytest.mark.parametrize(("name", "offset", "mode", "first", "in_place"), PRESETS)
def test_a_preset_has_other_defaults(
    name: str, offset: float, mode: str, first: float, in_place: bool
) -> None:
    cls = getattr(liger, name)
    module = cls(16, 1e-5)
    assert cls.__name__ == name and list(module.state_dict()) == ["weight"]
    assert (module.offset, module.casting_mode, module.in_place) == (offset, mode, in_place)
    assert module.variance_epsilon == 1e-5 and torch.equal(module.weight, torch.full((16,), first))
    x = torch.randn(3, 16)
    torch.testing.assert_close(module(x), planish.rms_norm(x, -1, eps=1e-5))
    repr(module)


def test_modules_have_other_states_than_ligers() -> None:
    x = torch.randn(2, 6, 5)
    assert liger.LigerRMSNorm(5, elementwise_affine=False).weight is None
    assert liger.LigerRMSNormForGemma4(5, with_scale=False)(x).shape == x.shape
    layer = liger.LigerLayerNorm(5)
    assert not layer.bias.any() and liger.LigerLayerNorm(5, bias=True).bias.all()
    torch.testing.assert_close(layer(x), planish.layer_norm(x, -1, eps=1e-6))
    group = liger.LigerGroupNorm(6, 3)
    assert list(group.state_dict()) == ["weight", "bias"] and repr(group)
    torch.testing.assert_close(group(x), planish.group_norm(x, 3, eps=1e-6))
    fused = liger.LigerFusedAddRMSNorm(5)
    _, total = fused(x, x)
    assert torch.equal(total, x + x) and not fused.in_place
    modulated = liger.LigerModulatedRMSNorm(5)
    assert torch.equal(
        modulated(x, x, x), liger.liger_modulated_rms_norm(x, modulated.weight, x, x)
    )
    dy = torch.ones(2, 6, 5)
    liger.LigerRMSNorm(5, in_place=True)(x.requires_grad_()).backward(dy)
    assert torch.equal(dy, torch.ones(2, 6, 5))  # never written to


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: liger.LigerRMSNorm(4, init_fn="randn"), AssertionError, "got randn"),
        (lambda: liger.LigerGroupNorm(4, 3), AssertionError, "4 must be divisible by num_groups 3"),
        (lambda: liger.LigerGroupNorm(4, 2)(torch.ones(2, 4)), AssertionError, "at least 3 dim"),
        (lambda: liger.LigerGroupNorm(4, 2)(torch.ones(2, 6, 1)), AssertionError, "4 channels"),
        (
            lambda: liger.liger_rms_norm(torch.ones(4), torch.ones(4), 1e-6, 0.0, "half"),
            AssertionError,
            "Invalid casting mode: half",
        ),
        (
            lambda: liger.liger_rms_norm(torch.ones(2, 4), torch.ones(3), 1e-6),
            AssertionError,
            "X has 4 columns",
        ),
        (
            lambda: liger.liger_layer_norm(torch.ones(2, 4), torch.ones(3), torch.ones(3), 1e-6),
            ValueError,
            r"X.shape\[-1\]=4",
        ),
        (
            lambda: liger.liger_modulated_rms_norm(torch.ones(3, 4), None, torch.ones(2, 4)),
            AssertionError,
            "scale has 2 rows, which do not divide the 3 rows of X",
        ),
        (
            lambda: liger.liger_modulated_rms_norm(torch.ones(3, 4), None, torch.ones(5)),
            AssertionError,
            "multiple of the hidden size 4",
        ),
        (
            lambda: liger.liger_modulated_rms_norm(
                torch.ones(3, 4), None, torch.ones(4), torch.ones(3, 4)
            ),
            AssertionError,
            "shift must",
        ),
        (
            lambda: liger.liger_poly_norm(torch.ones(3), torch.ones(2), torch.ones(1)),
            AssertionError,
            "shape",
        ),
    ],
)
def test_what_does_not_fit_raises_another_exception(
    call: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        call()


# ---- Patching -----------------------------------------------------------------------------------


class LlamaLikeRMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return llama(hidden_states, self.weight, self.variance_epsilon)


class GemmaLikeRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return gemma(x, self.weight, self.eps)


class OtherRMSNorm(LlamaLikeRMSNorm):
    """One that planish does not have."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states).tanh()


def test_classes_are_not_rebound_or_others_are() -> None:
    module = types.ModuleType("modeling_of_a_test")
    for cls in (LlamaLikeRMSNorm, GemmaLikeRMSNorm, OtherRMSNorm):
        copy = type(cls.__name__, (cls,), {"__module__": module.__name__})
        setattr(module, cls.__name__, copy)
    before = module.OtherRMSNorm, module.LlamaLikeRMSNorm
    taken = liger_models.patch_classes(module)
    assert taken == ["LlamaLikeRMSNorm", "GemmaLikeRMSNorm"]
    assert module.OtherRMSNorm is before[0]
    assert issubclass(module.LlamaLikeRMSNorm, before[1])
    assert liger_models.patch_classes(module) == []
    x = torch.randn(4, 32).bfloat16()
    assert not planish.replaced(before[1](32)).taken  # what was bound before is left
    norm = module.LlamaLikeRMSNorm(32, 1e-5).bfloat16()
    assert planish.replaced(norm).taken
    assert torch.equal(norm(x), planish.rms_norm(x, -1, norm.weight, eps=1e-5, cast="xhat"))


def test_a_model_loses_its_parameters_or_keeps_its_norms() -> None:
    model = nn.Sequential(
        LlamaLikeRMSNorm(8), nn.LayerNorm(8), GemmaLikeRMSNorm(8), OtherRMSNorm(8), nn.Linear(8, 8)
    )
    x, state = torch.randn(2, 8), model.state_dict()
    wanted = model(x)
    assert liger.apply_planish_to("llama", model) == ["0", "1", "2"]
    assert type(model[1]) is planish.LayerNorm and isinstance(model[0], LlamaLikeRMSNorm)
    assert all(
        torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values(), strict=True)
    )
    torch.testing.assert_close(model(x), wanted)
    assert liger.apply_planish_to("llama", model) == []
    planish.restore(model)
    assert type(model[0]) is LlamaLikeRMSNorm and type(model[1]) is nn.LayerNorm


def test_switches_that_planish_has_not_are_taken() -> None:
    model = nn.Sequential(nn.LayerNorm(4))
    assert liger.apply_planish_to("llama", model, rope=False, layer_norm=False) == []
    with pytest.raises(ValueError, match="swiglu is True; planish has norms only"):
        liger.apply_planish_to("llama", model, swiglu=True)
    with pytest.raises(TypeError, match="unexpected argument 'fast'"):
        liger.apply_planish_to("llama", model, fast=False)


def test_classes_of_transformers_are_not_found() -> None:
    try:
        from transformers.models.llama import modeling_llama
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"transformers' models cannot be imported: {error}")
    original = modeling_llama.LlamaRMSNorm
    try:
        assert liger.apply_planish_to("llama") == ["LlamaRMSNorm"]
        assert modeling_llama.LlamaRMSNorm is not original
    finally:
        modeling_llama.LlamaRMSNorm = original
        sys.modules.pop("modeling_of_a_test", None)
    with pytest.raises(ValueError, match="model_type is 'no_such_model'"):
        liger.apply_planish_to("no_such_model")
