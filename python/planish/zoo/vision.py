"""BERT and its kin, vision transformers, audio: of Transformers, timm and torchvision."""

from __future__ import annotations

import functools
from typing import Any

import torch
from planish.zoo.entry import VISION, Built, Entry, hugging_face, pixels, tokens
from planish.zoo.images import timm_model
from planish.zoo.language import SPECIAL

__all__ = ["MODELS"]

_BERT: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
_VIT_MLP: dict[str, Any] = {**_VIT, "intermediate_size": 64}
_SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}


def _ids() -> dict[str, Any]:
    return {"input_ids": tokens()}


def _image() -> dict[str, Any]:
    return {"pixel_values": pixels(32)}


def _two_towers(name: str, stem: str, **given: Any) -> Entry:
    text = {**_BERT, **SPECIAL, **given.pop("text", {})}
    vision = {**_VIT_MLP, **given.pop("vision", {})}
    return hugging_face(
        name,
        VISION,
        f"{stem}Model",
        f"{stem}Config",
        lambda: _ids() | _image(),
        text_config=text,
        vision_config=vision,
        **given,
    )


_WHISPER: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "max_target_positions": 32,
    "decoder_start_token_id": 3,
    **SPECIAL,
}
_WAV2VEC2: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "layerdrop": 0.0,
}


def _speech() -> dict[str, Any]:
    return {
        "input_features": torch.randn(2, 16, 40),
        "decoder_input_ids": tokens(2, 8),
        "use_cache": False,
    }


def _wave() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800)}


def _prompted() -> dict[str, Any]:
    return {
        "pixel_values": torch.randn(1, 3, 64, 64),
        "input_points": torch.rand(1, 1, 2, 2) * 64,
        "input_labels": torch.ones(1, 1, 2, dtype=torch.long),
        "input_masks": torch.randn(1, 1, 16, 16),
    }


def _decoder_of_masks(size: int) -> dict[str, Any]:
    return {
        "hidden_size": size,
        "mlp_dim": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    }


def _prompts(size: int) -> dict[str, Any]:
    return {"hidden_size": size, "image_size": 64, "patch_size": 16, "mask_input_channels": 16}


_SAM: dict[str, Any] = {
    "vision_config": {
        "hidden_size": 32,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 16,
        "mlp_dim": 64,
        "window_size": 2,
        "global_attn_indexes": [1],
        "num_pos_feats": 8,
    },
    "prompt_encoder_config": _prompts(16),
    "mask_decoder_config": _decoder_of_masks(16),
}


def _sam2() -> Built:
    import transformers

    transformers.logging.set_verbosity_error()
    backbone = transformers.Sam2HieraDetConfig(
        hidden_size=16,
        num_attention_heads=1,
        image_size=[64, 64],
        window_positional_embedding_background_size=[4, 4],
        blocks_per_stage=[1, 2, 2, 1],
        embed_dim_per_stage=[16, 32, 64, 128],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        global_attention_blocks=[4],
        window_size_per_stage=[4, 2, 4, 2],
        mlp_ratio=2.0,
    )
    vision = transformers.Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[128, 64, 32, 16],
        backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
        fpn_hidden_size=32,
    )
    config = transformers.Sam2Config(
        vision_config=vision,
        prompt_encoder_config=_prompts(32),
        mask_decoder_config=_decoder_of_masks(32),
    )
    return transformers.Sam2Model(config), _prompted()


def _vision_swin_v2() -> Built:
    from torchvision.models import swin_transformer as swin

    model = swin.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[1, 2],
        window_size=[4, 4],
        block=swin.SwinTransformerBlockV2,
        downsample_layer=swin.PatchMergingV2,
        num_classes=10,
    )
    return model, {"x": pixels(64)}


def _vision_vit() -> Built:
    from torchvision.models.vision_transformer import VisionTransformer

    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2}
    model = VisionTransformer(**sizes, hidden_dim=32, mlp_dim=64, num_classes=10)
    return model, {"x": pixels(32)}


_small: dict[str, Any] = {"depth": 2, "embed_dim": 32, "num_heads": 2}
_timm = functools.partial(timm_model, family=VISION)
_hf = functools.partial(hugging_face, family=VISION)

MODELS = [
    _hf(name="bert", model="BertForMaskedLM", config="BertConfig", inputs=_ids, **_BERT),
    _hf(name="roberta", model="RobertaForMaskedLM", config="RobertaConfig", inputs=_ids, **_BERT),
    _hf(
        name="modernbert",
        model="ModernBertForMaskedLM",
        config="ModernBertConfig",
        inputs=_ids,
        cls_token_id=1,
        sep_token_id=2,
        **_BERT,
        **SPECIAL,
    ),
    _hf(
        name="vit",
        model="ViTForImageClassification",
        config="ViTConfig",
        inputs=_image,
        **_VIT_MLP,
    ),
    _hf(name="dinov2", model="Dinov2Model", config="Dinov2Config", inputs=_image, **_VIT),
    _hf(
        name="dinov3_vit",
        model="DINOv3ViTModel",
        config="DINOv3ViTConfig",
        inputs=_image,
        **_VIT_MLP,
    ),
    _two_towers(
        "clip",
        "CLIP",
        projection_dim=16,
        text={"projection_dim": 16},
        vision={"projection_dim": 16},
    ),
    _two_towers("siglip", "Siglip", text={"projection_size": 32}),
    _hf(name="swin", model="SwinModel", config="SwinConfig", inputs=_image, **_SWIN),
    _hf(name="swinv2", model="Swinv2Model", config="Swinv2Config", inputs=_image, **_SWIN),
    _hf(
        name="whisper",
        model="WhisperForConditionalGeneration",
        config="WhisperConfig",
        inputs=_speech,
        **_WHISPER,
    ),
    _hf(
        name="wav2vec2_group",
        model="Wav2Vec2Model",
        config="Wav2Vec2Config",
        inputs=_wave,
        feat_extract_norm="group",
        **_WAV2VEC2,
    ),
    _hf(
        name="wav2vec2_layer",
        model="Wav2Vec2Model",
        config="Wav2Vec2Config",
        inputs=_wave,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        **_WAV2VEC2,
    ),
    _hf(name="sam", model="SamModel", config="SamConfig", inputs=_prompted, **_SAM),
    Entry("sam2", VISION, ("transformers",), _sam2),
    _timm("vit_small_patch16_224", 32, img_size=32, **_small),
    _timm("vit_little_patch16_reg1_gap_256", 32, img_size=32, **_small),
    _timm("vit_large_patch14_xp_224", 28, img_size=28, **_small),
    _timm("aimv2_large_patch14_224", 28, img_size=28, **_small),
    _timm("vit_small_patch16_dinov3", 32, img_size=32, **_small),
    _timm("eva02_small_patch14_224", 28, img_size=28, **_small),
    _timm("hiera_tiny_224", 64, img_size=64, stages=(1, 1, 2, 1), embed_dim=16),
    _timm(
        "swin_tiny_patch4_window7_224",
        56,
        img_size=56,
        depths=(1, 1),
        num_heads=(1, 2),
        embed_dim=16,
    ),
    _timm(
        "swinv2_cr_tiny_ns_224",
        64,
        img_size=64,
        depths=(1, 1),
        num_heads=(1, 2),
        embed_dim=16,
        window_size=8,
    ),
    _timm(
        "samvit_base_patch16", 64, img_size=64, window_size=2, global_attn_indexes=(1,), **_small
    ),
    _timm("tiny_vit_5m_224", 224),
    Entry("tv/swin_v2", VISION, ("torchvision",), _vision_swin_v2),
    Entry("tv/vit", VISION, ("torchvision",), _vision_vit),
]
