"""The norms that planish's functions and modules are made of, each by the way that its tensors ask
for (_ways.py)."""

from __future__ import annotations

import torch
from planish import _composite, _ops
from planish._arguments import rms_eps as rms_eps
from planish._eager import Axes, forward_arguments, last_strides
from planish._eager import norm as eager_norm
from planish._ways import Way, way_of
from torch import Tensor

__all__ = ["group_norm", "norm", "rms_eps", "statistics"]


def norm(
    way: Way,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    keep: bool = False,
    activation: str | None = None,
) -> Tensor:
    """The general operator, by this way; axes are sorted and not negative. ``keep``: the result is
    laid out as torch.empty_like(x), else dense."""
    code = _ops.ACTIVATIONS[activation]
    if way is Way.PLAIN:
        return eager_norm(x, weight, bias, eps, Axes(reduce, affine, rms, keep, activation=code))
    if way is Way.TORCH:
        y = _composite.norm(x, weight, bias, reduce, affine, eps, rms)
        return _composite.activate(y, activation)
    fused: Tensor = _ops.forward(x, weight, bias, reduce, affine, eps, rms, keep, code)[0]
    return fused


def group_norm(
    way: Way,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
) -> Tensor:
    """Group norm of (N, C, ...), laid out as x; weight and bias have C elements."""
    reduce = list(range(2, x.dim() + 1))
    axes = Axes(reduce, [1, 2], False, True, groups, _ops.ACTIVATIONS[activation])
    if way is Way.PLAIN:
        return eager_norm(x, weight, bias, eps, axes)
    if way is Way.TORCH:
        return _composite.activate(_composite.group_norm(x, groups, weight, bias, eps), activation)
    y = _ops.forward(*forward_arguments(x, weight, bias, eps, axes))[0]
    if y.stride(1) != y.shape[2] * y.stride(2):
        copied: Tensor = y.flatten(1, 2)
        return copied
    # No view: an activation in place would make autograd copy a view's gradients.
    whole: Tensor = torch.ops.aten._unsafe_view(y, x.shape)
    strides = last_strides(x)
    if strides is not None and 1 in x.shape:  # fake tensors do not tell how an axis of 1 comes out
        return whole.as_strided(x.shape, strides)
    return whole


def statistics(x: Tensor, reduce: list[int]) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squares of what is left beside it, over these axes, kept with size 1."""
    if way_of(x) is Way.TORCH:
        return _composite.statistics(x, reduce)
    mean, m2 = _ops.statistics(x, reduce)
    return mean, m2
