"""Derivatives of planish's operators: what a call saves, and the formulas of every order.

The first derivative of a norm is planish's own backward. That of the backward is its formula in
torch's own operators (formulas.py), differentiated by torch, so that any further order is torch's
affair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from planish.library.loaded import ERROR_UNAVAILABLE, library
from planish.operators import call as _call
from planish.operators import formulas
from planish.operators.call import Call, Tensors
from planish.operators.formulas import Given
from planish.operators.ways import below_autograd, is_plain
from torch import Tensor

__all__ = [
    "differentiate_backward",
    "differentiate_forward",
    "differentiate_quantized",
    "differentiate_statistics",
    "refuse",
    "save_backward",
    "save_forward",
    "save_quantized",
    "save_statistics",
    "second",
    "thrown",
]

_TENSORS, _GIVEN = len(Tensors._fields), len(Given._fields)
_FORWARD_INPUTS, _BACKWARD_INPUTS = _TENSORS + len(Call._fields), _GIVEN + 4


def thrown(*statuses: int) -> bool:
    """Whether the operator whose exception was just caught threw with one of these statuses."""
    return library().take_thrown() in statuses


def _like(tensor: Tensor | None) -> tuple[torch.Size, torch.dtype] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype)


def _shaped(gradient: Tensor | None, like: tuple[torch.Size, torch.dtype] | None) -> Tensor | None:
    """Of the parameter's shape and dtype."""
    if gradient is None or like is None:
        return gradient
    shape, dtype = like
    if gradient.shape != shape:
        gradient = gradient.reshape(shape)
    return gradient if gradient.dtype == dtype else gradient.to(dtype)


# ---- The forward --------------------------------------------------------------------------------


def save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    """What the backward reads, and no more: what was given beside it may be written to."""
    ctx.set_materialize_grads(False)
    x, residual, rows, column, rng, weight, bias, scale, shift, gate, axes, options, split, *_ = (
        inputs
    )
    ctx.bare = (
        rows is None and column is None and rng is None
        and scale is None and shift is None and gate is None
    )  # fmt: skip
    if ctx.bare:  # at little cost: most norms are
        _, total, mean, rstd = output
        ctx.numbers = axes, options, split
        ctx.dtypes = x.dtype, x.dtype if residual is None else residual.dtype
        ctx.like_bias = _like(bias)
        kept_bias = bias if _call.activation_in(options) else None
        ctx.save_for_backward(x if total is None else total, rstd, mean, weight, kept_bias)
    else:
        _save_stages(ctx, inputs, output)


def _save_stages(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    given, call = Tensors(*inputs[:_TENSORS]), Call(*inputs[_TENSORS:])
    x, residual, row_scale, column, rng, weight, bias, scale, shift, gate = given
    _, total, mean, rstd = output
    before = call.options & _call.GATE_BEFORE
    reads_shift = _call.activation_in(call.options) or (gate is not None and not before)
    reads_bias = reads_shift or scale is not None
    dresidual_dtype = x.dtype if residual is None else residual.dtype
    _, needs_x, _, _, needs_column, *_ = ctx.needs_input_grad
    through = needs_x or needs_column  # else the residual gets the norm's gradient as it is
    keeps_column = needs_x or needs_column or before
    ctx.call = call
    ctx.scales = row_scale is not None or column is not None or call.dropout_p > 0
    ctx.dtypes = x.dtype, dresidual_dtype
    ctx.likes = _like(weight), _like(bias), _like(column), _like(scale), _like(shift)
    ctx.save_for_backward(
        x if total is None else total,
        rstd,
        mean,
        x if column is not None and needs_column and not before else None,
        row_scale if through else None,
        column if keeps_column else None,
        rng,  # the kernels ask for it
        weight,
        bias if reads_bias else None,
        scale,
        shift if reads_shift or type(shift) not in (Tensor, torch.nn.Parameter) else None,
        gate,
    )


def differentiate_forward(
    ctx: Any, dy: Tensor | None, dsum: Tensor | None = None, *_: Any
) -> tuple[Any, ...]:
    """The gradients of norm_forward's inputs; the first of its Function's is the dispatch keys."""
    if dy is None and dsum is None:
        return (None,) * _FORWARD_INPUTS
    return _bare_gradients(ctx, dy, dsum) if ctx.bare else _gradients(ctx, dy, dsum)


_NOTHING = (None,) * len(Call._fields)


def _bare_gradients(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
    """Of a norm with nothing but a residual, weight, bias and an activation."""
    _, x, residual, _, _, _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    s, rstd, mean, weight, bias = ctx.saved_tensors
    axes, options, split = ctx.numbers
    dx_dtype, dresidual_dtype = ctx.dtypes
    if dy is None:
        dy = torch.zeros_like(s, dtype=_call.dtype_in(options) or dx_dtype)
    shared = x and residual and dx_dtype == dresidual_dtype  # the same numbers are written once
    wanted = x | (residual and not shared) << 1 | needs_weight << 2 | needs_bias << 3
    options = _call.backward_options(options, wanted, dx_dtype, dresidual_dtype)
    none = None
    given = dy, s, rstd, mean, dsum, none, none, none, none, weight, bias, none, none, none
    dx, dresidual, dweight, dbias, *_ = _run_backward(given, axes, options, split, 0.0)
    dweight = None if dweight is None else _shaped(dweight, _like(weight))
    dbias = None if dbias is None else _shaped(dbias, ctx.like_bias)
    other = dx if shared else dresidual
    return dx, other, none, none, none, dweight, dbias, none, none, none, *_NOTHING


def _gradients(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
    _, x, residual, rows, column, _, weight, bias, scale, shift, gate, *_ = ctx.needs_input_grad
    if rows:
        raise NotImplementedError("planish::norm_forward: row_scale has no gradient")
    call: Call = ctx.call
    saved = ctx.saved_tensors
    s, rstd, mean, branch, row_scale, column_scale, rng, *parameters = saved
    w, b, scales, shifts, gates = parameters
    like_weight, like_bias, like_column, like_scale, like_shift = ctx.likes
    dx_dtype, dresidual_dtype = ctx.dtypes
    if dy is None:
        dy = torch.zeros_like(s, dtype=_call.dtype_in(call.options) or dx_dtype)
    shared = x and residual and not ctx.scales and dx_dtype == dresidual_dtype  # written once
    dshift = None
    if shift and shifts is None:  # what it was makes no difference
        shape, dtype = like_shift
        if scales is None and shape == dy.shape:  # y is its sum with the norm's result
            dshift, shift = _shaped(dy, like_shift), False
        else:
            shifts = torch.zeros(shape, dtype=dtype, device=dy.device)
    wanted = x | (residual and not shared) << 1 | weight << 2 | bias << 3
    wanted |= column << 4 | scale << 5 | shift << 6 | gate << 7
    options = _call.backward_options(call.options, wanted, dx_dtype, dresidual_dtype)
    tensors = Given(
        dy, s, rstd, mean, dsum, branch, row_scale, column_scale, rng, w, b, scales, shifts, gates
    )
    dx, dresidual, dweight, dbias, dcolumn, dscale, summed, dgate = _run_backward(
        tensors, call.axes, options, call.split, call.dropout_p
    )
    return (
        dx,
        dx if shared else dresidual,
        None,
        _shaped(dcolumn, like_column),
        None,
        _shaped(dweight, like_weight),
        _shaped(dbias, like_bias),
        _shaped(dscale, like_scale),
        _shaped(summed, like_shift) if dshift is None else dshift,
        dgate,
        *_NOTHING,
    )


def _run_backward(given: Any, axes: int, options: int, split: int, p: float) -> Any:
    overload = torch.ops.planish.norm_backward.default
    dy, s, _, _, dsum, *_ = given
    if torch.is_grad_enabled() or not is_plain(dy, s, dsum):  # the others are of s's kind
        return overload(*given, axes, options, split, p)
    try:
        with below_autograd():
            return overload._op(*given, axes, options, split, p)
    except RuntimeError:
        if not thrown(ERROR_UNAVAILABLE):
            raise
    return _composed_backward(Given(*given), axes, options, split, p)


def _composed_backward(
    given: Given, axes: int, options: int, split: int, p: float
) -> list[Tensor | None]:
    """The same in torch's operators, each result in its own dtype."""
    with torch.enable_grad():
        results = formulas.backward(given, axes, options, split, p, [])
    others = given.weight, given.bias, given.column_scale, given.scale, given.shift, given.gate
    own = given.s.dtype
    dtypes = (
        _call.dtype_in(options) or own,
        _call.sum_dtype_in(options) or own,
        *(own if t is None else t.dtype for t in others),
    )
    return [
        None if result is None else result.detach().to(dtype)
        for result, dtype in zip(results, dtypes, strict=True)
    ]


# ---- The backward -------------------------------------------------------------------------------


def save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_GIVEN])
    ctx.numbers = inputs[_GIVEN:]


def _as_input(saved: Tensor | None) -> Tensor | None:
    """The tensor as one that a derivative is taken by, of which another can be taken where autograd
    records: none of what made it is between it and the other inputs."""
    if saved is None:
        return None
    if torch.is_grad_enabled() and saved.requires_grad:
        return saved.view_as(saved)
    return saved.detach().requires_grad_()


#: What norm_backward is differentiated by: not the statistics, which are s's, nor what has no
#: gradient.
_DIFFERENTIATED = [name not in ("rstd", "mean", "row_scale", "rng") for name in Given._fields]


def second(
    given: Given, numbers: tuple[Any, ...], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Double backward: the backward's formula in torch's own operators, differentiated by torch.
    The gradients of what norm_backward was given."""
    nothing: list[Tensor | None] = [None] * _GIVEN
    if all(gradient is None for gradient in gradients):
        return nothing
    goes_on = torch.is_grad_enabled()
    with torch.set_grad_enabled(goes_on):
        seen = [
            _as_input(tensor) if by else tensor
            for tensor, by in zip(given, _DIFFERENTIATED, strict=True)
        ]
    places = [i for i, by in enumerate(_DIFFERENTIATED) if by and seen[i] is not None]
    inputs: Any = [seen[i] for i in places]
    with torch.enable_grad():
        axes, options, split, p = numbers
        results = formulas.backward(Given(*seen), axes, options, split, p, inputs)  # type: ignore[arg-type]
        pairs = [
            (result, gradient.to(result.dtype).reshape(result.shape))
            for result, gradient in zip(results, gradients, strict=True)
            if result is not None and gradient is not None and result.requires_grad
        ]
        if not pairs:
            return nothing
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            inputs,
            [gradient for _, gradient in pairs],
            allow_unused=True,
            create_graph=goes_on,
        )
    for place, gradient in zip(places, found, strict=True):
        nothing[place] = gradient
    return nothing


def differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    given = Given(*ctx.saved_tensors)
    return *second(given, ctx.numbers, gradients), *(None,) * (_BACKWARD_INPUTS - _GIVEN)


# ---- Statistics ---------------------------------------------------------------------------------


def save_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, axes = inputs
    mean, _ = output
    ctx.save_for_backward(x, mean)
    ctx.count = math.prod(x.shape[axis] for axis in _call.axes_of(axes, 0))


def differentiate_statistics(ctx: Any, dmean: Tensor | None, dm2: Tensor | None) -> Any:
    x, mean = ctx.saved_tensors
    dx = None if dmean is None else (dmean / ctx.count).expand(x.shape)
    if dm2 is not None:
        part = 2 * dm2 * (x.to(mean.dtype) - mean)
        dx = part if dx is None else dx + part
    return None if dx is None else dx.to(x.dtype), None


# ---- Quantised results --------------------------------------------------------------------------


def refuse(function: str) -> NoReturn:
    raise RuntimeError(
        f"{function}: it is forward only: a quantised result and its scale have no gradient, but a "
        "backward asked for one; detach the result, or call it under torch.no_grad()"
    )


_QUANTIZED_INPUTS = 11


def save_quantized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, residual = inputs[:2]
    q, scales, _ = output
    ctx.mark_non_differentiable(
        *(t for t in (q, scales) if t is not None and not t.is_floating_point())
    )
    ctx.set_materialize_grads(False)
    rms = inputs[6] & _call.RMS
    ctx.function = "quantized_rms_norm" if rms else "quantized_layer_norm"
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype


def differentiate_quantized(
    ctx: Any, dq: Tensor | None, dscales: Tensor | None, dsum: Tensor | None
) -> tuple[Any, ...]:
    if dq is not None or dscales is not None:
        refuse(ctx.function)
    if dsum is None:
        return (None,) * _QUANTIZED_INPUTS
    dx_dtype, dresidual_dtype = ctx.dtypes
    dresidual = None if dresidual_dtype is None else dsum.to(dresidual_dtype)
    return dsum.to(dx_dtype), dresidual, *(None,) * (_QUANTIZED_INPUTS - 2)
