"""Modules of the functions in stage_norms.py and gated.py: a norm with the sum, the modulation or
the gate beside it.

Their parameters are those of the norm alone, under its names, so that state_dicts of LayerNorm and
RMSNorm load. ``dim`` is the size of the last axis, or the sizes of the last axes as torch's modules
take their ``normalized_shape``, over all of which the norm then is; row_scale has one value for
each of x's other axes. eps of an RMS norm may be None, as torch has it. What their functions refuse
is refused here, too: nothing falls back to torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from planish.functions import gated, stage_norms, stages
from planish.operators.arguments import check_tensor, sizes_of, whole_of
from torch import Tensor, nn

__all__ = ["AddLayerNorm", "AddRMSNorm", "GatedRMSNorm", "ModulatedLayerNorm"]


class _Norm(nn.Module):
    """weight and bias over the last axis, or the last axes, or None; what one of them is
    initialised to."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        dim: int | Iterable[int],
        eps: Any,
        weight: bool,
        bias: bool,
        weight_offset: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = sizes_of(type(self).__name__, "dim", dim)
        self.normalized_shape, self.dim = shape, math.prod(shape)
        self.eps, self.weight_offset = eps, weight_offset
        for name, wanted in (("weight", weight), ("bias", bias)):
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
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
        shape = self.dim if len(self.normalized_shape) == 1 else self.normalized_shape
        return f"{shape}, eps={self.eps}, weight={self.weight is not None}{offset}"

    def _check_x(self, x: Tensor) -> None:
        """What a weight would say, where there may be none."""
        shape = self.normalized_shape
        if not isinstance(x, Tensor) or x.shape[-len(shape) :] != shape:
            name, count = type(self).__name__, len(shape)
            check_tensor(name, "x", x)
            last = f"{shape[0]} columns" if count == 1 else f"last axes of sizes {list(shape)}"
            raise RuntimeError(
                f"{name}: Expected x with {last}, but got x of shape {list(x.shape)}"
            )

    def _as_rows(self, x: Tensor, **others: Tensor | None) -> tuple[Tensor, list[Any]]:
        """x and the others with the axes of the norm as one, which are several."""
        self._check_x(x)
        shape, count = self.normalized_shape, len(self.normalized_shape)
        rows: list[Any] = []
        for name, tensor in others.items():
            if tensor is not None:
                check_tensor(type(self).__name__, name, tensor)
                rest = tensor.shape[: max(tensor.dim() - count, 0)]
                last = tensor.shape[len(rest) :]
                pairs = zip(reversed(last), reversed(shape), strict=False)
                if tensor.dim() == 0 or any(size not in (1, whole) for size, whole in pairs):
                    raise RuntimeError(
                        f"{type(self).__name__}: Expected the last axes of {name} to have the "
                        f"sizes {list(shape)} or 1, but got {name} of shape {list(tensor.shape)}"
                    )
                tensor = tensor.expand(*rest, *shape).flatten(-count)
            rows.append(tensor)
        return x.flatten(-count), rows

    def _as_given(self, result: Any) -> Any:
        """A result, or several, with the axes of the norm apart again."""
        if isinstance(result, tuple):
            return tuple(self._as_given(one) for one in result)
        return result.unflatten(-1, self.normalized_shape)


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
        dim: int | Iterable[int],
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
        dropout_p = stages.check_probability("AddLayerNorm", dropout_p)
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
        weight, bias = self.weight, self.bias
        if weight is None:
            self._check_x(x)
        several = len(self.normalized_shape) > 1
        if several:
            x, (residual, column_scale, weight, bias) = self._as_rows(
                x,
                residual=residual,
                column_scale=column_scale,
                weight=weight,
                bias=bias,
            )
        results = stage_norms.add_layer_norm(
            x,
            residual,
            weight,
            bias,
            self.eps,
            dropout_p=self.dropout_p,
            training=self.training,
            row_scale=row_scale,
            column_scale=column_scale,
            sum_dtype=self.sum_dtype,
            weight_offset=self.weight_offset,
        )
        return self._as_given(results) if several else results


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
        dim: int | Iterable[int],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        *,
        dropout_p: float = 0.0,
        sum_dtype: torch.dtype | None = None,
        weight_offset: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        dropout_p = stages.check_probability("AddRMSNorm", dropout_p)
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
        weight = self.weight
        if weight is None:
            self._check_x(x)
        several = len(self.normalized_shape) > 1
        if several:
            x, (residual, column_scale, weight) = self._as_rows(
                x,
                residual=residual,
                column_scale=column_scale,
                weight=weight,
            )
        results = stage_norms.add_rms_norm(
            x,
            residual,
            weight,
            self.eps,
            dropout_p=self.dropout_p,
            training=self.training,
            row_scale=row_scale,
            column_scale=column_scale,
            sum_dtype=self.sum_dtype,
            weight_offset=self.weight_offset,
        )
        return self._as_given(results) if several else results


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
        dim: int | Iterable[int],
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
        scale: Tensor | None,
        shift: Tensor | None,
        residual: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """y, or ``(y, sum)`` with a residual, of ``x`` (..., dim):
        :func:`planish.modulated_layer_norm` with this module's parameters, which says shapes,
        dtypes and errors. Raises RuntimeError where x has not ``dim`` columns.
        """
        self._check_x(x)
        weight, bias = self.weight, self.bias
        several = len(self.normalized_shape) > 1
        if several:
            x, (scale, shift, residual, gate, weight, bias) = self._as_rows(
                x,
                scale=scale,
                shift=shift,
                residual=residual,
                gate=gate,
                weight=weight,
                bias=bias,
            )
        result = stage_norms.modulated_layer_norm(
            x, scale, shift, weight, bias, self.eps, residual=residual, gate=gate
        )
        return self._as_given(result) if several else result


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
        dim: int | Iterable[int],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        *,
        norm_before_gate: bool = True,
        group_size: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dim, eps, elementwise_affine, False, 0.0, device, dtype)
        if group_size is not None:
            group_size = whole_of("GatedRMSNorm", "group_size", group_size)
            if group_size <= 0 or self.dim % group_size:
                raise ValueError(
                    f"GatedRMSNorm: group_size is {group_size}; wanted a divisor of {self.dim} "
                    "columns"
                )
        self.norm_before_gate, self.group_size = norm_before_gate, group_size

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """y of ``x`` and ``gate`` (..., dim): :func:`planish.gated_rms_norm` with this module's
        parameter, which says dtypes and errors. Raises RuntimeError where x has not ``dim``
        columns.
        """
        self._check_x(x)
        weight = self.weight
        several = len(self.normalized_shape) > 1
        if several:
            x, (gate, weight) = self._as_rows(x, gate=gate, weight=weight)
        y = gated.gated_rms_norm(
            x,
            gate,
            weight,
            self.eps,
            norm_before_gate=self.norm_before_gate,
            group_size=self.group_size,
        )
        return self._as_given(y) if several else y
