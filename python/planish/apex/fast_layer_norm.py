"""fast_layer_norm: the functions of the extension module under apex.contrib.layer_norm.

x has two axes, and the norm is over the second, of any length (Apex has kernels for 26 of them).
They have no derivatives of their own. y has gamma's dtype.
"""

from __future__ import annotations

import torch
from planish.apex import _kernels
from planish.operators.arguments import check_tensor
from torch import Tensor

__all__ = ["ln_bwd", "ln_fwd"]


def _check(x: Tensor, gamma: Tensor, function: str) -> None:
    check_tensor(function, "x", x)
    check_tensor(function, "gamma", gamma)
    if x.dim() != 2 or x.shape[1] != gamma.numel():
        raise RuntimeError(
            f"{function}: Expected x of two axes with {gamma.numel()} columns, one for each "
            f"element of gamma, but got x of shape {list(x.shape)}"
        )


def ln_fwd(x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float) -> list[Tensor]:
    """y, mean, 1 / sqrt(var + eps)."""
    _check(x, gamma, "ln_fwd")
    with torch.no_grad():
        results = _kernels.forward(x, gamma, beta, x.shape[1:], epsilon, False, True)
    return [result for result in results if result is not None]


def ln_bwd(
    dz: Tensor,
    x_or_z: Tensor,
    mu: Tensor | None,
    rsigma: Tensor,
    gamma: Tensor,
    beta: Tensor | None,
    memory_efficient: bool,
) -> list[Tensor]:
    """dx, dgamma, dbeta, and dgamma and dbeta once more as the partial sums that Apex's kernel adds
    up: here one row of float32. ``memory_efficient``: from y, which is then ``x_or_z``."""
    _check(x_or_z, gamma, "ln_bwd")
    if memory_efficient and beta is None:
        raise RuntimeError("ln_bwd: memory_efficient needs beta, but got None")
    if not memory_efficient and mu is None:
        raise RuntimeError("ln_bwd: Expected mu without memory_efficient, but got None")
    shape = x_or_z.shape[1:]
    with torch.no_grad():
        dx, dgamma, dbeta = _kernels.backward(
            dz, x_or_z, mu, rsigma, gamma, beta, shape, False, memory_efficient
        )
    assert dx is not None and dgamma is not None and dbeta is not None
    return [dx, dgamma, dbeta, dgamma.float()[None], dbeta.float()[None]]
