"""A norm with a gate behind or before it, in one call of planish's kernels (_staged.py) or
composed, as _fused.py has it."""

from __future__ import annotations

from planish import _staged, _stages
from planish._staged import Around
from planish._ways import way_of
from torch import Tensor

__all__ = ["gated_layer_norm", "gated_rms_norm"]


def _gated_norm(
    rms: bool,
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm_before_gate: bool,
    group_size: int | None,
    weight_offset: float,
) -> Tensor:
    function = "gated_rms_norm" if rms else "gated_layer_norm"
    _stages.check_x(function, x)
    _stages.check_gate(function, gate, x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        _stages.check_parameter(function, name, parameter, x)
    columns = x.shape[-1]
    if group_size is not None and (group_size <= 0 or columns % group_size):
        raise ValueError(
            f"{function}: group_size is {group_size}; wanted a divisor of x's last axis, which has "
            f"{columns} columns"
        )
    fused = _fused_gated_norm(
        rms, x, gate, weight, bias, eps, norm_before_gate, group_size, weight_offset
    )
    if fused is not None:
        return fused
    wide = _stages.compute_dtype(x.dtype)
    factor = _stages.silu(gate.to(wide))
    s = x.to(wide)
    if not norm_before_gate:
        s = s * factor
    if group_size is not None and group_size < columns:
        s = _stages.split_columns(s, group_size)
        weight = None if weight is None else _stages.split_columns(weight, group_size)
        bias = None if bias is None else _stages.split_columns(bias, group_size)
    v = _stages.norm_last(rms, s, weight, bias, eps, weight_offset, wide).reshape(x.shape)
    return (v * factor if norm_before_gate else v).to(x.dtype)


def _fused_gated_norm(
    rms: bool,
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    norm_before_gate: bool,
    group_size: int | None,
    weight_offset: float,
) -> Tensor | None:
    """In one call of the kernels, which see groups of columns as an axis; None: composed."""
    way = way_of(x, gate, weight, bias)
    shape = x.shape
    if group_size is not None and group_size < x.shape[-1]:
        x = _stages.split_columns(x, group_size)
        gate = _stages.split_columns(gate, group_size)
        weight = None if weight is None else _stages.split_columns(weight, group_size)
        bias = None if bias is None else _stages.split_columns(bias, group_size)
    fused = _staged.norm(
        way,
        x,
        Around(weight=weight, bias=bias, gate=gate),
        [x.dim() - 1],
        eps,
        rms,
        weight_offset=weight_offset,
        gate_before=not norm_before_gate,
        y_dtype=x.dtype,
    )
    return None if fused is None else fused[0].reshape(shape)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    norm_before_gate: bool = True,
    group_size: int | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    """Root-mean-square normalization over the last axis with a gate (Mamba 2, RetNet).

        y = norm(x) * silu(gate)       norm_before_gate=True
        y = norm(x * silu(gate))       norm_before_gate=False

    with ``norm(s) = s / sqrt(mean(s^2) + eps) * (weight_offset + weight)``. ``gate`` has x's shape.
    ``group_size``: the mean is over each group of so many neighbouring columns; ``weight`` has the
    size of the last axis all the same (or the sizes of the last axes).

    Everything between is in float (f64 for f64), the product before the norm, too, and y is rounded
    once, to x's dtype. Dtypes: f16, bf16, f32 and f64, each tensor its own. Differentiable twice.

    One pass over memory, and one backward; a composition as :func:`planish.add_layer_norm` says.

    Raises RuntimeError for shapes and devices that do not fit, ValueError for a group_size that
    does not divide the columns, TypeError for a gate that is no tensor, NotImplementedError for
    another dtype.
    """
    return _gated_norm(
        True, x, gate, weight, None, eps, norm_before_gate, group_size, weight_offset
    )


def gated_layer_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    norm_before_gate: bool = True,
    group_size: int | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    """Layer normalization over the last axis with a gate, as :func:`gated_rms_norm`.

    ``norm(s) = (s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias``.
    """
    return _gated_norm(
        False, x, gate, weight, bias, eps, norm_before_gate, group_size, weight_offset
    )
