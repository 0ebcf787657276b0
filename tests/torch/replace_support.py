"""What test_replace.py and the tests of one question each about replace() share."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import planish
import torch
from torch import Tensor, nn

#: Of planish's own norms, by stages (an offset, an order of rounding) or not.
FORWARD = ("planish::norm_forward", "planish::norm_forward (stages)")


class Llama(nn.Module):
    """Rounds before the weight; named as no library's."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        dtype = hidden_states.dtype
        x = hidden_states.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class LlamaNorm(Llama):
    pass


class AbsNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.variance_epsilon)


class Norm(nn.Module):
    """An RMS norm that is rounded once."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def norm(self, x: Tensor) -> Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) * self.weight.float()).to(x.dtype)


#: What is said of classes that draw random numbers.
DRAWS = "draws random numbers"


def _held(module: nn.Module) -> str:
    """What the module holds, as text."""
    generator = getattr(module, "generator", torch.Generator())
    held = {name: value for name, value in vars(module).items() if name != "generator"}
    return f"{held} {generator.get_state()}"


def check_left(cls: Any, why: str, python_draws: bool = False) -> None:
    """Modules of the class are left for this reason, and the probe changes nothing of them.
    ``python_draws``: it calls Python's generator."""
    module = cls()
    before = _held(module)
    state, drawn = torch.get_rng_state(), random.getstate()
    box = planish.replace(nn.Sequential(module, nn.LayerNorm(32)))
    assert type(module) is cls
    (entry,) = planish.replaced(box).left
    assert entry.modules == 1
    assert re.search(why, entry.what), entry.what
    # The probe ran on copies, and drew nothing but of Python's generator.
    assert torch.equal(torch.get_rng_state(), state)
    assert python_draws or random.getstate() == drawn
    assert before == _held(module)


def check_taken(cls: Any) -> None:
    """Modules of the class are replaced, and give what they gave."""
    module = cls()
    native = copy.deepcopy(module)
    planish.replace(module)
    assert planish.replaced(module).modules_taken == 1, str(planish.replaced(module))
    x = torch.randn(4, 32)
    for training in (False, True):
        torch.manual_seed(5)
        y = native.train(training)(x)
        torch.manual_seed(5)
        torch.testing.assert_close(module.train(training)(x), y)
