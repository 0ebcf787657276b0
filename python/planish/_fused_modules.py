"""Modules of the functions in _fused.py and _gated.py: a norm with the sum, the modulation or the
gate beside it.

Their parameters are those of the norm alone, under its names, so that state_dicts of LayerNorm and
RMSNorm load. What their functions refuse is refused here, too: nothing falls back to torch.
"""

from __future__ import annotations

from typing import Any

import torch
from planish import _fused, _gated, _stages
from torch import Tensor, nn

__all__ = ["AddLayerNorm", "AddRMSNorm", "GatedRMSNorm", "ModulatedLayerNorm"]


class _Norm(nn.Module):
    """weight and bias over the last axis, or None; what one of them is initialised to."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        eps: float,
        weight: bool,
        bias: bool,
        weight_offset: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if dim <= 0:
            raise ValueError(f"{type(self).__name__}: dim is {dim}; wanted a positive size")
        self.dim, self.eps, self.weight_offset = dim, eps, weight_offset
        for name, wanted in (("weight", weight), ("bias", bias)):
            parameter = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
            self.register_parameter(name, parameter if wanted else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight_offset + weight is 1, the bias 0."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 1.0 - self.weight_offset)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        offset = f", weight_offset={self.weight_offset}" if self.weight_offset else ""
        return f"{self.dim}, eps={self.eps}, weight={self.weight is not None}{offset}"


class AddLayerNorm(_Norm):
    """``forward(x, residual) -> (y, sum)``: :func:`planish.add_layer_norm`, with dropout of x in
    training where ``dropout_p`` is not 0. Parameters and state_dict are those of nn.LayerNorm.

    The arguments beside ``dim`` are those of the function. Raises ValueError for a ``dim`` that
    is not positive and a ``dropout_p`` that is no probability.

    Example:

    >>> norm = planish.AddLayerNorm(64)
    >>> y, total = norm(torch.randn(2, 5, 64), torch.randn(2, 5, 64))
    >>> y.shape, total.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 5, 64]))
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dropout_p: float = 0.0,
        sum_dtype: torch.dtype | None = None,
        weight_offset: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _stages.check_probability("AddLayerNorm", dropout_p)
        affine = elementwise_affine
        super().__init__(dim, eps, affine, affine and bias, weight_offset, device, dtype)
        self.dropout_p, self.sum_dtype = dropout_p, sum_dtype

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        row_scale: Tensor | None = None,
        column_scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``(y, sum)`` of ``x`` and ``residual`` (..., dim): :func:`planish.add_layer_norm` with
        this module's parameters, which says shapes, dtypes and errors.
        """
        return _fused.add_layer_norm(
            x,
            residual,
            self.weight,
            self.bias,
            self.eps,
            dropout_p=self.dropout_p,
            training=self.training,
            row_scale=row_scale,
            column_scale=column_scale,
            sum_dtype=self.sum_dtype,
            weight_offset=self.weight_offset,
        )


class AddRMSNorm(_Norm):
    """``forward(x, residual) -> (y, sum)``: :func:`planish.add_rms_norm`, with dropout of x in
    training where ``dropout_p`` is not 0. Parameters and state_dict are those of nn.RMSNorm.

    The arguments beside ``dim`` are those of the function. Raises ValueError for a ``dim`` that
    is not positive and a ``dropout_p`` that is no probability.

    Example:

    >>> norm = planish.AddRMSNorm(64)
    >>> y, total = norm(torch.randn(2, 5, 64), torch.randn(2, 5, 64))
    >>> y.shape, total.shape
    (torch.Size([2, 5, 64]), torch.Size([2, 5, 64]))
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        *,
        dropout_p: float = 0.0,
        sum_dtype: torch.dtype | None = None,
        weight_offset: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        _stages.check_probability("AddRMSNorm", dropout_p)
        super().__init__(dim, eps, elementwise_affine, False, weight_offset, device, dtype)
        self.dropout_p, self.sum_dtype = dropout_p, sum_dtype

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        row_scale: Tensor | None = None,
        column_scale: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``(y, sum)`` of ``x`` and ``residual`` (..., dim): :func:`planish.add_rms_norm` with this
        module's parameters, which says shapes, dtypes and errors.
        """
        return _fused.add_rms_norm(
            x,
            residual,
            self.weight,
            self.eps,
            dropout_p=self.dropout_p,
            training=self.training,
            row_scale=row_scale,
            column_scale=column_scale,
            sum_dtype=self.sum_dtype,
            weight_offset=self.weight_offset,
        )


class ModulatedLayerNorm(_Norm):
    """``forward(x, scale, shift) -> y``, or with a residual ``-> (y, sum)``:
    :func:`planish.modulated_layer_norm`. Without parameters of its own unless
    ``elementwise_affine``, as adaLN has it; else with those of nn.LayerNorm.

    Raises ValueError for a ``dim`` that is not positive.

    Example:

    >>> scale, shift = torch.randn(2, 2, 1, 64).unbind()
    >>> planish.ModulatedLayerNorm(64)(torch.randn(2, 5, 64), scale, shift).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        elementwise_affine: bool = False,
        bias: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        affine = elementwise_affine
        super().__init__(dim, eps, affine, affine and bias, 0.0, device, dtype)

    def forward(
        self,
        x: Tensor,
        scale: Tensor,
        shift: Tensor | None,
        residual: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y, or ``(y, sum)`` with a residual, of ``x`` (..., dim):
        :func:`planish.modulated_layer_norm` with this module's parameters, which says shapes,
        dtypes and errors. Raises RuntimeError where x has not ``dim`` columns.
        """
        _check_columns(self, x)
        return _fused.modulated_layer_norm(
            x, scale, shift, self.weight, self.bias, self.eps, residual=residual, gate=gate
        )


class GatedRMSNorm(_Norm):
    """``forward(x, gate) -> y``: :func:`planish.gated_rms_norm`. The parameter is that of
    nn.RMSNorm.

    Raises ValueError for a ``dim`` that is not positive and a ``group_size`` that does not
    divide it.

    Example:

    >>> planish.GatedRMSNorm(64, group_size=16)(torch.randn(2, 5, 64), torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        *,
        norm_before_gate: bool = True,
        group_size: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dim, eps, elementwise_affine, False, 0.0, device, dtype)
        if group_size is not None and (group_size <= 0 or dim % group_size):
            raise ValueError(
                f"GatedRMSNorm: group_size is {group_size}; wanted a divisor of {dim} columns"
            )
        self.norm_before_gate, self.group_size = norm_before_gate, group_size

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """y of ``x`` and ``gate`` (..., dim): :func:`planish.gated_rms_norm` with this module's
        parameter, which says dtypes and errors. Raises RuntimeError where x has not ``dim``
        columns.
        """
        _check_columns(self, x)
        return _gated.gated_rms_norm(
            x,
            gate,
            self.weight,
            self.eps,
            norm_before_gate=self.norm_before_gate,
            group_size=self.group_size,
        )


def _check_columns(module: _Norm, x: Tensor) -> None:
    """What a weight would say, where there may be none."""
    if x.dim() == 0 or x.shape[-1] != module.dim:
        raise RuntimeError(
            f"{type(module).__name__}: Expected x with {module.dim} columns, but got x of shape "
            f"{list(x.shape)}"
        )
