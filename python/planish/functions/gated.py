"""A norm with a gate behind or before it, in one call of planish's kernels (stage_calls.py) or
composed, as stage_norms.py has it."""

from __future__ import annotations

from typing import Any

from planish.functions import stages
from planish.operators import stage_calls
from planish.operators.arguments import (
    check_cast,
    eps_of,
    kernels_round,
    number_of,
    rounds_xhat,
    truth_of,
    whole_of,
)
from planish.operators.call import Tensors
from planish.operators.ways import way_of
from torch import Tensor

__all__ = ["gated_layer_norm", "gated_rms_norm"]


def _gated_norm(
    rms: bool,
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    norm_before_gate: bool,
    group_size: int | None,
    weight_offset: float,
    cast: str = "once",
) -> Tensor:
    given = x, None, None, None, None, weight, bias, None, None, gate
    options = "gated", rms, eps, norm_before_gate, group_size, weight_offset, cast
    known, key = stage_calls.known(options, given)
    if known is not None:
        y: Tensor = known[0]
        return y
    function = "gated_rms_norm" if rms else "gated_layer_norm"
    stages.check_x(function, x)
    stages.check_like_x(function, "gate", gate, x, optional=False)
    for name, parameter in (("weight", weight), ("bias", bias)):
        stages.check_parameter(function, name, parameter, x)
    check_cast(function, cast)
    norm_before_gate = truth_of(function, "norm_before_gate", norm_before_gate)
    eps = eps_of(function, eps, rms, x.dtype)
    weight_offset = number_of(function, "weight_offset", weight_offset)
    columns = x.shape[-1]
    if group_size is not None:
        group_size = whole_of(function, "group_size", group_size)
    if group_size is not None and (group_size <= 0 or columns % group_size):
        raise ValueError(
            f"{function}: group_size is {group_size}; wanted a divisor of x's last axis, which has "
            f"{columns} columns"
        )
    rounds = cast == "xhat" and rounds_xhat(x.dtype, weight, bias)
    if rounds and (bias is not None or not kernels_round(x.dtype, weight, bias, weight_offset)):
        return _rounded(
            rms, x, gate, weight, bias, eps, norm_before_gate, group_size, weight_offset
        )
    tensors = Tensors(*given)
    fused = _in_one_call(
        rms, tensors, eps, norm_before_gate, group_size, weight_offset, rounds, key
    )
    if fused is not None:
        return fused
    if rounds:
        return _rounded(
            rms, x, gate, weight, bias, eps, norm_before_gate, group_size, weight_offset
        )
    wide = stages.compute_dtype(x.dtype)
    factor = stages.silu(gate.to(wide))
    s = x.to(wide)
    if not norm_before_gate:
        s = s * factor
    if group_size is not None and group_size < columns:
        s = stages.split_columns(s, group_size)
        weight = None if weight is None else stages.split_columns(weight, group_size)
        bias = None if bias is None else stages.split_columns(bias, group_size)
    v = stages.norm_last(rms, s, weight, bias, eps, weight_offset, wide).reshape(x.shape)
    return (v * factor if norm_before_gate else v).to(x.dtype)


def _in_one_call(
    rms: bool,
    tensors: Tensors,
    eps: float,
    norm_before_gate: bool,
    group_size: int | None,
    weight_offset: float,
    rounds: bool,
    key: Any,
) -> Tensor | None:
    """In one call of the kernels, which see groups of columns as an axis; None: composed."""
    x, weight, bias = tensors.x, tensors.weight, tensors.bias
    split, affine, ndim = 0, None, x.dim()
    if group_size is not None and group_size < x.shape[-1]:
        split, ndim = -(x.shape[-1] // group_size), x.dim() + 1
        count = max((1, *(t.dim() for t in (weight, bias) if t is not None)))
        affine = list(range(ndim - count - 1, ndim))
    fused = stage_calls.norm(
        way_of(x, tensors.gate, weight, bias),
        tensors,
        [ndim - 1],
        eps,
        rms,
        affine=affine,
        split=split,
        weight_offset=weight_offset,
        gate_before=not norm_before_gate,
        round_xhat=rounds,
        y_dtype=x.dtype,
        key=key,
    )
    return None if fused is None else fused[0]


def _rounded(
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
    """With xhat rounded to x's dtype and the parameters by torch's operators."""
    if not norm_before_gate:
        xhat = _gated_norm(rms, x, gate, None, None, eps, False, group_size, 0.0)
        return stages.weighted(xhat, weight, bias, weight_offset)
    s = x
    if group_size is not None and group_size < x.shape[-1]:
        s = stages.split_columns(x, group_size)
    xhat = stages.norm_last(rms, s, None, None, eps, 0.0, x.dtype).reshape(x.shape)
    wide = stages.compute_dtype(x.dtype)
    z = stages.weighted(xhat, weight, bias, weight_offset)
    return (z.to(wide) * stages.silu(gate.to(wide))).to(x.dtype)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    norm_before_gate: bool = True,
    group_size: int | None = None,
    weight_offset: float = 0.0,
    cast: str = "once",
) -> Tensor:
    """Root-mean-square normalization over the last axis with a gate (Mamba 2, RetNet).

        y = norm(x) * silu(gate)       norm_before_gate=True
        y = norm(x * silu(gate))       norm_before_gate=False

    with ``norm(s) = s / sqrt(mean(s^2) + eps) * (weight_offset + weight)``. ``gate`` has x's shape;
    ``eps`` may be None, as :func:`planish.rms_norm` has it.
    ``group_size``: the mean is over each group of so many neighbouring columns; ``weight`` has the
    size of the last axis all the same (or the sizes of the last axes).

    Everything between is in float (f64 for f64), the product before the norm, too, and y is rounded
    once, to x's dtype. Dtypes: f16, bf16, f32 and f64, each tensor its own. Differentiable twice.

    ``cast="xhat"``: s / sqrt(mean(s^2) + eps) is rounded to x's dtype before it meets the weight,
    whose product with it is torch's, and so rounded once more (Mamba 2, Qwen3-Next). With the gate
    before the norm that product is the result, of the dtype that the two promote to.

    One pass over memory, and one backward; a composition as :func:`planish.add_layer_norm` says.

    Raises TypeError for what is no tensor or no number, RuntimeError for shapes and devices that do
    not fit, ValueError for a group_size that does not divide the columns and for another ``cast``,
    NotImplementedError for another dtype or layout.

    Example:

    >>> x, gate = torch.randn(2, 5, 64), torch.randn(2, 5, 64)
    >>> y = planish.gated_rms_norm(x, gate, torch.ones(64))
    >>> torch.allclose(y, planish.rms_norm(x, -1) * torch.nn.functional.silu(gate), atol=1e-5)
    True
    >>> planish.gated_rms_norm(x, gate, norm_before_gate=False, group_size=16).shape  # Mamba 2
    torch.Size([2, 5, 64])
    """
    return _gated_norm(
        True, x, gate, weight, None, eps, norm_before_gate, group_size, weight_offset, cast
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
    cast: str = "once",
) -> Tensor:
    """Layer normalization over the last axis with a gate, as :func:`gated_rms_norm`.

    ``norm(s) = (s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias``.

    Example:

    >>> x, gate = torch.randn(2, 5, 64), torch.randn(2, 5, 64)
    >>> y = planish.gated_layer_norm(x, gate, torch.ones(64), torch.zeros(64))
    >>> torch.allclose(y, planish.layer_norm(x, -1) * torch.nn.functional.silu(gate), atol=1e-5)
    True
    """
    return _gated_norm(
        False, x, gate, weight, bias, eps, norm_before_gate, group_size, weight_offset, cast
    )
