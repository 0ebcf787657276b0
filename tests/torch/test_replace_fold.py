"""replace(fold=True): batch norms that become part of the convolution before them, and back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import planish
import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Neighbours in a Sequential, in statements, and one around the other."""

    def __init__(self, dims: int = 2, bias: bool = True) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
        self.stem = nn.Sequential(conv(3, 6, 3, bias=bias), norm(6), nn.ReLU())
        self.conv1, self.bn1 = conv(6, 6, 3, padding=1, groups=2, bias=bias), norm(6)
        self.conv2, self.bn2 = conv(6, 4, 1, bias=bias), norm(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv1(x)
        y = self.bn1(y)
        y = y + x
        return self.bn2(self.conv2(y.relu()))


def learned(model: nn.Module) -> nn.Module:
    """In eval mode, with statistics and weights that are not those of the beginning."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                if tensor is not None:
                    tensor.data = torch.rand(tensor.shape, generator=generator) + 0.5
    return model.eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_folded_norm_computes_something_else(dims: int, bias: bool, dtype: torch.dtype) -> None:
    model = learned(Block(dims, bias)).to(dtype)
    x = torch.randn(2, 3, *[8] * dims, dtype=dtype)
    with torch.no_grad():
        wanted = model(x)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        planish.replace(model, fold=True)
        assert planish.replaced(model).folded == 3
        found = model(x)
        few = 64 * torch.finfo(dtype).eps * float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=0, atol=few)
        assert not any(p.requires_grad for p in model.stem[0].parameters())
        planish.restore(model)
        assert torch.equal(model(x), wanted)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert type(model.bn1) is (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    assert all(p.requires_grad for p in model.parameters())


def test_timms_norms_lose_what_is_behind_them() -> None:
    timm = pytest.importorskip("timm")
    model, x = learned(timm.create_model("regnety_002")), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted = model(x)
        planish.replace(model, fold=True)
        assert planish.replaced(model).folded == 44
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(planish.restore(model)(x), wanted)


class Tied(nn.Module):
    """A convolution, or a norm, that something else sees, too."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.conv, self.other, self.bn = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.more = planish.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "twice":
            return self.bn(self.conv(x)) + self.conv(x)
        if self.way == "given more":
            z = self.other(x)
            z = self.more(z, x)
            return z  # noqa: RET504
        y = self.conv(x)
        z = self.bn(y)
        return z + y


@pytest.mark.parametrize("way", ["twice", "kept", "given more"])
def test_what_others_see_is_folded(way: str) -> None:
    model = planish.replace(learned(Tied(way)), fold=True)
    assert not planish.replaced(model).folded


class Chosen(nn.BatchNorm2d):
    pass


@pytest.mark.parametrize(
    "modules",
    [
        lambda: (nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)),
        lambda: (nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
        lambda: (nn.ConvTranspose2d(3, 3, 1), nn.BatchNorm2d(3)),
        lambda: (nn.Conv2d(3, 3, 1), Chosen(3)),
        lambda: (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), nn.BatchNorm2d(3)),
    ],
)
def test_another_pair_is_folded(modules: Any) -> None:
    model = learned(nn.Sequential(*modules(), nn.LayerNorm(4)))
    x = torch.randn(2, 3, 4, 4)
    wanted = model(x)
    planish.replace(model, fold=True)
    assert not planish.replaced(model).folded
    torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)


def test_hooks_are_folded() -> None:
    model = learned(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    model[1].register_forward_hook(lambda *_: None)
    assert not planish.replaced(planish.replace(model, fold=True)).folded


def test_a_shared_norm_is_folded() -> None:
    norm = nn.BatchNorm2d(3)
    model = learned(nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.Conv2d(3, 3, 1), norm))
    assert not planish.replaced(planish.replace(model, fold=True)).folded


def test_training_goes_on_without_a_norm() -> None:
    with pytest.raises(ValueError, match="fold=True takes running statistics, but model is in"):
        planish.replace(Block(), fold=True)
    model = planish.replace(learned(Block()), fold=True).train()
    with pytest.raises(RuntimeError, match="folded into the convolution before it"):
        model(torch.randn(2, 3, 8, 8))
    planish.restore(model)
    assert model.bn1.training
    model(torch.randn(2, 3, 8, 8)).sum().backward()


def test_a_fold_is_lost_on_the_way() -> None:
    """Copies, pickles, other options and another dtype, in either order."""
    model, x = learned(Block()), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        wanted = model(x)
        planish.replace(model, activations=True, fuse=True)
        planish.replace(model, activations=True, fuse=True, fold=True)
        copied, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        for one in (model, copied, loaded):
            assert planish.replaced(one).folded == 2  # an activation is in the third
            torch.testing.assert_close(one(x), wanted, rtol=1e-4, atol=1e-4)
        wide = planish.restore(copied.double())
        assert type(wide.bn1) is nn.BatchNorm2d and wide.conv1.weight.dtype == torch.float64
        torch.testing.assert_close(wide(x.double()).float(), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(planish.restore(model)(x), wanted, rtol=1e-6, atol=1e-6)


def test_an_error_leaves_half_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    from planish.replacing import swapped

    def fails(module: nn.Module) -> None:
        raise MemoryError

    model, x = learned(Block()), torch.randn(2, 3, 8, 8)
    wanted = model(x)
    monkeypatch.setattr(swapped, "put", fails)
    with pytest.raises(MemoryError):
        planish.replace(model, fold=True)
    assert torch.equal(model(x), wanted) and type(model.bn1) is nn.BatchNorm2d
