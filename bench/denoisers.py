"""Models of diffusers, and a step of their training, for the benches of whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["dit", "flux", "unet"]

Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def _denoiser(model: nn.Module, target: Tensor, **inputs: Any) -> Made:
    """The mean square distance to what was drawn."""

    def loss(m: nn.Module) -> Tensor:
        dtype = next(m.parameters()).dtype
        cast = {
            key: value.to(dtype)
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
            for key, value in inputs.items()
        }
        (sample,) = m(**cast, return_dict=False)
        return nn.functional.mse_loss(sample.float(), target)

    return model, loss


def dit(tiny: bool) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        from diffusers import DiTTransformer2DModel

        heads, head, side = (2, 16, 8) if tiny else (16, 72, 32)
        batch = 2 if tiny else 4 if device == "cpu" else 128
        model = DiTTransformer2DModel(
            num_attention_heads=heads,
            attention_head_dim=head,
            in_channels=4,
            out_channels=4,
            num_layers=4,
            sample_size=side,
        )
        x, target = torch.randn(2, batch, 4, side, side, device=device)
        steps, labels = torch.randint(0, 1000, (2, batch), device=device)
        return _denoiser(model, target, hidden_states=x, timestep=steps, class_labels=labels)

    return make


def flux(tiny: bool) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        from diffusers import FluxTransformer2DModel

        heads, head, text, image, batch = (2, 16, 8, 16, 2) if tiny else (16, 128, 512, 1024, 8)
        model = FluxTransformer2DModel(
            in_channels=64,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=head,
            num_attention_heads=heads,
            joint_attention_dim=256,
            pooled_projection_dim=64,
            axes_dims_rope=(head // 4, head // 4, head // 2),
        )
        x, target = torch.randn(2, batch, image, 64, device=device)
        return _denoiser(
            model,
            target,
            hidden_states=x,
            encoder_hidden_states=torch.randn(batch, text, 256, device=device),
            pooled_projections=torch.randn(batch, 64, device=device),
            timestep=torch.rand(batch, device=device),
            img_ids=torch.zeros(image, 3, device=device),
            txt_ids=torch.zeros(text, 3, device=device),
        )

    return make


def unet(tiny: bool, channels_last: bool = False) -> Callable[[str], Made]:
    def make(device: str) -> Made:
        from diffusers import UNet2DConditionModel

        channels, side = ((32, 64), 16) if tiny else ((320, 640), 64)
        batch = 2 if tiny else 1 if device == "cpu" else 8
        model = UNet2DConditionModel(
            sample_size=side,
            block_out_channels=channels,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=64,
            attention_head_dim=8,
            norm_num_groups=32,
        )
        x, target = torch.randn(2, batch, 4, side, side, device=device)
        if channels_last:
            model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
        return _denoiser(
            model,
            target,
            sample=x,
            timestep=torch.randint(0, 1000, (batch,), device=device),
            encoder_hidden_states=torch.randn(batch, 77, 64, device=device),
        )

    return make
