"""`planish bench norms`: timm's ConvNeXt and ResNet with seven norms over their channels.

LayerNorm over the channels of (N, C, H, W) has been written in many ways, because none of them was
fast everywhere. Each stands in the same model with the same weights; GroupNorm of one group is
another function, which models take for its speed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from planish.commands.command_lines import words
from planish.commands.models import Workload, convnext, resnet50
from planish.library.dtypes import BY_NAME
from torch import Tensor, nn

from .program import launch, parser
from .providers.planish_torch import enabled
from .steps import StepRow, WayOfModel, steps_by_turns
from .timing import Effort


def formula(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm over axis 1, one operator after the other."""
    mean = x.mean(dim=1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(dim=1, keepdim=True)
    y = centred * torch.rsqrt(variance + eps)
    return y * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)


class _Over(nn.Module):
    """The parameters of a norm over channels; subclasses compute it."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps


class Permuted(_Over):
    """torch's LayerNorm of the permuted view, and back."""

    def forward(self, x: Tensor) -> Tensor:
        """y"""
        shape = self.weight.shape
        y = nn.functional.layer_norm(x.permute(0, 2, 3, 1), shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class Formula(_Over):
    """The formula."""

    def forward(self, x: Tensor) -> Tensor:
        """y"""
        return formula(x, self.weight, self.bias, self.eps)


@functools.cache
def _scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it is here as what it was
        return torch.jit.script(formula)


class Scripted(_Over):
    """The formula as TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        """y"""
        y: Tensor = _scripted()(x, self.weight, self.bias, self.eps)
        return y


class OneGroup(_Over):
    """GroupNorm of one group: over the pixels, too."""

    def forward(self, x: Tensor) -> Tensor:
        """y"""
        return nn.functional.group_norm(x, 1, self.weight, self.bias, self.eps)


def _of_planish(norm: nn.LayerNorm) -> nn.Module:
    import planish

    new = planish.LayerNorm2d(norm.normalized_shape[0], eps=norm.eps, device="meta")
    new.weight, new.bias = norm.weight, norm.bias
    return new


def _replaced(norm: nn.LayerNorm) -> nn.Module:
    import planish

    return planish.replace(norm)


#: Name -> what is put in, and the block that steps run in.
NORMS: dict[str, tuple[Callable[[nn.LayerNorm], nn.Module], Any]] = {
    "permute": (Permuted, contextlib.nullcontext),
    "formula": (Formula, contextlib.nullcontext),
    "formula-script": (Scripted, contextlib.nullcontext),
    "one-group": (OneGroup, contextlib.nullcontext),
    "planish-enable": (Permuted, enabled),
    "planish-2d": (_of_planish, enabled),
    "planish-replace": (_replaced, enabled),
}


def _is_over_channels(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) and type(module).__name__ == "LayerNorm2d"


def with_norm(workload: Workload, make: Callable[[nn.LayerNorm], nn.Module]) -> int:
    """Puts it in the place of every LayerNorm2d of timm; returns of how many."""
    count = 0
    for parent in list(workload.model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and _is_over_channels(child):
                assert isinstance(child, nn.LayerNorm)
                parent._modules[name] = make(child)
                count += 1
    return count


def makers(arguments: argparse.Namespace) -> dict[str, Callable[[], Workload]]:
    """The models, as large as the device allows."""
    gpu, quick = arguments.device == "cuda", arguments.quick
    size = 64 if quick else (224 if gpu else 128)
    batch = 1 if quick else (64 if gpu else 2)
    place: dict[str, Any] = {
        "device": arguments.device,
        "dtype": BY_NAME[arguments.dtype],
        "autocast": arguments.autocast,
        "channels_last": arguments.layout == "nhwc",
    }
    variant = "convnext_atto" if quick else ("convnext_base" if gpu else "convnext_tiny")
    # With convolutions in the place of linear layers, so that every norm is over NCHW's channels.
    return {
        "convnext": lambda: convnext(variant, batch, size, **place, conv_mlp=True),
        "resnet": lambda: resnet50("layer", batch, size, **place),
    }


def ways_of(make: Callable[[], Workload], chosen: Sequence[str]) -> dict[str, WayOfModel]:
    """The same model, seeded alike, with each norm."""
    found: dict[str, WayOfModel] = {}
    for name in chosen:
        norm, context = NORMS[name]
        workload = make()
        if not with_norm(workload, norm):
            raise RuntimeError(f"planish bench norms: {workload.name} has no LayerNorm2d")
        found[name] = WayOfModel(workload, context)
    return found


def run(arguments: argparse.Namespace) -> list[StepRow]:
    """Both models."""
    chosen = words(arguments.norms, list(NORMS), "--norms") or list(NORMS)
    effort = Effort(7, 0.3, 15.0 if arguments.quick else 60.0, patience=2.0)
    rows: list[StepRow] = []
    known = makers(arguments)
    models = words(arguments.models, list(known), "--models")
    for name, make in known.items():
        if models and name not in models:
            continue
        try:
            ways = ways_of(make, chosen)
        except ImportError as error:
            print(f"missing: {name}: {error}")
            continue
        load = next(iter(ways.values())).workload
        rows += steps_by_turns(f"{load.name}, {load.shape}, {arguments.dtype}", ways, effort)
        del ways, load
    return rows


def main(given: Sequence[str]) -> int:
    """Runs the bench."""
    p = parser("norms", __doc__)
    p.add_argument("--dtype", choices=BY_NAME, default="f32")
    p.add_argument("--autocast", action="store_true", help="float weights, run in --dtype")
    p.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw")
    p.add_argument("--models", default="", help="convnext,resnet")
    p.add_argument("--norms", default="", help=", ".join(NORMS))
    return launch("norms", given, p.parse_args(given), run)
