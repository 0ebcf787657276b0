"""Checkpoints without re-entry, with planish enabled for the forward and not for the backward, and
the other way round: what is recomputed runs, and saves, as the forward did."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import planish
import torch
from planish.library import switch
from torch import Tensor, nn


class Functional(nn.Module):
    """torch's functions, which planish is under while it is enabled."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x: Tensor) -> Tensor:
        if self.norm == "rms_norm":
            return F.rms_norm(x, (16,), self.weight, 1e-5)
        if self.norm == "layer_norm":
            return F.layer_norm(x, (16,), self.weight)
        return F.group_norm(x, 2, self.weight)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "F.rms_norm": lambda: Functional("rms_norm"),
    "F.layer_norm": lambda: Functional("layer_norm"),
    "F.group_norm": lambda: Functional("group_norm"),
    "nn.RMSNorm": lambda: nn.RMSNorm(16),
    "RMSNorm": lambda: planish.RMSNorm(16),
    "LayerNorm": lambda: planish.LayerNorm(16),
    "GroupNorm": lambda: planish.GroupNorm(2, 16),
    "GroupNorm and silu": lambda: planish.GroupNorm(2, 16, activation="silu"),
}


class Block(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.linear(self.norm(x))
        return y


class Model(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], is_checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(norm()) for _ in range(3))
        self.is_checkpointed = is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x.square().mean()


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    planish.disable()
    yield
    planish.disable()


def set_switch(on: bool) -> None:
    if on:
        planish.enable()
    else:
        planish.disable()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def given(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 16, generator=generator).to(dtype).requires_grad_()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("forward", "backward"), [(True, False), (False, True)], ids=["on-off", "off-on"]
)
def test_a_backward_under_another_switch_raises(
    name: str, dtype: torch.dtype, forward: bool, backward: bool
) -> None:
    found = []
    for is_checkpointed in (False, True):
        model, x = Model(NORMS[name], is_checkpointed).to(dtype), given(dtype)
        set_switch(forward)
        loss = model(x)
        set_switch(backward)
        state = switch.state()
        loss.backward()
        assert switch.state() == state
        assert x.grad is not None
        found.append([x.grad, *gradients(model)])
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for plain, recomputed in zip(*found, strict=True):
        scale = plain.abs().max().item()
        torch.testing.assert_close(recomputed, plain, rtol=0, atol=tolerance * scale)


def test_the_block_of_enabled_ends_before_the_backward() -> None:
    model, x = Model(NORMS["F.rms_norm"], True), given()
    with planish.enabled():
        loss = model(x)
    loss.backward()
    assert switch.state() == frozenset()
    inside = Model(NORMS["F.rms_norm"], True)
    with planish.enabled():
        inside(given()).backward()
    for one, other in zip(gradients(model), gradients(inside), strict=True):
        # The backward itself is torch's formula in one case, planish's in the other.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_recomputation_runs_on_torch_although_its_forward_ran_on_planish() -> None:
    model = Model(NORMS["F.layer_norm"], True)
    with planish.enabled():
        loss = model(given())
    before = planish.stats()["native_layer_norm"]["planish"]
    loss.backward()
    assert planish.stats()["native_layer_norm"]["planish"] == before + 3


def test_a_part_of_the_operators_is_restored_as_all_of_them() -> None:
    model = Model(NORMS["F.rms_norm"], True)
    planish.enable("rms_norm", "cpu")
    loss = model(given())
    planish.disable()
    planish.enable("layer_norm", "cpu")
    state = switch.state()
    loss.backward(retain_graph=True)
    assert switch.state() == state == frozenset({("layer_norm", "cpu", False)})
    loss.backward()
    assert switch.state() == state


def test_blocks_inside_of_the_checkpointed_function_are_forgotten() -> None:
    weight = torch.ones(16, requires_grad=True)

    def inside(x: Tensor) -> Tensor:
        with planish.enabled():
            return F.rms_norm(x, (16,), weight)

    for outside in (False, True):
        set_switch(outside)
        y: Tensor = checkpoint(inside, given(), use_reentrant=False)
        set_switch(not outside)
        state = switch.state()
        y.sum().backward()
        assert switch.state() == state


def test_nested_checkpoints_are_recomputed_under_one_switch() -> None:
    weight = torch.ones(16, requires_grad=True)

    def inner(x: Tensor) -> Tensor:
        return F.rms_norm(x, (16,), weight).sin()

    def outer(x: Tensor) -> Tensor:
        with planish.enabled():
            y: Tensor = checkpoint(inner, x, use_reentrant=False)
        return F.rms_norm(y, (16,), weight)

    wanted = torch.autograd.grad(F.rms_norm(inner(given()), (16,), weight).sum(), weight)[0]
    y: Tensor = checkpoint(outer, given(), use_reentrant=False)
    for on in (True, False):
        set_switch(on)
        (found,) = torch.autograd.grad(y.sum(), weight, retain_graph=True)
        torch.testing.assert_close(found, wanted)


def test_an_error_in_a_recomputation_leaves_the_switch_as_it_was_in_the_forward() -> None:
    fails = itertools.count()
    weight = torch.ones(16, requires_grad=True)

    def once(x: Tensor) -> Tensor:
        if next(fails):
            raise ArithmeticError("the second time")
        return F.rms_norm(x, (16,), weight)

    with planish.enabled():
        y: Tensor = checkpoint(once, given(), use_reentrant=False)
    with pytest.raises(ArithmeticError, match="the second time"):
        y.sum().backward()
    assert switch.state() == frozenset()


def test_selective_checkpoints_raise() -> None:
    weight = torch.ones(16, requires_grad=True)
    contexts = lambda: create_selective_checkpoint_contexts([torch.ops.aten.sin.default])  # noqa: E731

    def run(x: Tensor) -> Tensor:
        return F.rms_norm(x.sin(), (16,), weight).sin()

    with planish.enabled():
        y: Tensor = checkpoint(run, given(), use_reentrant=False, context_fn=contexts)
    (found,) = torch.autograd.grad(y.sum(), weight)
    torch.testing.assert_close(found, torch.autograd.grad(run(given()).sum(), weight)[0])


SCRIPT = """
import torch, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
import planish
x = torch.randn(2, 8, requires_grad=True)
w = torch.ones(8, requires_grad=True)
y = checkpoint(lambda t: F.rms_norm(t, (8,), w), x, use_reentrant=False)
hook = torch.utils.checkpoint._checkpoint_hook
assert hook.__module__ == "torch.utils.checkpoint", hook
planish.enable()
y.sum().backward()
print(tuple(w.grad.shape))
"""


def test_a_forward_before_the_first_enable_is_recomputed_on_planish() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(8,)"
