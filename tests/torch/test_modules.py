"""planish.LayerNorm, RMSNorm and replace(): torch's modules in everything but who computes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from support import GROUP, LAYER, RMS, Calls

import planish
import torch
from torch import Tensor, nn

FORWARD = "planish::norm_forward"


@pytest.mark.parametrize("pair", [(planish.LayerNorm, nn.LayerNorm), (planish.RMSNorm, nn.RMSNorm)])
@pytest.mark.parametrize("shape", [8, (4, 8)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_a_module_differs_from_torchs(
    pair: tuple[type[nn.Module], type[nn.Module]], shape: object, affine: bool
) -> None:
    ours, torchs = (cls(shape, elementwise_affine=affine) for cls in pair)
    assert isinstance(ours, pair[1])
    for parameter in torchs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(torchs.state_dict())
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert ours.extra_repr() == torchs.extra_repr()
    x = torch.randn(3, 4, 8, requires_grad=True)
    calls = Calls()
    y, z = ours(x), torchs(x)
    torch.testing.assert_close(y, z)
    leaves = [x, *ours.parameters()], [x, *torchs.parameters()]
    gradients = torch.autograd.grad(y.pow(2).sum(), leaves[0])
    for mine, theirs in zip(gradients, torch.autograd.grad(z.pow(2).sum(), leaves[1]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert calls.on_planish(FORWARD) == 1


@pytest.mark.parametrize("cls", [planish.LayerNorm, planish.RMSNorm])
def test_what_planish_does_not_run_fails_in_a_module(cls: type[nn.Module]) -> None:
    module = cls(8)
    with pytest.raises(RuntimeError, match="Given normalized_shape"):
        module(torch.randn(3, 5))
    with pytest.raises(NotImplementedError):
        cls(8, elementwise_affine=False)(torch.ones(3, 8, dtype=torch.int32))
    assert cls(8, device="meta")(torch.empty(3, 8, device="meta")).shape == (3, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.tied = self.norm
        self.body = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.LayerNorm(8, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.body(self.norm(x)))


class OwnNorm(nn.LayerNorm):
    pass


def test_replace_loses_parameters_hooks_or_flags() -> None:
    model = Block().eval().double()
    model.body[1].train()
    model.norm.weight.requires_grad_(False)
    seen = []
    model.norm.register_forward_hook(lambda *_: seen.append("hook"))
    model.norm.note = "kept"
    x = torch.randn(3, 8, dtype=torch.float64)
    native = model(x)
    parameters = dict(model.named_parameters())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    seen.clear()

    calls = Calls()
    assert planish.replace(model) is model
    assert type(model.norm) is planish.LayerNorm
    assert type(model.body[1]) is planish.RMSNorm
    assert model.tied is model.norm
    after = dict(model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in parameters)
    assert model.body[1].training
    assert not model.norm.training
    assert model.norm.note == "kept"
    torch.testing.assert_close(model(x), native)
    assert calls.on_planish(FORWARD) == 4
    assert seen == ["hook", "hook"]
    model(x).pow(3).sum().backward()
    optimizer.step()
    assert not torch.equal(model.body[0].weight, state["body.0.weight"])
    model.load_state_dict(state)
    torch.testing.assert_close(model(x), native)


def test_replace_touches_subclasses_or_misses_the_root() -> None:
    own = nn.Sequential(OwnNorm(8))
    planish.replace(own)
    assert type(own[0]) is OwnNorm
    root = nn.LayerNorm(8)
    new = planish.replace(root)
    assert type(new) is planish.LayerNorm
    assert new.weight is root.weight
    assert type(planish.replace(new)) is planish.LayerNorm


def test_replaced_models_cannot_be_copied_pickled_or_compiled() -> None:
    model, x = planish.replace(Block()), torch.randn(3, 8)
    native = model(x)
    torch.testing.assert_close(copy.deepcopy(model)(x), native)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), native)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), native)


def test_half_models_under_autocast_differ() -> None:
    model, x = Block(), torch.randn(3, 8)
    replaced = planish.replace(copy.deepcopy(model))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        native, ours = model(x), replaced(x)
    assert ours.dtype == native.dtype
    torch.testing.assert_close(ours, native, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize(
    ("make", "operator"),
    [
        (lambda **k: planish.LayerNorm(16, **k), LAYER),
        (lambda **k: planish.RMSNorm(16, **k), RMS),
        (lambda **k: planish.GroupNorm(4, 16, **k), GROUP),
    ],
    ids=["LayerNorm", "RMSNorm", "GroupNorm"],
)
def test_while_enabled_modules_are_torchs_operators(make: Any, operator: str) -> None:
    """Of one dtype and dense: that costs the host least."""
    x = torch.randn(2, 16, 16)
    module, mixed = make(), make(dtype=torch.float64)
    y = module(x)
    calls = Calls()
    with planish.enabled():
        assert torch.equal(module(x), y)
        assert calls.on_planish(operator) == 1 and calls.on_planish(FORWARD) == 0
        mixed(x)
        assert calls.on_planish(operator) == 1 and calls.on_planish(FORWARD) == 1
