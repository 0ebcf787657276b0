"""Every norm of planish's public surface, functions, modules and fused blocks, as a module of one
tensor whose sizes may vary: for what holds wherever planish is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fused_blocks import BLOCKS, SIZE

import planish
import torch
from torch import Tensor, nn

__all__ = ["NAMES", "Case", "case_of"]


class Case(NamedTuple):
    """What is called, and of which sizes: names for those that vary."""

    model: nn.Module
    sizes: tuple[int | str, ...]

    def shape(self, **varied: int) -> tuple[int, ...]:
        return tuple(varied[size] if isinstance(size, str) else size for size in self.sizes)

    @property
    def axes(self) -> dict[int, str]:
        """The axes that vary."""
        return {axis: size for axis, size in enumerate(self.sizes) if isinstance(size, str)}


class _Call(nn.Module):
    """A function of x and of parameters that are not planish's."""

    def __init__(self, call: Callable[..., Any], weight: int) -> None:
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, weight))
        self.register_buffer("statistic", torch.linspace(0.5, 1.5, weight))

    def forward(self, x: Tensor) -> Any:
        return self.call(x, self.weight, self.statistic)


class _Two(nn.Module):
    """A module of x and of others like it."""

    def __init__(self, norm: nn.Module, others: int = 1) -> None:
        super().__init__()
        self.norm, self.others = norm, others

    def forward(self, x: Tensor) -> Any:
        return self.norm(x, *(x.flip(0) * (k + 0.5) for k in range(self.others)))


ROWS = ("batch", "length", 16)
IMAGE = ("batch", 8, "height", "width")
LINE, VOLUME = ("batch", 8, "length"), ("batch", 8, "height", "width", 2)
PIXELS = ("batch", "height", "width", 16)


def _images(call: Callable[..., Any]) -> tuple[Callable[[], nn.Module], Any]:
    return lambda: _Call(call, 8), IMAGE


def _rows(call: Callable[..., Any]) -> tuple[Callable[[], nn.Module], Any]:
    return lambda: _Call(call, 16), ROWS


_FUNCTIONS = {
    "add_layer_norm": _rows(lambda x, w, _: planish.add_layer_norm(x, x.flip(0), w, w)),
    "add_rms_norm": _rows(lambda x, w, _: planish.add_rms_norm(x, x.flip(0), w)),
    "batch_norm": _images(lambda x, w, s: planish.batch_norm(x, s, s + 1, w, w)),
    "batch_norm, training": _images(
        lambda x, w, s: planish.batch_norm(
            x, s, s.clone(), w, w, training=True, activation="silu", addend=x
        )
    ),
    "gated_layer_norm": _rows(lambda x, w, _: planish.gated_layer_norm(x, x.flip(0), w, w)),
    "gated_rms_norm": _rows(lambda x, w, _: planish.gated_rms_norm(x, x.flip(0), w, group_size=4)),
    "global_response_norm": (
        lambda: _Call(lambda x, w, _: planish.global_response_norm(x, w, w), 16),
        PIXELS,
    ),
    "global_response_norm, first": _images(
        lambda x, w, _: planish.global_response_norm(x, w, w, channel_axis=1)
    ),
    "group_norm": _images(lambda x, w, _: planish.group_norm(x, 4, w, w)),
    "group_norm, silu": _images(lambda x, w, _: planish.group_norm(x, 4, w, w, activation="silu")),
    "group_norm, offset": _images(lambda x, w, _: planish.group_norm(x, 4, w, w, weight_offset=1)),
    "layer_norm": _rows(lambda x, w, _: planish.layer_norm(x, -1, w, w)),
    "layer_norm, images": _images(lambda x, w, _: planish.layer_norm(x, 1, w, w)),
    "layer_norm, gelu": _rows(lambda x, w, _: planish.layer_norm(x, -1, w, w, activation="gelu")),
    "modulated_layer_norm": _rows(lambda x, w, _: planish.modulated_layer_norm(x, w, w)),
    "modulated_rms_norm": _rows(
        lambda x, w, _: planish.modulated_rms_norm(x, w, w, residual=x.flip(0), gate=w)
    ),
    "normalize": _rows(lambda x, w, _: planish.normalize(x, dim=-1, weight=w)),
    "qk_norm": _rows(lambda x, w, _: planish.qk_norm(x, x.flip(0), w, w, 1e-6)),
    "quantized_layer_norm": _rows(
        lambda x, w, s: planish.quantized_layer_norm(x, w, w, scale=s[:1].view(()))
    ),
    "quantized_rms_norm": _rows(lambda x, w, _: planish.quantized_rms_norm(x, w)),
    "quantized_rms_norm, blocks": _rows(
        lambda x, w, _: planish.quantized_rms_norm(x, w, per=32, transposed_scales=True)
    ),
    "quantized_rms_norm, tensor": _rows(
        lambda x, w, _: planish.quantized_rms_norm(x, w, per="tensor")
    ),
    "rms_norm": _rows(lambda x, w, _: planish.rms_norm(x, -1, w)),
    "rms_norm, xhat": _rows(lambda x, w, _: planish.rms_norm(x, -1, w, cast="xhat")),
    "weight_standardize": _images(lambda x, w, _: planish.weight_standardize(x)),
}

_MODULES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "AddLayerNorm": (lambda: _Two(planish.AddLayerNorm(16)), ROWS),
    "AddRMSNorm": (lambda: _Two(planish.AddRMSNorm(16)), ROWS),
    "BatchNorm1d": (lambda: planish.BatchNorm1d(8), LINE),
    "BatchNorm2d": (lambda: planish.BatchNorm2d(8, activation="relu"), IMAGE),
    "BatchNorm2d, eval": (lambda: planish.BatchNorm2d(8, activation="relu").eval(), IMAGE),
    "BatchNorm2d, addend": (lambda: _Two(planish.BatchNorm2d(8, activation="relu")), IMAGE),
    "BatchNorm3d": (lambda: planish.BatchNorm3d(8, once=True), VOLUME),
    "EvoNorm2dS0": (lambda: planish.EvoNorm2dS0(8, groups=4), IMAGE),
    "GatedRMSNorm": (lambda: _Two(planish.GatedRMSNorm(16)), ROWS),
    "GlobalResponseNorm": (lambda: planish.GlobalResponseNorm(16), PIXELS),
    "GroupNorm": (lambda: planish.GroupNorm(4, 8), IMAGE),
    "GroupNorm, silu": (lambda: planish.GroupNorm(4, 8, activation="silu"), IMAGE),
    "InstanceNorm1d": (lambda: planish.InstanceNorm1d(8, affine=True), LINE),
    "InstanceNorm2d": (lambda: planish.InstanceNorm2d(8), IMAGE),
    "InstanceNorm2d, running": (
        lambda: planish.InstanceNorm2d(8, affine=True, track_running_stats=True),
        IMAGE,
    ),
    "InstanceNorm3d": (lambda: planish.InstanceNorm3d(8, affine=True), VOLUME),
    "LayerNorm": (lambda: planish.LayerNorm(16), ROWS),
    "LayerNorm2d": (lambda: planish.LayerNorm2d(8), IMAGE),
    "ModulatedLayerNorm": (lambda: _Two(planish.ModulatedLayerNorm(16), 2), ROWS),
    "RMSNorm": (lambda: planish.RMSNorm(16), ROWS),
    "RMSNorm2d": (lambda: planish.RMSNorm2d(8), IMAGE),
    "SyncBatchNorm": (lambda: planish.SyncBatchNorm(8, activation="silu"), IMAGE),
}


def _replaced(model: nn.Module, **options: Any) -> nn.Module:
    return planish.replace(model, **options)


_REPLACED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "replaced, BatchNorm2d": (
        lambda: _replaced(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), activations=True),
        IMAGE,
    ),
    "replaced, GroupNorm": (
        lambda: _replaced(nn.Sequential(nn.GroupNorm(4, 8), nn.SiLU()), activations=True),
        IMAGE,
    ),
    "replaced, InstanceNorm2d": (lambda: _replaced(nn.Sequential(nn.InstanceNorm2d(8))), IMAGE),
    **{
        f"fused, {block.__name__}": (
            lambda block=block: _replaced(block(), fuse=True),  # type: ignore[misc]
            ("batch", "length", SIZE),
        )
        for block in BLOCKS
    },
}

_ALL = {**_FUNCTIONS, **_MODULES, **_REPLACED}
NAMES = tuple(_ALL)


def case_of(name: str) -> Case:
    make, sizes = _ALL[name]
    return Case(make(), sizes)
