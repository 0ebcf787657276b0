"""Small models with the blocks of a Llama, a GPT, a ConvNeXt and a DiT, and what they are trained
on: the same on every rank."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F

import torch
from torch import Tensor, nn

__all__ = ["MODELS", "batch_of", "loss_of", "model_of"]

WIDTH, HEADS, WORDS, STEPS = 32, 4, 17, 128


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        q, k, v = (
            one(x).view(batch, steps, -1, WIDTH // HEADS).transpose(1, 2)
            for one in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, steps, -1))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x))
        return h + self.mlp(self.mlp_norm(h))


class GptBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.ln_1(x)
        x = self.attention(x)
        h = x + residual
        residual = h
        h = self.ln_2(h)
        return self.mlp(h) + residual


class DitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.attention, self.mlp = Attention(), Mlp()
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        condition = self.modulation(x.mean(1, keepdim=True))
        shift1, scale1, gate1, shift2, scale2, gate2 = condition.chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class ConvNextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.mlp(self.norm(x)) * self.gamma
        return residual + x.permute(0, 3, 1, 2)


class Decoder(nn.Module):
    """Words to words, by blocks of one kind."""

    def __init__(self, block: Callable[[], nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.norm, self.head = norm, nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Pictures(nn.Module):
    """Words as pictures of one row, through blocks over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(ConvNextBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).transpose(1, 2).unsqueeze(2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.squeeze(2).transpose(1, 2)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": lambda: Decoder(LlamaBlock, nn.RMSNorm(WIDTH, 1e-6)),
    "gpt": lambda: Decoder(GptBlock, nn.LayerNorm(WIDTH)),
    "dit": lambda: Decoder(DitBlock, nn.LayerNorm(WIDTH)),
    "convnext": Pictures,
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(11)
    return MODELS[name]()


def batch_of(step: int) -> Tensor:
    """The words of a step: 8 sequences."""
    make = torch.Generator().manual_seed(step)
    return torch.randint(WORDS, (8, STEPS), generator=make)


def loss_of(model: nn.Module, words: Tensor) -> Tensor:
    """Of saying the word before."""
    said = model(words)
    return F.cross_entropy(said.flatten(0, 1), words.roll(1, 1).flatten())
