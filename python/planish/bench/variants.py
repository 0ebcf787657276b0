"""LayerNorm in the ways that models have it: torch's, the formula, Apex's names, planish's; and how
one of them is put into a model. Times nothing."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .providers.planish_torch import enabled

Make = Callable[[nn.LayerNorm], nn.Module]


class Unfused(nn.LayerNorm):
    """The formula as models had it before 2019, one operator of torch after the other, in x's
    dtype."""

    def forward(self, input: Tensor) -> Tensor:
        """y"""
        axes = list(range(-len(self.normalized_shape), 0))
        mean = input.mean(axes, keepdim=True)
        centred = input - mean
        variance = centred.pow(2).mean(axes, keepdim=True)
        return self.weight * (centred / torch.sqrt(variance + self.eps)) + self.bias


def unfused(norm: nn.LayerNorm) -> nn.Module:
    """The same norm by the formula."""
    new = Unfused(tuple(norm.normalized_shape), norm.eps, device="meta")
    new.weight, new.bias = norm.weight, norm.bias
    return new


def of_planish(norm: nn.LayerNorm) -> nn.Module:
    """planish's module with the same parameters."""
    import planish

    return planish.replace(norm)


def of_apex(home: str) -> Make:
    """Apex's FusedLayerNorm out of that package; ImportError where it is not there."""
    cls: Any = importlib.import_module(home).FusedLayerNorm

    def make(norm: nn.LayerNorm) -> nn.Module:
        new: nn.Module = cls(tuple(norm.normalized_shape), eps=norm.eps)
        new.weight, new.bias = norm.weight, norm.bias
        return new

    return make


@dataclass(frozen=True)
class Way:
    """What stands where a model has an nn.LayerNorm, and the block in which it is called. ``make``
    may raise ImportError."""

    name: str
    what: str
    make: Callable[[], Make | None]
    context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    gpu_only: bool = False


WAYS = (
    Way("torch", "torch.nn.LayerNorm", lambda: None),
    Way("unfused", "the formula in torch's operators", lambda: unfused),
    Way("apex", "apex.normalization", lambda: of_apex("apex.normalization"), gpu_only=True),
    Way("planish-enable", "torch.nn.LayerNorm after planish.enable()", lambda: None, enabled),
    Way("planish-module", "planish.LayerNorm", lambda: of_planish),
    Way("planish-apex", "planish.apex", lambda: of_apex("planish.apex")),
)


def usable(device: str) -> dict[str, tuple[Way, Make | None]]:
    """The ways that are there; says which are not, and why."""
    found: dict[str, tuple[Way, Make | None]] = {}
    for way in WAYS:
        if way.gpu_only and device != "cuda":
            print(f"missing: {way.name}: runs on a GPU only: --device cuda")
            continue
        try:
            found[way.name] = way, way.make()
        except Exception as error:  # some raise other errors than ImportError where CUDA differs
            print(f"missing: {way.name}: {type(error).__name__}: {error}")
    return found


def put_in(model: nn.Module, make: Make | None) -> nn.Module:
    """Replaces every nn.LayerNorm of the model (and no subclass) in place; returns the model."""
    if make is not None:
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if type(child) is nn.LayerNorm:
                    parent._modules[name] = make(child)
    return model
