"""Derivatives of planish's operators but for that of a norm itself (records.py): what a call saves,
and the gradients of its tensors.

That of a norm's backward is its formula in torch's own operators (formulas.py), differentiated by
torch, so that any further order is torch's affair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from planish.operators import call as _call
from planish.operators import formulas
from planish.operators.call import Quantized
from planish.operators.formulas import Given
from torch import Tensor

__all__ = [
    "differentiate_backward",
    "differentiate_quantized",
    "differentiate_statistics",
    "refuse",
    "save_backward",
    "save_quantized",
    "save_statistics",
    "second",
]

_GIVEN = len(Given._fields)


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
    return tuple(second(given, ctx.numbers, gradients))


# ---- Statistics ---------------------------------------------------------------------------------


def save_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, axes = inputs
    mean, _ = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, mean)
    ctx.count = math.prod(x.shape[axis] for axis in _call.axes_of(axes, 0))


def differentiate_statistics(ctx: Any, dmean: Tensor | None, dm2: Tensor | None) -> Any:
    x, mean = ctx.saved_tensors
    dx = None if dmean is None else (dmean / ctx.count).expand(x.shape)
    if dm2 is not None:
        part = 2 * dm2 * (x.to(mean.dtype) - mean)
        dx = part if dx is None else dx + part
    return (None if dx is None else dx.to(x.dtype),)


# ---- Quantised results --------------------------------------------------------------------------


def refuse(function: str) -> NoReturn:
    raise RuntimeError(
        f"{function}: it is forward only: a quantised result and its scale have no gradient, but a "
        "backward asked for one; detach the result, or call it under torch.no_grad()"
    )


def save_quantized(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    count = len(Quantized._fields)
    given, (_, options, *_) = Quantized(*inputs[:count]), inputs[count:]
    q, scales, _ = output
    ctx.mark_non_differentiable(
        *(t for t in (q, scales) if t is not None and not t.is_floating_point())
    )
    ctx.set_materialize_grads(False)
    rms = options & _call.RMS
    ctx.function = "quantized_rms_norm" if rms else "quantized_layer_norm"
    ctx.dtypes = given.x.dtype, None if given.residual is None else given.residual.dtype


def differentiate_quantized(
    ctx: Any, dq: Tensor | None, dscales: Tensor | None, dsum: Tensor | None
) -> tuple[Any, ...]:
    if dq is not None or dscales is not None:
        refuse(ctx.function)
    nothing = dict.fromkeys(Quantized._fields)
    if dsum is None:
        return tuple(nothing.values())
    dx_dtype, dresidual_dtype = ctx.dtypes
    dresidual = None if dresidual_dtype is None else dsum.to(dresidual_dtype)
    return tuple((nothing | {"x": dsum.to(dx_dtype), "residual": dresidual}).values())
