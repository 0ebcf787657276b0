"""Small blocks that planish.replace(fuse=True) fuses, one for each kind of fusion."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

SIZE = 32


class Block(nn.Module):
    usual: Callable[[int], nn.Module] = nn.LayerNorm

    def __init__(self, norm: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__()
        norm = norm or type(self).usual
        self.norm, self.linear = norm(SIZE), nn.Linear(SIZE, SIZE)
        self.q_norm, self.k_norm = norm(SIZE), norm(SIZE)


class Sum(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        return self.norm(h) + h


class Added(Block):
    usual = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.linear(x))
        x = x + h
        return x  # noqa: RET504 (a statement of its own is what is looked for)


class Modulated(Block):
    def forward(self, x: Tensor) -> Tensor:
        scale = self.linear(x)
        return self.norm(x) * (1 + scale) + scale


class Pair(Block):
    usual = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q_norm(self.linear(x)), self.k_norm(x)
        return q * k


BLOCKS = (Sum, Added, Modulated, Pair)
