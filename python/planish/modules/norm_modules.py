"""LayerNorm and RMSNorm as modules. replace(), which puts them into a model, is in replacing/.

Both are subclasses of torch's modules with nothing of their own: parameters, buffers, hooks and
state_dict are torch's.
"""

from __future__ import annotations

from typing import TypeVar

import torch.nn.functional as F

import torch
from planish.functions import functional
from planish.library import quick, switch
from planish.library.torch_calls import short
from planish.operators import arguments, composite, norms
from planish.operators.call import Norm
from planish.operators.ways import Way, leaf, way_of
from torch import Tensor, nn

__all__ = ["LayerNorm", "RMSNorm"]

_Module = TypeVar("_Module", bound=nn.Module)


def _planish_runs(x: Tensor, normalized_shape: tuple[int, ...], *parameters: Tensor | None) -> bool:
    """Anything else is torch's, its errors included."""
    if x is None:
        return False
    count, ndim, device = len(normalized_shape), x.dim(), x.device
    if not 0 < count <= ndim <= 16 or x.dtype not in arguments.DTYPES:
        return False
    if x.shape[ndim - count :] != normalized_shape or device.type not in arguments.DEVICES:
        return False
    for parameter in parameters:  # a loop: all() of a generator takes twice as long
        if parameter is not None and (
            parameter.dtype not in arguments.DTYPES
            or parameter.shape != normalized_shape
            or parameter.device != device
        ):
            return False
    return not x.is_cuda or x.numel() > 0  # no GPU kernel for rows of no elements


def held_parameter(module: nn.Module, name: str) -> Tensor | None:
    """The same as the attribute, which costs the host ten times as much; what is computed
    (parametrizations, pruning) is no parameter."""
    held = module._parameters
    found: Tensor | None = held[name] if name in held else getattr(module, name)
    return found


def held_buffer(module: nn.Module, name: str) -> Tensor | None:
    """The same of a buffer."""
    held = module._buffers
    found: Tensor | None = held[name] if name in held else getattr(module, name)
    return found


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm on planish, whether planish is enabled or not.

        y = (x - mean) / sqrt(var + eps) * weight + bias

    with mean and (biased) variance over the axes of ``normalized_shape``, which are x's last. It is
    a subclass of torch's module: arguments, parameters and state_dict are torch's.

    Example:

    >>> norm = planish.LayerNorm(64)
    >>> norm(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    >>> norm.load_state_dict(torch.nn.LayerNorm(64).state_dict())
    <All keys matched successfully>
    """

    def forward(self, input: Tensor) -> Tensor:
        """The norm of ``input`` (..., normalized_shape), dense. f16, bf16, f32 and f64, the
        parameters' dtypes their own, run on planish, and the result has ``input``'s dtype; any
        other input is torch's, its errors (RuntimeError) included.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        else:
            y = LayerNorm._forward(self, input)  # by its class: restore() may change self's
        return y

    def _forward(self, input: Tensor) -> Tensor:
        weight, bias = held_parameter(self, "weight"), held_parameter(self, "bias")
        y = short(quick.LAYER_NORM, input, self.normalized_shape, weight, bias, self.eps)
        if y is not None:
            return y
        options = "LayerNorm", switch.active(), self.normalized_shape, self.eps
        known, key = norms.known(options, input, weight, bias)
        if known is not None:
            return known
        way = way_of(input, weight, bias)
        if way is Way.NODE:
            return leaf(self, input)
        shape = tuple(self.normalized_shape)
        if way is Way.TORCH or not _planish_runs(input, shape, weight, bias):
            return composite.layer_norm(input, shape, weight, bias, self.eps)
        axes = tuple(range(input.dim() - len(shape), input.dim()))
        norm = Norm(axes, axes, self.eps, False)  # dense, as torch's
        return functional.by_way(way, input, weight, bias, norm, key=key)


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm on planish, whether planish is enabled or not.

        y = x / sqrt(mean(x^2) + eps) * weight

    with the mean over the axes of ``normalized_shape``, which are x's last; ``eps=None`` is the
    epsilon of x's dtype. It is a subclass of torch's module: arguments, parameters and state_dict
    are torch's.

    Example:

    >>> planish.RMSNorm(64, eps=1e-6)(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x`` (..., normalized_shape), laid out as x. f16, bf16, f32 and f64, the
        parameters' dtypes their own, run on planish, and the result has ``x``'s dtype; any other
        input is torch's, its errors (RuntimeError) included.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        else:
            y = RMSNorm._forward(self, x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        weight = held_parameter(self, "weight")
        y = short(quick.RMS_NORM, x, self.normalized_shape, weight, None, self.eps)
        if y is not None:
            return y
        options = "RMSNorm", switch.active(), self.normalized_shape, self.eps
        known, key = norms.known(options, x, weight, None)
        if known is not None:
            return known
        way = way_of(x, weight)
        if way is Way.NODE:
            return leaf(self, x)
        shape = tuple(self.normalized_shape)
        if way is Way.TORCH or not _planish_runs(x, shape, weight):
            return nn.RMSNorm.forward(self, x)
        eps = norms.rms_eps(self.eps, x)
        axes = tuple(range(x.dim() - len(shape), x.dim()))
        norm = Norm(axes, axes, eps, True, keep=True)
        return functional.by_way(way, x, weight, None, norm, key=key)


def _replacement(module: nn.Module, new_type: type[nn.Module]) -> nn.Module:
    """The same state in planish's class: Parameters, hooks, flags and all else are shared."""
    new: nn.Module = new_type.__new__(new_type)
    new.__dict__ = module.__dict__
    return new
