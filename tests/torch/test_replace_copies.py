"""Copies and pickles of replaced modules go the way that their own classes have for it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from replace_support import LlamaNorm

import planish
import torch
from planish.replacing.layers import Layer
from torch import Tensor, nn


class Block(nn.Module):
    """What each of the classes below does of its own is noted in ``said``."""

    said: list[str] = []  # noqa: RUF012

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.size = size
        self.norm, self.linear = nn.LayerNorm(size), nn.Linear(size, size)
        self.cache: list[Tensor] | None = [torch.ones(2)]

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        return self.norm(h) + h


class Norm(LlamaNorm):
    said = Block.said

    def __init__(self, size: int = 16) -> None:
        super().__init__(size)
        self.size = size
        self.cache: list[Tensor] | None = [torch.ones(2)]


class GetState:
    def __getstate__(self) -> dict[str, Any]:
        Block.said.append("getstate")
        return {**self.__dict__, "cache": None}


class SetState:
    def __setstate__(self, state: dict[str, Any]) -> None:
        Block.said.append("setstate")
        self.__dict__.update(state)
        self.cache = None


class BothStates(GetState, SetState):
    pass


class Tuple:
    """A state that is no dictionary."""

    def __getstate__(self) -> Any:
        Block.said.append("getstate")
        return (self.__dict__, "more")

    def __setstate__(self, state: Any) -> None:
        Block.said.append(f"setstate {state[1]}")
        self.__dict__.update(state[0])
        self.cache = None


class Reduce:
    size: int

    def __reduce__(self) -> Any:
        Block.said.append("reduce")
        return type(self), (self.size,), {**self.__dict__, "cache": None}


class ReduceEx:
    def __reduce_ex__(self, protocol: Any) -> Any:
        Block.said.append("reduce_ex")
        make, given, state, *rest = super().__reduce_ex__(protocol)
        return (make, given, {**state, "cache": None}, *rest)


class NewArguments:
    def __new__(cls, *given: Any) -> Any:
        Block.said.append("new")
        return super().__new__(cls)

    def __getnewargs__(self) -> Any:
        return ("given",)


class DeepCopy:
    size: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        Block.said.append("deepcopy")
        new: Any = type(self)(self.size)  # type: ignore[call-arg]
        memo[id(self)] = new
        new.load_state_dict(self.state_dict())  # type: ignore[attr-defined]
        new.cache = None
        return new


class ShallowCopy:
    def __copy__(self) -> Any:
        Block.said.append("copy")
        new: Any = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.cache = None
        return new


OWN = [GetState, SetState, BothStates, Tuple, Reduce, ReduceEx, NewArguments, DeepCopy, ShallowCopy]

CLASSES: dict[str, type[nn.Module]] = {}
for _own in OWN:
    for _base in (Block, Norm):
        _name = f"{_own.__name__}{_base.__name__}"
        CLASSES[_name] = type(_name, (_own, _base), {"__module__": __name__})
globals().update(CLASSES)

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle, oldest": lambda model: pickle.loads(pickle.dumps(model, 0)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CLASSES)
def test_what_a_class_does_when_it_is_copied_is_passed_over(name: str, way: str) -> None:
    model = nn.Sequential(CLASSES[name]())
    x = torch.randn(3, 16)
    Block.said.clear()
    plain = WAYS[way](model[0])
    wanted = list(Block.said)
    planish.replace(model, fuse=True)
    assert isinstance(model[0], Layer)
    result = model(x)
    Block.said.clear()
    made = WAYS[way](model[0])
    assert Block.said == wanted
    assert (made.cache is None) == (plain.cache is None)
    assert made is not model[0]
    torch.testing.assert_close(made(x), result, rtol=1e-5, atol=1e-5)
    planish.restore(made)
    assert type(made) is CLASSES[name]
    assert sorted(made.__dict__) == sorted(plain.__dict__)
    assert planish.restore(model)[0].cache is not None


@pytest.mark.parametrize("name", [name for name in CLASSES if not name.startswith(("DeepCopy",))])
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copy_is_not_fused_any_more(name: str, way: str) -> None:
    model = planish.replace(nn.Sequential(CLASSES[name]()), fuse=True)
    assert planish.replaced(WAYS[way](model)) == planish.replaced(model)


def test_a_block_in_a_cycle_or_twice_in_a_model_is_copied_apart() -> None:
    model: Any = nn.ModuleList([Block(), Block()])
    model.again = model[0]
    model[0].__dict__["whole"] = [model, model[1]]
    planish.replace(model, fuse=True)
    for way in ("pickle", "deepcopy"):
        made = WAYS[way](model)
        assert made.again is made[0] and made[0].whole[0] is made and made[0].whole[1] is made[1]
        assert planish.replaced(made) == planish.replaced(model)


def test_a_reduction_that_gives_a_name_or_something_shared_is_another() -> None:
    class Named(Block):
        def __reduce__(self) -> Any:
            return "SHARED"

    global SHARED
    SHARED = Named()
    Named.__module__ = __name__
    planish.replace(SHARED, fuse=True)
    assert copy.deepcopy(SHARED) is SHARED
    assert pickle.loads(pickle.dumps(SHARED)) is SHARED


SHARED: Any = None


def test_a_parametrized_block_is_copied_or_refused_otherwise() -> None:
    model: Any = nn.Sequential(Block(), nn.LayerNorm(16))
    planish.replace(model, fuse=True)
    for module in (model[0].linear, model[1], model[0].norm, model[0]):
        if "weight" in module._parameters:
            nn.utils.parametrize.register_parametrization(module, "weight", nn.Identity())
    made = copy.deepcopy(model)
    x = torch.randn(3, 16)
    assert torch.equal(made(x), model(x))
    with pytest.raises(RuntimeError, match="parametrized modules"):
        pickle.dumps(model)
