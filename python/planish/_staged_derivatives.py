"""Derivatives of the operators for a norm with stages: what a call saves, and the formulas.

The first derivative is planish's own backward; that of the backward is its formula in torch's own
operators (_staged_composite.py), differentiated by torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from planish import _staged_composite
from planish._library import ERROR_UNAVAILABLE, library
from planish._staged_composite import Stages
from planish._ways import below_autograd, is_plain
from torch import Tensor

__all__ = [
    "Saved",
    "differentiate_backward",
    "differentiate_forward",
    "differentiate_quantized",
    "gradients",
    "save_backward",
    "save_forward",
    "save_quantized",
    "thrown",
]


def thrown(*statuses: int) -> bool:
    """Whether the operator whose exception was just caught threw with one of these statuses."""
    return library().take_thrown() in statuses


# ---- The forward --------------------------------------------------------------------------------


def save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, residual, row_scale, column, rng, weight, bias, scale, shift, gate, *options = inputs
    reduce, affine, column_axes, modulation, _, rms, offset, activation, before, _, p, *_ = options
    _, total, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)
    s = x if total is None else total
    branch = x if ctx.needs_input_grad[4] and not before else None
    ctx.save_for_backward(
        s, mean, rstd, branch, row_scale, column, rng, weight, bias, scale, shift, gate
    )
    ctx.stages = Stages(reduce, affine, column_axes, modulation, rms, offset, activation, before, p)
    ctx.dtypes = x.dtype, x.dtype if residual is None else residual.dtype
    ctx.y_dtype = options[-2]


def _shaped(gradient: Tensor | None, parameter: Tensor | None) -> Tensor | None:
    """Of the parameter's shape and dtype."""
    if gradient is None or parameter is None:
        return gradient
    if gradient.shape != parameter.shape:
        gradient = gradient.reshape(parameter.shape)
    return gradient if gradient.dtype == parameter.dtype else gradient.to(parameter.dtype)


class Saved(NamedTuple):
    """What the forward kept."""

    s: Tensor
    mean: Tensor
    rstd: Tensor
    branch: Tensor | None
    row_scale: Tensor | None
    column_scale: Tensor | None
    rng: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    gate: Tensor | None


def differentiate_forward(ctx: Any, dy: Tensor | None, dsum: Tensor | None, *_: Any) -> Any:
    if dy is None and dsum is None:
        return (None,) * 23
    saved = Saved(*ctx.saved_tensors)
    # the first argument is the dispatch keys
    needed = ctx.needs_input_grad[1:11]
    found = gradients(saved, ctx.stages, ctx.dtypes, ctx.y_dtype, needed, dy, dsum)
    return *found, *(None,) * 13


def gradients(
    saved: Saved,
    stages: Stages,
    dtypes: tuple[torch.dtype, torch.dtype],
    y_dtype: torch.dtype,
    needed: Sequence[bool],
    dy: Tensor | None,
    dsum: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Of x, residual, row_scale, column_scale, rng, weight, bias, scale, shift and gate, where they
    are ``needed``; ``dtypes``: of x and residual."""
    s, mean, rstd, branch, row_scale, column, rng, weight, bias, scale, shift, gate = saved
    if needed[2]:
        raise NotImplementedError("planish::staged_norm: row_scale has no gradient")
    if dy is None:
        dy = torch.zeros_like(s, dtype=y_dtype)
    scaled = row_scale is not None or column is not None or stages.dropout_p > 0
    # The same numbers are written once.
    shared = needed[0] and needed[1] and not scaled and dtypes[0] == dtypes[1]
    has_z = stages.activation or scale is not None or (gate is not None and not stages.gate_before)
    dshift = None
    wants_shift = needed[8]
    if shift is not None and not has_z and (not wants_shift or shift.shape == dy.shape):
        dshift = _shaped(dy, shift) if wants_shift else None  # y is its sum with the norm's result
        shift, wants_shift, stages = None, False, stages._replace(modulation=[])
    wanted = [
        needed[0],
        needed[1] and not shared,
        needed[5],
        needed[6],
        needed[3],
        needed[7],
        wants_shift,
        needed[9],
    ]
    arguments = (
        dy,
        s,
        mean,
        rstd,
        dsum,
        branch,
        row_scale,
        column,
        rng,
        weight,
        bias if has_z else None,
        scale,
        shift,
        gate,
        *stages,
        *dtypes,
        wanted,
    )
    dx, dresidual, dweight, dbias, dcolumn, dscale, summed, dgate = _run_backward(arguments)
    return (
        dx,
        dx if shared else dresidual,
        None,
        _shaped(dcolumn, column),
        None,
        _shaped(dweight, weight),
        _shaped(dbias, bias),
        _shaped(dscale, scale),
        dshift if summed is None else _shaped(summed, saved.shift),
        dgate,
    )


def _run_backward(arguments: tuple[Any, ...]) -> Any:
    overload = torch.ops.planish.staged_norm_backward.default
    if torch.is_grad_enabled() or not is_plain(*arguments[:14]):
        return overload(*arguments)
    try:
        with below_autograd():
            return overload._op(*arguments)
    except RuntimeError:
        if not thrown(ERROR_UNAVAILABLE):
            raise
    return _composed_backward(arguments)


def _composed_backward(arguments: tuple[Any, ...]) -> list[Tensor | None]:
    """The same in torch's operators, each result in its own dtype."""
    tensors: list[Any]
    dy, s, _, rstd, *tensors = arguments[:14]
    stages, (dx_dtype, dresidual_dtype, wanted) = Stages(*arguments[14:23]), arguments[23:]
    with torch.enable_grad():
        results = _staged_composite.backward(dy, s, rstd, tensors, stages, wanted, [])
    _, _, _, column, _, weight, bias, scale, shift, gate = tensors
    givers = weight, bias, column, scale, shift, gate
    dtypes = dx_dtype, dresidual_dtype, *(s.dtype if t is None else t.dtype for t in givers)
    return [
        None if result is None else result.detach().to(dtype)
        for result, dtype in zip(results, dtypes, strict=True)
    ]


# ---- The backward -------------------------------------------------------------------------------


def save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    ctx.set_materialize_grads(False)
    dy, s, _, rstd, *tensors = inputs[:14]
    ctx.save_for_backward(dy, s, rstd, *tensors)
    ctx.stages, ctx.wanted = Stages(*inputs[14:23]), list(inputs[25])


def _as_input(saved: Tensor | None) -> Tensor | None:
    """The tensor as one that a derivative is taken by, of which another can be taken where autograd
    records: none of what made it is between it and the other inputs."""
    if saved is None:
        return None
    if torch.is_grad_enabled() and saved.requires_grad:
        return saved.view_as(saved)
    return saved.detach().requires_grad_()


def differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """Double backward: the backward's formula in torch's own operators, differentiated by torch."""
    nothing = (None,) * 26
    if all(gradient is None for gradient in gradients):
        return nothing
    dy: Any
    s: Any
    parameters: list[Any]
    dy, s, rstd, dsum, branch, row_scale, column, rng, *parameters = ctx.saved_tensors
    goes_on = torch.is_grad_enabled()
    with torch.set_grad_enabled(goes_on):
        others = [_as_input(t) for t in (dy, s, dsum, branch, column, *parameters)]
        dy, s, dsum, branch, column, *parameters = others
    inputs = [t for t in (dy, s, dsum, branch, column, *parameters) if t is not None]
    with torch.enable_grad():
        tensors = [dsum, branch, row_scale, column, rng, *parameters]
        results = _staged_composite.backward(dy, s, rstd, tensors, ctx.stages, ctx.wanted, inputs)
        pairs = [
            (result, gradient.to(result.dtype).reshape(result.shape))
            for result, gradient in zip(results, gradients, strict=True)
            if result is not None and gradient is not None and result.requires_grad
        ]
        if not pairs:
            return nothing
        found = iter(
            torch.autograd.grad(
                [result for result, _ in pairs],
                inputs,
                [gradient for _, gradient in pairs],
                allow_unused=True,
                create_graph=goes_on,
            )
        )
    ddy, ds, ddsum, dbranch, dcolumn, *rest = (
        None if t is None else next(found) for t in (dy, s, dsum, branch, column, *parameters)
    )
    return (ddy, ds, None, None, ddsum, dbranch, None, dcolumn, None, *rest, *(None,) * 12)


# ---- Quantised results --------------------------------------------------------------------------


def refuse(function: str) -> NoReturn:
    raise RuntimeError(
        f"{function}: it is forward only: a quantised result and its scale have no gradient, but a "
        "backward asked for one; detach the result, or call it under torch.no_grad()"
    )


def save_quantized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, residual = inputs[:2]
    q, scales, _ = output
    ctx.mark_non_differentiable(
        *(t for t in (q, scales) if t is not None and not t.is_floating_point())
    )
    ctx.set_materialize_grads(False)
    ctx.function = "quantized_rms_norm" if inputs[8] else "quantized_layer_norm"
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype


def differentiate_quantized(
    ctx: Any, dq: Tensor | None, dscales: Tensor | None, dsum: Tensor | None
) -> tuple[Any, ...]:
    if dq is not None or dscales is not None:
        refuse(ctx.function)
    if dsum is None:
        return (None,) * 18
    dx_dtype, dresidual_dtype = ctx.dtypes
    dresidual = None if dresidual_dtype is None else dsum.to(dresidual_dtype)
    return dsum.to(dx_dtype), dresidual, *(None,) * 16
