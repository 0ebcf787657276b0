"""Norms alone, but with the options that go beyond torch's: a weight_offset, another order of
rounding, a result of another dtype. They are checked here, and run in one call of the kernels where
these take them; functional.py has what they are otherwise."""

from __future__ import annotations

from typing import Any

import torch
from planish.operators import stage_calls
from planish.operators.arguments import DTYPES, kernels_round, rounds_xhat
from planish.operators.call import ACTIVATIONS, Norm, Tensors
from planish.operators.ways import Way
from torch import Tensor

__all__ = ["Options", "check_out_dtype", "group_norm_with", "norm_with"]


class Options:
    """weight_offset, cast, out_dtype and activation of one call."""

    __slots__ = ("activation", "out_dtype", "rounds", "weight_offset", "x_dtype")

    def __init__(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        weight_offset: float,
        cast: str,
        out_dtype: torch.dtype | None,
        activation: str | None,
    ) -> None:
        self.x_dtype, self.activation = x.dtype, activation
        self.weight_offset = weight_offset if weight is not None else 0.0
        self.out_dtype = None if out_dtype == x.dtype else out_dtype
        self.rounds = cast == "xhat" and rounds_xhat(x.dtype, weight, bias)

    def are_there(self) -> bool:
        return bool(self.weight_offset or self.rounds or self.out_dtype is not None)

    def are_kernels(self, weight: Tensor | None, bias: Tensor | None) -> bool:
        """Whether the kernels mean the same by them."""
        if not self.rounds:
            return True
        alone = not (self.out_dtype or (self.activation and bias is not None))
        return alone and kernels_round(self.x_dtype, weight, bias, self.weight_offset)


def check_out_dtype(function: str, out_dtype: torch.dtype | None) -> None:
    if out_dtype is None:
        return
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(
            f"{function}: Expected out_dtype to be a torch.dtype, but got {out_dtype!r}"
        )
    if out_dtype not in DTYPES:
        raise NotImplementedError(f"{function}: not implemented for out_dtype of {out_dtype}")


def norm_with(
    way: Way,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    options: Options,
    *,
    key: Any = None,
) -> Tensor | None:
    """The norm with these options, laid out as x; None where the kernels cannot take it. ``key``:
    what the call is kept under."""
    if not options.are_kernels(weight, bias):
        return None
    if weight is not None and bias is not None and weight.shape != bias.shape:
        sizes = [x.shape[axis] for axis in norm.affine]
        weight, bias = weight.reshape(sizes), bias.reshape(sizes)
        key = None
    results = stage_calls.norm(
        way,
        Tensors(x, weight=weight, bias=bias),
        list(norm.reduce),
        norm.eps,
        norm.rms,
        affine=list(norm.affine),
        split=norm.split,
        weight_offset=options.weight_offset,
        activation=ACTIVATIONS[norm.activation],
        round_xhat=options.rounds,
        y_dtype=options.out_dtype or x.dtype,
        key=key,
    )
    return None if results is None else results[0]


def group_norm_with(
    way: Way,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    options: Options,
) -> Tensor | None:
    """Likewise of x (N, C, ...) in groups of channels."""
    axes = tuple(range(2, x.dim() + 1))
    norm = Norm(axes, (1, 2), eps, False, True, options.activation, groups)
    return norm_with(way, x, weight, bias, norm, options)
