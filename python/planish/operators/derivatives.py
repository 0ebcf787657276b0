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
    "differentiate_pair",
    "differentiate_pair_backward",
    "differentiate_quantized",
    "differentiate_statistics",
    "refuse",
    "save_backward",
    "save_forward",
    "save_pair",
    "save_pair_backward",
    "save_quantized",
    "save_statistics",
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
    given, call = Tensors(*inputs[:_TENSORS]), Call(*inputs[_TENSORS:])
    x, residual, row_scale, column, rng, weight, bias, scale, shift, gate = given
    _, total, mean, rstd = output
    before = call.options & _call.GATE_BEFORE
    reads_shift = _call.activation_in(call.options) or (gate is not None and not before)
    reads_bias = reads_shift or scale is not None
    dresidual_dtype = x.dtype if residual is None else residual.dtype
    ctx.set_materialize_grads(False)
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
    nothing = (None,) * len(Call._fields)
    if dy is None and dsum is None:
        return (None,) * _FORWARD_INPUTS
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
        *nothing,
    )


def _run_backward(given: Given, axes: int, options: int, split: int, p: float) -> Any:
    overload = torch.ops.planish.norm_backward.default
    if torch.is_grad_enabled() or not is_plain(*given):
        return overload(*given, axes, options, split, p)
    try:
        with below_autograd():
            return overload._op(*given, axes, options, split, p)
    except RuntimeError:
        if not thrown(ERROR_UNAVAILABLE):
            raise
    return _composed_backward(given, axes, options, split, p)


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


def _second(
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
    return *_second(given, ctx.numbers, gradients), *(None,) * (_BACKWARD_INPUTS - _GIVEN)


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


# ---- Two norms ----------------------------------------------------------------------------------

_PAIR_INPUTS, _PAIR_GIVEN = 6, 10


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
    overload = torch.ops.planish.norm_pair_backward.default
    if torch.is_grad_enabled() or not is_plain(*given):
        dx, dweight, second_dx, second_dweight = overload(*given, options)
    else:
        with below_autograd():
            dx, dweight, second_dx, second_dweight = overload._op(*given, options)
    return dx, second_dx, dweight, second_dweight, None, None


def save_pair_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_PAIR_GIVEN])
    ctx.options = inputs[_PAIR_GIVEN]


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
        second = Given(*_second(given, numbers, results))  # type: ignore[arg-type]
        found.append((second.dy, second.s, second.weight))
    (ddy, dx, dw), (second_ddy, second_dx, second_dw) = found
    return ddy, second_ddy, dx, second_dx, *(None,) * 4, dw, second_dw, None


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
