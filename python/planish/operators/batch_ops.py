"""planish's operators of batch norm (src/torch/batch_operators.c), with what torch asks of Python:
shapes for fake tensors, and derivatives.

The first derivative is planish's own backward, that of the backward its formula in torch's own
operators, differentiated by torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from planish.library.seen import is_plain
from planish.operators import batch_formulas, ops, short
from planish.operators.batch_formulas import Given, Numbers
from torch import Tensor

__all__ = ["APPLY", "BACKWARD", "FORWARD", "record_apply", "record_forward"]

RELU = 2  # of ACTIVATIONS
SUMS = 16  # in `wanted`: the sums in the dtype of the arithmetic
_GIVEN, _NUMBERS = len(Given._fields), len(Numbers._fields)

# ---- Fake results --------------------------------------------------------------------------------


def _channels(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape[1], dtype=dtype, device=x.device)


def _statistics_dtype(activation: int, addend: Tensor | None, *others: Tensor | None) -> Any:
    exact = activation or addend is not None
    double = any(t is not None and t.dtype == torch.float64 for t in others)
    return torch.float64 if exact or double else torch.float32


def _fake_forward(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    activation: int,
    save: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    y = torch.empty_like(x)
    if not save:
        return y, None, None
    others = x, weight, bias, running_mean, running_var
    dtype = _statistics_dtype(activation, addend, *others)
    return y, _channels(x, dtype), _channels(x, dtype)


def _fake_apply(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _fake_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    given, numbers = Given(*arguments[:_GIVEN]), Numbers(*arguments[_GIVEN:])
    x, weight = given.x, given.weight
    wanted = [bool(numbers.wanted >> bit & 1) for bit in range(4)]
    addend_dtype = x.dtype if given.addend is None else given.addend.dtype
    dtypes = [
        next(t.dtype for t in (parameter, weight, x) if t is not None)
        for parameter in (weight, given.bias)
    ]
    if numbers.wanted & SUMS:
        dtypes = [_statistics_dtype(0, None, *given)] * 2
    return (
        torch.empty_like(x) if wanted[0] else None,
        torch.empty_like(x, dtype=addend_dtype) if wanted[1] else None,
        _channels(x, dtypes[0]) if wanted[2] else None,
        _channels(x, dtypes[1]) if wanted[3] else None,
    )


# ---- Derivatives ---------------------------------------------------------------------------------


def _save(
    ctx: Any,
    statistics: tuple[Tensor, Tensor],
    x: Tensor,
    y: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    numbers: tuple[int, bool, float],
) -> None:
    """What the backward reads. Of a ReLU behind an addend its result, which has the mask, and not
    the addend; of other activations the addend."""
    activation, _, _ = numbers
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
    x, addend, weight, bias, _, _, activation, _, _, eps = inputs
    y, mean, rstd = output
    _save(ctx, (mean, rstd), x, y, addend, weight, bias, (activation, False, eps))


def _save_apply(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, mean, spread, addend, weight, bias, activation, running, eps = inputs
    _save(ctx, (mean, spread), x, output, addend, weight, bias, (activation, running, eps))


def _gradients(ctx: Any, dy: Tensor, needs: Sequence[bool]) -> list[Tensor | None]:
    """Of x, addend, weight and bias, where they need one."""
    x, mean, spread, y, addend, weight, bias = ctx.saved_tensors
    addend_dtype, bias_dtype = ctx.dtypes
    wanted = sum(need << bit for bit, need in enumerate(needs))
    arguments = dy, x, mean, spread, y, addend, weight, bias, None, None, *ctx.numbers, wanted
    dx, daddend, dweight, dbias = run_backward(arguments)
    if daddend is not None:
        daddend = daddend.to(addend_dtype)
    return [dx, daddend, dweight, None if dbias is None else dbias.to(bias_dtype)]


def run_backward(arguments: tuple[Any, ...]) -> Any:
    """batch_norm_backward, at once where nothing but eager autograd sees the call."""
    dy, x = arguments[:2]
    if torch.is_grad_enabled() or not is_plain(dy, x):
        return BACKWARD(*arguments)
    return _plain_backward(*arguments)


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
    if ctx.numbers[1]:
        dx, *others = _gradients(ctx, dy, (x, addend, weight, bias))
        return dx, None, None, *others, None, None, None
    raise NotImplementedError(
        "planish::batch_norm_apply: there is no derivative by statistics that are x's own"
    )


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_GIVEN])
    ctx.numbers = Numbers(*inputs[_GIVEN:])


#: What batch_norm_backward is differentiated by.
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
    "batch_norm": (
        _fake_forward,
        _save_forward,
        _differentiate_forward,
        itemgetter(0),
        (1, 2),
    ),
    "batch_norm_apply": (_fake_apply, _save_apply, _differentiate_apply, None, ()),
    "batch_norm_backward": (_fake_backward, _save_backward, _differentiate_backward, None, ()),
}


_registered, _functions = ops.register(_OPERATORS)

#: Through the dispatcher, traced and differentiated.
FORWARD = torch.ops.planish.batch_norm.default
APPLY = torch.ops.planish.batch_norm_apply.default
BACKWARD = torch.ops.planish.batch_norm_backward.default
_plain_backward = short.of("batch_norm_backward")

#: Recorded calls of plain tensors: of (None, what is no tensor) and the tensors.
record_forward = ops.record_of(_functions["batch_norm"])
record_apply = ops.record_of(_functions["batch_norm_apply"])
