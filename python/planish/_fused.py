"""A norm with what stands around it in a model: the sum with a residual before it, a modulation
behind it, the norms of queries and keys.

Every function here is one call of planish's kernels, in both directions (_staged.py); where these
cannot take it, or a transform of torch's wants torch's own operators, a composition of planish's
norm and these. The results are those of the formulas, rounded where they say so. Gates are in
_gated.py, quantised results in _quantized.py, the modules in _fused_modules.py.
"""

from __future__ import annotations

import torch
from planish import _functional, _pairs, _prepared, _staged, _stages
from planish._arguments import check_cast
from planish._staged import Around
from planish._ways import way_of
from torch import Tensor

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "modulated_layer_norm",
    "modulated_rms_norm",
    "qk_norm",
]


# ---- The sum with a residual --------------------------------------------------------------------


def _add_norm(
    rms: bool,
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dropout_p: float,
    training: bool,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    sum_dtype: torch.dtype | None,
    weight_offset: float,
    out_dtype: torch.dtype | None,
    cast: str,
) -> tuple[Tensor, Tensor]:
    kept = None
    if row_scale is None and (not dropout_p or (0 < dropout_p < 1 and not training)):
        tensors = x, residual, None, column_scale, weight, bias, None, None
        options = rms, eps, sum_dtype, weight_offset, out_dtype, cast
        kept = _prepared.key_of(options, tensors), tensors
        known = _prepared.run(*kept)
        if known is not None:
            return known
    function = "add_rms_norm" if rms else "add_layer_norm"
    _stages.check_x(function, x)
    if not isinstance(residual, Tensor):
        raise TypeError(
            f"{function}: Expected residual to be a tensor, but got {type(residual).__name__}"
        )
    _stages.check_like_x(function, "residual", residual, x)
    for name, parameter in (("weight", weight), ("bias", bias), ("column_scale", column_scale)):
        _stages.check_parameter(function, name, parameter, x)
    _stages.check_probability(function, dropout_p)
    rows = _stages.check_row_scale(function, row_scale, x)
    for name, dtype in (("sum_dtype", sum_dtype), ("out_dtype", out_dtype)):
        if dtype is not None:
            _stages.check_float(function, name, dtype)
    check_cast(function, cast)
    total_dtype = sum_dtype or residual.dtype
    rounds = cast == "xhat" and _stages.rounds_xhat(total_dtype, weight, bias)
    if rounds and not (
        x.dtype == total_dtype
        and out_dtype in (None, total_dtype)
        and _stages.kernels_round(total_dtype, weight, bias, weight_offset)
    ):
        scales = dropout_p, training, row_scale, column_scale
        rest = *scales, total_dtype, 0.0, total_dtype, "once"
        xhat, total = _add_norm(rms, x, residual, None, None, eps, *rest)
        y = _stages.weighted(xhat, weight, bias, weight_offset)
        return (y if out_dtype is None else y.to(out_dtype)), total
    y_dtype = out_dtype or (total_dtype if cast == "xhat" else x.dtype)
    fused = _staged.norm(
        way_of(x, residual, weight, bias, row_scale, column_scale),
        x,
        Around(residual, row_scale, column_scale, weight, bias),
        [x.dim() - 1],
        eps,
        rms,
        weight_offset=weight_offset,
        round_xhat=rounds,
        dropout_p=dropout_p if training else 0.0,
        y_dtype=y_dtype,
        sum_dtype=total_dtype,
        known=kept,
    )
    if fused is not None:
        return fused
    wide = _stages.compute_dtype(x.dtype, residual.dtype)
    u = _stages.scaled(x, wide, column_scale, rows)
    if training and dropout_p:
        u, _ = _stages.drop(u.to(wide), dropout_p)
    total = _stages.sum_with(u, residual, total_dtype)
    if rounds:
        xhat = _stages.norm_last(rms, total, None, None, eps, 0.0, total_dtype)
        return _stages.weighted(xhat, weight, bias, 0.0), total
    return _stages.norm_last(rms, total, weight, bias, eps, weight_offset, y_dtype), total


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
    for each row, x's shape without the last axis. ``keep`` is the mask of dropout: it is drawn from
    torch's generator of the device, one ``torch.rand`` of x's shape, and off with
    ``training=False``.

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

    Raises RuntimeError for shapes and devices that do not fit, ValueError for a ``dropout_p``
    outside [0, 1) and for another ``cast``, TypeError for a residual that is no tensor,
    NotImplementedError for another dtype.

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
    """Sum with a residual, then root-mean-square normalization of it over the last axis:
    ``(y, sum)``.

        y = sum / sqrt(mean(sum^2) + eps) * (weight_offset + weight)

    Everything else as :func:`add_layer_norm`, but that there is no bias.

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
    eps: float,
    residual: Tensor | None,
    gate: Tensor | None,
    sum_dtype: torch.dtype | None,
    weight_offset: float,
) -> Tensor | tuple[Tensor, Tensor]:
    tensors = x, residual, None, gate, weight, bias, scale, shift
    kept = _prepared.key_of((rms, eps, sum_dtype, weight_offset), tensors), tensors
    known = _prepared.run(*kept)
    if known is not None:
        return known[0] if residual is None else known
    function = "modulated_rms_norm" if rms else "modulated_layer_norm"
    _stages.check_x(function, x)
    if not isinstance(shift if scale is None else scale, Tensor):
        given = f"{type(scale).__name__} and {type(shift).__name__}"
        raise TypeError(f"{function}: Expected scale or shift to be a tensor, but got {given}")
    for name, tensor in (("scale", scale), ("shift", shift), ("gate", gate)):
        _stages.check_modulation(function, name, tensor, x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        _stages.check_parameter(function, name, parameter, x)
    _stages.check_like_x(function, "residual", residual, x)
    if residual is None and (gate is not None or sum_dtype is not None):
        given = "gate" if gate is not None else "sum_dtype"
        raise ValueError(
            f"{function}: {given} is given without a residual; it is of the sum residual + gate * x"
        )
    if sum_dtype is not None:
        _stages.check_float(function, "sum_dtype", sum_dtype)
    fused = _staged.norm(
        way_of(x, scale, shift, weight, bias, residual, gate),
        x,
        Around(residual, None, gate, weight, bias, scale, shift),
        [x.dim() - 1],
        eps,
        rms,
        column=_staged.modulation_axes(x, gate),
        weight_offset=weight_offset,
        y_dtype=x.dtype,
        sum_dtype=None if residual is None else sum_dtype or residual.dtype,
        known=kept,
    )
    if fused is not None:
        return fused[0] if residual is None else fused
    total = x
    if residual is not None:
        u = _stages.scaled(x, _stages.compute_dtype(x.dtype, residual.dtype), gate)
        total = _stages.sum_with(u, residual, sum_dtype or residual.dtype)
    wide = _stages.compute_dtype(total.dtype, x.dtype)
    z = _stages.norm_last(rms, total.to(wide), weight, bias, eps, weight_offset, wide)
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
    (B, S, D), or (B, S, D) itself; or the last axis alone, (D). ``scale`` or ``shift`` may be None,
    0 then: ``scale=None`` with a shift of x's shape adds a norm's result to it (OLMo 2). ``gate``
    may be None, which is 1. ``weight`` and ``bias`` have the size of the last axis, or the sizes of
    the last axes.

    ``sum`` has the residual's dtype unless ``sum_dtype`` says otherwise and is rounded to it once;
    the norm reads it so. Everything behind is in float (f64 for f64), and y is rounded once, to x's
    dtype. Dtypes: f16, bf16, f32 and f64, each tensor its own. Differentiable twice.

    One pass over memory, and one backward; a composition as :func:`add_layer_norm` says.

    Raises RuntimeError for shapes and devices that do not fit, ValueError for a gate or sum_dtype
    without a residual, TypeError where scale and shift are both None, NotImplementedError for
    another dtype.

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
    eps: float = 1e-6,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Root-mean-square normalization over the last axis with a modulation behind it.

        z = s / sqrt(mean(s^2) + eps) * (weight_offset + weight) + bias

    Everything else as :func:`modulated_layer_norm`.

    Example:

    >>> x, residual, weight = torch.randn(2, 5, 64), torch.randn(2, 5, 64), torch.ones(64)
    >>> y = planish.modulated_rms_norm(x, None, residual, weight)  # OLMo 2: residual + norm(x)
    >>> torch.allclose(y, residual + planish.rms_norm(x, -1, weight, eps=1e-6), atol=1e-5)
    True
    """
    return _modulated_norm(
        True, x, scale, shift, weight, bias, eps, residual, gate, sum_dtype, weight_offset
    )


# ---- Queries and keys ---------------------------------------------------------------------------


def qk_norm(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    *,
    kind: str = "rms",
    weight_offset: float = 0.0,
    cast: str = "once",
) -> tuple[Tensor, Tensor]:
    """Norms of queries and keys over the last axis, each with a weight of its own: ``(q, k)``.

    ``q`` (..., heads, D) and ``k`` (..., kv_heads, D) may be slices of a packed qkv, in any
    strides; the results are dense. ``q_weight`` and ``k_weight`` have D elements, or (heads,
    D): a weight for each head; or are None. ``kind``: "rms" or "layer". Dtypes, ``cast`` and
    derivatives as :func:`planish.rms_norm`.

    Raises ValueError for another kind or cast, RuntimeError for shapes that do not fit,
    NotImplementedError for another dtype or device.

    Example:

    >>> q, k, v = torch.randn(2, 5, 3, 4, 16).unbind(2)  # slices of a packed qkv
    >>> q, k = planish.qk_norm(q, k, torch.ones(16), torch.ones(16), 1e-6)
    >>> q.shape, q.is_contiguous()
    (torch.Size([2, 5, 4, 16]), True)
    """
    tensors, options = (q, k, q_weight, k_weight), (kind, eps, weight_offset, cast)
    key = _pairs.key_of(options, tensors) if cast == "once" else None
    both = _pairs.known(key, tensors, eps, kind == "rms", weight_offset)
    if both is not None:
        return both
    if kind not in ("rms", "layer"):
        raise ValueError(f"qk_norm: kind is {kind!r}; known are 'rms' and 'layer'")
    for name, tensor in (("q", q), ("k", k)):
        _stages.check_float("qk_norm", name, tensor.dtype)
        _stages.check_x("qk_norm", tensor)
    _stages.check_parameter("qk_norm", "q_weight", q_weight, q)
    _stages.check_parameter("qk_norm", "k_weight", k_weight, k)
    rms = kind == "rms"
    if cast == "once":
        both = _pairs.norms(key, tensors, eps, rms, weight_offset)
        if both is not None:
            return both
        return (
            _stages.norm_last(rms, q, q_weight, None, eps, weight_offset, q.dtype),
            _stages.norm_last(rms, k, k_weight, None, eps, weight_offset, k.dtype),
        )
    norm = _functional.rms_norm if rms else _functional.layer_norm
    axes = _stages.last_axes(q, q_weight), _stages.last_axes(k, k_weight)
    return (
        norm(q, -1, q_weight, None, eps, axes[0], weight_offset=weight_offset, cast=cast),
        norm(k, -1, k_weight, None, eps, axes[1], weight_offset=weight_offset, cast=cast),
    )
