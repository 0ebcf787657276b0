"""planish's own operators under torch: the norm over any axes with the stages around it, two norms
by one call, norms whose result is quantised or goes into a tensor that is given.

C defines them and runs them on real tensors (src/torch/norm_operators.c, norm_pair.c and
quantized_norm.c say what they take and return). What torch asks of Python is added here: shapes for
fake tensors (fakes.py), and derivatives (derivatives.py). Forward-mode derivatives they have not,
and say so: planish's functions go the way of torch's own there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

import torch
from planish.library.seen import needs_graph
from planish.operators import call, derivatives, fakes, pair_derivatives, records, short
from planish.operators.call import Call, Tensors
from planish.operators.records import Record
from torch import Tensor

__all__ = [
    "BACKWARD",
    "FORWARD",
    "INTO",
    "PAIR",
    "PAIR_BACKWARD",
    "QUANTIZED",
    "STATISTICS",
    "plain_backward",
    "plain_forward",
    "record_forward",
    "record_of",
    "record_pair",
    "record_quantized",
    "record_statistics",
    "register",
]

# ---- Autograd ------------------------------------------------------------------------------------


def _refuse_tangents(name: str, tensors: list[Tensor]) -> None:
    forward_ad = torch.autograd.forward_ad
    if forward_ad._current_level < 0:
        return
    unpack: Any = forward_ad.unpack_dual
    if any(unpack(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            f"planish::{name}: forward-mode derivatives are not implemented for the operator; "
            "planish's functions and modules have them"
        )


_Save = Callable[[Any, tuple[Any, ...], tuple[Any, ...]], None]
_Differentiate = Callable[..., tuple[Any, ...]]


class NormForward(torch.autograd.Function):
    """norm_forward of what a record says (records.py), the tensors that are there being all else
    that it is given. Plain tensors have y, or (y, sum), as the result."""

    @staticmethod
    def forward(ctx: Any, record: Record, *tensors: Tensor) -> Any:
        given = record.spread((*tensors, None))
        if record.keys is None:
            results = short.FORWARD(*given, *record.call)
            records.save(ctx, record, given, results)
            y, total, _, _ = results
            return y if total is None else (y, total)
        results = _below(FORWARD, record.keys, (*given, *record.call))
        records.save(ctx, record, given, results)
        ctx.mark_non_differentiable(*(t for t in results[2:] if t is not None))
        return results

    backward = staticmethod(records.differentiate)


def _recorded(
    name: str, save: _Save, differentiate: _Differentiate, shown: Any, statistics: tuple[int, ...]
) -> Any:
    """The torch.autograd.Function of an operator. Its first argument is (dispatch keys of the call,
    what is no tensor), with None for the keys of plain tensors: the results are then what ``shown``
    picks. ``statistics``: results without a derivative."""
    overload, plain = getattr(torch.ops.planish, name).default, short.of(name)

    def forward(ctx: Any, call: tuple[Any, ...], *tensors: Any) -> Any:
        keys, *numbers = call
        arguments = (*tensors, *numbers)
        if keys is None:
            results = plain(*arguments)
            save(ctx, arguments, results)
            return results if shown is None else shown(results)
        results = _below(overload, keys, arguments)
        save(ctx, arguments, results)
        if statistics:
            found = (results[i] for i in statistics)
            ctx.mark_non_differentiable(*(t for t in found if t is not None))
        return results

    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, *differentiate(ctx, *gradients)

    function: Any = torch.autograd.Function
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(function)(name.title().replace("_", ""), (function,), members)


def _below(overload: Any, keys: Any, arguments: tuple[Any, ...]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return overload.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def _record(arguments: tuple[Any, ...], keys: Any) -> Any:
    """norm_forward's Function called with what the operator was."""
    count = len(Tensors._fields)
    given = Tensors(*arguments[:count])
    record = Record(Call(*arguments[count:]), given, keys)
    there = [tensor for tensor in given if tensor is not None]
    return NormForward.apply(record, *there)  # type: ignore[no-untyped-call]


def _autograd_kernel(name: str, function: Any) -> Callable[..., Any]:
    """What runs at the Autograd keys, by the operator's function."""
    overload = getattr(torch.ops.planish, name).default
    count = short.tensors_of(overload)

    def kernel(keys: Any, *arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        _refuse_tangents(name, tensors)
        if not needs_graph(*tensors):
            return _below(overload, keys, arguments)
        if function is NormForward:
            return _record(arguments, keys)
        return function.apply((keys, *arguments[count:]), *arguments[:count])

    return kernel


#: A fake alone, where NormForward is the operator's function; or fake, save, differentiate, results
#: shown to plain calls, results without a derivative.
Operator = tuple[Any] | tuple[Any, Any, Any, Any, tuple[int, ...]]
_OPERATORS: dict[str, Operator] = {
    "norm_forward": (fakes.forward,),
    "norm_backward": (
        fakes.backward,
        derivatives.save_backward,
        derivatives.differentiate_backward,
        None,
        (),
    ),
    "norm_statistics": (
        fakes.statistics,
        derivatives.save_statistics,
        derivatives.differentiate_statistics,
        None,
        (),
    ),
    "quantized_norm": (
        fakes.quantized,
        derivatives.save_quantized,
        derivatives.differentiate_quantized,
        None,
        (),
    ),
    "norm_pair": (
        fakes.pair,
        pair_derivatives.save_pair,
        pair_derivatives.differentiate_pair,
        itemgetter(0, 3),
        (1, 2, 4, 5),
    ),
    "norm_pair_backward": (
        fakes.pair_backward,
        pair_derivatives.save_pair_backward,
        pair_derivatives.differentiate_pair_backward,
        None,
        (),
    ),
}


#: Operators that parts.py differentiates together: name: fake.
_PARTS: dict[str, Any] = {
    "norm_part_message": fakes.part_message,
    "norm_part_statistics": fakes.part_statistics,
    "norm_backward_statistics": fakes.backward_statistics,
    "norm_part_apply": fakes.part_apply,
    "norm_part_backward_apply": fakes.part_backward_apply,
}


def register(operators: Mapping[str, Operator]) -> tuple[Any, dict[str, Any]]:
    """The library object whose life is that of the registrations, and the operators' functions."""
    made: Any = torch.library.Library("planish", "FRAGMENT")  # type: ignore[no-untyped-call]
    functions: dict[str, Any] = {}
    for name, (fake, *rest) in operators.items():
        torch.library.register_fake(f"planish::{name}", fake)
        functions[name] = _recorded(name, *rest) if rest else NormForward
        kernel = _autograd_kernel(name, functions[name])
        made.impl(name, kernel, "Autograd", with_keyset=True)
    return made, functions


_registered, _functions = register(_OPERATORS)  # at import: tracing must not come across it
for _name, _fake in {"norm_into": fakes.into, **_PARTS}.items():
    torch.library.register_fake(f"planish::{_name}", _fake)

#: Through the dispatcher, traced and differentiated.
FORWARD = torch.ops.planish.norm_forward.default
BACKWARD = torch.ops.planish.norm_backward.default
STATISTICS = torch.ops.planish.norm_statistics.default
QUANTIZED = torch.ops.planish.quantized_norm.default
INTO = torch.ops.planish.norm_into.default
PAIR = torch.ops.planish.norm_pair.default
PAIR_BACKWARD = torch.ops.planish.norm_pair_backward.default


def record_of(function: Any) -> Any:
    """torch.autograd.Function.apply without what it does for the transforms of torch.func, at a
    third of its cost: for calls where there are none. Its backward is called at once, too, without
    torch's question each time whether it is named backward or vjp."""
    function._backward_cls.apply = function.backward
    return super(torch.autograd.Function, function).apply


#: Recorded calls of plain tensors: of a record and the tensors that are there; of (None, what is no
#: tensor) and the tensors.
record_forward = record_of(_functions["norm_forward"])
record_pair = record_of(_functions["norm_pair"])
record_quantized = record_of(_functions["quantized_norm"])
record_statistics = record_of(_functions["norm_statistics"])


# ---- A norm alone, with its statistics -----------------------------------------------------------


def plain_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: Iterable[int],
    affine: Iterable[int],
    eps: float,
    rms: bool,
    *,
    dense: bool = False,
    activation: int = 0,
    split: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(y, mean, rstd) through the dispatcher; no mean of an RMS norm."""
    options = call.pack_options(rms=rms, dense=dense, activation=activation)
    none = None
    axes = call.pack_axes(reduce, affine)
    tensors = x, none, none, none, none, weight, bias, none, none, none
    y, _, mean, rstd = FORWARD(*tensors, axes, options, split, eps, 0.0)
    return y, mean, rstd


def plain_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    reduce: Iterable[int],
    affine: Iterable[int],
    rms: bool,
    wanted: Iterable[bool] = (True, True, True),
    *,
    bias: Tensor | None = None,
    activation: int = 0,
    split: int = 0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dweight, dbias), each where ``wanted``; ``bias`` is for an activation."""
    dx, dweight, dbias = wanted
    options = call.pack_options(
        rms=rms, activation=activation, save=False, wanted=dx | dweight << 2 | dbias << 3
    )
    none = None
    axes = call.pack_axes(reduce, affine)
    tensors = dy, x, rstd, none if rms else mean, none, none, none, none, none, weight, bias
    results = BACKWARD(*tensors, none, none, none, axes, options, split, 0.0)
    return results[0], results[2], results[3]
