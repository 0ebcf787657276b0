"""planish.replace() of norms that are not torch's own: what is taken and what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from replace_support import FORWARD, AbsNorm, Llama, LlamaNorm
from support import NARROW, Calls

import planish
import torch
from torch import Tensor, nn


class OnceNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight * wide).to(x.dtype)


class GemmaNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class T5Norm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class CohereNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * wide).to(x.dtype)


class GateBeforeNorm(Llama):
    group_size = 8

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        wide = x.float()
        if gate is not None:
            wide = wide * nn.functional.silu(gate.float())
        parts = wide.unflatten(-1, (-1, self.group_size))
        parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * parts.flatten(-2).to(x.dtype)


class GateBehindNorm(Llama):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = LlamaNorm.forward(self, x)
        return (y * nn.functional.silu(gate.float())).to(x.dtype)


class WeightlessNorm(nn.Module):
    eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class ChannelsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class L2Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.gamma = size**0.5, nn.Parameter(torch.ones(size, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.normalize(x.float() if x.dtype in NARROW else x, dim=1)
        return wide.to(x.dtype) * self.scale * self.gamma


class UnitNorm(nn.Module):
    """Without the root of the channels."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.normalize(x.float() if x.dtype in NARROW else x, dim=-1)
        return wide.to(x.dtype) * self.weight


class EpsOutsideNorm(Llama):
    """A new version of a library with other mathematics: different only for small values."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        rms = wide.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon
        return self.weight * (wide / rms).to(x.dtype)


class DetachedNorm(Llama):
    """The same results as Llama's, other gradients."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * rstd.detach()).to(x.dtype)


def rows(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(3, 7, 32, generator=generator) * 2 + 0.3).to(dtype)


def image(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 32, 5, 4, generator=torch.Generator().manual_seed(6)).to(dtype)


#: Class, whether it takes a gate, its input, the words of its form, and whether it rounds as it.
TAKEN: list[tuple[Callable[[], nn.Module], Callable[..., Tensor], str, bool]] = [
    (lambda: LlamaNorm(32), rows, "RMS norm, order of rounding 'xhat'", True),
    (lambda: OnceNorm(32), rows, "RMS norm", True),
    (lambda: GemmaNorm(32), rows, "RMS norm, 1 + weight", True),
    (lambda: T5Norm(32), rows, "RMS norm, order of rounding 'weight'", True),
    (lambda: CohereNorm(32), rows, "layer norm", True),
    (lambda: WeightlessNorm(), rows, "RMS norm", True),
    (lambda: ChannelsNorm(32), image, "layer norm, over channels, order of rounding 'wide'", False),
    (lambda: L2Norm(32), image, "L2 norm, over channels, order of rounding 'wide'", False),
    (lambda: UnitNorm(32), rows, "unit L2 norm, order of rounding 'wide'", False),
]
IDS = ["llama", "once", "gemma", "t5", "cohere", "weightless", "channels", "l2", "unit"]


def shaken(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("case", TAKEN, ids=IDS)
def test_a_class_computes_something_else_once_it_is_taken(case: Any, dtype: torch.dtype) -> None:
    make, inputs, words, same = case
    module = shaken(make(), dtype)
    kind, x = type(module), inputs(dtype).requires_grad_()
    native = module(x)
    dy = inputs(native.dtype).flip(0, -1)  # as x itself it would cancel
    leaves = [x, *module.parameters()]
    before = torch.autograd.grad(native, leaves, dy)
    state = {name: value.clone() for name, value in module.state_dict().items()}

    assert planish.replace(module) is module
    assert isinstance(module, kind)
    assert type(module).__name__ == kind.__name__
    (entry,) = planish.replaced(module).taken
    assert entry.what == words
    calls = Calls()
    y = module(x)
    assert calls.on_planish(*FORWARD) == 1
    assert y.dtype == native.dtype
    assert list(module.state_dict()) == list(state)
    ulp = torch.finfo(y.dtype).eps
    largest = native.detach().double().abs().amax(-1 if inputs is rows else 1, keepdim=True)
    apart = (y.detach().double() - native.detach().double()).abs() / (largest * ulp)
    if dtype is torch.float32:
        assert float(apart.max()) <= 8
    elif same:
        assert float((apart > 0).double().mean()) <= 0.01, "another order of rounding"
        assert float(apart.max()) <= 2
    else:
        assert float(apart.max()) <= 4
    for one, other in zip(torch.autograd.grad(y, leaves, dy), before, strict=True):
        bound = 32 * torch.finfo(one.dtype).eps * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=bound)

    assert planish.restore(module) is module
    assert type(module) is kind
    assert torch.equal(module(x), native)
    assert not planish.replaced(module).taken


@pytest.mark.parametrize("cls", [GateBeforeNorm, GateBehindNorm])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_gate_is_lost_or_on_the_wrong_side(cls: type[Llama], dtype: torch.dtype) -> None:
    module, x = shaken(cls(32), dtype), rows(dtype)
    gate = x.flip(0) * 2
    native = module(x, gate)
    planish.replace(module)
    assert ("before" if cls is GateBeforeNorm else "behind") in planish.replaced(module).taken[
        0
    ].what
    calls = Calls()
    for y in (module(x, gate), module(x, gate=gate)):
        bound = 4 * torch.finfo(dtype).eps * float(native.detach().abs().max())
        torch.testing.assert_close(y, native, rtol=0, atol=bound)
    assert calls.on_planish(*FORWARD) == 2


@pytest.mark.parametrize("cls", [AbsNorm, EpsOutsideNorm, DetachedNorm])
def test_other_mathematics_is_taken_or_left_unsaid(cls: type[Llama]) -> None:
    module, x = cls(32), rows(torch.float32)
    native = module(x)
    with pytest.warns(UserWarning, match=f"took nothing.*{cls.__name__}"):
        planish.replace(module)
    assert type(module) is cls
    assert torch.equal(module(x), native)
    (entry,) = planish.replaced(module).left
    assert entry.modules == 1
    assert entry.what


def test_a_class_that_is_called_no_norm_is_left_though_it_is_one() -> None:
    module = planish.replace(Llama(32))
    assert [entry.what for entry in planish.replaced(module).taken] == [
        "RMS norm, order of rounding 'xhat'"
    ]


def test_what_was_not_proven_does_not_run_the_modules_own_forward() -> None:
    module = planish.replace(ChannelsNorm(6))
    calls = Calls()
    x = torch.randn(2, 6, 3, 4)
    module(x)
    assert calls.on_planish(*FORWARD) == 1
    with pytest.raises(RuntimeError):  # of torch: weight[:, None, None] does not fit
        module(torch.randn(2, 6, 3))
    with pytest.raises(TypeError):
        module(x, x)
    assert calls.on_planish(*FORWARD) == 1


def test_short_vectors_lose_the_floor_of_their_length() -> None:
    module = shaken(L2Norm(4), torch.float32)
    x = torch.randn(2, 4, 3, 3)
    x[0, :, 0, 0] = 0
    x[1, :, 1, 1] = 1e-12
    x[1, :, 2, 1] *= 1e-10
    native = module(x)
    planish.replace(module)
    calls = Calls()
    torch.testing.assert_close(module(x), native, rtol=1e-6, atol=1e-6)
    assert calls.on_planish(*FORWARD) == 1


def test_a_weight_that_overflows_times_the_root_of_the_channels_makes_infinities() -> None:
    module = planish.replace(L2Norm(4))
    x = torch.randn(2, 4, 3, 3)
    with torch.no_grad():
        module.gamma.fill_(2e38)  # the root of the channels is 2
    torch.testing.assert_close(module(x), L2Norm.forward(module, x))
