"""fused_layer_norm_cuda: the functions of Apex's extension module, on CPU and CUDA tensors.

The forward ones return y and the statistics, one number a row: mean and 1 / sqrt(var + eps), or,
RMS, 1 / sqrt(mean(x^2) + eps); float32 where x is half. The backward ones take x, or y with
``memory_efficient`` (mean is then not looked at, and may be None), and return the gradients that
there are. They have no derivatives of their own. Which weights memory_efficient is right for, says
_recovery.py: as in Apex those nearer to 0 than eps are taken for eps when y is divided by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from planish.apex import _kernels
from torch import Tensor

__all__ = [
    "backward",
    "backward_affine",
    "forward",
    "forward_affine",
    "forward_affine_mixed_dtypes",
    "rms_backward",
    "rms_backward_affine",
    "rms_forward",
    "rms_forward_affine",
    "rms_forward_affine_mixed_dtypes",
]

Shape = Sequence[int]


def _forward(
    x: Tensor,
    shape: Shape,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    mixed: bool,
) -> list[Tensor]:
    with torch.no_grad():
        y, mean, rstd = _kernels.forward(x, weight, bias, shape, eps, rms, mixed)
    return [y, rstd] if mean is None else [y, mean, rstd]


def _backward(
    dy: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    x_or_y: Tensor,
    shape: Shape,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    memory_efficient: bool,
    rms: bool,
) -> list[Tensor]:
    wanted = True, weight is not None, bias is not None
    with torch.no_grad():
        gradients = _kernels.backward(
            dy, x_or_y, mean, rstd, weight, bias, shape, rms, memory_efficient, wanted, eps
        )
    return [gradient for gradient in gradients if gradient is not None]


def forward(input: Tensor, normalized_shape: Shape, epsilon: float) -> list[Tensor]:
    """y, mean, rstd."""
    return _forward(input, normalized_shape, None, None, epsilon, False, False)


def forward_affine(
    input: Tensor,
    normalized_shape: Shape,
    gamma: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
) -> list[Tensor]:
    """y in x's dtype, mean, rstd."""
    return _forward(input, normalized_shape, gamma, beta, epsilon, False, False)


def forward_affine_mixed_dtypes(
    input: Tensor,
    normalized_shape: Shape,
    gamma: Tensor | None,
    beta: Tensor | None,
    epsilon: float,
) -> list[Tensor]:
    """y in gamma's dtype, mean, rstd."""
    return _forward(input, normalized_shape, gamma, beta, epsilon, False, True)


def backward(
    dout: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    input_or_output: Tensor,
    normalized_shape: Shape,
    epsilon: float,
    memory_efficient: bool,
) -> Tensor:
    """dx."""
    return _backward(
        dout,
        mean,
        invvar,
        input_or_output,
        normalized_shape,
        None,
        None,
        epsilon,
        memory_efficient,
        False,
    )[0]


def backward_affine(
    dout: Tensor,
    mean: Tensor | None,
    invvar: Tensor,
    input_or_output: Tensor,
    normalized_shape: Shape,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
    memory_efficient: bool,
) -> list[Tensor]:
    """dx, dgamma, dbeta."""
    return _backward(
        dout,
        mean,
        invvar,
        input_or_output,
        normalized_shape,
        gamma,
        beta,
        epsilon,
        memory_efficient,
        False,
    )


def rms_forward(input: Tensor, normalized_shape: Shape, epsilon: float) -> list[Tensor]:
    """y, rstd."""
    return _forward(input, normalized_shape, None, None, epsilon, True, False)


def rms_forward_affine(
    input: Tensor, normalized_shape: Shape, gamma: Tensor | None, epsilon: float
) -> list[Tensor]:
    """y in x's dtype, rstd."""
    return _forward(input, normalized_shape, gamma, None, epsilon, True, False)


def rms_forward_affine_mixed_dtypes(
    input: Tensor, normalized_shape: Shape, gamma: Tensor | None, epsilon: float
) -> list[Tensor]:
    """y in gamma's dtype, rstd."""
    return _forward(input, normalized_shape, gamma, None, epsilon, True, True)


def rms_backward(
    dout: Tensor,
    invvar: Tensor,
    input_or_output: Tensor,
    normalized_shape: Shape,
    epsilon: float,
    memory_efficient: bool,
) -> Tensor:
    """dx."""
    return _backward(
        dout,
        None,
        invvar,
        input_or_output,
        normalized_shape,
        None,
        None,
        epsilon,
        memory_efficient,
        True,
    )[0]


def rms_backward_affine(
    dout: Tensor,
    invvar: Tensor,
    input_or_output: Tensor,
    normalized_shape: Shape,
    gamma: Tensor,
    epsilon: float,
    memory_efficient: bool,
) -> list[Tensor]:
    """dx, dgamma."""
    return _backward(
        dout,
        None,
        invvar,
        input_or_output,
        normalized_shape,
        gamma,
        None,
        epsilon,
        memory_efficient,
        True,
    )
