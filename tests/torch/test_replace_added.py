"""planish.replace(model, fuse=True) on norms that are added to a residual, and on norms that are
scaled: post-norms, sandwiches, scales without a shift."""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import planish
import torch
from planish import zoo
from planish.commands import distance
from planish.functions import stage_norms
from torch import Tensor, nn

#: These are small: else they would go to torch's operators, one after the other.
pytestmark = pytest.mark.usefixtures("in_one_call")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[collections.Counter[str]]:
    """How often the functions are called: ``shift`` is modulated_* of a shift alone, ``scale`` of a
    scale alone."""
    counter: collections.Counter[str] = collections.Counter()
    names = "add_layer_norm", "add_rms_norm", "modulated_layer_norm", "modulated_rms_norm"
    for name in names:
        function = getattr(stage_norms, name)

        def counted(*args: Any, name: str = name, function: Any = function, **kwargs: Any) -> Any:
            kind = name.partition("_")[0]
            if kind == "modulated":
                kind = "shift" if args[1] is None else "scale" if args[2] is None else kind
            counter[kind] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(stage_norms, name, functools.wraps(function)(counted))
    yield counter


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.drop_prob:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.dim() - 1)) >= self.drop_prob
        return x * kept / (1 - self.drop_prob)


class StochasticDepth(nn.Module):
    """Of torchvision, but for what it asks of its arguments."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        count = x.shape[0] if self.mode == "row" else 1
        kept = torch.empty(count, *[1] * (x.dim() - 1)).bernoulli_(1 - self.p)
        return x * kept / (1 - self.p)


class Block(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(size), nn.RMSNorm(size, eps=1e-5)
        self.linear = nn.Linear(size, size)
        self.drop_path, self.identity = DropPath(0.5), nn.Identity()
        self.row, self.batch = StochasticDepth(0.5, "row"), StochasticDepth(0.5, "batch")


class Post(Block):
    def forward(self, x: Tensor) -> Tensor:
        residual = x
        h = self.linear(x)
        h = self.one(h)
        h = residual + h
        residual = h
        h = self.linear(h)
        h = self.two(h)
        h = h + residual
        return h  # noqa: RET504


class InOne(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.one(self.linear(x)))
        return x + self.identity(self.two(self.linear(x)))


class Depth(Block):
    """The first sum is before a norm, the second behind one."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.row(self.linear(x))
        x = x + self.batch(self.linear(self.one(x)))
        return x + self.row(self.two(self.linear(x)))


class Streams(Block):
    """Two streams, statement by statement, as HunyuanVideo's."""

    def forward(self, x: Tensor) -> Tensor:
        h, e = self.linear(x), self.linear(x * 2)
        gate = x[:, :1]
        h = h + gate * x
        e = e + x * gate
        n = self.one(h)
        m = self.two(e)
        n = n * (1 + gate) + gate
        return h * n + e * m


class Changes(Block):
    """What stands between the sum and its norm changes the sum."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x) + x
        other = h.mul_(2)
        return self.one(h) + other


class Sandwich(Block):
    """The sum before the second norm goes with that."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(self.linear(x))
        h = x + h
        residual = h
        h = self.two(h)
        return residual + h


class ReadAgain(Block):
    """The norm's result is read behind the sum."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(self.linear(x))
        y = x + h
        return y * h


class Between(Block):
    """The residual is set between the norm and the sum, and draws after the norm."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        h = self.one(self.linear(x))
        r = torch.rand_like(x)
        h = r + h
        return h  # noqa: RET504


class Impure(Block):
    """Both summands draw random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return nn.functional.dropout(x) + self.one(nn.functional.dropout(x))


class Scaled(Block):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        h = self.linear(self.one(x) * (1 + scale[:, None]))
        return h * (1 + scale[:, None]) + x


class Broadcast(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x[:1] + self.one(x)


BLOCKS: dict[type[Block], dict[str, int]] = {
    Post: {"shift": 2},
    InOne: {"shift": 1},
    Depth: {"add": 1},
    Streams: {"add": 2},
    Changes: {"shift": 1},
    Sandwich: {"add": 1},
    ReadAgain: {},
    Between: {},
    Impure: {},
    Scaled: {"scale": 1},
    Broadcast: {},
}


def given(cls: type[Block]) -> tuple[Tensor, ...]:
    torch.manual_seed(2)
    x = torch.randn(3, 5, 32)
    return (x, torch.randn(3, 32)) if cls is Scaled else (x,)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("cls", BLOCKS, ids=lambda cls: cls.__name__)
def test_a_rewritten_block_does_something_else(
    cls: type[Block], training: bool, calls: collections.Counter[str]
) -> None:
    torch.manual_seed(1)
    block = cls().train(training)
    wanted = _step(block, given(cls))
    planish.replace(block, fuse=True)
    calls.clear()
    found = _step(block, given(cls))
    extra = {"shift": 1} if cls in (InOne, Depth) and not training else {}
    assert calls == collections.Counter(BLOCKS[cls]) + collections.Counter(extra)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    planish.restore(block)
    assert type(block) is cls
    assert all(torch.equal(a, b) for a, b in zip(_step(block, given(cls)), wanted, strict=True))


def _step(block: nn.Module, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    live = [t.clone().requires_grad_() for t in tensors]
    torch.manual_seed(7)
    y = block(*live)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    wanted = [*live, *block.parameters()]
    found = torch.autograd.grad(y, wanted, dy, allow_unused=True)
    return [y.detach(), *(g for g in found if g is not None)]


#: Per forward of two layers.
MODELS = {
    "olmo2": {"shift": 4},
    "gemma2": {"add": 2, "shift": 2},
    "gemma3": {"add": 2, "shift": 2},
}


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_not_fused_or_farther_from_exact(
    name: str, dtype: torch.dtype, calls: collections.Counter[str]
) -> None:
    entry = zoo.entries()[name]
    if zoo.missing_packages(entry.packages):
        pytest.skip("transformers not installed")
    model, inputs = zoo.build(entry, dtype)
    exact = distance.step(copy.deepcopy(model).double(), zoo.mapped(inputs, _double))
    before = distance.step(model, inputs)
    planish.replace(model, fuse=True)
    calls.clear()
    after = distance.step(model, inputs)
    assert calls == MODELS[name]
    floor = distance.ROUNDINGS * torch.finfo(dtype).eps
    keys = sorted(exact[1])
    for theirs, ours, wanted in (
        (before[0], after[0], exact[0]),
        *([[found[1][k] for k in keys] for found in (before, after, exact)],),
    ):
        limit = max(distance.FACTOR * distance.apart(theirs, wanted), floor)
        assert distance.apart(ours, wanted) <= limit


def test_a_shift_of_x_s_shape_has_another_result_or_gradient() -> None:
    x, residual = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(1)).unbind()
    weight = torch.rand(16) + 0.5
    functions: list[tuple[Callable[..., Any], Callable[..., Tensor]]] = [
        (planish.modulated_rms_norm, lambda t, w: planish.rms_norm(t, -1, w, eps=1e-6)),
        (planish.modulated_layer_norm, lambda t, w: planish.layer_norm(t, -1, w, eps=1e-6)),
    ]
    for function, norm in functions:
        live = [t.clone().requires_grad_() for t in (x, residual, weight)]
        y = function(live[0], None, live[1], live[2])
        wanted = norm(live[0], live[2]) + live[1]
        torch.testing.assert_close(y, wanted)
        dy = torch.randn_like(x)
        pairs = (torch.autograd.grad(one, live, dy) for one in (y, wanted))
        for one, other in zip(*pairs, strict=True):
            torch.testing.assert_close(one, other)
