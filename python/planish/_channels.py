"""Modules over channels: LayerNorm2d, RMSNorm2d, GroupNorm, InstanceNorm and EvoNorm-S0.

Results are laid out as the input: channels last stays channels last. Input that planish does not
run (another dtype or device) goes to torch.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

import torch
from planish import _arguments, _composite, _functional, _groups, _norms
from planish._enable import runs_torchs
from planish._modules import held_parameter
from planish._ways import Way, leaf, needs_graph, way_of
from torch import Tensor, nn

__all__ = [
    "EvoNorm2dS0",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm2d",
    "RMSNorm2d",
]


def _planish_runs(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether there is a kernel for these; that shapes fit is looked at elsewhere."""
    tensors = [x, *(parameter for parameter in parameters if parameter is not None)]
    return (
        x.dim() < 16  # one axis is split into two
        and (not x.is_cuda or x.numel() > 0)  # no GPU kernel for rows of no elements
        and x.device.type in _functional.DEVICES
        and all(t.device == x.device and t.dtype in _functional._DTYPES for t in tensors)
    )


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _check_image(module: nn.Module, x: Tensor, channels: int) -> None:
    name = type(module).__name__
    _arguments.check_tensor(name, "x", x)
    if x.dim() != 4:
        raise RuntimeError(f"{name}: Expected 4D input (N, C, H, W), but got {x.dim()}D input")
    if x.shape[1] != channels:
        raise RuntimeError(
            f"{name}: Expected {channels} channels, but got input of shape {list(x.shape)}"
        )


def _laid_out_as(y: Tensor, x: Tensor) -> Tensor:
    last = torch.channels_last if _is_channels_last(x) else torch.contiguous_format
    return y.contiguous(memory_format=last)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of (N, C, H, W), without a permute.

    Parameters and state_dict are those of ``torch.nn.LayerNorm(num_channels)``, so also those of
    the LayerNorm2d of timm and torchvision.

    The result is laid out as the input. Where ``channels_last`` is set, as replace() sets it for
    modules that do the same, a GPU makes it channels last: the convolutions that follow are faster
    so.
    """

    channels_last = False

    def __init__(
        self,
        num_channels: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_channels, eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            pixels = input.permute(0, 2, 3, 1)
            y = F.layer_norm(pixels, self.normalized_shape, self.weight, self.bias, self.eps)
            y = y.permute(0, 3, 1, 2)
        else:
            y = LayerNorm2d._forward(self, input)
        return y

    def _forward(self, input: Tensor) -> Tensor:
        last = getattr(self, "channels_last", False)
        if not isinstance(self, LayerNorm2d):  # no more: restore() in another thread, before that
            return type(self).forward(self, input)
        way = way_of(input, self.weight, self.bias)
        if way is Way.NODE:
            return leaf(self, input)
        _check_image(self, input, self.normalized_shape[0])
        if way is Way.TORCH or not _planish_runs(input, self.weight, self.bias):
            pixels, shape = input.permute(0, 2, 3, 1), self.normalized_shape
            y = _composite.layer_norm(pixels, shape, self.weight, self.bias, self.eps)
            y = y.permute(0, 3, 1, 2)
            return y if way is Way.TORCH else _laid_out_as(y, input)
        return _functional.channel_norm(
            way, "layer_norm", input, self.weight, self.bias, self.eps, last
        )


class RMSNorm2d(nn.RMSNorm):
    """RMS norm over the channels of (N, C, H, W), without a permute; eps as torch.nn.RMSNorm has
    it."""

    def __init__(
        self,
        num_channels: int,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_channels, eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            pixels = x.permute(0, 2, 3, 1)
            y = F.rms_norm(pixels, self.normalized_shape, self.weight, self.eps)
            y = y.permute(0, 3, 1, 2)
        else:
            y = self._forward(x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        way = way_of(x, self.weight)
        if way is Way.NODE:
            return leaf(self, x)
        _check_image(self, x, self.normalized_shape[0])
        if way is Way.TORCH or not _planish_runs(x, self.weight):
            y = nn.RMSNorm.forward(self, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return y if way is Way.TORCH else _laid_out_as(y, x)
        eps = _norms.rms_eps(self.eps, x)
        return _functional.channel_norm(way, "rms_norm", x, self.weight, None, eps)


class GroupNorm(nn.GroupNorm):
    """torch.nn.GroupNorm on planish, whether planish is enabled or not.

    ``activation="silu"``, ``"relu"``, ``"gelu"`` or ``"gelu_tanh"`` returns that of y, in the same
    pass over memory: see :func:`planish.group_norm`.
    """

    # for TorchScript
    __constants__ = [*nn.GroupNorm.__constants__, "activation"]  # noqa: RUF012

    activation = None  # of modules that replace() made

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        **given: Any,
    ) -> None:
        _arguments.check_activation("GroupNorm", activation)
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **given)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
            if self.activation is not None:
                if self.activation == "relu":
                    y = F.relu(y)
                elif self.activation == "gelu":
                    y = F.gelu(y)
                elif self.activation == "gelu_tanh":
                    y = F.gelu(y, approximate="tanh")
                else:
                    y = F.silu(y)
        else:
            y = GroupNorm._forward(self, input)
        return y

    def _forward(self, input: Tensor) -> Tensor:
        activation = getattr(self, "activation", None)
        if not isinstance(self, GroupNorm):  # no more: restore() in another thread, before that
            return type(self).forward(self, input)
        parameters = held_parameter(self, "weight"), held_parameter(self, "bias")
        if not activation and runs_torchs("group_norm", input, *parameters):
            return torch.group_norm(input, self.num_groups, *parameters, self.eps)
        way = way_of(input, *parameters)
        if way is Way.NODE:
            return leaf(self, input)
        if not isinstance(input, Tensor):
            _arguments.check_tensor("GroupNorm", "input", input)
        fits = input.dim() > 1 and input.shape[1] == self.num_channels
        if way is Way.TORCH or not fits or not _planish_runs(input, *parameters):
            y = nn.GroupNorm.forward(self, input)
            return _composite.activate(y, activation)
        return _groups.group_by_way(way, input, self.num_groups, *parameters, self.eps, activation)

    def extra_repr(self) -> str:
        activation = f", activation={self.activation!r}" if self.activation else ""
        return super().extra_repr() + activation


class _InstanceNorm:
    """The forward of InstanceNorm1d, 2d and 3d, before torch's own in the order of classes.

    With running statistics, training updates them as torch does; where they are used instead of the
    input's, in eval, torch runs.
    """

    def forward(self, input: Tensor) -> Tensor:
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
        parameters = module.weight, module.bias
        way = way_of(input, *parameters)
        if way is Way.NODE:
            return leaf(module, input)
        if not isinstance(input, Tensor):
            _arguments.check_tensor(type(self).__name__, "input", input)
        if way is Way.TORCH or not _InstanceNorm._is_for_planish(self, input):
            result: Tensor = nn.modules.instancenorm._InstanceNorm.forward(module, input)
            return result
        channels_axis = input.dim() - module._get_no_batch_dim()
        reduce = list(range(channels_axis + 1, input.dim()))
        y = _norms.norm(
            way, input, *parameters, reduce, [channels_axis], module.eps, rms=False, keep=True
        )
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
            and input.shape[channels_axis + 1 :].numel() > 1
            and _planish_runs(input, module.weight, module.bias)
        )


@torch.no_grad()
def _update_running(module: Any, input: Tensor, reduce: list[int]) -> None:
    """From the statistics of each sample. Not from rstd, which has lost the digits of a variance
    far below eps."""
    mean, squares = _norms.statistics(input, reduce)
    variance = squares / (input.shape[reduce[0] :].numel() - 1)
    momentum = module.momentum if module.momentum is not None else 0.0
    channels = module.num_features
    for running, found in ((module.running_mean, mean), (module.running_var, variance)):
        running.lerp_(found.reshape(-1, channels).mean(0).to(running.dtype), momentum)


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d on planish; in eval with running statistics on torch."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d on planish; in eval with running statistics on torch."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d on planish; in eval with running statistics on torch."""


class EvoNorm2dS0(nn.Module):
    """EvoNorm-S0 (Liu et al. 2020) of (N, C, H, W), a norm with its own nonlinearity:

        y = x * sigmoid(v * x) / sqrt(var + eps) * weight + bias

    with the (biased) variance over each of ``groups`` groups of channels and H, W; ``v``,
    ``weight`` and ``bias`` are vectors of C. Parameters and state_dict are those of timm's.

    What is fused and what is not: mean and sum of squares of a group come from planish, in one pass
    over x and as exact as its norms. The rest, sigmoid, products and the sum, are torch's
    operators, forward and backward, each a pass over memory (``torch.compile`` fuses them).
    Differentiable any number of times.
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
        num_features = _arguments.size_of("EvoNorm2dS0", "num_features", num_features)
        groups = _arguments.whole_of("EvoNorm2dS0", "groups", groups)
        if groups <= 0 or num_features % groups:
            raise ValueError(
                f"EvoNorm2dS0: groups is {groups}; wanted a divisor of {num_features} features"
            )
        self.num_features, self.groups, self.eps = num_features, groups, eps
        self.weight = nn.Parameter(torch.ones(num_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype))
        self.v = nn.Parameter(torch.ones(num_features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = self._composed(x)
        else:
            y = self._forward(x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        way = way_of(x)
        if way is Way.NODE:
            return leaf(self, x)
        _check_image(self, x, self.num_features)
        if way is Way.PLAIN and x.is_inference() and needs_graph(self.weight, self.bias, self.v):
            x = x.clone()  # autograd saves no tensor that was made in inference mode
        if not _planish_runs(x):
            _arguments.check_floats("EvoNorm2dS0", x=x)
            return self._composed(x)
        apart = _norms.split_channels(x, self.groups)
        _, squares = _norms.statistics(apart, [2, 3, 4])
        return self._from_variance(x, squares / apart.shape[2:].numel())

    def _composed(self, x: Tensor) -> Tensor:
        """In torch's own operators."""
        sizes = [x.size(0), self.groups, x.size(1) // self.groups, x.size(2), x.size(3)]
        wide = x if x.dtype == torch.float64 else x.float()
        variance = wide.view(sizes).var([2, 3, 4], unbiased=False, keepdim=True)
        return self._from_variance(x, variance)

    def _from_variance(self, x: Tensor, variance: Tensor) -> Tensor:
        """``variance``: (N, groups, 1, 1, 1)."""
        rstd = (variance + self.eps).rsqrt().to(x.dtype)
        v = self.v.view(1, -1, 1, 1).to(x.dtype)
        weight = self.weight.view(1, -1, 1, 1).to(x.dtype)
        bias = self.bias.view(1, -1, 1, 1).to(x.dtype)
        scale = rstd.expand(-1, -1, x.size(1) // self.groups, 1, 1).flatten(1, 2)
        return x * (v * x).sigmoid() * (scale * weight) + bias

    def extra_repr(self) -> str:
        return f"{self.num_features}, groups={self.groups}, eps={self.eps}"
