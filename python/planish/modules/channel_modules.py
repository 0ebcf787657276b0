"""Modules over channels: LayerNorm2d, RMSNorm2d and GroupNorm; instance_modules.py has the others.

Results are laid out as the input: channels last stays channels last. Input that planish does not
run (another dtype or device) goes to torch.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

import torch
from planish.functions import functional, groups
from planish.library import quick, switch
from planish.library.torch_calls import short
from planish.modules.norm_modules import held_parameter
from planish.operators import arguments, composite, norms
from planish.operators.ways import Way, leaf, way_of
from torch import Tensor, nn

__all__ = ["GroupNorm", "LayerNorm2d", "RMSNorm2d", "check_image", "planish_runs"]


def planish_runs(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether there is a kernel for these; that shapes fit is looked at elsewhere."""
    device = x.device
    return (
        x.dim() < 16  # one axis is split into two
        and (not x.is_cuda or x.numel() > 0)  # no GPU kernel for rows of no elements
        and device.type in arguments.DEVICES
        and x.dtype in arguments.DTYPES
        and all(
            t is None or (t.device == device and t.dtype in arguments.DTYPES) for t in parameters
        )
    )


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def check_image(module: nn.Module, x: Tensor, channels: int) -> None:
    name = type(module).__name__
    arguments.check_tensor(name, "x", x)
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

        y = (x - mean) / sqrt(var + eps) * weight + bias

    with mean and (biased) variance over C, for each pixel; weight and bias of C elements.
    Parameters and state_dict are those of ``torch.nn.LayerNorm(num_channels)``, so also those of
    the LayerNorm2d of timm and torchvision.

    The result is laid out as the input. Where ``channels_last`` is set, as replace() sets it for
    modules that do the same, a GPU makes it channels last: the convolutions that follow are faster
    so.

    Example:

    >>> x = torch.randn(2, 96, 14, 14)
    >>> y, pixels = planish.LayerNorm2d(96)(x), torch.nn.LayerNorm(96)(x.permute(0, 2, 3, 1))
    >>> torch.allclose(y, pixels.permute(0, 3, 1, 2), atol=1e-5)
    True
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
        """The norm of ``input`` (N, C, H, W), laid out as it. f16, bf16, f32 and f64 run on
        planish, any other dtype or device on torch. Raises RuntimeError for other than four axes
        and for another number of channels.
        """
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
        weight, bias = held_parameter(self, "weight"), held_parameter(self, "bias")
        options = "LayerNorm2d", switch.active(), self.normalized_shape, self.eps, last
        known, key = norms.known(options, input, weight, bias)
        if known is not None:
            return known
        way = way_of(input, weight, bias)
        if way is Way.NODE:
            return leaf(self, input)
        check_image(self, input, self.normalized_shape[0])
        if way is Way.TORCH or not planish_runs(input, weight, bias):
            pixels, shape = input.permute(0, 2, 3, 1), self.normalized_shape
            y = composite.layer_norm(pixels, shape, weight, bias, self.eps)
            y = y.permute(0, 3, 1, 2)
            return y if way is Way.TORCH else _laid_out_as(y, input)
        return functional.channel_norm(
            way, "layer_norm", input, weight, bias, self.eps, last, key=key
        )


class RMSNorm2d(nn.RMSNorm):
    """RMS norm over the channels of (N, C, H, W), without a permute.

        y = x / sqrt(mean(x^2) + eps) * weight

    with the mean over C, for each pixel; ``eps=None`` is the epsilon of x's dtype, as
    torch.nn.RMSNorm has it. Parameters and state_dict are those of
    ``torch.nn.RMSNorm(num_channels)``.

    Example:

    >>> planish.RMSNorm2d(96)(torch.randn(2, 96, 14, 14)).shape
    torch.Size([2, 96, 14, 14])
    """

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
        """The norm of ``x`` (N, C, H, W), laid out as it. f16, bf16, f32 and f64 run on planish,
        any other dtype or device on torch. Raises RuntimeError for other than four axes and for
        another number of channels.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            pixels = x.permute(0, 2, 3, 1)
            y = F.rms_norm(pixels, self.normalized_shape, self.weight, self.eps)
            y = y.permute(0, 3, 1, 2)
        else:
            y = self._forward(x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        weight = held_parameter(self, "weight")
        options = "RMSNorm2d", switch.active(), self.normalized_shape, self.eps
        known, key = norms.known(options, x, weight, None)
        if known is not None:
            return known
        way = way_of(x, weight)
        if way is Way.NODE:
            return leaf(self, x)
        check_image(self, x, self.normalized_shape[0])
        if way is Way.TORCH or not planish_runs(x, weight):
            y = nn.RMSNorm.forward(self, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return y if way is Way.TORCH else _laid_out_as(y, x)
        eps = norms.rms_eps(self.eps, x)
        return functional.channel_norm(way, "rms_norm", x, weight, None, eps, key=key)


class GroupNorm(nn.GroupNorm):
    """torch.nn.GroupNorm on planish, whether planish is enabled or not.

        y = f((x - mean) / sqrt(var + eps) * weight + bias)

    with mean and (biased) variance over a group's channels and all axes after them; weight and bias
    of C elements. ``activation`` is f: None, ``"silu"``, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``,
    ``"relu6"`` or ``"hardswish"``, in the same pass over memory: see :func:`planish.group_norm`.
    Parameters and state_dict are torch's.

    Raises ValueError for another activation, and where ``num_groups`` does not divide
    ``num_channels``.

    Example:

    >>> norm = planish.GroupNorm(32, 64, activation="silu")
    >>> norm(torch.randn(2, 64, 8, 8).to(memory_format=torch.channels_last)).is_contiguous(
    ...     memory_format=torch.channels_last
    ... )
    True
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
        arguments.check_activation("GroupNorm", activation)
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **given)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """The norm of ``input`` (N, C, ...), laid out as it. What planish does not run, its errors
        included, is torch's, with the activation behind it.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
            if self.activation is not None:
                if self.activation == "relu":
                    y = F.relu(y)
                elif self.activation == "gelu":
                    y = F.gelu(y)
                elif self.activation == "gelu_tanh":
                    y = F.gelu(y, approximate="tanh")
                elif self.activation == "relu6":
                    y = F.relu6(y)
                elif self.activation == "hardswish":
                    y = F.hardswish(y)
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
        if not activation:
            y = short(quick.GROUP_NORM, input, self.num_groups, *parameters, self.eps)
            if y is not None:
                return y
        options = "GroupNorm", switch.active(), self.num_groups, self.num_channels, self.eps
        known, key = norms.known((*options, activation), input, *parameters)
        if known is not None:
            return known
        way = way_of(input, *parameters)
        if way is Way.NODE:
            return leaf(self, input)
        if not isinstance(input, Tensor):
            arguments.check_tensor("GroupNorm", "input", input)
        fits = input.dim() > 1 and input.shape[1] == self.num_channels
        if way is Way.TORCH or not fits or not planish_runs(input, *parameters):
            y = nn.GroupNorm.forward(self, input)
            return composite.activate(y, activation)
        return groups.group_by_way(
            way, input, self.num_groups, *parameters, self.eps, activation, key=key
        )

    def extra_repr(self) -> str:
        activation = f", activation={self.activation!r}" if self.activation else ""
        return super().extra_repr() + activation
