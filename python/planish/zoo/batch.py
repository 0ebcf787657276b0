"""Convolutional models with batch norms, of timm and torchvision."""

from __future__ import annotations

import functools
from typing import Any

from planish.zoo.entry import BATCH, Built, Entry, pixels
from planish.zoo.images import timm_model

__all__ = ["MODELS"]

_timm = functools.partial(timm_model, family=BATCH)


def _classifier(name: str, **given: Any) -> Built:
    """Of torchvision, for images of 64 x 64."""
    from torchvision import models

    return models.get_model(name, weights=None, num_classes=10, **given), {"x": pixels(64)}


def _torchvision(name: str, **given: Any) -> Entry:
    return Entry(f"tv/{name}", BATCH, ("torchvision",), lambda: _classifier(name, **given))


def _frozen() -> Built:
    from torchvision.ops.misc import FrozenBatchNorm2d

    return _classifier("resnet18", norm_layer=FrozenBatchNorm2d)


MODELS = [
    _timm("resnet18"),
    _timm("resnet50", layers=(1, 1, 1, 1)),
    _timm("resnetv2_50", layers=(1, 1, 1, 1)),
    _timm("seresnext26d_32x4d", layers=(1, 1, 1, 1)),
    _timm("regnety_002"),
    _timm("densenet121", block_config=(1, 1, 1, 1)),
    _timm("efficientnet_b0"),
    _timm("mobilenetv3_small_050"),
    _timm("repvgg_a0"),
    _timm("fastvit_t8"),
    _torchvision("resnet18"),
    Entry("tv/resnet18_frozen", BATCH, ("torchvision",), _frozen),
    _torchvision("mobilenet_v2", width_mult=0.25),
    _torchvision("efficientnet_b0"),
    _torchvision("regnet_y_400mf"),
    _torchvision("shufflenet_v2_x0_5"),
]
