"""Liger-Kernel's norms on planish: its modules with their presets, and the functions under them.

Signatures, defaults, attributes, state_dicts and the AssertionErrors are Liger's. They run on the
CPU, too, and for rows of any length. ``casting_mode``:

========= =====================================================================================
"llama"   xhat is rounded to x's dtype, then multiplied (planish: ``cast="xhat"``)
"gemma"   everything is in float until the end (planish: ``cast="once"``)
"none"    in Liger everything is in x's dtype; here as "gemma", which is nearer to the formula
========= =====================================================================================

``in_place`` (in Liger the backward writes dx over dy) and ``row_mode`` (the choice of a kernel) are
taken and change nothing: dy is never written to. The functions are in liger_functions.py, patching
models is in liger_models.py.
"""

from __future__ import annotations

from typing import Any

import torch
from planish.compat.liger_functions import (
    liger_fused_add_rms_norm,
    liger_group_norm,
    liger_layer_norm,
    liger_modulated_rms_norm,
    liger_poly_norm,
    liger_rms_norm,
)
from planish.compat.liger_models import apply_planish_to
from planish.operators.arguments import check_tensor
from torch import Tensor, nn

__all__ = [
    "LigerFusedAddRMSNorm",
    "LigerGroupNorm",
    "LigerLayerNorm",
    "LigerModulatedRMSNorm",
    "LigerPolyNorm",
    "LigerRMSNorm",
    "LigerRMSNormForGemma",
    "LigerRMSNormForGemma2",
    "LigerRMSNormForGemma3",
    "LigerRMSNormForGemma4",
    "LigerRMSNormForGlm4",
    "LigerRMSNormForOlmo2",
    "LigerRMSNormForQwen3Next",
    "apply_planish_to",
    "liger_fused_add_rms_norm",
    "liger_group_norm",
    "liger_layer_norm",
    "liger_modulated_rms_norm",
    "liger_poly_norm",
    "liger_rms_norm",
]

# ---- Modules ------------------------------------------------------------------------------------


def _initial(size: int, init_fn: str) -> nn.Parameter:
    if init_fn not in ("ones", "zeros"):
        raise AssertionError(f"init_fn must be either 'ones' or 'zeros', got {init_fn}")
    return nn.Parameter(torch.ones(size) if init_fn == "ones" else torch.zeros(size))


class _Weighted(nn.Module):
    """``weight``, or None, and the attributes that Liger's RMS norms have."""

    weight: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        offset: float,
        casting_mode: str,
        init_fn: str,
        in_place: bool,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        weight = _initial(hidden_size, init_fn)
        self.register_parameter("weight", weight if elementwise_affine else None)
        self.elementwise_affine = elementwise_affine
        self.variance_epsilon, self.offset = eps, offset
        self.casting_mode, self.in_place = casting_mode, in_place

    def extra_repr(self) -> str:
        shape = None if self.weight is None else tuple(self.weight.shape)
        return (
            f"weight_shape={shape}, eps={self.variance_epsilon}, offset={self.offset}, "
            f"casting_mode={self.casting_mode}, in_place={self.in_place}"
        )


class LigerRMSNorm(_Weighted):
    """RMS norm of hidden states: :func:`liger_rms_norm`.

    Example:

    >>> planish.compat.liger.LigerRMSNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(
            hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine
        )
        self.row_mode = row_mode

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The norm of ``hidden_states`` with this module's parameters: :func:`liger_rms_norm`."""
        return liger_rms_norm(
            hidden_states, self.weight, self.variance_epsilon, self.offset, self.casting_mode
        )


def _preset(
    name: str, offset: float, casting_mode: str, init_fn: str, in_place: bool
) -> type[LigerRMSNorm]:
    """A LigerRMSNorm with other defaults, and no ``elementwise_affine`` in its signature."""

    class Preset(LigerRMSNorm):
        def __init__(
            self,
            hidden_size: int,
            eps: float = 1e-6,
            offset: float = offset,
            casting_mode: str = casting_mode,
            init_fn: str = init_fn,
            in_place: bool = in_place,
            row_mode: bool | None = None,
        ) -> None:
            super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)

    Preset.__name__ = Preset.__qualname__ = name
    Preset.__doc__ = f"""LigerRMSNorm: offset {offset}, {casting_mode!r}, weight of {init_fn}.

    Example:

    >>> planish.compat.liger.{name}(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """
    return Preset


LigerRMSNormForGemma = _preset("LigerRMSNormForGemma", 1.0, "gemma", "zeros", True)
LigerRMSNormForGemma2 = _preset("LigerRMSNormForGemma2", 1.0, "gemma", "zeros", False)
LigerRMSNormForOlmo2 = _preset("LigerRMSNormForOlmo2", 0.0, "llama", "ones", False)
LigerRMSNormForGlm4 = _preset("LigerRMSNormForGlm4", 0.0, "llama", "ones", False)
LigerRMSNormForQwen3Next = _preset("LigerRMSNormForQwen3Next", 1.0, "gemma", "zeros", False)


class LigerRMSNormForGemma3(LigerRMSNorm):
    """LigerRMSNorm: offset 1.0, 'gemma', weight of zeros; the size is called ``dim``.

    Example:

    >>> planish.compat.liger.LigerRMSNormForGemma3(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str = "gemma",
        init_fn: str = "zeros",
        in_place: bool = False,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """LigerRMSNorm: no offset, 'gemma', weight of ones; none with ``with_scale=False``.

    Example:

    >>> planish.compat.liger.LigerRMSNormForGemma4(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "gemma",
        init_fn: str = "ones",
        in_place: bool = False,
        with_scale: bool = True,
    ) -> None:
        super().__init__(
            dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale
        )
        self.with_scale = with_scale


class LigerFusedAddRMSNorm(_Weighted):
    """``forward(hidden_states, residual) -> (y, sum)``: :func:`liger_fused_add_rms_norm`.

    Example:

    >>> norm = planish.compat.liger.LigerFusedAddRMSNorm(64)
    >>> y, total = norm(torch.randn(4, 64), torch.randn(4, 64))
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of ``hidden_states + residual`` with this module's parameters:
        :func:`liger_fused_add_rms_norm`.
        """
        assert self.weight is not None
        return liger_fused_add_rms_norm(
            hidden_states,
            residual,
            self.weight,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
        )


class LigerModulatedRMSNorm(_Weighted):
    """``forward(hidden_states, scale, shift=None)``: :func:`liger_modulated_rms_norm`.

    Example:

    >>> planish.compat.liger.LigerModulatedRMSNorm(64)(torch.randn(4, 64), torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(
            hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine
        )

    def forward(self, hidden_states: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        """The norm of ``hidden_states`` with this module's parameters:
        :func:`liger_modulated_rms_norm`.
        """
        return liger_modulated_rms_norm(
            hidden_states,
            self.weight,
            scale,
            shift,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
        )


class LigerLayerNorm(nn.Module):
    """Layer norm; there is always a bias: zeros, or with ``bias=True`` random numbers.

    Example:

    >>> planish.compat.liger.LigerLayerNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"
    ) -> None:
        super().__init__()
        self.hidden_size, self.eps, self.variance_epsilon = hidden_size, eps, eps
        self.weight = _initial(hidden_size, init_fn)
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The norm of ``hidden_states`` with this module's parameters: :func:`liger_layer_norm`."""
        return liger_layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}"


class LigerGroupNorm(nn.Module):
    """Group norm of 3 axes or more; the bias as that of :class:`LigerLayerNorm`.

    Example:

    >>> planish.compat.liger.LigerGroupNorm(64, 8)(torch.randn(2, 64, 4)).shape
    torch.Size([2, 64, 4])
    """

    def __init__(
        self,
        num_channels: int,
        num_groups: int,
        eps: float = 1e-6,
        bias: bool = False,
        init_fn: str = "ones",
    ) -> None:
        super().__init__()
        weight = _initial(num_channels, init_fn)
        if num_channels % num_groups:
            raise AssertionError(
                f"Number of channels {num_channels} must be divisible by num_groups {num_groups}"
            )
        self.num_channels, self.num_groups = num_channels, num_groups
        self.eps, self.variance_epsilon = eps, eps
        self.weight = weight
        self.bias = nn.Parameter(torch.randn(num_channels) if bias else torch.zeros(num_channels))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The norm of ``hidden_states`` with this module's parameters: :func:`liger_group_norm`.
        Raises AssertionError for fewer than three axes.
        """
        check_tensor("LigerGroupNorm", "hidden_states", hidden_states)
        if hidden_states.dim() < 3:
            raise AssertionError(
                f"Input must have at least 3 dimensions, got {hidden_states.dim()}"
            )
        return liger_group_norm(
            hidden_states,
            self.weight,
            self.bias,
            self.num_channels,
            self.num_groups,
            self.variance_epsilon,
        )

    def extra_repr(self) -> str:
        return f"num_channels={self.num_channels}, num_groups={self.num_groups}, eps={self.eps}"


class LigerPolyNorm(nn.Module):
    """:func:`liger_poly_norm` with ``weight`` (1/3, 1/3, 1/3) and ``bias`` 1.

    Example:

    >>> planish.compat.liger.LigerPolyNorm()(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(self, eps: float = 1e-6, in_place: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1.0 / 3.0))
        self.bias = nn.Parameter(torch.tensor(1.0))
        self.variance_epsilon, self.in_place = eps, in_place

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The norm of ``hidden_states`` with this module's parameters: :func:`liger_poly_norm`."""
        return liger_poly_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)

    def extra_repr(self) -> str:
        shape: Any = tuple(self.weight.shape)
        return f"weight_shape={shape}, eps={self.variance_epsilon}, in_place={self.in_place}"
