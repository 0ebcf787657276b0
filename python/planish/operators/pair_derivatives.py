"""Derivatives of two norms by one call, as derivatives.py has those of one."""

from __future__ import annotations

from typing import Any

import torch
from planish.library.seen import is_plain
from planish.operators import call as _call
from planish.operators import short
from planish.operators.derivatives import second
from planish.operators.formulas import Given
from torch import Tensor

__all__ = [
    "differentiate_pair",
    "differentiate_pair_backward",
    "save_pair",
    "save_pair_backward",
]


def save_pair(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    first, second, first_weight, second_weight, options, _ = inputs
    _, first_mean, first_rstd, _, second_mean, second_rstd = output
    _, needs_first, needs_second, needs_weight, needs_second_weight, *_ = ctx.needs_input_grad
    one, other = needs_first or needs_weight, needs_second or needs_second_weight
    ctx.save_for_backward(
        first if one else None,
        second if other else None,
        first_mean,
        second_mean,
        first_rstd,
        second_rstd,
        first_weight if one else None,
        second_weight if other else None,
    )
    ctx.options = options


def differentiate_pair(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """Of calls through the dispatcher, which have all results, and of plain ones, which have y of
    each."""
    first_dy, second_dy = gradients[0], gradients[len(gradients) // 2]
    _, first, second, first_weight, second_weight, *_ = ctx.needs_input_grad
    if not ctx.options & _call.SAVE:
        raise RuntimeError(
            "planish::norm_pair: Expected the option to save statistics where gradients are wanted"
        )
    wanted = first | first_weight << 1 | second << 2 | second_weight << 3
    options = ctx.options & ~_call.SAVE | _call.pack_options(rms=False, save=False, wanted=wanted)
    kept_first, kept_second, *rest = ctx.saved_tensors
    # The operator asks for both; a norm of which nothing is wanted has no part in the results.
    kept_first = first_dy if kept_first is None else kept_first
    kept_second = second_dy if kept_second is None else kept_second
    given = first_dy, second_dy, kept_first, kept_second, *rest
    if torch.is_grad_enabled() or not is_plain(*given):
        run: Any = torch.ops.planish.norm_pair_backward.default
    else:
        run = short.PAIR_BACKWARD
    dx, dweight, second_dx, second_dweight = run(*given, options)
    return dx, second_dx, dweight, second_dweight


def save_pair_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.set_materialize_grads(False)
    *given, ctx.options = inputs
    ctx.save_for_backward(*given)


def differentiate_pair_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """That of each norm alone."""
    saved = ctx.saved_tensors
    wanted = _call.wanted_in(ctx.options)
    found: list[tuple[Any, Any, Any]] = []
    for i in (0, 1):
        dy, x, mean, rstd, weight = saved[i::2]
        ndim = x.dim()
        affine = range(ndim - (1 if weight is None else weight.dim()), ndim)
        dx, dweight = wanted[2 * i], wanted[2 * i + 1]
        options = _call.backward_options(ctx.options, dx | dweight << 2, x.dtype, x.dtype)
        numbers = _call.pack_axes([ndim - 1], affine), options, 0, 0.0
        given = Given(dy, x, rstd, mean, weight=weight)
        results = gradients[2 * i], None, gradients[2 * i + 1], *(None,) * 5
        both = Given(*second(given, numbers, results))  # type: ignore[arg-type]
        found.append((both.dy, both.s, both.weight))
    (ddy, dx, dw), (second_ddy, second_dx, second_dw) = found
    return ddy, second_ddy, dx, second_dx, *(None,) * 4, dw, second_dw
