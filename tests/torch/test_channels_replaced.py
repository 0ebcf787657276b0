"""planish.replace() of norms over channels: what is taken, what is left, activations fused."""

from __future__ import annotations

from support import Calls

import planish
import torch
from torch import Tensor, nn

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"


class TimmLike(nn.LayerNorm):
    """What timm's LayerNorm2d is, under its name."""

    __module__, __qualname__ = "timm.layers.norm", "LayerNorm2d"

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TimmGroup(nn.GroupNorm):
    """What timm's GroupNorm is, under its name."""

    __module__, __qualname__ = "timm.layers.norm", "GroupNorm"


class TimmGroupAct(nn.GroupNorm):
    """What timm's GroupNormAct is, under its name."""

    __module__, __qualname__ = "timm.layers.norm_act", "GroupNormAct"

    def __init__(self, channels: int, groups: int, act: nn.Module, drop: nn.Module) -> None:
        super().__init__(groups, channels)
        self.drop, self.act = drop, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3),
            nn.GroupNorm(2, 6),
            nn.InstanceNorm2d(6, affine=True),
            TimmLike(6, eps=1e-6),
            nn.Conv2d(6, 4, 1),
            TimmGroup(2, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_replace_changes_results_or_parameters() -> None:
    model, x = Net(), torch.randn(2, 3, 8, 8)
    native = model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    calls = Calls()
    assert planish.replace(model) is model
    kinds = [type(module) for module in model.body]
    assert kinds[1:4] == [planish.GroupNorm, planish.InstanceNorm2d, planish.LayerNorm2d]
    assert kinds[5] is planish.GroupNorm
    assert model.body[3].channels_last  # as theirs is; on a GPU, tests/torch/test_cuda.py
    after = dict(model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in parameters)
    torch.testing.assert_close(model(x), native, rtol=1e-4, atol=1e-4)
    assert calls.on_planish(FORWARD) == 4
    model.load_state_dict(state)
    assert "activation" not in repr(model)
    planish.replace(model)
    assert [type(module) for module in model.body] == kinds
    planish.restore(model)
    assert type(model.body[3]) is TimmLike and "channels_last" not in vars(model.body[3])


def test_a_subclass_or_a_namesake_is_replaced() -> None:
    class LayerNorm2d(nn.LayerNorm):
        pass

    class Own(nn.GroupNorm):
        pass

    model = nn.Sequential(LayerNorm2d(6), Own(2, 6))
    kinds = [type(module) for module in model]
    planish.replace(model)
    assert [type(module) for module in model] == kinds


def test_a_group_norm_with_its_activation_is_not_replaced_or_another_is() -> None:
    x, same = torch.randn(2, 6, 5, 4), nn.Identity()
    for act, drop, name in (
        (nn.ReLU(inplace=True), same, "relu"),
        (nn.SiLU(), same, "silu"),
        (nn.Identity(), same, None),
        (nn.GELU(), same, ...),
        (nn.ReLU(), nn.Dropout(0.0), ...),
    ):
        model = nn.Sequential(TimmGroupAct(6, 3, act, drop))
        native, state = model(x), list(model.state_dict())
        planish.replace(model)
        assert list(model.state_dict()) == state
        torch.testing.assert_close(model(x), native, rtol=1e-5, atol=1e-6)
        assert type(model[0]) is (TimmGroupAct if name is ... else planish.GroupNorm)
        assert getattr(model[0], "activation", ...) is name
    alone = planish.replace(TimmGroupAct(6, 3, nn.SiLU(), same))
    assert (type(alone), alone.activation) == (planish.GroupNorm, "silu")


def test_replace_fuses_activations_unasked_or_where_it_must_not() -> None:
    shared, hooked = nn.GroupNorm(3, 6), nn.SiLU()
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        *(nn.GroupNorm(3, 6), nn.SiLU()),
        *(nn.GroupNorm(2, 6), nn.ReLU(), nn.ReLU()),
        *(nn.GroupNorm(2, 6), nn.GELU()),
        *(nn.GroupNorm(2, 6), hooked),
        *(shared, nn.SiLU(), shared),
    )
    x = torch.randn(2, 6, 5, 4)
    native = model(x)
    planish.replace(model)
    assert [getattr(module, "activation", None) for module in model] == [None] * len(model)
    planish.replace(model, activations=True)
    assert [getattr(module, "activation", None) for module in model[:4]] == [
        *("silu", None),
        *("relu", None),
    ]
    assert not any(getattr(module, "activation", None) for module in model[4:])
    identities = [i for i, module in enumerate(model) if type(module) is nn.Identity]
    assert identities == [1, 3]
    torch.testing.assert_close(model(x), native, rtol=1e-5, atol=1e-6)
