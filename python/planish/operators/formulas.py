"""The norm with its stages in torch's own operators: the formulas of planish.h, written down once
more, for derivatives of second order and for backwards that the library has no kernel for.

Nothing is rounded between the stages.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from planish.operators import call
from torch import Tensor

__all__ = ["Given", "activated", "along", "backward", "is_least", "keep_of"]

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
#: A saved rstd may be off by so many ULP (src/problem.c).
_OFF = 4


class Given(NamedTuple):
    """What norm_backward takes before its numbers."""

    dy: Tensor
    s: Tensor
    rstd: Tensor
    mean: Tensor | None = None
    dsum: Tensor | None = None
    branch: Tensor | None = None
    row_scale: Tensor | None = None
    column_scale: Tensor | None = None
    rng: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    gate: Tensor | None = None


# ---- Dropout ------------------------------------------------------------------------------------


def _product(words: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """(upper word, lower word) of a product of words of 32 bits, in int64."""
    upper = (words * (factor >> 16) + (words * (factor & 0xFFFF) >> 16)) >> 16
    return upper, (words * factor) & _WORD


def keep_of(rng: Tensor, shape: Any, p: float) -> Tensor:
    """Dropout's mask: Philox4x32-10 of the seed, the offset and the place, as planish.h has it."""
    count = math.prod(shape)
    block = torch.arange(-(-count // 4), device=rng.device)
    seed, offset = rng.unbind()
    keys = [seed & _WORD, (seed >> 32) & _WORD]
    words = [
        block & _WORD,
        block >> 32,
        (offset & _WORD).expand(block.shape),
        ((offset >> 32) & _WORD).expand(block.shape),
    ]
    for _ in range(_ROUNDS):
        (upper, lower), (other_upper, other_lower) = (
            _product(words[0], _MULTIPLIERS[0]),
            _product(words[2], _MULTIPLIERS[1]),
        )
        words = [other_upper ^ words[1] ^ keys[0], other_lower, upper ^ words[3] ^ keys[1], lower]
        keys = [(key + step) & _WORD for key, step in zip(keys, _KEY_STEPS, strict=True)]
    drawn = torch.stack(words, -1).flatten()[:count].reshape(shape)
    return drawn >= math.ceil(p * 2**32)


# ---- Stages -------------------------------------------------------------------------------------


def activated(code: int, m: Tensor) -> Tensor:
    """m behind an activation, by its number (call.py)."""
    functional = torch.nn.functional
    if code == 1:
        return functional.silu(m)
    if code == 2:
        return torch.where(m <= 0, 0, m)  # NaN stays, and has slope 1
    if code == 3:
        return functional.gelu(m)
    if code == 5:
        return torch.where(m <= 0, 0, torch.where(m >= 6, 6, m))
    if code == 6:
        return m * ((m + 3).clamp(0, 6) / 6)
    return functional.gelu(m, approximate="tanh") if code == 4 else m


def along(parameter: Tensor | None, axes: list[int], like: Tensor, dtype: torch.dtype) -> Any:
    """A parameter with its axes at their places in ``like``; None stays."""
    if parameter is None:
        return None
    sizes = [size if axis in axes else 1 for axis, size in enumerate(like.shape)]
    return parameter.to(dtype).reshape(sizes)


def is_least(rstd: Tensor, least: float) -> Tensor:
    """Where an L2 norm divided by ``least``, as its rstd tells, and not by the length."""
    return rstd >= (1 - _OFF * torch.finfo(rstd.dtype).eps) / least


def _norm(
    s: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    gate: Tensor | None,
    axes: int,
    options: int,
    least: float,
) -> Tensor:
    """y of s, both in the dtype of the arithmetic; eps is what the forward's rstd tells. An L2 norm
    divides by ``least`` where it is more than the length: rstd does not depend on s there."""
    dtype = s.dtype
    reduce, affine, _, modulation = (call.axes_of(axes, place) for place in range(4))
    centred = s if options & call.RMS else s - s.mean(reduce, keepdim=True)
    squares = centred.square()
    l2 = options & call.L2
    variance = squares.sum(reduce, keepdim=True) if l2 else squares.mean(reduce, keepdim=True)
    eps = (rstd.to(dtype).pow(-2) - variance).detach()
    scaled = (variance + eps).rsqrt()
    if l2 and least > 0:
        saved = rstd.to(dtype)
        scaled = torch.where(is_least(saved, least), saved, scaled)
    z = centred * scaled
    if weight is not None:
        z = z * (call.weight_offset_in(options) + along(weight, affine, s, dtype))
    if bias is not None:
        z = z + along(bias, affine, s, dtype)
    if scale is not None:
        z = z * (1 + along(scale, modulation, s, dtype))
    if shift is not None:
        z = z + along(shift, modulation, s, dtype)
    y = activated(call.activation_in(options), z)
    if gate is not None and not options & call.GATE_BEFORE:
        y = y * torch.nn.functional.silu(gate.to(dtype))
    return y


def backward(
    given: Given, axes: int, options: int, split: int, p: float, inputs: list[Tensor]
) -> list[Tensor | None]:
    """(dx, dresidual, dweight, dbias, dcolumn_scale, dscale, dshift, dgate) in the dtype of the
    arithmetic or of their parameter, None where not wanted. s is x where a gate is before the norm;
    ``p`` is dropout's, or an L2 norm's eps.

    To be called where autograd records. ``inputs``: those of the tensors by which the results are
    differentiated further; empty: none is. Without a bias dbias is that of one of zeros.
    """
    dy, x, rstd, _, dsum, branch, row_scale, column_scale, rng, *parameters = given
    weight, bias, scale, shift, gate = parameters
    wanted = call.wanted_in(options)
    double = any(t is not None and t.dtype == torch.float64 for t in given)
    dtype = torch.float64 if double else torch.float32
    shape = call.seen_shape(x.shape, split)
    gate_before = bool(options & call.GATE_BEFORE)
    column_axes = call.axes_of(axes, 2)

    def seen(tensor: Tensor) -> Tensor:
        wide = tensor.to(dtype)
        return wide.reshape(shape) if split else wide

    factor: Any = 1  # of x, but for a gate before the norm and column_scale
    if row_scale is not None:
        factor = row_scale.to(dtype).reshape(rstd.shape)
    if p and rng is not None:
        factor = factor * keep_of(rng, x.shape, p).reshape(shape) * (1 / (1 - p))
    column = along(column_scale, column_axes, seen(x), dtype)
    whole = factor if column is None else factor * column

    def leaf(tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        # With a further derivative what was given is in the graph already.
        return tensor if inputs else tensor.detach().requires_grad_()

    if wanted[3] and bias is None:  # its values make no difference then
        sizes = [shape[axis] for axis in call.axes_of(axes, 1)]
        bias = torch.zeros(sizes, dtype=dtype, device=x.device, requires_grad=True)
    at, weight, bias, scale, shift, gate = map(leaf, (x, weight, bias, scale, shift, gate))
    s = seen(at)
    if gate_before and gate is not None:
        s = s * torch.nn.functional.silu(seen(gate)) * whole
    behind = None if gate is None else seen(gate)
    y = _norm(s, rstd, weight, bias, scale, shift, behind, axes, options, p)
    places = [at, weight, bias, scale, shift, gate]
    asked = [place for place in places if place is not None]
    outputs, gradients = [y], [seen(dy)]
    if gate_before and dsum is not None:
        outputs, gradients = [y, s], [seen(dy), seen(dsum)]
    found = iter(
        torch.autograd.grad(outputs, asked, gradients, allow_unused=True, create_graph=bool(inputs))
    )
    ds, dweight, dbias, dscale, dshift, dgate = (
        None if place is None else next(found) for place in places
    )
    assert ds is not None
    dx, dcolumn = ds, None
    if not gate_before:
        ds = seen(ds) if dsum is None else seen(ds) + seen(dsum)
        dx = ds * whole
        if wanted[4]:
            assert branch is not None
            others = [axis for axis in range(len(shape)) if axis not in column_axes]
            dcolumn = ds * seen(branch) * factor
            if others:
                dcolumn = dcolumn.sum(others)
        dx, ds = dx.reshape(x.shape), ds.reshape(x.shape)
    results = [dx, ds, dweight, dbias, dcolumn, dscale, dshift, dgate]
    return [result if want else None for result, want in zip(results, wanted, strict=True)]
