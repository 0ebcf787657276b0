"""planish's norms over channels in graphs: batch norms in training and in inference, EvoNorm and
torch's own, which become inductor's, stay planish's or are left, and are in the report."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from compile_support import compiled, results_of, uncached  # noqa: F401 (a fixture)

import planish
import planish.compile
import torch
from planish.compile import choice
from torch import Tensor, nn


class Block(nn.Module):
    """A convolution, a norm and what stands behind it."""

    def __init__(self, norm: nn.Module, adds: bool = False) -> None:
        super().__init__()
        self.product, self.norm, self.adds = nn.Conv2d(6, 6, 1), norm, adds

    def forward(self, x: Tensor) -> Tensor:
        made = self.product(x)
        return self.norm(made, x) if self.adds else self.norm(made)


def drawn(norm: nn.Module, seed: int = 0) -> nn.Module:
    """With numbers that tell parameters and statistics apart."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in [*norm.parameters(), *norm.buffers()]:
        if tensor.is_floating_point():
            with torch.no_grad():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return norm


def check(model: nn.Module, mode: str, *, dynamic: bool = False, room: float = 2e-5) -> Any:
    """Results, gradients and buffers are eager's. The graphs, and what the report says of them."""
    eager, before = copy.deepcopy(model), len(planish.compile.report())
    run, graphs = compiled(model, mode, dynamic=dynamic)
    for sizes in ((3, 6, 5, 4), (4, 6, 7, 3)) if dynamic else ((3, 6, 5, 4),):
        x = torch.randn(sizes, generator=torch.Generator().manual_seed(1))
        x = x.to(next(model.parameters()).dtype)
        wanted = results_of(eager, eager, x)
        for one, other in zip(results_of(run, model, x), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=room, atol=room)
        for one, other in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=room, atol=room)
    return graphs, planish.compile.report()[before:]


def planishs(graphs: Any) -> set[str]:
    return {name for name in graphs.counted() if name.startswith("planish::")}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    "activation", [None, "relu", "silu", "gelu", "gelu_tanh", "relu6", "hardswish"]
)
def test_a_batch_norm_is_another_for_inductor(
    activation: str | None, adds: bool, training: bool
) -> None:
    model = Block(drawn(planish.BatchNorm2d(6, activation=activation)), adds).train(training)
    graphs, found = check(model, choice.FASTER)
    assert not planishs(graphs)
    assert [(e.direction, e.chosen, e.shape) for e in found] == [
        ("forward", "inductor", (3, 6, 5, 4)),
        ("backward", "inductor", (3, 6, 5, 4)),
    ]
    assert {e.why for e in found} == {"the table has no such norms"}


@pytest.mark.parametrize(
    "options",
    [
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": 0.3, "eps": 0.1},
        {"bias": False},
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_options_are_lost(options: dict[str, Any], training: bool) -> None:
    norm = drawn(planish.BatchNorm2d(6, activation="silu", **options))
    graphs, _ = check(Block(norm).train(training), choice.FASTER)
    assert not planishs(graphs)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("adds", [False, True])
def test_16_bits_become_wide(adds: bool, training: bool) -> None:
    """Parameters and statistics of f32 around 16 bits, as autocast has them."""
    norm = drawn(planish.BatchNorm2d(6, activation="relu"))
    model = Block(norm, adds).train(training)
    model.product.to(torch.bfloat16)
    graphs, _ = check(model, choice.FASTER, room=2e-2)
    assert not planishs(graphs)


@pytest.mark.parametrize("training", [True, False])
def test_sizes_that_vary_are_known(training: bool) -> None:
    model = Block(drawn(planish.BatchNorm2d(6, activation="relu")), True).train(training)
    graphs, _ = check(model, choice.FASTER, dynamic=True)
    assert not planishs(graphs)
    assert len(graphs.modules) == 2  # of both sizes


def test_inductor_writes_no_code_of_it() -> None:
    """With sizes that vary, and images that are stored with their channels last."""
    model = Block(drawn(planish.BatchNorm2d(6, activation="silu")), True)
    eager, run = copy.deepcopy(model), torch.compile(model, backend="planish", dynamic=True)
    for sizes in ((3, 6, 5, 4), (4, 6, 7, 3)):
        x = torch.randn(sizes).to(memory_format=torch.channels_last)
        found, wanted = results_of(run, model, x), results_of(eager, eager, x)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
        assert found[0].is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("adds", [False, True])
def test_always_has_other_bits(adds: bool, training: bool) -> None:
    model = Block(drawn(planish.BatchNorm2d(6, activation="relu")), adds).train(training)
    graphs, found = check(model, choice.ALWAYS, room=0)
    assert "planish::norm_backward_apply" in planishs(graphs)
    assert [(e.direction, e.chosen, e.why) for e in found] == [
        ("forward", "planish", "every norm was asked for"),
        ("backward", "planish", "every norm was asked for"),
    ]


def test_an_evo_norm_is_another_for_inductor() -> None:
    graphs, found = check(Block(drawn(planish.EvoNorm2dS0(6, groups=3))), choice.FASTER)
    assert not planishs(graphs)
    assert [(e.direction, e.chosen) for e in found] == [("forward", "inductor")]
    graphs, found = check(Block(drawn(planish.EvoNorm2dS0(6, groups=3))), choice.ALWAYS)
    assert planishs(graphs) == {"planish::norm_statistics"}
    assert [(e.direction, e.chosen) for e in found] == [("forward", "planish")]


def test_statistics_that_are_views_are_written_elsewhere() -> None:
    """Both in one tensor: what a graph writes then is that tensor."""
    both = torch.rand(2, 6) + 0.5

    def norm(x: Tensor, both: Tensor) -> Tensor:
        return planish.batch_norm(x, both[0], both[1], training=True, activation="relu")

    before = len(planish.compile.report())
    run, _ = compiled(norm, choice.FASTER)
    x, other = torch.randn(3, 6, 5), both.clone()
    torch.testing.assert_close(run(x, both), norm(x, other))
    torch.testing.assert_close(both, other)
    (found,) = planish.compile.report()[before:]
    assert found.chosen == "planish"
    assert found.why == "stays planish's: its running statistics are views"


def test_what_stays_is_not_said() -> None:
    before = len(planish.compile.report())
    run, graphs = compiled(lambda x: planish.quantized_rms_norm(x)[:2], choice.NEVER)
    run(torch.randn(6, 16))
    assert "planish::quantized_norm" in planishs(graphs)
    (found,) = planish.compile.report()[before:]
    assert (found.direction, found.chosen, found.shape) == ("forward", "planish", (6, 16))
    assert found.why == "stays planish's: its result is quantised"


@pytest.mark.parametrize("mode", [choice.FASTER, choice.ALWAYS])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_own_are_not_said(norm: Any, training: bool, mode: str) -> None:
    model = Block(norm(6)).train(training)
    _, found = check(model, mode)
    assert [(e.direction, e.chosen, e.shape) for e in found] == [
        ("forward", "inductor", (3, 6, 5, 4)),
        ("backward", "inductor", (3, 6, 5, 4)),
    ]
    assert all(e.why.startswith("left: ") for e in found)
