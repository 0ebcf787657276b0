"""U-Nets, diffusion transformers and autoencoders of diffusers, and T5's encoder beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from planish.zoo.entry import IMAGES, Built, Entry, hugging_face, tokens
from planish.zoo.language import T5

__all__ = ["MODELS"]


def _of(name: str, cls: str, inputs: Callable[[], dict[str, Any]], **given: Any) -> Entry:
    def make() -> Built:
        import diffusers

        diffusers.logging.set_verbosity_error()
        return getattr(diffusers, cls)(**given), {**inputs(), "return_dict": False}

    return Entry(name, IMAGES, ("diffusers",), make)


# ---- U-Nets and autoencoders --------------------------------------------------------------------

_UNET: dict[str, Any] = {"sample_size": 16, "block_out_channels": (32, 64), "layers_per_block": 1}
_BLOCKS: dict[str, Any] = {
    "down": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up": ("CrossAttnUpBlock2D", "UpBlock2D"),
}


def _noise(channels: int, size: int = 16, key: str = "sample", batch: int = 2) -> dict[str, Any]:
    return {key: torch.randn(batch, channels, size, size)}


def _times(key: str = "timestep") -> dict[str, Any]:
    return {key: torch.tensor([5, 9])}


def _text(batch: int = 2, size: int = 32) -> dict[str, Any]:
    return {"encoder_hidden_states": torch.randn(batch, 7, size)}


def _sdxl_inputs() -> dict[str, Any]:
    added = {"text_embeds": torch.randn(2, 32), "time_ids": torch.randn(2, 6)}
    return {**_noise(4), **_times(), **_text(), "added_cond_kwargs": added}


_DC_ENCODER: dict[str, Any] = {
    "block_types": ("ResBlock", "EfficientViTBlock"),
    "qkv_multiscales": ((), (5,)),
}
_DC_SIDE: dict[str, Any] = {
    **_DC_ENCODER,
    "block_out_channels": (16, 32),
    "layers_per_block": (1, 1),
}
_DC: dict[str, Any] = {
    f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in _DC_SIDE.items()
}

# ---- Transformers -------------------------------------------------------------------------------

_HEADS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16}
_DIT: dict[str, Any] = {
    **_HEADS,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 2,
    "sample_size": 8,
    "patch_size": 2,
}
_SD3: dict[str, Any] = {
    **_HEADS,
    "sample_size": 8,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
    "joint_attention_dim": 32,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 32,
    "pos_embed_max_size": 8,
}
_FLUX: dict[str, Any] = {
    **_HEADS,
    "patch_size": 1,
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 2,
    "joint_attention_dim": 32,
}


def _latents(key: str = "hidden_states") -> dict[str, Any]:
    return _noise(4, 8, key)


def _class_inputs() -> dict[str, Any]:
    return {**_latents(), **_times(), "class_labels": torch.tensor([1, 2])}


def _pixart_inputs() -> dict[str, Any]:
    nothing = {"resolution": None, "aspect_ratio": None}
    return {**_latents(), **_times(), **_text(), "added_cond_kwargs": nothing}


def _sd3_inputs() -> dict[str, Any]:
    pooled = {"pooled_projections": torch.randn(2, 32), "timestep": torch.tensor([5.0, 9.0])}
    return {**_latents(), **_text(), **pooled}


def _flux_inputs(axes: int, pooled: bool) -> dict[str, Any]:
    given = {"hidden_states": torch.randn(1, 16, 4), **_text(1), "timestep": torch.tensor([0.5])}
    given |= {"img_ids": torch.randn(16, axes), "txt_ids": torch.zeros(7, axes)}
    given |= {"pooled_projections": torch.randn(1, 32)} if pooled else {}
    return {**given, "guidance": torch.tensor([3.5])}


def _qwen_inputs() -> dict[str, Any]:
    mask = {"encoder_hidden_states_mask": torch.ones(1, 7), "timestep": torch.tensor([0.5])}
    return {"hidden_states": torch.randn(1, 16, 16), **_text(1), **mask, "img_shapes": [(1, 4, 4)]}


def _video(size: int = 16) -> dict[str, Any]:
    given = {"hidden_states": torch.randn(1, 4, 2, 8, 8), "timestep": torch.tensor([5])}
    return {**given, **_text(1, size)}


def _hunyuan_inputs() -> dict[str, Any]:
    given = {"encoder_attention_mask": torch.ones(1, 7), "pooled_projections": torch.randn(1, 8)}
    return {**_video(), **given, "guidance": torch.tensor([6.0])}


def _sana_inputs() -> dict[str, Any]:
    return {**_noise(4, 8, "hidden_states", 1), **_text(1), "timestep": torch.tensor([5])}


def _encoder_inputs() -> dict[str, Any]:
    return {"input_ids": tokens()}


MODELS = [
    hugging_face(
        "t5_encoder_v1.1",
        IMAGES,
        "T5EncoderModel",
        "T5Config",
        _encoder_inputs,
        feed_forward_proj="gated-gelu",
        **T5,
    ),
    _of(
        "sd_unet",
        "UNet2DConditionModel",
        lambda: {**_noise(4), **_times(), **_text()},
        **_UNET,
        down_block_types=_BLOCKS["down"][::-1],
        up_block_types=_BLOCKS["up"][::-1],
        cross_attention_dim=32,
        attention_head_dim=8,
    ),
    _of(
        "sdxl_unet",
        "UNet2DConditionModel",
        _sdxl_inputs,
        **_UNET,
        down_block_types=_BLOCKS["down"],
        up_block_types=_BLOCKS["up"],
        cross_attention_dim=32,
        attention_head_dim=(2, 4),
        transformer_layers_per_block=2,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=80,
    ),
    _of(
        "unet2d_scale_shift",
        "UNet2DModel",
        lambda: {**_noise(3), **_times()},
        **_UNET,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        resnet_time_scale_shift="scale_shift",
        attention_head_dim=8,
    ),
    _of(
        "autoencoder_kl",
        "AutoencoderKL",
        lambda: _noise(3, 32),
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        sample_size=32,
    ),
    _of(
        "autoencoder_dc",
        "AutoencoderDC",
        lambda: _noise(3, 16, batch=1),
        latent_channels=4,
        attention_head_dim=8,
        upsample_block_type="interpolate",
        downsample_block_type="pixel_unshuffle",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        **_DC,
    ),
    _of(
        "autoencoder_kl_wan",
        "AutoencoderKLWan",
        lambda: {"sample": torch.randn(1, 3, 5, 16, 16)},
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    ),
    _of("dit", "DiTTransformer2DModel", _class_inputs, **_DIT, num_embeds_ada_norm=100),
    _of(
        "pixart",
        "PixArtTransformer2DModel",
        _pixart_inputs,
        **_DIT,
        cross_attention_dim=32,
        caption_channels=32,
        use_additional_conditions=False,
    ),
    _of("sd3", "SD3Transformer2DModel", _sd3_inputs, **_SD3),
    _of(
        "sd3.5_medium",
        "SD3Transformer2DModel",
        _sd3_inputs,
        **_SD3,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    ),
    _of(
        "flux",
        "FluxTransformer2DModel",
        lambda: _flux_inputs(3, True),
        **_FLUX,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    ),
    _of(
        "flux2",
        "Flux2Transformer2DModel",
        lambda: _flux_inputs(4, False),
        **_FLUX,
        timestep_guidance_channels=16,
        mlp_ratio=2.0,
        axes_dims_rope=(4, 4, 4, 4),
    ),
    _of(
        "qwen_image",
        "QwenImageTransformer2DModel",
        _qwen_inputs,
        **_HEADS,
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    ),
    _of(
        "wan",
        "WanTransformer3DModel",
        _video,
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    ),
    _of(
        "hunyuan_video",
        "HunyuanVideoTransformer3DModel",
        _hunyuan_inputs,
        **_HEADS,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=2,
        patch_size_t=1,
        guidance_embeds=True,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(4, 4, 8),
    ),
    _of(
        "sana",
        "SanaTransformer2DModel",
        _sana_inputs,
        **_HEADS,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=32,
        sample_size=8,
    ),
]
