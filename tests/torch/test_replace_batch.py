"""replace() on models with BatchNorm: what is taken, what is fused, and what comes back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from support import Calls

import planish
import torch
from torch import Tensor, nn

FORWARD = ("planish::batch_norm", "planish::norm_apply")


class Block(nn.Module):
    """As torchvision's."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d, down: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.bn1, self.bn2 = norm(6), norm(6)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(6, 6, 1), norm(6)) if down else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        return out  # noqa: RET504 as torchvision has it


class Apart(Block):
    """The sum is no statement in place, and something does nothing between."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing, self.se = nn.Identity(), None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y = self.bn1(y)
        y = self.nothing(y)
        y = self.relu(y)
        y = self.bn2(self.conv2(y))
        if self.se is not None:
            y = self.se(y)
        y = x + y
        return self.relu(y)


class Unlike(Block):
    """What stands between is about the same variable, or the norm is called again."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y = self.bn1(y)
        y = y * 2
        y = self.relu(y)
        y = self.bn2(y)
        y = y + y.mean()
        return self.relu(y)


class Nested(Block):
    """One expression."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y))) + x


def results(model: nn.Module, x: Tensor) -> list[Tensor]:
    found = []
    for training in (True, False):
        model.train(training)
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(y.square().sum(), [leaf, *parameters], allow_unused=True)
        found += [y, *(t for t in gradients if t is not None)]
    return [*found, *model.buffers()]


def check(model: nn.Module, x: Tensor, fused: int, calls: int, **how: bool) -> None:
    """Replaces a copy: the results are the original's, and so is what restore() gives back."""
    other = copy.deepcopy(model)
    expected = results(model, x)
    planish.replace(other, **how)
    made = planish.replaced(other)
    assert made.modules_left == 0
    assert made.fused == fused
    counted = Calls()
    ours = results(other, x)
    assert counted.on_planish(*FORWARD) == 2 * calls
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    again = pickle.loads(pickle.dumps(other))
    torch.testing.assert_close(again.eval()(x), other.eval()(x))
    planish.restore(other)
    assert [type(one) for one in other.modules()] == [type(one) for one in model.modules()]
    torch.testing.assert_close(results(other, x)[0], results(model, x)[0])


X = torch.randn(4, 6, 7, 5)
#: What planish fuses.
ACTIVATIONS = [nn.ReLU, nn.SiLU, nn.GELU, lambda: nn.GELU("tanh"), nn.ReLU6, nn.Hardswish]


def test_plain_norms_are_left() -> None:
    model = nn.Sequential(nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU())
    check(model, X, 0, 2)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_an_activation_stays_apart(act: Callable[[], nn.Module]) -> None:
    check(nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), act()), X, 1, 1, activations=True)


@pytest.mark.parametrize("act", [nn.LeakyReLU, nn.Mish, nn.Tanh])
def test_an_activation_that_planish_has_not_is_lost(act: type[nn.Module]) -> None:
    check(nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), act()), X, 0, 1, activations=True)


@pytest.mark.parametrize(("how", "fused"), [("activations", 1), ("fuse", 2)])
@pytest.mark.parametrize("block", [Block, lambda: Block(down=False)], ids=["down", "plain"])
def test_a_residual_block_differs(block: Callable[[], nn.Module], how: str, fused: int) -> None:
    model = block()
    check(model, X, fused, 3 if model.downsample is not None else 2, **{how: True})


def test_a_block_written_otherwise_differs() -> None:
    check(Apart(), X, 2, 2, fuse=True)
    check(Unlike(), X, 0, 2, fuse=True)
    check(Nested(), X, 2, 2, activations=True)


def test_what_is_added_is_a_pass_of_its_own() -> None:
    model = planish.replace(Block(), fuse=True)
    sums: list[str] = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            sums.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Mode():
        model(X)
    assert not any(name.startswith(("aten.add.", "aten.relu")) for name in sums), sums
    assert sums.count("aten.add_.Tensor") == 3  # of num_batches_tracked


def test_hooks_or_other_residuals_are_passed_over() -> None:
    seen: list[int] = []
    for change in ("dtype", "hook"):
        model = Block(down=False).eval()
        expected = model(X)
        planish.replace(model, fuse=True)
        if change == "hook":
            model.bn2.register_forward_hook(lambda *_: seen.append(1))
        else:
            model.conv2.register_forward_hook(lambda m, i, y: y.double().float())
        torch.testing.assert_close(model(X), expected, rtol=1e-4, atol=1e-4)
        assert len(seen) == (change == "hook")


def test_a_hook_that_came_before_is_passed_over() -> None:
    model = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU())
    model[0].register_forward_hook(lambda m, i, y: -y)
    expected = model.eval()(X)
    planish.replace(model, activations=True)
    torch.testing.assert_close(model(X), expected)


def test_a_compiled_block_differs() -> None:
    model = Block()
    other = planish.replace(copy.deepcopy(model), fuse=True)
    torch.testing.assert_close(
        torch.compile(other, backend="aot_eager", fullgraph=True)(X), model(X), rtol=1e-4, atol=1e-4
    )


class Frozen(nn.Module):
    """As detectron2's: by what it computes."""

    def __init__(self, channels: int, twice: bool = False) -> None:
        super().__init__()
        self.eps, self.twice = 1e-5, twice
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            bias = self.bias - self.running_mean * scale
            y = x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)
        else:
            y = F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return 2 * y if self.twice else y


def test_a_frozen_norm_is_left() -> None:
    check(nn.Sequential(nn.Conv2d(6, 6, 1), Frozen(6)), X, 0, 1)
    torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
    norm = torchvision.ops.FrozenBatchNorm2d(6)
    for buffer in norm.buffers():
        buffer.uniform_(0.5, 2)
    check(nn.Sequential(nn.Conv2d(6, 6, 1), norm), X, 0, 1)


class Map(Frozen):
    """An affine map of other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.reshape(1, -1, 1, 1) + self.bias.reshape(1, -1, 1, 1)


def test_an_affine_map_of_another_kind_is_taken() -> None:
    model = nn.Sequential(Map(6), nn.LayerNorm(5))
    planish.replace(model)
    assert type(model[0]) is Map
    assert "not that of a batch norm" in str(planish.replaced(model))


def test_a_frozen_norm_of_another_dtype_changes_its_results() -> None:
    norm = nn.Sequential(Frozen(6))
    x = X.bfloat16()
    expected = norm(x.requires_grad_())
    planish.replace(norm)
    assert norm(x).dtype == expected.dtype
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize(
    ("name", "activations", "how"),
    [("resnet26", 24, "fuse"), ("efficientnet_b0", 0, "activations"), ("regnety_002", 0, "fuse")],
)
def test_a_model_of_timms_differs(name: str, activations: int, how: str) -> None:
    timm: Any = pytest.importorskip("timm", reason="timm is not installed")
    model = timm.create_model(name, num_classes=10, drop_rate=0.0, drop_path_rate=0.0)
    other = planish.replace(copy.deepcopy(model), **{how: True})
    made = planish.replaced(other)
    assert made.modules_left == 0
    assert made.fused == activations
    x = torch.randn(4, 3, 64, 64)
    for training in (True, False):
        ours, expected = other.train(training)(x), model.train(training)(x)
        assert (ours - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("act", [nn.Tanh, nn.Mish, nn.LeakyReLU])
def test_timms_norm_loses_what_planish_does_not_fuse(act: type[nn.Module]) -> None:
    norm_act: Any = pytest.importorskip("timm.layers.norm_act", reason="timm is not installed")
    fused = norm_act.BatchNormAct2d(6, act_layer=nn.SiLU)
    apart = norm_act.BatchNormAct2d(6, act_layer=act)
    model = nn.Sequential(fused, apart)
    for training in (True, False):
        other = copy.deepcopy(model).train(training)
        planish.replace(model.train(training))
        assert type(fused) is planish.BatchNorm2d and fused.activation == "silu"
        assert isinstance(apart, planish.BatchNorm2d) and apart.activation is None
        assert "BatchNorm2dThenActivation" in str(planish.replaced(model))
        torch.testing.assert_close(model(X), other(X))
        torch.testing.assert_close(apart.running_mean, other[1].running_mean)
        planish.restore(model)
        assert type(apart) is norm_act.BatchNormAct2d and "activation" not in apart.__dict__
        model.load_state_dict(other.state_dict())


def test_a_norm_with_more_behind_it_is_taken() -> None:
    norm_act: Any = pytest.importorskip("timm.layers.norm_act", reason="timm is not installed")
    odd = norm_act.BatchNormAct2d(6, act_layer=nn.Tanh)
    odd.more = nn.Conv2d(6, 6, 1)
    model = nn.Sequential(odd)
    planish.replace(model)
    assert type(odd) is norm_act.BatchNormAct2d
    assert "planish fuses no Tanh" in str(planish.replaced(model))


def test_a_block_that_is_known_joins_what_it_may_not() -> None:
    model, plain = Block(down=False), Block(down=False)
    plain.load_state_dict(model.state_dict())
    planish.replace(model, fuse=True)
    x = torch.randn(2, 6, 5, 5)
    for _ in range(2):
        torch.testing.assert_close(model(x), plain(x))
    seen: list[Tensor] = []
    for block in (model, plain):
        block.bn2.register_forward_hook(lambda module, given, y: seen.append(y.clone()))
    torch.testing.assert_close(model(x), plain(x))
    torch.testing.assert_close(*seen)
