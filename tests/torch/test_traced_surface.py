"""Every norm of planish's where torch traces it: compiled without a word of torch's, and exported
with sizes that vary."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from surface import NAMES, Case, case_of
from torch.export import Dim

import planish
import torch
from torch import Tensor

#: What planish has beside norms.
OTHERS = {"__version__", "disable", "enable", "enabled", "is_available", "load_pack", "replace"}
OTHERS |= {"replaced", "reset_stats", "restore", "stats"}

SIZES = (
    {"batch": 2, "length": 5, "height": 5, "width": 6},
    {"batch": 3, "length": 7, "height": 4, "width": 9},
    {"batch": 4, "length": 9, "height": 8, "width": 3},
)


def test_a_norm_is_not_in_the_list() -> None:
    assert {name.split(",")[0] for name in NAMES} - {"replaced", "fused"} == (
        set(planish.__all__) - OTHERS
    )


def drawn(case: Case, sizes: dict[str, int]) -> Tensor:
    return torch.randn(case.shape(**sizes), generator=torch.Generator().manual_seed(0))


def several(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def step(run: Any, x: Tensor, name: str) -> list[Tensor]:
    """Results, and their gradient if they have one."""
    leaf = x.clone().requires_grad_()
    found = several(run(leaf))
    gradients = [] if "quantized" in name else torch.autograd.grad(_sum(found), leaf)
    return [y.detach().float() for y in (*found, *gradients)]


def _sum(found: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([y.sin().sum() for y in found]).sum()


@pytest.mark.parametrize("name", NAMES)
def test_torch_warns_while_it_traces(name: str) -> None:
    case = case_of(name)
    x, eager = drawn(case, SIZES[0]), copy.deepcopy(case.model)
    torch._dynamo.reset()
    getattr(torch._dynamo.utils, "warn_once_cache", set()).clear()  # else it says nothing twice
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What torch says of every torch.autograd.Function that it traces.
        warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
        found = step(torch.compile(case.model, backend="aot_eager", fullgraph=True), x, name)
    for one, other in zip(found, step(eager, x, name), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_an_export_fixes_sizes(name: str) -> None:
    case = case_of(name)
    least = 1 if isinstance(case.sizes[-1], int) and len(case.sizes) == 3 else 2  # rows, or images
    named = {size: Dim(size, min=least, max=64) for size in set(case.axes.values())}
    sizes = ({axis: named[size] for axis, size in case.axes.items()},)
    eager = copy.deepcopy(case.model)
    room = 1e-5 if "response" in name else 0  # of torch's operators in a graph
    with torch.no_grad():
        program = torch.export.export(case.model, (drawn(case, SIZES[0]),), dynamic_shapes=sizes)
        run = program.module()
        for one in SIZES:
            x = drawn(case, one)
            for y, wanted in zip(several(run(x)), several(eager(x)), strict=True):
                torch.testing.assert_close(y.float(), wanted.float(), rtol=room, atol=room)
