"""apex.contrib.layer_norm.layer_norm: FastLayerNorm, for rows of any length.

LayerNorm over the last axis; the result has the parameters' dtype, and under autocast that of
autocast. ``memory_efficient`` as in planish.apex.normalization.
"""

from __future__ import annotations

from typing import Any

from torch.nn import Parameter, init

import torch
from planish.apex import _functional, _functions
from planish.operators.arguments import check_tensor
from torch import Tensor

__all__ = ["FastLayerNorm", "FastLayerNormFN", "_fast_layer_norm"]


class FastLayerNormFN(torch.autograd.Function):
    """The autograd Function; ``.apply`` takes positional arguments. Its result is no view."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor | None,
        epsilon: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        shape = (gamma.numel(),)
        return _functions._forward(
            ctx, x, gamma, beta, shape, epsilon, memory_efficient, False, True
        )

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return *_functions._backward(ctx, dy, ctx.needs_input_grad[:3]), None, None


def _fast_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, memory_efficient: bool
) -> Tensor:
    check_tensor("FastLayerNorm", "weight", weight)
    shape = (weight.numel(),)
    return _functional.fused_norm(x, weight, bias, shape, epsilon, memory_efficient, False, True)


class FastLayerNorm(torch.nn.Module):
    """apex.contrib.layer_norm.FastLayerNorm: the attribute is ``epsilon``, not ``eps``.

    Example:

    >>> planish.apex.FastLayerNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        self.epsilon = eps
        self.memory_efficient = memory_efficient
        self.weight = Parameter(torch.empty(hidden_size))
        self.bias = Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of 1 and biases of 0."""
        init.ones_(self.weight)
        init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x`` (..., hidden_size), in the parameters' dtype."""
        return _fast_layer_norm(x, self.weight, self.bias, self.epsilon, self.memory_efficient)
