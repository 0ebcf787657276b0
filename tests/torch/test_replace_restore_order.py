"""planish.restore() after other libraries changed a module's class or its forward: it takes out
planish's classes alone, in whatever order the others came."""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replace_support import LlamaNorm
from torch.nn.utils import parametrize

import planish
import torch
from planish.replacing.layers import WAS, Layer
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.linear = norm(16), nn.Linear(16, 16)
        self.gain = nn.Parameter(torch.full((16,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.gain + self.linear(x)
        return self.norm(h) + h


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.GroupNorm(2, 16), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        x = self.norm(x)
        x = self.act(x)
        return x  # noqa: RET504 (a statement of its own is what is looked for)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


# ---- What others put on -------------------------------------------------------------------------


def parametrized(module: nn.Module) -> None:
    name = next(iter(module._parameters))
    parametrize.register_parametrization(module, name, Twice())


def by_super(module: nn.Module) -> None:
    class Super(type(module)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    module.__class__ = Super


def by_two_classes(module: nn.Module) -> None:
    by_super(module)
    by_super(module)


def decorated(module: nn.Module) -> None:
    def plus_one(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(self: Any, *args: Any) -> Any:
            return function(self, *args) + 1

        return wrapped

    class Decorated(type(module)):  # type: ignore[misc]
        @plus_one
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.factor

        @property
        def factor(self) -> float:
            return 2.0 if super().__getattribute__("training") else 3.0

        @classmethod
        def build(cls) -> Any:
            return super().__new__(cls)

    module.__class__ = Decorated


def by_name_of_the_base(module: nn.Module) -> None:
    base: Any = type(module)

    class Base(base):
        def forward(self, x: Tensor) -> Tensor:
            return base.forward(self, x) * 2

    module.__class__ = Base


def with_a_mixin(module: nn.Module) -> None:
    class Mixin:
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2  # type: ignore[misc]

    module.__class__ = type("Mixed", (Mixin, type(module)), {})


def wrapped_on_the_instance(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda *args: forward(*args) * 2


def hooked_by_accelerate(module: nn.Module) -> None:
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")

    class Doubles(hooks.ModelHook):
        def post_forward(self, module: nn.Module, output: Tensor) -> Tensor:
            return output * 2

    hooks.add_hook_to_module(module, Doubles())


OTHERS = [
    parametrized,
    by_super,
    by_two_classes,
    decorated,
    by_name_of_the_base,
    with_a_mixin,
    wrapped_on_the_instance,
    hooked_by_accelerate,
]

MODELS: dict[str, Callable[[], nn.Module]] = {
    "torch's norm": lambda: Block(nn.RMSNorm),
    "a norm of Python": lambda: Block(LlamaNorm),
    "a norm with its activation": lambda: nn.Sequential(collections.OrderedDict(norm=Images())),
}


def others_classes(model: nn.Module) -> list[list[str]]:
    """By name, without planish's."""
    return [
        [
            cls.__name__
            for cls in type(module).__mro__
            if not (issubclass(cls, Layer) or cls.__module__.partition(".")[0] == "planish")
        ]
        for module in model.modules()
    ]


def is_clean(model: nn.Module) -> bool:
    return not any(
        isinstance(module, Layer)
        or WAS in module.__dict__
        or any(cls.__module__.startswith("planish.") for cls in type(module).__mro__)
        for module in model.modules()
    )


def trained(model: nn.Module) -> list[Tensor]:
    x = torch.linspace(-2, 40, 6 * 64).sin().view(6, 4, 16).requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    grads = [p.grad for p in model.parameters()]
    return [y.detach(), *(one for one in (x.grad, *grads) if one is not None)]


def assert_same(found: list[Tensor], wanted: list[Tensor], exactly: bool) -> None:
    for one, other in zip(found, wanted, strict=True):
        if exactly:
            assert torch.equal(one, other)
        else:
            limit = 1e-5 * float(other.abs().max())
            torch.testing.assert_close(one, other, rtol=1e-5, atol=limit)


@pytest.mark.parametrize("order", ["after", "before", "before and after"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("other", OTHERS)
def test_another_librarys_layer_is_lost_or_planishs_stays(
    other: Callable[[nn.Module], None], name: str, order: str
) -> None:
    model = MODELS[name]()
    plain = copy.deepcopy(model)
    steps = {
        "after": ["replace", "wrap"],
        "before": ["wrap", "replace"],
        "before and after": ["wrap", "replace", "wrap"],
    }[order]
    again = other
    if other is hooked_by_accelerate:  # a second hook takes the place of the first
        again = by_super
    for index, step in enumerate(steps):
        if step == "replace":
            planish.replace(model, fuse=True)
            continue
        wrap = other if "wrap" not in steps[:index] else again
        for changed in (model, plain):
            for module in (changed, changed.norm):
                if next(iter(module._parameters), None) or wrap is not parametrized:
                    wrap(module)  # type: ignore[arg-type]
    wanted = trained(plain)
    assert_same(trained(model), wanted, exactly=False)
    planish.restore(model)
    assert is_clean(model)
    assert others_classes(model) == others_classes(plain)
    assert_same(trained(model), wanted, exactly=True)


@pytest.mark.parametrize("name", ["torch's norm", "a norm of Python"])
def test_what_another_library_put_on_cannot_be_taken_off_after_restore(name: str) -> None:
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")
    model = MODELS[name]()
    was = [type(module) for module in model.modules()]
    wanted = trained(model)
    planish.replace(model, fuse=True)
    parametrized(model.norm)  # type: ignore[arg-type]
    hooked_by_accelerate(model)
    planish.restore(model)
    hooks.remove_hook_from_module(model)
    parametrize.remove_parametrizations(model.norm, "weight")  # type: ignore[arg-type]
    assert [type(module) for module in model.modules()] == was
    with torch.no_grad():
        model.norm.weight.div_(2)  # type: ignore[union-attr, operator]
    for one, other in zip(trained(model), wanted, strict=True):
        assert one.shape == other.shape
    assert torch.equal(trained(model)[0], wanted[0])


def test_modules_of_one_class_have_two_after_restore() -> None:
    class Marked:
        pass

    model = nn.Sequential(Block(), Block(), Block())
    planish.replace(model, fuse=True)
    marked = type("MarkedBlock", (Marked, type(model[0])), {})
    model[0].__class__ = model[1].__class__ = marked
    planish.restore(model)
    assert type(model[0]) is type(model[1]) and isinstance(model[0], Marked)
    assert type(model[2]) is Block and type(model[0]).__mro__[2] is Block


def test_a_class_that_is_no_subclass_of_planishs_any_more_is_changed() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    model = nn.Sequential(nn.LayerNorm(16))
    planish.replace(model)
    model[0].__class__ = Own
    planish.restore(model)
    assert type(model[0]) is Own and WAS not in model[0].__dict__
    assert torch.equal(model(torch.ones(16)), torch.ones(16))


def test_a_class_that_cannot_be_made_again_leaves_the_model_half_restored() -> None:
    class Once:
        made: list[str] = []  # noqa: RUF012

        def __init_subclass__(cls) -> None:
            if Once.made:
                raise TypeError("there is one already")
            Once.made.append(cls.__name__)

    model = nn.Sequential(nn.LayerNorm(16), Block(), Images())
    planish.replace(model, fuse=True)
    model[1].norm.__class__ = type("OnceNorm", (Once, type(model[1].norm)), {})
    was = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(RuntimeError, match=r"OnceNorm.*there is one already.*nothing was restored"):
        planish.restore(model)
    assert {name: type(module) for name, module in model.named_modules()} == was
    assert isinstance(model[2].act, nn.Identity)
    Once.made.clear()
    assert is_clean(planish.restore(model))


def test_a_block_whose_parameters_are_computed_shares_a_class_with_others() -> None:
    """torch sets properties on the class of a parametrized module, which is its alone."""
    model, other = Block(), Block()
    parametrize.register_parametrization(model, "gain", Twice())
    planish.replace(model, fuse=True)
    planish.replace(other, fuse=True)
    assert "parametri" in str(planish.replaced(nn.ModuleList([model, other])))
    parametrize.remove_parametrizations(model, "gain")
    assert type(model) is Block and "gain" in model._parameters


# ---- FSDP2 --------------------------------------------------------------------------------------


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    if torch.distributed.is_initialized():
        pytest.skip("a process group of another test is there")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("norms", [False, True], ids=["blocks", "norms, too"])
@pytest.mark.parametrize("steps", ["rs", "sr", "rsr"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, LlamaNorm])
def test_a_module_in_shards_is_none_any_more(
    norm: Callable[[int], nn.Module], steps: str, norms: bool, mesh: Any
) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = nn.Sequential(Block(norm), Block(norm))
    plain = copy.deepcopy(model)
    for step in steps:
        if step == "r":
            planish.replace(model, fuse=True)
            continue
        for block in model:
            if norms:
                fully_shard(block.norm, mesh=mesh)
            fully_shard(block, mesh=mesh)
    sharded = [isinstance(module, FSDPModule) for module in model.modules()]
    assert sum(sharded) == (4 if norms else 2)
    assert_same([trained(model)[0]], [trained(plain)[0]], exactly=False)
    planish.restore(model)
    assert is_clean(model)
    assert [isinstance(module, FSDPModule) for module in model.modules()] == sharded
    wanted = trained(plain)
    assert_same([trained(model)[0]], wanted[:1], exactly=True)
    grads = [p.grad.full_tensor() for p in model.parameters()]  # type: ignore[union-attr]
    assert_same(grads, wanted[2:], exactly=False)
