"""planish's norms in torch's own operators, for a compiler that fuses these: what stands in a graph
where the compiler's own kernels are faster.

The forward and the backward are those of planish.h, with the results that fakes.py names. What has
no formula here stays planish's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

import torch
from planish.operators import call
from planish.operators.arguments import compute_dtype
from planish.operators.call import Tensors
from planish.operators.fakes import statistics_dtype
from planish.operators.formulas import Given, activated, along, is_least
from torch import Tensor

__all__ = ["backward", "dtype_of", "forward", "has_formula", "slope"]


def has_formula(tensors: Tensors | Given) -> bool:
    """Not for the scales of a branch, nor for dropout, whose numbers are planish's."""
    given = tensors.row_scale, tensors.column_scale, tensors.rng
    return all(tensor is None for tensor in given)


def dtype_of(tensors: Any) -> torch.dtype:
    return compute_dtype(*(t.dtype for t in tensors if t is not None))


def _weight(weight: Tensor, axes: list[int], like: Tensor, dtype: torch.dtype, offset: int) -> Any:
    wide = along(weight, axes, like, dtype)
    return wide + offset if offset else wide


def forward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """(y, sum, mean, rstd) of norm_forward's arguments."""
    given = Tensors(*arguments[: len(Tensors._fields)])
    axes, options, split, eps, _ = arguments[len(Tensors._fields) :]
    x, residual, _, _, _, weight, bias, scale, shift, gate = given
    dtype = dtype_of(given)
    reduce, affine, _, modulation = (call.axes_of(axes, place) for place in range(4))
    shape = call.seen_shape(x.shape, split)

    def seen(tensor: Tensor) -> Tensor:
        wide = tensor.to(dtype)
        return wide.reshape(shape) if split else wide

    s = seen(x)
    if residual is not None:
        s = s + seen(residual)
    if gate is not None and options & call.GATE_BEFORE:
        s = s * F.silu(seen(gate))
    total = None
    total_dtype = call.sum_dtype_in(options)
    if total_dtype is not None:
        total = s.to(total_dtype)
        s = total.to(dtype)  # the norm is of the sum as it is returned
    mean, centred = None, s
    if options & call.L2:
        rstd = s.square().sum(reduce, keepdim=True).sqrt().clamp_min(eps).reciprocal()
    elif options & call.RMS:
        rstd = torch.rsqrt(s.square().mean(reduce, keepdim=True) + eps)
    else:
        variance, mean = torch.var_mean(s, reduce, correction=0, keepdim=True)
        centred = s - mean
        rstd = torch.rsqrt(variance + eps)
    z = centred * rstd
    if options & call.ROUND_XHAT:
        z = z.to(x.dtype).to(dtype)
    if weight is not None:
        z = z * _weight(weight, affine, s, dtype, call.weight_offset_in(options))
    if bias is not None:
        z = z + along(bias, affine, s, dtype)
    if scale is not None:
        z = z * (1 + along(scale, modulation, s, dtype))
    if shift is not None:
        z = z + along(shift, modulation, s, dtype)
    y = activated(call.activation_in(options), z)
    if gate is not None and not options & call.GATE_BEFORE:
        y = y * F.silu(seen(gate))
    y = y.reshape(x.shape).to(call.dtype_in(options) or x.dtype)
    if total is not None:
        total = total.reshape(x.shape)
    if not options & call.SAVE:
        return y, total, None, None
    kept = statistics_dtype(options, x, residual, weight, bias, shift, scale, gate)
    return y, total, None if mean is None else mean.to(kept), rstd.to(kept)


def slope(code: int, m: Tensor) -> Tensor:
    """The derivative of an activation."""
    if code == 1:
        sigmoid = torch.sigmoid(m)
        return sigmoid * (1 + m * (1 - sigmoid))
    if code == 2:
        return torch.where(m <= 0, 0.0, 1.0)
    if code == 5:
        return torch.where((m <= 0) | (m >= 6), 0.0, 1.0)
    if code == 6:
        return torch.where(m <= -3, 0.0, torch.where(m < 3, m / 3 + 0.5, 1.0))
    approximate = "tanh" if code == 4 else "none"
    gelu_backward: Any = torch.ops.aten.gelu_backward
    return gelu_backward(torch.ones_like(m), m, approximate=approximate)  # type: ignore[no-any-return]


def _summed(gradient: Tensor, axes: list[int]) -> Tensor:
    others = [axis for axis in range(gradient.dim()) if axis not in axes]
    return gradient.sum(others) if others else gradient


def _c2(product: Tensor, rstd: Tensor, reduce: list[int], options: int, least: float) -> Tensor:
    """planish.h's of g * xhat; ``least``: an L2 norm's eps."""
    if not options & call.L2:
        return product.mean(reduce, keepdim=True)
    total = product.sum(reduce, keepdim=True)
    return torch.where(is_least(rstd, least), 0.0, total) if least > 0 else total


def backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """norm_backward's eight results, None where not wanted."""
    count = len(Given._fields)
    given = Given(*arguments[:count])
    axes, options, split, p = arguments[count:]
    dy, x, rstd, mean, dsum, _, _, _, _, weight, bias, scale, shift, gate = given
    dtype = dtype_of((dy, x, weight, bias, scale, shift, gate))
    reduce, affine, _, modulation = (call.axes_of(axes, place) for place in range(4))
    shape = call.seen_shape(x.shape, split)
    before = bool(options & call.GATE_BEFORE)
    wanted = call.wanted_in(options)
    like_x = call.dtype_in(options) or x.dtype, call.sum_dtype_in(options) or x.dtype

    def seen(tensor: Tensor) -> Tensor:
        wide = tensor.to(dtype)
        return wide.reshape(shape) if split else wide

    s, gated = seen(x), None if gate is None else seen(gate)
    if before and gated is not None:
        s = s * F.silu(gated)
    rstd = rstd.to(dtype)
    xhat = s * rstd if mean is None else (s - mean.to(dtype)) * rstd
    z, w = xhat, None
    if weight is not None:
        w = _weight(weight, affine, s, dtype, call.weight_offset_in(options))
        z = z * w
    if bias is not None:
        z = z + along(bias, affine, s, dtype)
    factor = None if scale is None else 1 + along(scale, modulation, s, dtype)
    m = z if factor is None else z * factor
    if shift is not None:
        m = m + along(shift, modulation, s, dtype)
    code = call.activation_in(options)
    dm, dgate = seen(dy), None
    if gated is not None and not before:
        dgate = dm * activated(code, m) * slope(1, gated)
        dm = dm * F.silu(gated)
    if code:
        dm = dm * slope(code, m)
    dz = dm if factor is None else dm * factor
    dxhat = dz if w is None else dz * w
    ds = dxhat - xhat * _c2(dxhat * xhat, rstd, reduce, options, p)
    if mean is not None:
        ds = ds - dxhat.mean(reduce, keepdim=True)
    ds = ds * rstd
    if dsum is not None:
        ds = ds + seen(dsum)
    dx = ds
    if before and gated is not None:
        dgate = ds * seen(x) * slope(1, gated)
        dx = ds * F.silu(gated)
    other = x.dtype if weight is None else weight.dtype

    def full(gradient: Tensor, kind: torch.dtype) -> Tensor:
        return gradient.reshape(x.shape).to(kind)

    def parameter(gradient: Tensor, own: list[int], like: Tensor | None) -> Tensor:
        found = _summed(gradient, own)
        if split:
            axis, _ = call.split_place(x.dim(), split)
            if axis in own and axis + 1 in own:
                found = found.flatten(own.index(axis), own.index(axis) + 1)
        return found.to(other if like is None else like.dtype)

    made: tuple[Callable[[], Tensor | None], ...] = (
        lambda: full(dx, like_x[0]),
        lambda: full(ds, like_x[1]),
        lambda: parameter(dz * xhat, affine, weight),
        lambda: parameter(dz, affine, bias),
        lambda: None,
        lambda: parameter(dm * z, modulation, scale),
        lambda: parameter(dm, modulation, shift),
        lambda: None if dgate is None else full(dgate, other if gate is None else gate.dtype),
    )
    return tuple(make() if want else None for make, want in zip(made, wanted, strict=True))
