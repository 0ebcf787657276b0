"""Graphs for every size: as many of them as without planish, and chosen by the sizes that were
seen. Exports with sizes that vary are test_traced_surface.py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import compiled, rows, uncached  # noqa: F401 (fixtures)

import planish
import torch
from planish.compile import choice
from torch import Tensor

W = torch.randn(16)
SHAPES = ((2, 5), (3, 7), (4, 9), (8, 33))

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "torch's": lambda x: F.layer_norm(x, (16,), W, W),
    "layer_norm": lambda x: planish.layer_norm(x, -1, W, W),
    "add": lambda x: planish.add_rms_norm(x, x.flip(0), W),
    "modulated": lambda x: planish.modulated_layer_norm(x, W, W),
    "gated": lambda x: planish.gated_rms_norm(x, x.flip(0), W, group_size=4),
    "pair": lambda x: planish.qk_norm(x, x.flip(0), W, W, 1e-6),
    "quantized": lambda x: planish.quantized_rms_norm(x, W),
}


def several(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("mode", [choice.ALWAYS, choice.NEVER])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_size_is_a_constant(name: str, mode: str) -> None:
    function = FUNCTIONS[name]
    run, graphs = compiled(function, mode, dynamic=True)
    for shape in SHAPES:
        x = torch.randn(*shape, 16)
        with torch.no_grad():
            for one, other in zip(several(run(x)), several(function(x)), strict=True):
                torch.testing.assert_close(one.float(), other.float(), rtol=1e-4, atol=1e-4)
    assert len(graphs.modules) == 1


def test_a_gradient_has_a_constant_size() -> None:
    def both(x: Tensor) -> Tensor:
        y, total = planish.add_rms_norm(x, x.flip(0), W)
        return F.layer_norm(y, (16,), W) * total

    run, graphs = compiled(both, dynamic=True)
    for shape in SHAPES:
        one = torch.randn(*shape, 16, requires_grad=True)
        other = one.detach().clone().requires_grad_()
        run(one).sin().sum().backward()
        both(other).sin().sum().backward()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert len(graphs.modules) == 2


def test_a_size_that_is_not_constant_is_not_looked_up(rows: Any) -> None:  # noqa: F811
    rows(forward=3.0)
    run, graphs = compiled(FUNCTIONS["torch's"], choice.FASTER, dynamic=True)
    for shape in SHAPES:
        run(torch.randn(*shape, 16))
    assert len(graphs.modules) == 1 and graphs.counted()["planish::graph_forward"] == 1


@pytest.mark.parametrize("speedups", [{"forward": 9.0}, {"backward": 9.0}])
def test_statistics_of_groups_have_a_constant_size(speedups: Any, rows: Any) -> None:  # noqa: F811
    """planish's and torch's have another number of axes."""
    rows(**speedups)
    weight = W[:8].clone().requires_grad_()

    def groups(x: Tensor) -> Tensor:
        return F.group_norm(x, 4, weight, W[:8])

    run, graphs = compiled(groups, choice.FASTER, dynamic=True)
    for batch, side in ((2, 5), (3, 7), (4, 9)):
        x = torch.randn(batch, 8, side, side).requires_grad_()
        dy = torch.randn_like(x)
        found, wanted = (torch.autograd.grad(f(x), [x, weight], dy) for f in (run, groups))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(graphs.modules) == 2
    assert sum(graphs.counted()[f"planish::graph_{name}"] for name in speedups) == 1


@pytest.mark.parametrize("mode", [choice.ALWAYS, choice.NEVER])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_norms_own_length_is_a_constant(kind: str, mode: str) -> None:
    """It is named by the node, as the size of an axis that a number stands for."""

    def model(x: Tensor, weight: Tensor) -> Tensor:
        norm = F.layer_norm if kind == "layer" else F.rms_norm
        return norm(x.sin(), (x.shape[-1],), weight)

    run, graphs = compiled(model, mode, dynamic=True)
    for length in (16, 24, 40):
        x, weight = torch.randn(3, 5, length), torch.randn(length).requires_grad_()
        dy = torch.randn_like(x)
        found, wanted = (torch.autograd.grad(f(x, weight), [weight], dy) for f in (run, model))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(graphs.modules) == 2
    for name in ("forward", "backward"):
        assert graphs.counted()[f"planish::graph_{name}"] == (mode == choice.ALWAYS)
