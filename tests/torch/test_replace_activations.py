"""planish.replace(activations=True): what goes into the group norm before it."""

from __future__ import annotations

import copy
import pickle

import pytest
from replace_support import FORWARD, AbsNorm, LlamaNorm
from support import Calls

import planish
import torch
from planish import zoo
from planish.replacing import pairs, swapped
from torch import Tensor, nn


class Head(nn.Module):
    """A norm and its activation as attributes; the second activation serves twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_out, self.act_out = nn.GroupNorm(2, 8), nn.SiLU()
        self.norm_in, self.act_in = nn.GroupNorm(2, 8), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_in(x)
        x = self.act_in(x)
        y = self.act_in(x)
        if self.norm_out is not None:
            y = self.norm_out(y)
            y = self.act_out(y)
        return y


def test_activations_that_are_attributes_are_fused_where_they_must_not_or_stay_fused() -> None:
    assert pairs.of(Head) == (("norm_out", "act_out"),)
    model, x = nn.Sequential(Head(), nn.GroupNorm(4, 8), nn.ReLU()), torch.randn(2, 8, 6, 6)
    native, silu, relu = model(x), model[0].act_out, model[2]
    planish.replace(model)
    assert planish.replaced(model).fused == 0
    planish.replace(model, activations=True)
    assert (model[0].norm_out.activation, model[0].norm_in.activation) == ("silu", None)
    assert planish.replaced(model).fused == 2
    torch.testing.assert_close(model(x), native)
    other = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(other(x), native)
    for one in (model, other):
        planish.restore(one)
        assert torch.equal(one(x), native)
    assert (model[0].act_out, model[2]) == (silu, relu)


def needs(*packages: str) -> None:
    missing = zoo.missing_packages(packages)
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    zoo.prepare()


@pytest.mark.parametrize("norm", ["default", "scale_shift"])
@pytest.mark.parametrize("resample", [{}, {"up": True}, {"down": True}], ids=str)
def test_diffusers_resnet_block_is_not_fused_or_differs(
    norm: str, resample: dict[str, bool]
) -> None:
    needs("diffusers")
    from diffusers.models.resnet import ResnetBlock2D

    block = ResnetBlock2D(
        in_channels=16,
        out_channels=24,
        temb_channels=8,
        groups=4,
        time_embedding_norm=norm,
        **resample,
    )
    x, temb = torch.randn(2, 16, 8, 8, requires_grad=True), torch.randn(2, 8)
    native = block(x, temb)
    dx = torch.autograd.grad(native.pow(2).sum(), x)[0]
    planish.replace(block, activations=True)
    assert isinstance(block, ResnetBlock2D)
    assert planish.replaced(block).fused == (2 if norm == "default" else 1)
    calls = Calls()
    y = block(x, temb)
    assert calls.on_planish(*FORWARD) == 2
    torch.testing.assert_close(y, native, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(y.pow(2).sum(), x)[0], dx, rtol=1e-3, atol=1e-4)
    other = copy.deepcopy(block)
    assert torch.equal(other(x, temb), y)
    seen = []
    block.nonlinearity.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(block(x, temb), native, rtol=1e-4, atol=1e-5)
    assert len(seen) == 3  # a hook sees what it saw
    planish.restore(other)
    assert type(other) is ResnetBlock2D
    assert torch.equal(other(x, temb), native)


def test_a_library_with_other_mathematics_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("transformers")
    from transformers.models.llama import modeling_llama

    cls = modeling_llama.LlamaRMSNorm
    module = cls(16)
    planish.replace(module)
    assert planish.replaced(module).modules_taken == 1
    monkeypatch.setattr(cls, "forward", AbsNorm.forward)
    with pytest.warns(UserWarning, match="LlamaRMSNorm"):
        other = planish.replace(cls(16))
    assert type(other) is cls


def test_a_swapped_module_is_looked_for_by_its_dtype() -> None:
    module = planish.replace(LlamaNorm(16))
    decision = swapped.decide(LlamaNorm(16).to(torch.float8_e4m3fn))
    assert isinstance(decision, str)
    assert "float8" in decision
    assert type(module)._planish_proof.same_rounding
