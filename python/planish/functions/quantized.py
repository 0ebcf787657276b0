"""Norms whose result is quantised to fp8 or int8, with the scales of it. Forward only.

One call of planish's kernels (quantized_calls.py); for the scale of a whole tensor, which has to
be found first, and where the kernels cannot take it, a composition of planish's norm and torch's
operators. The formulas are those of the docstrings, on every device.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from planish.functions import stages
from planish.functions.quantizing import LARGEST, in_columns, quantize, scale_of
from planish.library.seen import is_same_size
from planish.operators import quantized_calls
from planish.operators.arguments import check_tensor, eps_of, number_of, truth_of
from planish.operators.derivatives import refuse as _refuse
from planish.operators.ways import way_of
from torch import Tensor

__all__ = ["quantized_layer_norm", "quantized_rms_norm"]

BLOCKS = (128, 64, 32)
SCALE_FORMATS = ("f32", "ue8m0", "e8m0")

# ---- What is forward only -----------------------------------------------------------------------


@torch.library.custom_op("planish::no_gradient", mutates_args=())
def _no_gradient(dy: Tensor, function: str) -> Tensor:
    """For compiled graphs: 0 for the zeros that these make up for results without a use."""
    if dy.float().any():
        _refuse(function)
    return torch.zeros((), device=dy.device)


@_no_gradient.register_fake
def _(dy: Tensor, function: str) -> Tensor:
    return torch.empty((), device=dy.device)


class _ForwardOnly(torch.autograd.Function):
    """``result``, which hangs from y in the graph; its backward raises when it runs."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, result: Tensor, function: str) -> Tensor:
        ctx.function, ctx.dtype, ctx.shape = function, y.dtype, y.shape
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if not torch.compiler.is_compiling():
            _refuse(ctx.function)
        zero: Tensor = torch.ops.planish.no_gradient(gradient, ctx.function)
        return zero.to(ctx.dtype).expand(ctx.shape), None, None


def _forward_only(y: Tensor, result: Tensor, function: str) -> Tensor:
    if not (torch.is_grad_enabled() and y.requires_grad and result.is_floating_point()):
        return result
    hung: Tensor = _ForwardOnly.apply(y, result, function)  # type: ignore[no-untyped-call]
    return hung


# ---- The functions ------------------------------------------------------------------------------


def check(
    function: str,
    dtype: torch.dtype,
    per: str | int,
    scale: Tensor | None,
    scale_format: str,
    transposed_scales: bool,
    amax_floor: float,
    scale_bound: float | None,
    x: Tensor,
    dtype_name: str = "dtype",
) -> None:
    if dtype not in LARGEST:
        known = ", ".join(str(known) for known in LARGEST)
        raise TypeError(f"{function}: {dtype_name} is {dtype}; known are {known}")
    known_per = isinstance(per, str | int) and not isinstance(per, bool)
    if not known_per or per not in ("row", "tensor", *BLOCKS):
        raise ValueError(
            f"{function}: per is {per!r}; known are 'row', 'tensor' and blocks of 128, 64 or 32 "
            "columns"
        )
    if scale_format not in SCALE_FORMATS:
        known = ", ".join(map(repr, SCALE_FORMATS))
        raise ValueError(f"{function}: scale_format is {scale_format!r}; known are {known}")
    transposed_scales = truth_of(function, "transposed_scales", transposed_scales)
    if per not in BLOCKS and (scale_format != "f32" or transposed_scales):
        found = f"scale_format={scale_format!r}" if scale_format != "f32" else "transposed_scales"
        raise ValueError(f"{function}: {found} is for scales per block, but per is {per!r}")
    if not number_of(function, "amax_floor", amax_floor) > 0:
        raise ValueError(f"{function}: amax_floor is {amax_floor}; wanted a positive number")
    if scale_bound is not None and not number_of(function, "scale_bound", scale_bound) > 0:
        raise ValueError(f"{function}: scale_bound is {scale_bound}; wanted a positive number")
    if scale_bound is not None and (per != "row" or scale is not None):
        raise ValueError(f"{function}: scale_bound is for scales per row that are found")
    if scale is None:
        return
    check_tensor(function, "scale", scale)
    if per != "tensor":
        raise ValueError(
            f"{function}: a static scale is one for the whole tensor (per='tensor'), but per is "
            f"{per!r}"
        )
    if scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != x.device:
        raise RuntimeError(
            f"{function}: Expected scale to be one float32 on {x.device}, but got "
            f"{scale.numel()} of {scale.dtype} on {scale.device}"
        )
    # A GPU's value is not fetched: that would make the host wait.
    if scale.device.type == "cpu" and not torch.compiler.is_compiling() and not scale.item() > 0:
        raise ValueError(f"{function}: scale is {scale.item()}; wanted a positive number")


class _Asked(NamedTuple):
    """What a quantised norm is asked for besides its tensors."""

    dtype: torch.dtype
    per: Any
    scale: Tensor | None
    scale_format: str
    transposed: bool
    sum_dtype: torch.dtype | None
    weight_offset: float
    amax_floor: float
    scale_bound: float | None


def _with_zeros_behind(scales: Tensor, count: int) -> Tensor:
    """What is behind so many columns is padding."""
    if torch.compiler.is_compiling():  # a slice would say of sizes that vary that there is some
        if is_same_size(count, scales.shape[1]):
            return scales
        places = torch.arange(scales.shape[1], device=scales.device)
        return scales.masked_fill(places >= count, 0)
    if count != scales.shape[1]:
        scales.detach()[:, count:].zero_()
    return scales


def _in_one_call(
    rms: bool,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    asked: _Asked,
) -> tuple[Tensor, ...] | None:
    """In one call of the kernels; None where they cannot take it."""
    dtype, per, scale, scale_format, transposed, sum_dtype, *_ = asked
    results = quantized_calls.quantized(
        way_of(x, weight, bias, scale, residual),
        x,
        residual,
        weight,
        bias,
        None if scale is None else scale.detach().reshape(()),
        eps,
        rms,
        weight_offset=asked.weight_offset,
        dtype=dtype,
        block=per if isinstance(per, int) else 0,
        scale_format=scale_format,
        transposed=transposed,
        least=quantized_calls.float_of(quantized_calls.float_of(asked.amax_floor) / LARGEST[dtype]),
        most=asked.scale_bound or 0.0,
        sum_dtype=None if residual is None else sum_dtype or residual.dtype,
    )
    if results is None:
        return None
    q, scales, total = results
    if scales is not None:
        rows, count = x.shape[:-1], math.prod(x.shape[:-1])
        if transposed:
            scales = _with_zeros_behind(scales, count)
        if scale_format == "e8m0":
            scales = scales.view(torch.float8_e8m0fnu)
        if transposed:
            scales = scales[:, :count].t().view(*rows, scales.shape[0])
    found = scale if scales is None else scales
    assert found is not None
    return (q, found) if total is None else (q, found, total)


def _quantized_norm(
    rms: bool,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    asked: _Asked,
) -> tuple[Tensor, ...]:
    dtype, per, scale, scale_format, transposed, sum_dtype, offset, amax_floor, scale_bound = asked
    function = "quantized_rms_norm" if rms else "quantized_layer_norm"
    stages.check_x(function, x)
    if per is None:
        per = "row" if scale is None else "tensor"
    eps = eps_of(function, eps, rms, x.dtype)
    offset = number_of(function, "weight_offset", offset)
    check(function, dtype, per, scale, scale_format, transposed, amax_floor, scale_bound, x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        stages.check_parameter(function, name, parameter, x)
    stages.check_like_x(function, "residual", residual, x)
    if sum_dtype is not None:
        stages.check_float(function, "sum_dtype", sum_dtype)
        if residual is None:
            raise ValueError(f"{function}: sum_dtype is given without a residual")
    fused = None
    if (scale is not None or per != "tensor") and x.shape[-1]:
        asked = asked._replace(per=per, weight_offset=offset)
        fused = _in_one_call(rms, x, residual, weight, bias, eps, asked)
    if fused is not None:
        return fused
    total = x
    if residual is not None:
        total = stages.sum_with(x, residual, sum_dtype or residual.dtype)
    wide = stages.compute_dtype(total.dtype, x.dtype)
    hung = stages.norm_last(rms, total.to(wide), weight, bias, eps, offset, wide)
    y = hung.detach()
    if scale is not None:
        apart, found = y, scale.detach().reshape(())
    else:
        apart, found = scale_of(y, per, LARGEST[dtype], amax_floor, scale_bound, scale_format)
    q = quantize(apart, found, dtype)
    if isinstance(per, int):
        q, found = q.flatten(-2)[..., : x.shape[-1]].contiguous(), found.squeeze(-1)
        if scale_format == "e8m0":
            found = found.to(torch.float8_e8m0fnu)
        if transposed:
            found = in_columns(found)
    q = _forward_only(hung, q, function)
    found = _forward_only(hung, found, function) if scale is None else scale
    return (q, found) if residual is None else (q, found, total)


def quantized_rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    per: str | int | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    scale_format: str = "f32",
    transposed_scales: bool = False,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    amax_floor: float = 1e-10,
    scale_bound: float | None = None,
) -> tuple[Tensor, ...]:
    """Root-mean-square normalization over the last axis, quantised: ``(q, scale)``, or
    ``(q, scale, sum)`` with a residual, where the norm is that of ``sum = x + residual``.

        y     = s / sqrt(mean(s^2) + eps) * (weight_offset + weight)
        scale = max(amax of |y|, amax_floor) / largest
        q     = y / scale, to the nearest value, to even in a tie, saturating

    ``dtype``: torch.float8_e4m3fn (largest 448), torch.float8_e5m2 (57344) or torch.int8 (127). NaN
    stays, and is 0 in int8; amax passes over it. y is not rounded before the division.

    ``per``: what has a scale of its own, in f32; by default a row, or the tensor if there is a
    ``scale``.

    ======== ================================================================
    "row"    scale (..., 1)
    "tensor" scale ()
    128, 64  that many neighbouring columns: scale (..., blocks); the last
    or 32    block may be shorter
    ======== ================================================================

    ``scale`` (one positive f32): the static scale of the whole tensor, and what is returned as it.
    ``scale_bound``, per row: no scale is larger. ``scale_format``, per block: "ue8m0" takes the
    least power of two that is not below the scale, as f32; "e8m0" that as torch.float8_e8m0fnu
    bytes (mxfp8 with 32 columns). ``transposed_scales``, per block: the scales lie column after
    column, each padded to a multiple of 16 bytes, their shape being (..., blocks) all the same.

    ``sum`` is rounded once, to the residual's dtype or ``sum_dtype``, and is what the norm reads.
    q and a scale that was found are forward only: a backward that reaches them raises RuntimeError;
    the sum is differentiable. x, weight and residual are of f16, bf16, f32 or f64, each its own.

    One pass over memory. A composition of planish's norm and torch's operators for ``per="tensor"``
    without a scale, for transforms of torch.func, forward mode and subclasses, for compiled graphs
    with a gradient, and where planish has no kernel.

    ``eps`` may be None: see :func:`planish.rms_norm`.

    Raises TypeError for another ``dtype`` and for what is no tensor or no number, ValueError for
    what ``per``, ``scale_format``, ``scale``, ``amax_floor`` and ``scale_bound`` cannot be,
    RuntimeError for shapes and devices that do not fit. A scale that is not positive is looked for
    on the CPU only; a GPU would have to be waited for.

    Example:

    >>> x, weight = torch.randn(4, 64), torch.ones(64)
    >>> q, scale = planish.quantized_rms_norm(x, weight, 1e-6)
    >>> q.dtype, scale.shape
    (torch.float8_e4m3fn, torch.Size([4, 1]))
    >>> torch.allclose(q.float() * scale, planish.rms_norm(x, -1, weight, eps=1e-6), atol=0.2)
    True
    >>> q, scale, total = planish.quantized_rms_norm(x, weight, residual=torch.randn(4, 64), per=32)
    >>> scale.shape
    torch.Size([4, 2])
    """
    rest = sum_dtype, weight_offset, amax_floor, scale_bound
    asked = _Asked(dtype, per, scale, scale_format, transposed_scales, *rest)
    return _quantized_norm(True, x, residual, weight, None, eps, asked)


def quantized_layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    per: str | int | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    scale_format: str = "f32",
    transposed_scales: bool = False,
    sum_dtype: torch.dtype | None = None,
    weight_offset: float = 0.0,
    amax_floor: float = 1e-10,
    scale_bound: float | None = None,
) -> tuple[Tensor, ...]:
    """Layer normalization over the last axis, quantised, as :func:`quantized_rms_norm`.

    ``y = (s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias``.

    Example:

    >>> q, scale = planish.quantized_layer_norm(torch.randn(4, 64), dtype=torch.int8, per="tensor")
    >>> q.dtype, scale.shape
    (torch.int8, torch.Size([]))
    """
    rest = sum_dtype, weight_offset, amax_floor, scale_bound
    asked = _Asked(dtype, per, scale, scale_format, transposed_scales, *rest)
    return _quantized_norm(False, x, residual, weight, bias, eps, asked)
