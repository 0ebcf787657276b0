"""What gpu_parallel.py trains: a Llama and a GPT-2 of Transformers, a ConvNeXt of timm, and a DiT
with the blocks of Peebles and Xie, each with sizes for a GPU and tiny ones for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F

import torch
from torch import Tensor, nn

__all__ = ["KINDS", "Kind"]

Batch = tuple[Tensor, ...]


class Kind(NamedTuple):
    make: Callable[[bool], nn.Module]  # whether it is tiny
    #: Inputs of so many times a GPU's share, made on the CPU.
    batch: Callable[[bool, int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    #: Where the layers are that FSDP2 shards each by itself.
    layers: str


def _words(
    large: tuple[int, int], count: int
) -> Callable[[bool, int, torch.Generator], tuple[Tensor]]:
    """``large``: how many words there are, and the length of a sequence."""

    def batch(tiny: bool, times: int, make: torch.Generator) -> tuple[Tensor]:
        words, length = (256, 32) if tiny else large
        return (torch.randint(words, (times * (2 if tiny else count), length), generator=make),)

    return batch


def _loss_of_words(model: nn.Module, batch: Batch) -> Tensor:
    (words,) = batch
    said = model(words)
    return F.cross_entropy(said.flatten(0, 1).float(), words.roll(-1, 1).flatten())


# ---- Llama ---------------------------------------------------------------------------------------


class Llama(nn.Module):
    """Transformers' layers between an embedding and a head."""

    def __init__(self, tiny: bool) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama import modeling_llama as of

        super().__init__()
        layers, width, inner, heads = (2, 64, 128, 4) if tiny else (8, 4096, 11008, 32)
        config = LlamaConfig(
            vocab_size=256 if tiny else 32000,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=32 if tiny else 2048,
            attn_implementation="sdpa",
        )
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(of.LlamaDecoderLayer(config, i) for i in range(layers))
        self.norm = of.LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.head = nn.Linear(width, config.vocab_size, bias=False)
        self.rotary = of.LlamaRotaryEmbedding(config)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        positions = torch.arange(words.shape[1], device=words.device)[None]
        turned = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=turned)
        y: Tensor = self.head(self.norm(x))
        return y


# ---- GPT-2 ---------------------------------------------------------------------------------------


def _gpt2(tiny: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = (2, 64, 4) if tiny else (12, 2048, 16)
    config = GPT2Config(
        vocab_size=256 if tiny else 32000,
        n_positions=32 if tiny else 1024,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        return_dict=True,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def _loss_of_gpt2(model: nn.Module, batch: Batch) -> Tensor:
    return _loss_of_words(lambda words: model(words).logits, batch)  # type: ignore[arg-type]


# ---- ConvNeXt ------------------------------------------------------------------------------------


def _convnext(tiny: bool) -> nn.Module:
    import timm

    sizes: dict[str, Any] = {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)} if tiny else {}
    return timm.create_model("convnext_large", num_classes=100, **sizes)  # type: ignore[no-any-return]


def _images(tiny: bool, times: int, make: torch.Generator) -> tuple[Tensor, Tensor]:
    count, side = (2, 64) if tiny else (64, 224)
    x = torch.randn(times * count, 3, side, side, generator=make)
    labels = torch.randint(100, (times * count,), generator=make)
    return x.contiguous(memory_format=torch.channels_last), labels


def _loss_of_images(model: nn.Module, batch: Batch) -> Tensor:
    x, labels = batch
    return F.cross_entropy(model(x).float(), labels)


# ---- DiT -----------------------------------------------------------------------------------------


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DitBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def attend(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        q, k, v = self.qkv(x).view(batch, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.proj(y.reshape(batch, steps, width))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, 1)
        x = x + gate1.unsqueeze(1) * self.attend(_modulated(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(_modulated(self.norm2(x), shift2, scale2))


class Dit(nn.Module):
    """From noisy patches and a condition to the noise."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        width, heads, layers, steps = (64, 4, 2, 16) if tiny else (1152, 16, 14, 256)
        self.patches, self.condition = nn.Linear(16, width), nn.Embedding(100, width)
        self.places = nn.Parameter(torch.randn(1, steps, width) * 0.02)
        self.blocks = nn.ModuleList(DitBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, 16)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x, condition = self.patches(x) + self.places, self.condition(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).chunk(2, 1)
        return self.out(_modulated(self.norm(x), shift, scale))  # type: ignore[no-any-return]


def _noise(tiny: bool, times: int, make: torch.Generator) -> Batch:
    count, steps = (2, 16) if tiny else (64, 256)
    x = torch.randn(times * count, steps, 16, generator=make)
    labels = torch.randint(100, (times * count,), generator=make)
    return x, labels, torch.randn(x.shape, generator=make)


def _loss_of_noise(model: nn.Module, batch: Batch) -> Tensor:
    x, labels, noise = batch
    return F.mse_loss(model(x, labels).float(), noise.float())


KINDS = {
    "Llama": Kind(Llama, _words((32000, 2048), 4), _loss_of_words, "layers"),
    "GPT-2": Kind(_gpt2, _words((32000, 1024), 8), _loss_of_gpt2, "transformer.h"),
    "ConvNeXt": Kind(_convnext, _images, _loss_of_images, "stages"),
    "DiT": Kind(Dit, _noise, _loss_of_noise, "blocks"),
}
