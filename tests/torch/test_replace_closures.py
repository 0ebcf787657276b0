"""A fused block's forward is the library's own with some statements changed: it shares variables,
defaults and globals with the function it was made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import planish
import torch
from torch import Tensor, nn

#: These are small: else they would go to torch's operators, one after the other.
pytestmark = pytest.mark.usefixtures("in_one_call")

FACTOR = 2.0


class Block(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(size), nn.Linear(size, size)

    def scaled(self, x: Tensor) -> Tensor:
        return x * 3


def closed_over() -> tuple[nn.Module, Callable[[], None]]:
    factor = 2.0

    class Scaled(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = x + self.linear(x)
            return self.norm(h) * factor + h

    def change() -> None:
        nonlocal factor
        factor = 5.0

    return Scaled(), change


def in_a_function_inside() -> tuple[nn.Module, Callable[[], None]]:
    factor = 2.0

    class Inside(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = x + self.linear(x)
            y = self.norm(h)
            return (lambda z: z * factor + h)(y)

    def change() -> None:
        nonlocal factor
        factor = 5.0

    return Inside(), change


def set_later() -> tuple[nn.Module, Callable[[], None]]:
    """The cell is empty while the block is looked at."""

    class Later(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = x + self.linear(x)
            y = self.norm(h)
            return y + h if self.training else y * factor + h

    model = Later()

    def change() -> None:
        nonlocal factor
        factor = 5.0
        model.eval()

    if model is None:
        factor = 0.0
    return model, change


def a_global() -> tuple[nn.Module, Callable[[], None]]:
    class Global(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = x + self.linear(x)
            return self.norm(h) * FACTOR + h

    return Global(), lambda: globals().update(FACTOR=FACTOR + 1)


def a_list_by_default() -> tuple[nn.Module, Callable[[], None]]:
    class Default(Block):
        def forward(self, x: Tensor, factors: Any = [2.0]) -> Tensor:  # noqa: B006
            h = x + self.linear(x)
            return self.norm(h) * factors[-1] + h

    (factors,) = Default.forward.__defaults__ or ()
    return Default(), lambda: factors.append(5.0)


def a_keyword_by_default() -> tuple[nn.Module, Callable[[], None]]:
    class Default(Block):
        def forward(self, x: Tensor, *, factor: float = 2.0) -> Tensor:
            h = x + self.linear(x)
            return self.norm(h) * factor + h

    keywords: Any = Default.forward.__kwdefaults__
    return Default(), lambda: keywords.update(factor=5.0)


def a_method_of_the_base() -> tuple[nn.Module, Callable[[], None]]:
    class Super(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = x + self.linear(x)
            return self.norm(h) + super().scaled(h)

    was = Block.scaled
    return Super(), lambda: setattr(
        Super.__mro__[1], "scaled", lambda self, x: was(self, x) * 2 if self.training else x
    )


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    monkeypatch.setattr(Block, "scaled", Block.scaled)


@pytest.mark.parametrize(
    "make",
    [
        closed_over,
        in_a_function_inside,
        set_later,
        a_global,
        a_list_by_default,
        a_keyword_by_default,
        a_method_of_the_base,
    ],
)
def test_a_change_is_not_seen_by_a_fused_block(
    make: Callable[[], tuple[nn.Module, Callable[[], None]]], calls: Any
) -> None:
    torch.manual_seed(0)
    model, change = make()
    x = torch.randn(3, 5, 32)
    planish.replace(model, fuse=True)
    calls.clear()
    before = model(x)
    assert calls["add_layer_norm"] == 1
    change()
    after = model(x)
    assert calls["add_layer_norm"] == 2
    planish.restore(model)
    torch.testing.assert_close(after, model(x))
    assert not torch.allclose(after, before)


def test_a_fused_block_does_not_count_or_another_counts_for_it() -> None:
    count = 0

    class Counts(Block):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal count
            count += 1
            h = x + self.linear(x)
            return self.norm(h) + h

    one, other = Counts(), Counts()
    planish.replace(one, fuse=True)
    for wanted, model in enumerate((one, other, one), 1):
        model(torch.randn(2, 3, 32))
        assert count == wanted


def test_the_signature_or_what_hangs_on_a_function_is_lost() -> None:
    class Signed(Block):
        def forward(self, x: Tensor, y: float = 1.0, *rest: Any, z: int = 2, **more: Any) -> Tensor:
            """Doc."""
            h = x + self.linear(x)
            return self.norm(h) * y + h * z

        forward.mark = "kept"  # type: ignore[attr-defined]

    model = Signed()
    own = Signed.forward
    planish.replace(model, fuse=True)
    made: Any = type(model).forward
    assert made is not own and made.__globals__ is own.__globals__
    assert inspect.signature(made) == inspect.signature(own)
    assert made.__annotations__ == own.__annotations__
    assert (made.__doc__, made.__name__, made.__qualname__, made.__module__, made.mark) == (
        *(own.__doc__, own.__name__, own.__qualname__, own.__module__),
        "kept",
    )
    assert made.__defaults__ is own.__defaults__ and made.__kwdefaults__ is own.__kwdefaults__
