"""planish.replace(model, fuse=True) on blocks of no library: the ways to write down a sum, a gate
and a modulation around a norm, and what must not be fused."""

from __future__ import annotations

import collections
from typing import Any

import pytest

import planish
import torch
from planish.functions import stage_norms
from torch import Tensor, nn

#: These are small: else they would go to torch's operators, one after the other.
pytestmark = pytest.mark.usefixtures("in_one_call")


class Block(nn.Module):
    """Two norms that a forward may use."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q_norm, self.k_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.linear = nn.Linear(size, size)
        self.gamma = nn.Parameter(torch.rand(size))
        self.wide = True


class Aliased(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(self.one(x))
        kept = h
        h = self.two(h)
        return kept * 2 + h


class Branches(Block):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = x + self.linear(x)
        if y is not None:
            residual = h
            h = self.one(h)
            h = residual + self.linear(h) * y
        residual = h
        h = self.two(h)
        return residual + h


class Asks(Block):
    """The if asks for the sum itself."""

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        if h.sum() > 0:
            h = h * 2
            h = h + 1
        else:
            h = h - 1
        y = self.two(h)
        return y + h


class Early(Block):
    def forward(self, x: Tensor, early: bool = False) -> Tensor:
        h = x + self.linear(x)
        if early:
            return h
        return h + self.two(h)


class Settings(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        if self.wide:
            y = self.one(h)
        else:
            y = self.two(h)
            y = y * 2
        return y + h


class Broadcast(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.gamma
        return self.one(h) + self.two(x + 1)


class Kept(Block):
    """What the gate gives is read again."""

    def forward(self, x: Tensor) -> Tensor:
        gate, scale, shift = x[:, :1] * 2, x[:, :1], x[:, 1:2]
        out = self.linear(x)
        out = gate * out
        h = x + out
        h = self.one(h) * (1 + scale) + shift
        return h + out


class Gated(Block):
    def forward(self, x: Tensor) -> Tensor:
        gate, scale, shift = x[:, :1] * 2, x[:, :1], x[:, 1:2]
        out = gate * self.linear(x)
        h = x + out
        n = self.one(h)
        n = n * (scale + 1) + shift
        return n + h


class Added(Block):
    """What the layer scale gives is added to behind the sum."""

    def __init__(self, size: int = 32) -> None:
        super().__init__(size)
        self.layer_scale = LayerScale(size)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        out = self.layer_scale(out)
        h = out + x
        n = self.one(h)
        out += n
        return out


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Ordered(Added):
    """Both summands draw random numbers, the scaled one first."""

    def __init__(self, size: int = 32) -> None:
        super().__init__(size)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        h = self.layer_scale(self.drop(x)) + self.drop(self.linear(x))
        return self.one(h)


class Conditional(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        return self.one(h) if h.sum() > 0 else h


class Heads(Block):
    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q_norm(x), self.k_norm(self.linear(x))
        a = self.q_norm(q.view(x.shape)).transpose(0, 1)
        b = self.k_norm(a.transpose(0, 1))  # reads what the line before made
        return q * k + a.transpose(0, 1) * b


class Loop(Block):
    def forward(self, x: Tensor) -> Tensor:
        w = x
        for _ in range(3):
            w = self.linear(w)
            h = x + w
            x = self.one(h)
        return x


BLOCKS: dict[type[Block], dict[str, int]] = {
    Aliased: {"add_layer_norm": 1},
    Branches: {"add_layer_norm": 1},
    Asks: {"add_layer_norm": 1},
    Early: {"add_layer_norm": 1},
    Settings: {"add_layer_norm": 1},
    Broadcast: {},
    Kept: {"modulated_layer_norm": 1},
    Gated: {"modulated_layer_norm": 1},
    Added: {"add_layer_norm": 1},
    Ordered: {"add_layer_norm": 1},
    Conditional: {},
    Heads: {"qk_norm": 1},
    Loop: {"add_layer_norm": 3},
}


@pytest.mark.parametrize("cls", BLOCKS, ids=lambda cls: cls.__name__)
def test_a_rewritten_block_does_something_else(
    cls: type[Block], calls: collections.Counter[str]
) -> None:
    torch.manual_seed(1)
    block, x = cls(), torch.randn(2, 5, 32)
    given: list[tuple[Any, ...]] = [(x,)]
    if cls is Branches:
        given.append((x, torch.randn(2, 5, 32)))
    if cls is Early:
        given.append((x, True))
    wanted = [block(*one) for one in given]
    planish.replace(block, fuse=True)
    calls.clear()
    torch.testing.assert_close(block(*given[0]), wanted[0], rtol=1e-5, atol=1e-5)
    assert dict(calls) == BLOCKS[cls]
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(block(*one), other, rtol=1e-5, atol=1e-5)
    if cls is Settings:
        block.wide = False
        torch.testing.assert_close(block(x), _own(Settings, block, x), rtol=1e-5, atol=1e-5)
    planish.restore(block)
    assert type(block) is cls


def _own(cls: type[Block], block: Any, x: Tensor) -> Tensor:
    return cls.forward(block, x)  # type: ignore[operator, no-any-return]


def test_a_cross_attention_block_has_one_sum_fused_of_two(
    calls: collections.Counter[str],
) -> None:
    block = planish.replace(Branches(), fuse=True)
    calls.clear()
    block(torch.randn(2, 5, 32), torch.randn(2, 5, 32))
    assert calls["add_layer_norm"] == 2


class Vendor(nn.Module):
    """Its source says one thing and it does another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.linear(x)
        return self.norm(x)


def test_a_forward_that_is_not_its_source_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    other = compile("def forward(self, x):\n    return self.norm(x)\n", __file__, "exec")
    found: dict[str, Any] = {}
    exec(other, found)
    monkeypatch.setattr(Vendor, "forward", found["forward"])
    block = planish.replace(Vendor(), fuse=True)
    assert type(block) is Vendor
    (entry,) = planish.replacing._report(block, True).alone
    assert "source" in entry.what
    x = torch.randn(2, 32)
    torch.testing.assert_close(block(x), nn.functional.layer_norm(x, [32]))


def test_a_bound_forward_of_a_block_is_lost() -> None:
    block, seen = Vendor(), []
    own = block.forward

    def forward(x: Tensor) -> Tensor:
        seen.append(1)
        return own(x)

    block.forward = forward  # type: ignore[method-assign]
    planish.replace(block, fuse=True)
    block(torch.randn(2, 32))
    assert seen == [1] and type(block) is Vendor


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_fused_block_keeps_the_dtype_it_was_fused_with(
    dtype: torch.dtype, calls: collections.Counter[str]
) -> None:
    block = planish.replace(Aliased(), fuse=True).to(dtype)
    calls.clear()
    x = torch.randn(2, 5, 32).to(dtype)
    y = block(x)
    assert calls["add_layer_norm"] == 1 and y.dtype == dtype
    planish.restore(block)
    torch.testing.assert_close(block(x), y, rtol=2e-2, atol=2e-2)


def test_another_result_passes_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is a little off is not put into a block, and the report says so."""
    own = stage_norms.add_layer_norm

    def off(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        y, s = own(*args, **kwargs)
        return y * 1.001, s

    monkeypatch.setattr(stage_norms, "add_layer_norm", off)

    class Other(Vendor):
        """Of a width that no other test has proven."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(40), nn.Linear(40, 40)

    block = planish.replace(Other(), fuse=True)
    assert type(block) is Other
    (entry,) = planish.replacing._report(block, True).alone
    assert "ULP" in entry.what
