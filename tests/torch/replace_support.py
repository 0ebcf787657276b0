"""What test_replace.py, test_replace_activations.py share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Of planish's own norms, by stages (an offset, an order of rounding) or not.
FORWARD = ("planish::norm_forward", "planish::norm_forward (stages)")


class Llama(nn.Module):
    """Rounds before the weight; named as no library's."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        dtype = hidden_states.dtype
        x = hidden_states.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class LlamaNorm(Llama):
    pass


class AbsNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.variance_epsilon)
