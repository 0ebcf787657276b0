"""Batch norm in torch's own operators: for derivatives of second order, for transforms, and for
input that planish has no kernel for.

x is (N, C, ...); parameters and statistics are vectors of C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F

import torch
from planish.library.seen import is_transformed
from planish.operators import call, composite
from planish.operators.arguments import DTYPES
from planish.operators.call import ACTIVATIONS
from torch import Tensor

__all__ = ["Given", "Numbers", "affine", "along", "backward", "batch_norm", "normalized"]
__all__ += ["rstd_of"]

_NAMES = {code: name for name, code in ACTIVATIONS.items()}


class Given(NamedTuple):
    """What norm_backward_apply takes before its numbers."""

    dy: Tensor
    x: Tensor
    spread: Tensor
    mean: Tensor
    c1: Tensor | None = None
    c2: Tensor | None = None
    y: Tensor | None = None
    addend: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


class Numbers(NamedTuple):
    """And these numbers."""

    axes: int
    options: int
    eps: float

    @property
    def activation(self) -> int:
        return call.activation_in(self.options)

    @property
    def running(self) -> bool:
        return bool(self.options & call.RUNNING)

    @property
    def wanted(self) -> list[bool]:
        """Of the four gradients."""
        return call.wanted_in(self.options)[:4]


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
    addend: Tensor | None,
) -> Tensor:
    """torch's, its errors included, with what follows it. Under transforms y is made by the
    formula: torch differentiates its backward with mean and rstd as constants, so its third
    derivatives are wrong."""
    y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if training and x.dtype in DTYPES and is_transformed():
        dtype = torch.promote_types(x.dtype, torch.float32)
        y = affine(_by_batch(x.to(dtype), eps), weight, bias).to(y.dtype)
    if addend is not None:
        y = y + addend.to(y.dtype)
    return composite.activate(y, activation)


def along(vector: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A vector of the channels beside x."""
    return vector.to(dtype).reshape(-1, *(1,) * (x.dim() - 2))


def affine(xhat: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """xhat * weight + bias, in xhat's dtype."""
    z = xhat if weight is None else xhat * along(weight, xhat, xhat.dtype)
    return z if bias is None else z + along(bias, xhat, xhat.dtype)


def rstd_of(spread: Tensor, like: Tensor, numbers: Numbers) -> Tensor:
    """1 / sqrt(var + eps) beside a tensor, of statistics that are given."""
    wide = along(spread, like, like.dtype)
    return torch.rsqrt(wide + numbers.eps) if numbers.running else wide


def normalized(wide: Tensor, spread: Tensor, mean: Tensor, numbers: Numbers) -> Tensor:
    """xhat by statistics that are given."""
    centred = wide - along(mean, wide, wide.dtype)
    return centred * rstd_of(spread, wide, numbers)


def _mask(y: Tensor, dtype: torch.dtype) -> Tensor:
    """The slope of a ReLU of what became y: NaN has slope 1."""
    return (~(y <= 0)).to(dtype)


def backward(given: Given, numbers: Numbers, inputs: list[Tensor]) -> list[Tensor | None]:
    """(dx, daddend, dweight, dbias) in the dtype of the arithmetic, None where not wanted.

    To be called where autograd records. ``inputs``: those of the tensors by which the results are
    differentiated further; empty: none is.
    """
    if given.c2 is not None:
        raise NotImplementedError(
            "planish::norm_backward_apply: a norm of rows that several processes have has "
            "derivatives of first order only"
        )
    double = torch.float64 in (given.dy.dtype, given.x.dtype)
    dtype = torch.float64 if double else torch.float32

    def leaf(tensor: Tensor | None, wanted: bool, value: float) -> Tensor | None:
        if tensor is None:
            if not wanted:
                return None
            tensor = torch.full((given.x.size(1),), value, dtype=dtype, device=given.x.device)
        elif inputs:
            return tensor  # it is in the graph already
        return tensor.detach().requires_grad_()

    wanted = numbers.wanted
    x, weight = leaf(given.x, True, 0), leaf(given.weight, wanted[2], 1)
    bias = leaf(given.bias, wanted[3], 0)
    assert x is not None
    z = affine(_norm(given, numbers, x.to(dtype)), weight, bias)
    dy = given.dy.to(dtype)
    if given.y is not None:
        y, dy = z, dy * _mask(given.y, dtype)
    else:
        z = z if given.addend is None else z + given.addend.to(dtype)
        y = composite.activate(z, _NAMES[numbers.activation])
    asked: list[Tensor] = [t for t in (x, z, weight, bias) if t is not None]
    found = iter(torch.autograd.grad(y, asked, dy, allow_unused=True, create_graph=bool(inputs)))
    results = [None if t is None else next(found) for t in (x, z, weight, bias)]
    return [result if want else None for result, want in zip(results, wanted, strict=True)]


def _norm(given: Given, numbers: Numbers, wide: Tensor) -> Tensor:
    """xhat."""
    if numbers.running:
        return normalized(wide, given.spread, given.mean, numbers)
    return _by_batch(wide, numbers.eps)


def _by_batch(wide: Tensor, eps: float) -> Tensor:
    """xhat by the statistics of all axes but the channels'."""
    reduce = [axis for axis in range(wide.dim()) if axis != 1]
    centred = wide - wide.mean(reduce, keepdim=True)
    return centred * (centred.square().mean(reduce, keepdim=True) + eps).rsqrt()
