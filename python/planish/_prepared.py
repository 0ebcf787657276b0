"""Calls of the norm with its stages by tensors that only eager autograd looks at, at little cost to
the host.

The functions of _fused.py and _gated.py check their arguments and _staged.py finds what they come
to: that depends on options, dtypes, sizes and devices alone, so it is done once for each
combination of these and kept here. What is special, dropout and tensors in unusual strides among
it, is not kept, and goes the long way each time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from planish import _staged_derivatives, _staged_ops
from planish._library import ERROR_UNAVAILABLE
from planish._staged_composite import Stages
from planish._staged_derivatives import Saved, thrown
from planish._ways import below_autograd, is_plain, signature
from torch import Tensor

__all__ = ["Call", "Known", "Tensors", "first", "key_of", "run"]

#: So many combinations are kept; then it begins anew. Sequences of many lengths would fill memory.
_ROOM = 4096

_forward_op = _staged_ops.FORWARD._op
_backward_op = _staged_ops.BACKWARD._op


#: x, residual, gate, column_scale, weight, bias, scale, shift; the first three have x's shape.
Tensors = tuple[Tensor | None, ...]

#: What a call is kept under, and its tensors.
Known = tuple[Any, Tensors]


class Call(NamedTuple):
    """What staged_norm is called with behind its tensors, and what its derivative is made of."""

    tail: tuple[Any, ...]
    stages: Stages
    dtypes: tuple[torch.dtype, torch.dtype]
    y_dtype: torch.dtype
    #: Whether its derivative has kernels, too.
    graph: bool
    #: Whether it is a sum with its norm and nothing else, of parameters of one dtype.
    simple: bool = False
    #: The shapes of x and gate, and of weight and bias, as the kernels see them; None: their own.
    split: tuple[Any, Any] | None = None


_calls: dict[Any, Call] = {}


def key_of(options: Any, tensors: Tensors) -> Any:
    """What a call is kept under; None for a call that goes the long way."""
    if not is_plain(*tensors):
        return None
    for tensor in tensors[:3]:
        if tensor is not None and not tensor.is_contiguous():
            return None
    return signature(options, tensors)


def first(known: Known, call: Call) -> tuple[Tensor, Any] | None:
    """The first call of its kind, which is kept; None where it cannot run. It runs as all others
    will: recomputation under a checkpoint has to save the tensors that the forward saved."""
    key, tensors = known
    if len(_calls) >= _ROOM:
        _calls.clear()
    _calls[key] = call
    results = run(key, tensors)
    if results is None:
        _calls.pop(key, None)
    return results


def run(key: Any, tensors: Tensors) -> tuple[Tensor, Any] | None:
    """(y, sum or None) of a call that is known by this key; None otherwise."""
    call = None if key is None else _calls.get(key)
    if call is None:
        return None
    try:
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    if not call.graph or any(t is not None and t.is_inference() for t in tensors):
                        return None  # autograd saves no tensor that was made in inference mode
                    recorded: tuple[Tensor, Any] = _record(call, *tensors)
                    return recorded
        return _run(call, *tensors)[:2]  # type: ignore[arg-type]
    except RuntimeError:
        if thrown(ERROR_UNAVAILABLE):
            return None
        raise


def _run(
    call: Call,
    x: Tensor,
    residual: Tensor | None,
    gate: Tensor | None,
    column: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    with below_autograd():
        if call.split is None:
            return _forward_op(  # type: ignore[no-any-return]
                x, residual, None, column, None, weight, bias, scale, shift, gate, *call.tail
            )
        rows, parameters = call.split
        y, *rest = _forward_op(
            x.view(rows),
            None,
            None,
            None,
            None,
            None if weight is None else weight.reshape(parameters),
            None if bias is None else bias.reshape(parameters),
            None,
            None,
            None if gate is None else gate.view(rows),
            *call.tail,
        )
        return y.view(x.shape), *rest


class _Staged(torch.autograd.Function):
    """The derivative of a call of plain tensors."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor, *others: Tensor | None) -> Any:
        y, total, mean, rstd = _run(call, x, *others)
        _, gate, column, weight, bias, scale, shift = others
        ctx.set_materialize_grads(False)
        ctx.call = call
        if call.simple:
            ctx.save_for_backward(total, mean, rstd, weight)
            return y, total
        branch = x if column is not None and ctx.needs_input_grad[4] else None
        s = x if total is None else total
        ctx.save_for_backward(s, mean, rstd, branch, column, weight, bias, scale, shift, gate)
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
        if dy is None and dsum is None:
            return (None,) * 9
        call: Call = ctx.call
        if call.simple:
            return _simple_backward(ctx, call, dy, dsum)
        s, mean, rstd, branch, column, weight, bias, scale, shift, gate = ctx.saved_tensors
        _, x, residual, gated, columns, *parameters = ctx.needs_input_grad
        needed = (x, residual, False, columns, False, *parameters, gated)
        split = call.split
        shapes = None
        if split is not None:
            shapes = s.shape, weight, bias
            rows, sizes = split
            s, gate = s.view(rows), None if gate is None else gate.view(rows)
            dy = None if dy is None else dy.reshape(rows)
            weight = None if weight is None else weight.reshape(sizes)
            bias = None if bias is None else bias.reshape(sizes)
        saved = Saved(s, mean, rstd, branch, None, column, None, weight, bias, scale, shift, gate)
        found = _staged_derivatives.gradients(
            saved, call.stages, call.dtypes, call.y_dtype, needed, dy, dsum
        )
        dx, dresidual, _, dcolumn, _, dweight, dbias, dscale, dshift, dgate = found
        if shapes is not None:
            shape, weight, bias = shapes
            dx = None if dx is None else dx.reshape(shape)
            dgate = None if dgate is None else dgate.reshape(shape)
            dweight = None if dweight is None else dweight.reshape(weight.shape)
            dbias = None if dbias is None else dbias.reshape(bias.shape)
        return None, dx, dresidual, dgate, dcolumn, dweight, dbias, dscale, dshift


def _simple_backward(
    ctx: Any, call: Call, dy: Tensor | None, dsum: Tensor | None
) -> tuple[Any, ...]:
    """With what is seldom there left out."""
    s, mean, rstd, weight = ctx.saved_tensors
    _, x, residual, _, _, weighs, adds, _, _ = ctx.needs_input_grad
    shared = x and residual and call.dtypes[0] == call.dtypes[1]
    found = None
    if dy is not None and not torch.is_grad_enabled() and is_plain(dy, dsum):
        none = None
        wanted = [x, residual and not shared, weighs, adds, False, False, False, False]
        around = none, none, none, none, weight, none, none, none, none
        try:
            with below_autograd():
                found = _backward_op(
                    dy, s, mean, rstd, dsum, *around, *call.stages, *call.dtypes, wanted
                )
        except RuntimeError:
            if not thrown(ERROR_UNAVAILABLE):
                raise
    if found is not None:
        dx, dresidual, dweight, dbias, *_ = found
        return None, dx, dx if shared else dresidual, None, None, dweight, dbias, None, None
    needed = x, residual, False, False, False, weighs, adds, False, False, False
    saved = Saved(s, mean, rstd, *(None,) * 4, weight, *(None,) * 4)
    given = call.stages, call.dtypes, call.y_dtype, needed, dy, dsum
    dx, dresidual, _, _, _, dweight, dbias, *_ = _staged_derivatives.gradients(saved, *given)
    return None, dx, dresidual, None, None, dweight, dbias, None, None


#: torch.autograd.Function.apply without what it does for the transforms of torch.func, at a third
#: of its cost: there are none here.
_record: Any = super(torch.autograd.Function, _Staged).apply
