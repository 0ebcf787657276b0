"""Convolutional models of timm, Transformers and torchvision."""

from __future__ import annotations

from typing import Any

import torch
from planish.zoo.entry import IMAGES, Built, Entry, hugging_face, pixels

__all__ = ["MODELS", "timm_model"]


def timm_model(
    name: str, size: int = 64, family: str = IMAGES, batch: int = 2, **given: Any
) -> Entry:
    """A model of timm for images of this size."""

    def make() -> Built:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **given), {
            "x": pixels(size, batch)
        }

    return Entry(f"timm/{name}", family, ("timm",), make)


def _metaformer() -> Built:
    from timm.models.metaformer import MetaFormer, SepConv

    sizes = {"depths": (1, 1, 2, 1), "dims": (16, 32, 64, 64)}
    return MetaFormer(**sizes, token_mixers=[SepConv] * 4, num_classes=10), {"x": pixels(64)}


def _vision_convnext() -> Built:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    stages = [(16, 24, 1), (24, 32, 1), (32, 40, 2), (40, None, 1)]
    blocks = [CNBlockConfig(*stage) for stage in stages]
    return ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=10), {"x": pixels(64)}


def _raft() -> Built:
    from torchvision.models.optical_flow import raft_large

    images = {f"image{i}": torch.rand(1, 3, 128, 128) * 2 - 1 for i in (1, 2)}
    return raft_large(weights=None), {**images, "num_flow_updates": 1}


_STAGES: dict[str, Any] = {"depths": (1, 1, 2, 1), "dims": (16, 24, 32, 40)}
_HF_STAGES: dict[str, Any] = {
    "hidden_sizes": [16, 24, 32, 40],
    "depths": [1, 1, 2, 1],
    "image_size": 64,
}
_SHALLOW: dict[str, Any] = {"layers": (1, 1, 1, 1)}


def _image() -> dict[str, Any]:
    return {"pixel_values": pixels(64)}


def _of_hugging_face(name: str, model: str, config: str) -> Entry:
    return hugging_face(name, IMAGES, model, config, _image, **_HF_STAGES)


MODELS = [
    _of_hugging_face("dinov3_convnext", "DINOv3ConvNextModel", "DINOv3ConvNextConfig"),
    _of_hugging_face("convnext", "ConvNextForImageClassification", "ConvNextConfig"),
    _of_hugging_face("convnextv2", "ConvNextV2ForImageClassification", "ConvNextV2Config"),
    timm_model("convnext_atto", **_STAGES),
    timm_model("convnext_tiny", **_STAGES),
    timm_model("convnextv2_atto", **_STAGES),
    timm_model("resnet50_gn", **_SHALLOW),
    timm_model("resnetv2_50x1_bit"),
    timm_model("resnetv2_50d_evos", **_SHALLOW),
    timm_model("maxxvit_rmlp_nano_rw_256", batch=1, img_size=64),
    timm_model("coatnext_nano_rw_224", batch=1, img_size=64),
    timm_model("coatnet_nano_rw_224", batch=1, img_size=64),
    timm_model("mobilenetv5_base", channel_multiplier=0.25),
    timm_model("efficientvit_b0"),
    timm_model("edgenext_xx_small"),
    timm_model("poolformer_s12"),
    timm_model("caformer_s18"),
    timm_model("mambaout_femto", depths=(1, 1, 1, 1), dims=(16, 32, 32, 64)),
    Entry("timm/metaformer", IMAGES, ("timm",), _metaformer),
    Entry("tv/convnext", IMAGES, ("torchvision",), _vision_convnext),
    Entry("tv/raft", IMAGES, ("torchvision",), _raft),
]
