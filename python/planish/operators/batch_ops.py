"""planish's operators of batch norm (src/torch/batch_operators.c, norm_parts.c) under autograd: the
norm by the batch's statistics, and by those that are given.

The first derivative is planish's own backward, that of the backward its formula in torch's own
operators, differentiated by torch.
"""

from __future__ import annotations

import itertools
from operator import itemgetter
from typing import Any, NamedTuple

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
    "Recorded",
    "axes_of",
    "bare_backward",
    "options_of",
    "record_apply",
    "record_forward",
    "recorded",
    "run_backward",
]

RELU = 2  # of ACTIVATIONS
SUMS = 16  # in what is wanted: dweight and dbias in the dtype of the arithmetic
_GIVEN, _NUMBERS = len(Given._fields), len(Numbers._fields)


def options_of(activation: int, running: bool = False, wanted: int = 0, save: bool = False) -> int:
    """Those of a batch norm."""
    more = call.RUNNING * running
    return call.pack_options(rms=False, activation=activation, save=save, wanted=wanted, more=more)


_AXES = {ndim: call.pack_axes([0, *range(2, ndim)], [1]) for ndim in range(2, 17)}


def axes_of(ndim: int) -> int:
    """All but the channels are reduced, of 2 to 16 axes. Known beforehand and in no cache: these
    are traced."""
    return _AXES[ndim]


# ---- Derivatives ---------------------------------------------------------------------------------


class Recorded(NamedTuple):
    """What is the same in all calls of these dtypes, sizes and devices: the numbers, what is saved
    out of (x, rstd, mean, y, addend, weight, bias, None), and the dtypes of addend and bias."""

    numbers: Numbers
    keeps: Any
    dtypes: tuple[torch.dtype | None, torch.dtype | None]


def recorded(numbers: Numbers, addend: Tensor | None, bias: Tensor | None) -> Recorded:
    """Of a ReLU behind an addend its result is saved, which has the mask, and not the addend; of
    other activations the addend."""
    by_y = numbers.activation == RELU and addend is not None
    keeps = bool(numbers.activation) and not by_y
    y, addend_at, bias_at = 3 if by_y else 7, 4 if keeps else 7, 6 if keeps else 7
    dtypes = None if addend is None else addend.dtype, None if bias is None else bias.dtype
    return Recorded(numbers, itemgetter(0, 1, 2, y, addend_at, 5, bias_at), dtypes)


def _save_by(ctx: Any, record: Recorded, tensors: tuple[Tensor | None, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers, ctx.dtypes = record.numbers, record.dtypes
    ctx.save_for_backward(*record.keeps(tensors))


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
    """What the backward reads."""
    record = recorded(numbers, addend, bias)
    _save_by(ctx, record, (x, *statistics, y, addend, weight, bias, None))


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, addend, weight, bias, _, _, axes, options, _, eps = inputs
    y, mean, rstd = output
    _save(ctx, (rstd, mean), x, y, addend, weight, bias, Numbers(axes, options, eps))


def _save_apply(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, spread, mean, addend, weight, bias, *numbers = inputs
    _save(ctx, (spread, mean), x, output, addend, weight, bias, Numbers(*numbers))


#: What is wanted where these of x, addend, weight and bias need a gradient.
_WANTED = {
    needs: sum(need << bit + call.WANTED_AT for bit, need in enumerate(needs))
    for needs in itertools.product((False, True), repeat=4)
}


def _gradients(ctx: Any, dy: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Of x, addend, weight and bias, where they need one."""
    x, spread, mean, y, addend, weight, bias = ctx.saved_tensors
    addend_dtype, bias_dtype = ctx.dtypes
    axes, options, eps = ctx.numbers
    dx, daddend, dweight, dbias = run_backward(
        *(dy, x, spread, mean, None, None, y, addend, weight, bias),
        *(axes, options | _WANTED[needs], eps),
    )
    if daddend is not None and daddend.dtype != addend_dtype:
        daddend = daddend.to(addend_dtype)
    if dbias is not None and dbias.dtype != bias_dtype:
        dbias = dbias.to(bias_dtype)
    return dx, daddend, dweight, dbias


def run_backward(*arguments: Any) -> Any:
    """norm_backward_apply, at once where nothing but eager autograd sees the call."""
    return (BACKWARD if torch.is_grad_enabled() else _unrecorded_backward)(*arguments)


def bare_backward(
    dy: Tensor,
    x: Tensor,
    spread: Tensor,
    mean: Tensor,
    weight: Tensor | None,
    eps: float,
    running: bool,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    """(dx, dweight, dbias) of a norm with nothing behind it, each where wanted, through the
    dispatcher."""
    dx, dweight, dbias = wanted
    options = options_of(0, running) | _WANTED[dx, False, dweight, dbias]
    tensors = dy, x, spread, mean, None, None, None, None, weight, None
    dx, _, dweight, dbias = BACKWARD(*tensors, axes_of(x.dim()), options, eps)
    return dx, dweight, dbias


def _differentiate_forward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    rest = (None,) * 6
    if dy is None:
        return (None,) * 4 + rest
    return *_gradients(ctx, dy, ctx.needs_input_grad[1:5]), *rest


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
    "batch_norm": (fakes.batch, _save_forward, _differentiate_forward, None, (1, 2)),
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

_plain_forward = short.of("batch_norm")


class _Plain(torch.autograd.Function):
    """batch_norm of plain tensors: of (Recorded, running_mean, running_var, momentum) and what it
    is differentiated by."""

    @staticmethod
    def forward(ctx: Any, call: Any, x: Tensor, *others: Tensor | None) -> Any:
        record, running_mean, running_var, momentum = call
        axes, options, eps = record.numbers
        y, mean, rstd = _plain_forward(
            x, *others, running_mean, running_var, axes, options, momentum, eps
        )
        _save_by(ctx, record, (x, rstd, mean, y, *others, None))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        if dy is None:
            return (None,) * 5
        return None, *_gradients(ctx, dy, ctx.needs_input_grad[1:])


#: Recorded calls of plain tensors: of what _Plain takes; of (None, what is no tensor) and the
#: tensors.
record_forward = ops.record_of(_Plain)
record_apply = ops.record_of(_functions["norm_apply"])
