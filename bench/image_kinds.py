"""Whole models of images, and a step of each: what fuse_models.py trains with --images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]

#: Of timm, with batch norms (ReLU, SiLU, ReLU6, Hardswish behind) and global response norms.
_MODELS = (
    "resnet50",
    "efficientnet_b0",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "convnextv2_base",
)


def _image(name: str, tiny: bool, last: bool) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        import timm

        side, batch = (64, 2) if tiny else (224, 64)
        model = timm.create_model(name, num_classes=100)
        x = torch.randn(batch, 3, side, side, device=device)
        if last:
            model = model.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, 100, (batch,), device=device)
        return model, lambda m: nn.functional.cross_entropy(
            m(x.to(next(m.parameters()).dtype)).float(), labels
        )

    return make


def image_kinds(tiny: bool) -> dict[str, tuple[str, Callable[[str], Made]]]:
    """Each with its package and what makes it and its loss on a device."""
    kinds = {name: ("timm", _image(name, tiny, True)) for name in _MODELS}
    return kinds | {"resnet50 nchw": ("timm", _image("resnet50", tiny, False))}
