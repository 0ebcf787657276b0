"""What planish.replace() takes and names: by what a module computes, not by what it or its
parameters are called. And who else sees fused norms."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from replace_support import FORWARD, LlamaNorm
from support import Calls
from torch.nn.modules import module as torch_module

import planish
import torch
from torch import Tensor, nn


def module_of(
    cls_name: str, names: tuple[str, ...], forward: Callable[..., Tensor], base: Any = nn.Module
) -> nn.Module:
    """A module with parameters of these names; forward gets x and them."""

    def run(self: Any, x: Tensor) -> Tensor:
        return forward(x, *(getattr(self, name) for name in names))

    made: nn.Module = type(cls_name, (base,), {"forward": run, "__module__": __name__})()
    for index, name in enumerate(names):
        made.register_parameter(name, nn.Parameter(torch.full((16,), 1.0 - index)))
    return made


def rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y if weight is None else y * weight


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6) ** 0.5
    return y * weight + bias


def functional_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, (16,), weight, bias, 1e-5)


def reversed_layer(x: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    return layer(x, weight, bias)


def annotated(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """eps beside the unbiased deviation: a norm that planish has not."""
    return a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + b


def l1(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / x.abs().pow(0.5).mean(-1, keepdim=True).pow(2)


TAKEN = [
    ("RMS", ("g",), rms, "RMS norm"),
    ("Root", (), rms, "RMS norm"),
    ("Whiten", ("anything",), rms, "RMS norm"),
    ("Standardize", ("g", "b"), layer, "layer norm"),
    ("Ln", ("gamma", "beta"), layer, "layer norm"),
    ("Standard", ("a_2", "b_2"), layer, "layer norm"),
    ("LayerNormalization", ("w", "b"), functional_layer, "layer norm"),
    ("Odd", ("first", "second"), layer, "layer norm"),
    ("Odder", ("first", "second"), reversed_layer, "layer norm"),
]


@pytest.mark.parametrize(("name", "names", "forward", "words"), TAKEN, ids=[c[0] for c in TAKEN])
def test_a_norm_by_another_name_is_left(name: str, names: Any, forward: Any, words: str) -> None:
    module, x = module_of(name, names, forward), torch.randn(3, 5, 16)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(16) * 0.3)
    native = module(x)
    planish.replace(module)
    (entry,) = planish.replaced(module).taken
    assert entry.what.startswith(words)
    calls = Calls()
    torch.testing.assert_close(module(x), native, rtol=1e-5, atol=1e-5)
    assert calls.on_planish(*FORWARD) == 1
    planish.restore(module)
    assert torch.equal(module(x), native)


class Foo(nn.LayerNorm):
    pass


class Bar(nn.RMSNorm):
    pass


class Groups(nn.GroupNorm):
    pass


class Instances(nn.InstanceNorm2d):
    pass


class Statistics(nn.BatchNorm1d):
    pass


class Window(nn.LocalResponseNorm):
    pass


class TopNorm(nn.Module):
    """The same for half of x, and raises for the rest: its name speaks for it."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no GPU")


LEFT: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: Foo(16), "subclass of torch's LayerNorm outside"),
    (lambda: Bar(16), "subclass of torch's RMSNorm outside"),
    (lambda: Groups(2, 16), "subclass of torch's GroupNorm outside"),
    (lambda: Instances(16), "subclass of torch's InstanceNorm2d outside"),
    (lambda: Statistics(16), "a subclass of torch's BatchNorm"),
    (lambda: nn.SyncBatchNorm(16), "statistics over several processes"),
    (lambda: Window(2), "window over channels"),
    (lambda: module_of("Annotated", ("a_2", "b_2"), annotated), "not a .*ULP from planish's"),
    (lambda: module_of("LayerNormHere", ("a_2", "b_2"), annotated), "not a .*ULP from planish's"),
    (lambda: module_of("Lengths", ("w",), l1), "not a .*ULP from planish's"),
    (lambda: TopNorm(), "its forward raises RuntimeError: no GPU"),
    (lambda: torch.jit.script(LlamaNorm(16)), "TorchScript"),
    (lambda: nn.LazyInstanceNorm2d(affine=True), "a lazy module"),
]


@pytest.mark.parametrize(("make", "why"), LEFT)
def test_a_norm_that_runs_on_torch_is_not_named(make: Any, why: str) -> None:
    module = make()
    kind, box = type(module), nn.Sequential(module, nn.LayerNorm(16))
    planish.replace(box)
    report = planish.replaced(box)
    assert type(module) is kind
    assert (report.modules_taken, report.modules_left) == (1, 1)
    assert re.search(why, report.left[0].what), report.left[0].what
    assert report.left[0].what in str(report)


NO_NORMS: list[tuple[str, tuple[str, ...], Callable[..., Tensor]]] = [
    ("LayerScale", ("gamma",), lambda x, gamma: x * gamma),
    ("SquareRoot", (), lambda x: x.abs().sqrt()),
    ("ScaledByRoot", ("w",), lambda x, w: x * w / 16**0.5),
    ("Sign", (), lambda x: (x / x.pow(2).sqrt()).round()),
    ("Softmax", (), lambda x: x.softmax(-1) / x.shape[-1] ** 0.5),
    ("Lengths", (), lambda x: x.norm(dim=-1)),
]


@pytest.mark.parametrize(("name", "names", "forward"), NO_NORMS, ids=[case[0] for case in NO_NORMS])
def test_what_is_no_norm_is_named(name: str, names: Any, forward: Any) -> None:
    module = module_of(name, names, forward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planish.replace(module)
    report = planish.replaced(module)
    assert not report.taken
    assert name == "Sign" or not report.left, str(report)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.last = nn.Linear(16, 16), LlamaNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.linear(x)
        y = self.norm(x)
        z = x + y
        result: Tensor = self.last(z)
        return result


@pytest.mark.parametrize(
    "register",
    [
        torch_module.register_module_forward_hook,
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_full_backward_hook,
        torch_module.register_module_full_backward_pre_hook,
    ],
    ids=lambda register: register.__name__,
)
@pytest.mark.usefixtures("in_one_call")
def test_hooks_of_all_modules_do_not_see_a_fused_norm(register: Any) -> None:
    plain, fused = Block(), planish.replace(Block(), fuse=True)
    assert planish.replaced(fused).places_fused == 2
    seen: dict[str, list[str]] = {}
    for name, model in (("plain", plain), ("fused", fused)):
        found = seen.setdefault(name, [])
        hook = register(lambda module, *rest, found=found: found.append(type(module).__name__))
        try:
            model(torch.randn(2, 16, requires_grad=True)).sum().backward()
        finally:
            hook.remove()
    assert seen["fused"] == seen["plain"]
    assert len(seen["plain"]) == 4
    calls = Calls()
    fused(torch.randn(2, 16))  # without hooks both norms are fused again
    assert calls.on_planish("planish::norm_forward (stages)") == 2
