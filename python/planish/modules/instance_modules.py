"""Modules over channels without an operator of torch's that says the same: InstanceNorm, whose
running statistics are its own affair, EvoNorm-S0 and global response norm."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from planish.functions.response import global_response_norm
from planish.modules.channel_modules import check_image, planish_runs
from planish.modules.norm_modules import held_parameter
from planish.operators import arguments, evo, norms
from planish.operators.call import Norm
from planish.operators.ways import Way, leaf, way_of
from torch import Tensor, nn

__all__ = ["EvoNorm2dS0", "GlobalResponseNorm"]
__all__ += ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


class _InstanceNorm:
    """The forward of InstanceNorm1d, 2d and 3d, before torch's own in the order of classes.

    With running statistics, training updates them as torch does; where they are used instead of the
    input's, in eval, torch runs.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The norm of ``input``, laid out as it; in training with running statistics these are
        updated as torch does it.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            self._check_input_dim(input)  # type: ignore[attr-defined]
            if input.dim() == self._get_no_batch_dim():  # type: ignore[attr-defined]
                y = self._handle_no_batch_input(input)  # type: ignore[attr-defined]
            else:
                y = self._apply_instance_norm(input)  # type: ignore[attr-defined]
        else:
            y = _InstanceNorm._forward(self, input)
        return y  # type: ignore[no-any-return]

    def _forward(self, input: Tensor) -> Tensor:
        module: Any = self
        parameters = held_parameter(module, "weight"), held_parameter(module, "bias")
        key = None
        if not module.track_running_stats and module._buffers.get("running_mean") is None:
            options = type(self), module.num_features, module.eps
            known, key = norms.known(options, input, *parameters)
            if known is not None:
                return known
        way = way_of(input, *parameters)
        if way is Way.NODE:
            return leaf(module, input)
        if not isinstance(input, Tensor):
            arguments.check_tensor(type(self).__name__, "input", input)
        if way is Way.TORCH or not _InstanceNorm._is_for_planish(self, input):
            result: Tensor = nn.modules.instancenorm._InstanceNorm.forward(module, input)
            return result
        channels_axis = input.dim() - module._get_no_batch_dim()
        reduce = list(range(channels_axis + 1, input.dim()))
        norm = Norm(tuple(reduce), (channels_axis,), module.eps, False, keep=True)
        y = norms.norm(way, input, *parameters, norm, key=key)
        if module.running_mean is not None and module.training:
            _update_running(module, input, reduce)
        return y

    def _is_for_planish(self, input: Tensor) -> bool:
        module: Any = self
        batched = module._get_no_batch_dim() + 1
        if input.dim() not in (batched, batched - 1):
            return False
        channels_axis = input.dim() - module._get_no_batch_dim()
        return (
            (module.training or not module.track_running_stats)
            and input.shape[channels_axis] == module.num_features
            and math.prod(input.shape[channels_axis + 1 :]) > 1
            and planish_runs(input, module.weight, module.bias)
        )


@torch.no_grad()
def _update_running(module: Any, input: Tensor, reduce: list[int]) -> None:
    """From the statistics of each sample. Not from rstd, which has lost the digits of a variance
    far below eps."""
    mean, squares = norms.statistics(input, reduce)
    variance = squares / (math.prod(input.shape[reduce[0] :]) - 1)
    momentum = module.momentum if module.momentum is not None else 0.0
    channels = module.num_features
    for running, found in ((module.running_mean, mean), (module.running_var, variance)):
        running.lerp_(found.reshape(-1, channels).mean(0).to(running.dtype), momentum)


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d on planish; in eval with running statistics on torch.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    of x (N, C, L) or (C, L), with mean and (biased) variance over all axes behind the channels.
    Arguments, parameters, buffers and errors are torch's.

    Example:

    >>> planish.InstanceNorm1d(8, affine=True)(torch.randn(2, 8, 16)).shape
    torch.Size([2, 8, 16])
    """


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d on planish; in eval with running statistics on torch.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    of x (N, C, H, W) or (C, H, W), with mean and (biased) variance over all axes behind the
    channels. Arguments, parameters, buffers and errors are torch's.

    Example:

    >>> planish.InstanceNorm2d(8, affine=True)(torch.randn(2, 8, 4, 4)).shape
    torch.Size([2, 8, 4, 4])
    """


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d on planish; in eval with running statistics on torch.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    of x (N, C, D, H, W) or (C, D, H, W), with mean and (biased) variance over all axes behind the
    channels. Arguments, parameters, buffers and errors are torch's.

    Example:

    >>> planish.InstanceNorm3d(8, affine=True)(torch.randn(2, 8, 2, 4, 4)).shape
    torch.Size([2, 8, 2, 4, 4])
    """


class EvoNorm2dS0(nn.Module):
    """EvoNorm-S0 (Liu et al. 2020) of (N, C, H, W), a norm with its own nonlinearity:

        y = x * sigmoid(v * x) / sqrt(var + eps) * weight + bias

    with the (biased) variance over each of ``groups`` groups of channels and H, W; ``v``,
    ``weight`` and ``bias`` are vectors of C. Parameters and state_dict are those of timm's.

    What is fused and what is not: mean and sum of squares of a group come from planish, in one pass
    over x and as exact as its norms. The rest, sigmoid, products and the sum, are torch's
    operators, forward and backward, each a pass over memory (``torch.compile`` fuses them).
    Differentiable any number of times.

    Raises ValueError where ``groups`` does not divide ``num_features``.

    Example:

    >>> planish.EvoNorm2dS0(64, groups=32)(torch.randn(2, 64, 8, 8)).shape
    torch.Size([2, 64, 8, 8])
    """

    def __init__(
        self,
        num_features: int,
        groups: int = 32,
        eps: float = 1e-5,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        num_features = arguments.size_of("EvoNorm2dS0", "num_features", num_features)
        groups = arguments.whole_of("EvoNorm2dS0", "groups", groups)
        if groups <= 0 or num_features % groups:
            raise ValueError(
                f"EvoNorm2dS0: groups is {groups}; wanted a divisor of {num_features} features"
            )
        self.num_features, self.groups, self.eps = num_features, groups, eps
        self.weight = nn.Parameter(torch.ones(num_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype))
        self.v = nn.Parameter(torch.ones(num_features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x`` (N, C, H, W). f16, bf16, f32 and f64 run on planish, any other dtype or
        device on torch. Raises RuntimeError for other than four axes and for another number of
        channels.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = self._composed(x)
        else:
            y = self._forward(x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        way = way_of(x)
        if way is Way.NODE:
            return leaf(self, x)
        check_image(self, x, self.num_features)
        if not planish_runs(x):
            arguments.check_floats("EvoNorm2dS0", x=x)
            return self._composed(x)
        parameters = (held_parameter(self, name) for name in ("v", "weight", "bias"))
        v, weight, bias = cast("tuple[Tensor, Tensor, Tensor]", tuple(parameters))
        return evo.evo_norm(way, x, v, weight, bias, self.groups, self.eps)

    def _composed(self, x: Tensor) -> Tensor:
        """In torch's own operators."""
        sizes = [x.size(0), self.groups, x.size(1) // self.groups, x.size(2), x.size(3)]
        wide = x if x.dtype == torch.float64 else x.float()
        variance = wide.view(sizes).var([2, 3, 4], unbiased=False, keepdim=True)
        parameters = self.v, self.weight, self.bias
        return evo.from_variance(x, variance, *parameters, self.groups, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, groups={self.groups}, eps={self.eps}"


class GlobalResponseNorm(nn.Module):
    """Global response norm (ConvNeXt V2, Woo et al. 2023) of (N, H, W, C), or without
    ``channels_last`` of (N, C, H, W):

        length = sqrt(sum of x^2 over a channel's pixels)
        y = x + weight * (x * length / (mean of length over channels + eps)) + bias

    with weight and bias of C elements, which are zeros at first. Arguments, parameters and
    state_dict are those of timm's. :func:`planish.global_response_norm` says the rest.

    Example:

    >>> planish.GlobalResponseNorm(64)(torch.randn(2, 7, 7, 64)).shape
    torch.Size([2, 7, 7, 64])
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        channels_last: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        dim = arguments.size_of("GlobalResponseNorm", "dim", dim)
        self.eps, self.channel_dim = eps, -1 if channels_last else 1
        self.weight = nn.Parameter(torch.zeros(dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(dim, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x``, laid out as it. Raises as :func:`planish.global_response_norm`."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = self._composed(x)
        else:
            axis = self.channel_dim
            y = global_response_norm(x, self.weight, self.bias, self.eps, channel_axis=axis)
        return y

    def _composed(self, x: Tensor) -> Tensor:
        """In torch's own operators."""
        last = self.channel_dim == -1
        shape, pixels = ([-1], [1, 2]) if last else ([-1, 1, 1], [2, 3])
        length = torch.linalg.vector_norm(x, 2, pixels, keepdim=True)
        share = length / (length.mean(self.channel_dim, keepdim=True) + self.eps)
        y: Tensor = x + self.weight.view(shape) * (x * share) + self.bias.view(shape)
        return y

    def extra_repr(self) -> str:
        last = self.channel_dim == -1
        return f"{self.weight.numel()}, eps={self.eps}, channels_last={last}"
