"""planish's operators of batch norm (src/torch/batch_operators.c, norm_parts.c) under autograd: the
norm by the batch's statistics, and by those that are given.

The first derivative is planish's own backward, that of the backward its formula in torch's own
operators, differentiated by torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from planish.operators import batch_formulas, call, fakes, ops, short
from planish.operators.batch_formulas import Given, Numbers
from torch import Tensor

__all__ = [
    "APPLY",
    "BACKWARD",
    "FORWARD",
    "RELU",
    "SUMS",
    "axes_of",
    "options_of",
    "record_apply",
    "record_forward",
    "run_backward",
]

RELU = 2  # of ACTIVATIONS
SUMS = 16  # in what is wanted: dweight and dbias in the dtype of the arithmetic
_GIVEN, _NUMBERS = len(Given._fields), len(Numbers._fields)


@functools.cache
def options_of(activation: int, running: bool = False, wanted: int = 0, save: bool = False) -> int:
    """Those of a batch norm."""
    more = call.RUNNING * running
    return call.pack_options(rms=False, activation=activation, save=save, wanted=wanted, more=more)


@functools.cache
def axes_of(ndim: int) -> int:
    """All but the channels are reduced."""
    return call.pack_axes([0, *range(2, ndim)], [1])


# ---- Derivatives ---------------------------------------------------------------------------------


def _save(
    ctx: Any,
    statistics: tuple[Tensor, Tensor],
    x: Tensor,
    y: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    numbers: Numbers,
) -> None:
    """What the backward reads. Of a ReLU behind an addend its result, which has the mask, and not
    the addend; of other activations the addend."""
    activation = numbers.activation
    ctx.set_materialize_grads(False)
    by_y = activation == RELU and addend is not None
    ctx.numbers = numbers
    ctx.dtypes = None if addend is None else addend.dtype, None if bias is None else bias.dtype
    keeps = bool(activation) and not by_y
    ctx.save_for_backward(
        x,
        *statistics,
        y if by_y else None,
        addend if keeps else None,
        weight,
        bias if keeps else None,
    )


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, addend, weight, bias, _, _, axes, options, _, eps = inputs
    y, mean, rstd = output
    _save(ctx, (rstd, mean), x, y, addend, weight, bias, Numbers(axes, options, eps))


def _save_apply(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, spread, mean, addend, weight, bias, *numbers = inputs
    _save(ctx, (spread, mean), x, output, addend, weight, bias, Numbers(*numbers))


def _gradients(ctx: Any, dy: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Of x, addend, weight and bias, where they need one."""
    x, spread, mean, y, addend, weight, bias = ctx.saved_tensors
    addend_dtype, bias_dtype = ctx.dtypes
    axes, options, eps = ctx.numbers
    for bit, need in enumerate(needs):
        options |= need << bit + call.WANTED_AT
    dx, daddend, dweight, dbias = run_backward(
        dy, x, spread, mean, None, None, y, addend, weight, bias, axes, options, eps
    )
    if daddend is not None:
        daddend = daddend.to(addend_dtype)
    return [dx, daddend, dweight, None if dbias is None else dbias.to(bias_dtype)]


def run_backward(*arguments: Any) -> Any:
    """norm_backward_apply, at once where nothing but eager autograd sees the call."""
    return (BACKWARD if torch.is_grad_enabled() else _unrecorded_backward)(*arguments)


def _differentiate_forward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    rest = (None,) * 6
    if dy is None:
        return (None,) * 4 + rest
    _, *needs = ctx.needs_input_grad[:5]
    return *_gradients(ctx, dy, needs), *rest


def _differentiate_apply(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 9
    _, x, _, _, addend, weight, bias, *_ = ctx.needs_input_grad
    if ctx.numbers.running:
        dx, *others = _gradients(ctx, dy, (x, addend, weight, bias))
        return dx, None, None, *others, None, None, None
    raise NotImplementedError(
        "planish::norm_apply: there is no derivative by statistics that are x's own"
    )


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_GIVEN])
    ctx.numbers = Numbers(*inputs[_GIVEN:])


#: What norm_backward_apply is differentiated by.
_DIFFERENTIATED = ("dy", "x", "addend", "weight", "bias")


def _as_input(tensor: Tensor | None) -> Tensor | None:
    """As one that a derivative is taken by, of which another can be taken where autograd
    records."""
    if tensor is None:
        return None
    if torch.is_grad_enabled() and tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def _differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    given, nothing = Given(*ctx.saved_tensors), [None] * (_GIVEN + _NUMBERS)
    if all(gradient is None for gradient in gradients):
        return tuple(nothing)
    goes_on = torch.is_grad_enabled()
    seen = {name: _as_input(getattr(given, name)) for name in _DIFFERENTIATED}
    names = [name for name, tensor in seen.items() if tensor is not None]
    inputs: Any = [seen[name] for name in names]
    with torch.enable_grad():
        differentiated: Any = seen
        results = batch_formulas.backward(given._replace(**differentiated), ctx.numbers, inputs)
        pairs = [
            (result, gradient.to(result.dtype))
            for result, gradient in zip(results, gradients, strict=True)
            if result is not None and gradient is not None and result.requires_grad
        ]
        if not pairs:
            return tuple(nothing)
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            inputs,
            [gradient for _, gradient in pairs],
            allow_unused=True,
            create_graph=goes_on,
        )
    by_name = dict(zip(names, found, strict=True))
    return *(by_name.get(name) for name in Given._fields), *(None,) * _NUMBERS


# ---- The operators -------------------------------------------------------------------------------

#: name: fake, save, differentiate, results shown to plain calls, results without a derivative
_OPERATORS: dict[str, ops.Operator] = {
    "batch_norm": (fakes.batch, _save_forward, _differentiate_forward, itemgetter(0), (1, 2)),
    "norm_apply": (fakes.apply, _save_apply, _differentiate_apply, None, ()),
    "norm_backward_apply": (
        fakes.backward_apply,
        _save_backward,
        _differentiate_backward,
        None,
        (),
    ),
}


_registered, _functions = ops.register(_OPERATORS)

#: Through the dispatcher, traced and differentiated.
FORWARD = torch.ops.planish.batch_norm.default
APPLY = torch.ops.planish.norm_apply.default
BACKWARD = torch.ops.planish.norm_backward_apply.default
_unrecorded_backward = short.unrecorded("norm_backward_apply")

#: Recorded calls of plain tensors: of (None, what is no tensor) and the tensors.
record_forward = ops.record_of(_functions["batch_norm"])
record_apply = ops.record_of(_functions["norm_apply"])
