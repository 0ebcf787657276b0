"""apex.normalization.fused_layer_norm: modules, functions and autograd Functions, on planish.

Names, signatures, defaults, attributes and state_dict are Apex's. What differs: everything runs on
CPU tensors as on CUDA tensors, any parameter may be None, dtypes may be mixed in every one of them
(the result has x's dtype, or the parameters' in the "mixed" ones), tensors need not be contiguous,
and memory_efficient keeps x where its gradients would be wrong without it (_recovery.py).

``y = (x - mean) / sqrt(var + eps) * weight + bias`` over the last axes, or, RMS,
``y = x / sqrt(mean(x^2) + eps) * weight``. RuntimeError where shapes do not fit. The functions have
eps 1e-6 by default and the modules 1e-5, as in Apex. Under autocast every tensor, but those of
float64, is taken in the dtype of autocast, and so is the result.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch.nn.functional as F
from torch.nn import Parameter, init

import torch
from planish.apex import _custom_ops
from planish.apex._autocast_utils import _cast_if_autocast_enabled
from planish.apex._functional import fused_norm
from planish.apex._functions import (
    FusedLayerNormAffineFunction,
    FusedLayerNormAffineMixedDtypesFunction,
    FusedLayerNormFunction,
    FusedRMSNormAffineFunction,
    FusedRMSNormAffineMixedDtypesFunction,
    FusedRMSNormFunction,
)
from planish.functions import functional as planish_functions
from planish.operators.arguments import HALF, check_optional, check_tensor
from torch import Tensor

__all__ = [
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedLayerNormAffineMixedDtypesFunction",
    "FusedLayerNormFunction",
    "FusedRMSNorm",
    "FusedRMSNormAffineFunction",
    "FusedRMSNormAffineMixedDtypesFunction",
    "FusedRMSNormFunction",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "_cast_if_autocast_enabled",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "manual_rms_norm",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
    "supports_custom_op",
]

Shape = Sequence[int]


def __getattr__(name: str) -> Any:
    if name in _custom_ops.NORMS:  # defined when they are asked for
        return _custom_ops.operator(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def supports_custom_op() -> bool:
    """Whether torch has what the operators in torch.ops.apex need; every torch from 2.10 on has."""
    return True


def manual_rms_norm(
    input: Tensor, normalized_shape: Shape, weight: Tensor | None, eps: float
) -> Tensor:
    """RMSNorm as T5 rounds: x / rms in float32, rounded to the dtype of a half weight, and then
    times that weight.

    Apex runs this on CPU tensors and while tracing; here nothing does by itself."""
    check_tensor("manual_rms_norm", "input", input)
    check_optional("manual_rms_norm", weight=weight)
    wide = input if input.dtype == torch.float64 else input.to(torch.float32)
    dims = range(input.dim() - len(normalized_shape), input.dim())
    scaled = planish_functions.rms_norm(wide, dims, eps=eps)
    if weight is None:
        return scaled
    if weight.dtype in HALF:
        scaled = scaled.to(weight.dtype)
    return weight * scaled


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """LayerNorm with weight and bias; the result has x's dtype."""
    return fused_norm(input, weight, bias, normalized_shape, eps, memory_efficient, False, False)


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """LayerNorm without parameters."""
    return fused_norm(input, None, None, normalized_shape, eps, memory_efficient, False, False)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """LayerNorm with weight and bias; the result has their dtype."""
    return fused_norm(input, weight, bias, normalized_shape, eps, memory_efficient, False, True)


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMSNorm with a weight; the result has x's dtype."""
    return fused_norm(input, weight, None, normalized_shape, eps, memory_efficient, True, False)


def fused_rms_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """RMSNorm without a weight."""
    return fused_norm(input, None, None, normalized_shape, eps, memory_efficient, True, False)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor | None,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMSNorm with a weight; the result has its dtype."""
    return fused_norm(input, weight, None, normalized_shape, eps, memory_efficient, True, True)


class _Norm(torch.nn.Module):
    """What the modules share; Apex's own have no common base."""

    # No annotations that exist at run time: TorchScript does not read them as strings.
    __constants__ = ("normalized_shape", "eps", "elementwise_affine")
    memory_efficient = False  # modules that an older Apex pickled have none
    _rms = False
    #: Whether the result has the parameters' dtype.
    _mixed = False
    if TYPE_CHECKING:
        weight: Any
        bias: Any

    def __init__(
        self,
        normalized_shape: int | Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        given = normalized_shape
        sizes = (int(given),) if isinstance(given, numbers.Integral) else given
        self.normalized_shape = torch.Size(cast(Shape, sizes))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in ("weight",) if self._rms else ("weight", "bias"):
            empty = torch.empty(self.normalized_shape) if elementwise_affine else None
            self.register_parameter(name, None if empty is None else Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of 1 and biases of 0."""
        if self.elementwise_affine:
            init.ones_(self.weight)
            if not self._rms:
                init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class FusedLayerNorm(_Norm):
    """apex.normalization.FusedLayerNorm: LayerNorm whose result has x's dtype.

    Example:

    >>> planish.apex.FusedLayerNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def forward(self, input: Tensor) -> Tensor:
        """The norm of ``input`` (..., normalized_shape); its dtype is what the class says."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return fused_norm(
            input,
            self.weight,
            self.bias,
            self.normalized_shape,
            self.eps,
            self.memory_efficient,
            False,
            self._mixed,
        )


class FusedRMSNorm(_Norm):
    """apex.normalization.FusedRMSNorm: RMSNorm whose result has x's dtype.

    Example:

    >>> planish.apex.FusedRMSNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    _rms = True

    def forward(self, input: Tensor) -> Tensor:
        """The norm of ``input`` (..., normalized_shape); its dtype is what the class says."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)
        return fused_norm(
            input,
            self.weight,
            None,
            self.normalized_shape,
            self.eps,
            self.memory_efficient,
            True,
            self._mixed,
        )


def _only_affine(name: str, arguments: dict[str, Any]) -> None:
    if "elementwise_affine" in arguments:
        warnings.warn(f"{name} takes no elementwise_affine: it always has parameters", stacklevel=3)
        if not arguments["elementwise_affine"]:
            raise RuntimeError(f"{name} does not support elementwise_affine=False")


class MixedFusedLayerNorm(FusedLayerNorm):
    """apex.normalization.MixedFusedLayerNorm: LayerNorm whose result has the parameters' dtype.

    As in Apex, other keyword arguments are taken and ignored.

    Example:

    >>> planish.apex.MixedFusedLayerNorm(64)(torch.randn(4, 64).half()).dtype
    torch.float32
    """

    _mixed = True

    def __init__(
        self,
        normalized_shape: int | Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        _only_affine("MixedFusedLayerNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedRMSNorm(FusedRMSNorm):
    """apex.normalization.MixedFusedRMSNorm: RMSNorm whose result has the weight's dtype.

    As in Apex, other keyword arguments are taken and ignored.

    Example:

    >>> planish.apex.MixedFusedRMSNorm(64)(torch.randn(4, 64).half()).dtype
    torch.float32
    """

    _mixed = True

    def __init__(
        self,
        normalized_shape: int | Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        _only_affine("MixedFusedRMSNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)
