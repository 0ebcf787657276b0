"""Global response norm."""

from __future__ import annotations

from planish.functions.functional import _node
from planish.operators.arguments import (
    axes_of,
    check_optional,
    check_parameter,
    check_tensor,
    number_of,
    whole_of,
)
from planish.operators.response import response_norm
from planish.operators.ways import way_of
from torch import Tensor, fx

__all__ = ["global_response_norm"]


def global_response_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    channel_axis: int = -1,
) -> Tensor:
    """Global response normalization (ConvNeXt V2, Woo et al. 2023) of ``x`` (N, ..., C), or with
    ``channel_axis=1`` (N, C, ...):

        length = sqrt(sum of x^2 over a channel's pixels)
        y = x * (1 + weight * length / (mean of length over channels + eps)) + bias

    ``weight`` and ``bias``: vectors of C, or of x's rank with 1 on every other axis; None: weight
    1, bias 0. The result has x's dtype and layout; the arithmetic is f32, f64 where a tensor is.

    x is read twice and y written once; backward dy and x are read twice. What torch composes reads
    and writes some eight tensors of x's size. On a CPU the backward of other layouts than a
    contiguous (N, C, ...) is torch's operators. It keeps x and a few numbers a channel.
    Differentiable any number of times; under torch.compile and torch.func's transforms all is
    torch's own operators.

    dtypes: f16, bf16, f32, f64, each tensor its own; any other, and other devices than CPU and
    CUDA, run by torch.

    Raises TypeError for what is no tensor or no axis, RuntimeError for fewer than three axes, for
    parameters of another size or on another device, IndexError for a ``channel_axis`` that x has
    not, ValueError for axis 0.

    Example:

    >>> x, weight, bias = torch.randn(2, 7, 7, 64), torch.randn(64), torch.randn(64)
    >>> y = planish.global_response_norm(x, weight, bias)
    >>> length = x.norm(p=2, dim=(1, 2), keepdim=True)
    >>> share = length / (length.mean(-1, keepdim=True) + 1e-6)
    >>> torch.allclose(y, x + weight * (x * share) + bias, atol=1e-4)
    True
    """
    if isinstance(x, fx.Proxy):
        return _node(
            global_response_norm, x, weight=weight, bias=bias, eps=eps, channel_axis=channel_axis
        )
    check_tensor("global_response_norm", "x", x)
    check_optional("global_response_norm", weight=weight, bias=bias)
    eps = number_of("global_response_norm", "eps", eps)
    if x.dim() < 3:
        raise RuntimeError(
            "global_response_norm: Expected x (N, ..., C) of at least 3 dimensions, but got x of "
            f"shape {list(x.shape)}"
        )
    channel_axis = whole_of("global_response_norm", "channel_axis", channel_axis)
    (axis,) = axes_of([channel_axis], x.dim(), "global_response_norm, channel_axis")
    if axis == 0:
        raise ValueError("global_response_norm: channel_axis is 0, the samples; wanted another")
    for name, parameter in (("weight", weight), ("bias", bias)):
        check_parameter(x, parameter, [axis], "global_response_norm", name)
    return response_norm(way_of(x, weight, bias), x, weight, bias, eps, axis)
