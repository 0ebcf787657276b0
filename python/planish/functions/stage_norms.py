"""A norm with what stands around it in a model: the sum with a residual before it, a modulation
behind it.

Every function here is one call of planish's kernels, in both directions (stage_calls.py); where
these cannot take it, or a transform of torch's wants torch's own operators, a composition of
planish's norm and these. Gates are in gated.py, queries and keys in
heads.py, quantised results in quantized.py, the modules in stage_modules.py.
"""

from __future__ import annotations

import torch
from planish.functions import stages
from planish.operators import stage_calls, steps
from planish.operators.arguments import (
    check_cast,
    eps_of,
    kernels_round,
    number_of,
    rounds_xhat,
    truth_of,
)
from planish.operators.call import Tensors
from planish.operators.ways import way_of
from torch import Tensor

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "modulated_layer_norm",
    "modulated_rms_norm",
]


# ---- The sum with a residual --------------------------------------------------------------------


def _add_norm(
    rms: bool,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    dropout_p: float,
    training: bool,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    sum_dtype: torch.dtype | None,
    weight_offset: float,
    out_dtype: torch.dtype | None,
    cast: str,
) -> tuple[Tensor, Tensor]:
    bare = row_scale is None and column_scale is None and sum_dtype is None and out_dtype is None
    bare = bare and cast == "once"
    if bare and steps.is_zero(dropout_p) and steps.is_zero(weight_offset):
        both = steps.sum_and_norm(rms, x, residual, weight, bias, eps)
        if both is not None:
            return both
    key, given = None, (x, residual, row_scale, column_scale, None, weight, bias, None, None, None)
    number = type(dropout_p) is float or type(dropout_p) is int
    if number and 0 <= dropout_p < 1 and stages.has_rows_rank(row_scale, x):
        drops = dropout_p if training else 0.0
        options = "added", rms, eps, sum_dtype, weight_offset, out_dtype, cast, drops
        known, key = stage_calls.known(options, given)
        if known is not None:
            return known[0], known[1]
    function = "add_rms_norm" if rms else "add_layer_norm"
    stages.check_x(function, x)
    stages.check_like_x(function, "residual", residual, x, optional=False)
    for name, parameter in (("weight", weight), ("bias", bias), ("column_scale", column_scale)):
        stages.check_parameter(function, name, parameter, x)
    dropout_p = stages.check_probability(function, dropout_p)
    rows = stages.check_row_scale(function, row_scale, x)
    training = truth_of(function, "training", training)
    if training and dropout_p == 1:
        x = stages.nothing_of(x, column_scale, rows)
        dropout_p, row_scale, column_scale, rows = 0.0, None, None, None
    stages.check_float(function, "sum_dtype", sum_dtype)
    stages.check_float(function, "out_dtype", out_dtype)
    check_cast(function, cast)
    total_dtype = sum_dtype or residual.dtype
    eps = eps_of(function, eps, rms, total_dtype)
    weight_offset = number_of(function, "weight_offset", weight_offset)
    rounds = cast == "xhat" and rounds_xhat(total_dtype, weight, bias)
    if rounds and not (
        x.dtype == total_dtype
        and out_dtype in (None, total_dtype)
        and kernels_round(total_dtype, weight, bias, weight_offset)
    ):
        scales = dropout_p, training, row_scale, column_scale
        rest = *scales, total_dtype, 0.0, total_dtype, "once"
        xhat, total = _add_norm(rms, x, residual, None, None, eps, *rest)
        y = stages.weighted(xhat, weight, bias, weight_offset)
        return (y if out_dtype is None else y.to(out_dtype)), total
    y_dtype = out_dtype or (total_dtype if cast == "xhat" else x.dtype)
    fused = stage_calls.norm(
        way_of(x, residual, weight, bias, row_scale, column_scale),
        Tensors(x, residual, rows, column_scale, None, weight, bias),
        [x.dim() - 1],
        eps,
        rms,
        weight_offset=weight_offset,
        round_xhat=rounds,
        dropout_p=dropout_p if training else 0.0,
        y_dtype=y_dtype,
        sum_dtype=total_dtype,
        key=key,
    )
    if fused is not None:
        return fused
    p = dropout_p if training else 0.0
    total = stages.sum_of(x, residual, total_dtype, column_scale, rows, dropout_p=p)
    if rounds:
        xhat = stages.norm_last(rms, total, None, None, eps, 0.0, total_dtype)
        return stages.weighted(xhat, weight, bias, 0.0), total
    return stages.norm_last(rms, total, weight, bias, eps, weight_offset, y_dtype), total


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dropout_p: float = 0.0,
    training: bool = True,
    row_scale: Tensor | None = None,
    column_scale: Tensor | None = None,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    out_dtype: torch.dtype | None = None,
    cast: str = "once",
) -> tuple[Tensor, Tensor]:
    """Sum with a residual, then layer normalization of it over the last axis: ``(y, sum)``.

        sum = x * column_scale * row_scale * keep / (1 - dropout_p) + residual
        y   = (sum - mean) / sqrt(var + eps) * (weight_offset + weight) + bias

    ``residual`` has x's shape. ``weight``, ``bias`` and ``column_scale`` (LayerScale) have the size
    of the last axis, or the sizes of the last axes; ``row_scale`` (stochastic depth) has one value
    for each row, x's shape without the last axis. ``keep`` is the mask of dropout, 0 with the
    probability ``dropout_p``: Philox of a seed and an offset, which are two numbers of torch's
    generator of the device, and of the element's place in x. It is the same again after the same
    ``torch.manual_seed``; ``training=False`` leaves dropout out. With a probability of 1 everything
    is dropped, and the sum is the residual.

    ``sum`` has the residual's dtype unless ``sum_dtype`` says otherwise, and is rounded to it once;
    y is made of the sum as it was rounded, has x's dtype unless ``out_dtype`` says otherwise, and
    is rounded once. Dtypes: f16, bf16, f32 and f64, each tensor its own. Differentiable twice,
    through both results.

    ``cast="xhat"``: y is what ``planish.layer_norm(sum, -1, weight, bias, cast="xhat")`` gives,
    the order of rounding of Llama's RMSNorm: xhat is rounded to the sum's dtype, and torch's
    promotion of that and the parameters says which dtype y has.

    One pass over memory, and one backward; kept for it are the sum, what is one number for each
    row, and x where ``column_scale`` has a gradient. A composition of planish's norm and torch's
    operators for transforms of torch.func, forward mode, subclasses, a ``row_scale`` with a
    gradient, and where planish has no kernel; its mask of dropout is another.

    Raises TypeError for what is no tensor or number, RuntimeError for other shapes and devices,
    ValueError for another ``dropout_p`` or ``cast``, NotImplementedError for another dtype.

    Example:

    >>> x, residual, weight = torch.randn(2, 5, 64), torch.randn(2, 5, 64), torch.ones(64)
    >>> y, total = planish.add_layer_norm(x, residual, weight, torch.zeros(64))
    >>> torch.equal(total, x + residual), torch.equal(y, planish.layer_norm(total, -1, weight))
    (True, True)
    >>> y, total = planish.add_layer_norm(x, residual, weight, dropout_p=0.1, training=True)
    """
    return _add_norm(
        False,
        x,
        residual,
        weight,
        bias,
        eps,
        dropout_p,
        training,
        row_scale,
        column_scale,
        sum_dtype,
        weight_offset,
        out_dtype,
        cast,
    )


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    dropout_p: float = 0.0,
    training: bool = True,
    row_scale: Tensor | None = None,
    column_scale: Tensor | None = None,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    out_dtype: torch.dtype | None = None,
    cast: str = "once",
) -> tuple[Tensor, Tensor]:
    """Sum with a residual, then root-mean-square normalization of it over the last axis:
    ``(y, sum)``.

        y = sum / sqrt(mean(sum^2) + eps) * (weight_offset + weight)

    Everything else as :func:`add_layer_norm`, but there is no bias, and ``eps`` may be None.

    Example:

    >>> x, residual = torch.randn(2, 5, 64).bfloat16(), torch.randn(2, 5, 64)
    >>> y, total = planish.add_rms_norm(x, residual, torch.ones(64), 1e-6)
    >>> y.dtype, total.dtype
    (torch.bfloat16, torch.float32)
    """
    return _add_norm(
        True,
        x,
        residual,
        weight,
        None,
        eps,
        dropout_p,
        training,
        row_scale,
        column_scale,
        sum_dtype,
        weight_offset,
        out_dtype,
        cast,
    )


# ---- Modulation ---------------------------------------------------------------------------------


def _modulated_norm(
    rms: bool,
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    residual: Tensor | None,
    gate: Tensor | None,
    sum_dtype: torch.dtype | None,
    weight_offset: float,
) -> Tensor | tuple[Tensor, Tensor]:
    given = x, residual, None, gate, None, weight, bias, scale, shift, None
    known, key = stage_calls.known(("modulated", rms, eps, sum_dtype, weight_offset), given)
    if known is not None:
        return known[0] if residual is None else (known[0], known[1])
    function = "modulated_rms_norm" if rms else "modulated_layer_norm"
    stages.check_x(function, x)
    if scale is None and shift is None:
        raise TypeError(f"{function}: Expected scale or shift to be a tensor, but both are None")
    for name, tensor in (("scale", scale), ("shift", shift), ("gate", gate)):
        stages.check_modulation(function, name, tensor, x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        stages.check_parameter(function, name, parameter, x)
    stages.check_like_x(function, "residual", residual, x)
    if residual is None and (gate is not None or sum_dtype is not None):
        named = "sum_dtype" if gate is None else "gate"
        raise ValueError(
            f"{function}: {named} is given without a residual; it is of the sum residual + gate * x"
        )
    stages.check_float(function, "sum_dtype", sum_dtype)
    total_dtype = x.dtype if residual is None else sum_dtype or residual.dtype
    eps = eps_of(function, eps, rms, total_dtype)
    weight_offset = number_of(function, "weight_offset", weight_offset)
    as_given = gate, scale, shift
    gate = stages.along_columns(gate, x, x.dim())
    scale, shift = (stages.along_columns(t, x, 1) for t in (scale, shift))
    same = gate is as_given[0] and scale is as_given[1] and shift is as_given[2]
    fused = stage_calls.norm(
        way_of(x, scale, shift, weight, bias, residual, gate),
        Tensors(x, residual, None, gate, None, weight, bias, scale, shift),
        [x.dim() - 1],
        eps,
        rms,
        column=stage_calls.modulation_axes(x, gate),
        weight_offset=weight_offset,
        y_dtype=x.dtype,
        sum_dtype=None if residual is None else total_dtype,
        key=key if same else None,
    )
    if fused is not None:
        return fused[0] if residual is None else fused
    total = x
    if residual is not None:
        total = stages.sum_of(x, residual, total_dtype, gate)
    wide = stages.compute_dtype(total.dtype, x.dtype)
    z = stages.norm_last(rms, total.to(wide), weight, bias, eps, weight_offset, wide)
    m = z if scale is None else z * (1 + scale.to(wide))
    if shift is not None:
        m = m + shift.to(wide)
    y = m.to(x.dtype)
    return y if residual is None else (y, total)


def modulated_layer_norm(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Layer normalization over the last axis with a modulation behind it (adaLN): y, or
    ``(y, sum)`` with a residual.

        s = x                          or, with a residual:  s = residual + gate * x
        z = (s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias
        y = z * (1 + scale) + shift

    ``scale``, ``shift`` and ``gate`` have x's rank, each axis x's size or 1: (B, 1, D) beside x
    (B, S, D), or (B, S, D) itself; or the last axis alone, (D) or (1). ``scale`` or ``shift`` may
    be None, 0 then: ``scale=None`` with a shift of x's shape adds a norm's result to it (OLMo 2).
    ``gate`` may be None, which is 1. ``weight`` and ``bias`` have the size of the last axis, or the
    sizes of the last axes.

    ``sum`` has the residual's dtype unless ``sum_dtype`` says otherwise and is rounded to it once;
    the norm reads it so. Everything behind is in float (f64 for f64), and y is rounded once, to x's
    dtype. Dtypes: f16, bf16, f32 and f64, each tensor its own. Differentiable twice.

    One pass over memory, and one backward; a composition as :func:`add_layer_norm` says.

    Raises TypeError for what is no tensor or number and where scale and shift are None,
    RuntimeError for shapes and devices, ValueError for a gate or sum_dtype without a residual,
    NotImplementedError for another dtype.

    Example:

    >>> x, residual = torch.randn(2, 5, 64), torch.randn(2, 5, 64)
    >>> scale, shift, gate = torch.randn(3, 2, 1, 64).unbind()
    >>> y = planish.modulated_layer_norm(x, scale, shift)
    >>> torch.allclose(y, planish.layer_norm(x, -1, eps=1e-6) * (1 + scale) + shift, atol=1e-5)
    True
    >>> y, total = planish.modulated_layer_norm(x, scale, shift, residual=residual, gate=gate)
    >>> torch.allclose(total, residual + gate * x, atol=1e-6)
    True
    """
    return _modulated_norm(
        False, x, scale, shift, weight, bias, eps, residual, gate, sum_dtype, weight_offset
    )


def modulated_rms_norm(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-6,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalization over the last axis with a modulation behind it.

        z = s / sqrt(mean(s^2) + eps) * (weight_offset + weight) + bias

    Everything else as :func:`modulated_layer_norm`, but that ``eps`` may be None.

    Example:

    >>> x, residual, weight = torch.randn(2, 5, 64), torch.randn(2, 5, 64), torch.ones(64)
    >>> y = planish.modulated_rms_norm(x, None, residual, weight)  # OLMo 2: residual + norm(x)
    >>> torch.allclose(y, residual + planish.rms_norm(x, -1, weight, eps=1e-6), atol=1e-5)
    True
    """
    return _modulated_norm(
        True, x, scale, shift, weight, bias, eps, residual, gate, sum_dtype, weight_offset
    )
