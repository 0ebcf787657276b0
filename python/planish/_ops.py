"""planish's own operators under torch: the norm over any axes with the stages around it, two norms
by one call, norms whose result is quantised or goes into a tensor that is given.

C defines them and runs them on real tensors (src/torch/norm_operators.c, norm_pair.c and
quantized_norm.c say what they take and return); this file adds what torch asks of Python: shapes
for fake tensors, and derivatives (the formulas are in _derivatives.py). Forward-mode derivatives
they have not, and say so: planish's functions go the way of torch's own there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import torch
from planish import _call, _derivatives
from planish._library import library
from planish._ways import below_autograd, needs_graph
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
    "record_pair",
    "record_quantized",
]

# ---- Fake tensors --------------------------------------------------------------------------------


def _dense(x: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=x.device)


def _statistics_dtype(options: int, *tensors: Tensor | None) -> torch.dtype:
    """As src/torch/norm_operators.c has it; the last two tensors are scale and gate."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    dtypes |= {_call.dtype_in(options), _call.sum_dtype_in(options)}  # type: ignore[arg-type]
    around = not options & _call.RMS and any(tensor is not None for tensor in tensors[-2:])
    exact = _call.activation_in(options) or around or torch.float64 in dtypes
    return torch.float64 if exact else torch.float32


def _forward_fake(
    x: Tensor,
    residual: Tensor | None,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    rng: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    gate: Tensor | None,
    axes: int,
    options: int,
    split: int,
    eps: float,
    dropout_p: float,
) -> tuple[Tensor | None, ...]:
    tensors = x, residual, row_scale, column_scale, weight, bias, shift, scale, gate
    statistics = _statistics_dtype(options, *tensors)
    reduce = _call.axes_of(axes, 0)
    seen = _call.seen_shape(x.shape, split)
    shape = [1 if axis in reduce else size for axis, size in enumerate(seen)]
    save, dense = options & _call.SAVE, options & _call.DENSE

    def full(dtype: torch.dtype) -> Tensor:
        return _dense(x, x.shape, dtype) if dense else torch.empty_like(x, dtype=dtype)

    total = _call.sum_dtype_in(options)
    return (
        full(_call.dtype_in(options) or x.dtype),
        None if total is None else full(total),
        _dense(x, shape, statistics) if save and not options & _call.RMS else None,
        _dense(x, shape, statistics) if save else None,
    )


def _backward_fake(
    dy: Tensor,
    s: Tensor,
    rstd: Tensor,
    mean: Tensor | None,
    dsum: Tensor | None,
    branch: Tensor | None,
    row_scale: Tensor | None,
    column_scale: Tensor | None,
    rng: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    gate: Tensor | None,
    axes: int,
    options: int,
    split: int,
    dropout_p: float,
) -> tuple[Tensor | None, ...]:
    other = s.dtype if weight is None else weight.dtype
    seen = _call.seen_shape(s.shape, split)

    def along(place: int, parameter: Tensor | None) -> Tensor:
        own = _call.axes_of(axes, place)
        sizes = [seen[axis] for axis in own]
        if split:
            axis, _ = _call.split_place(s.dim(), split)
            if axis in own and axis + 1 in own:
                first = own.index(axis)
                sizes[first : first + 2] = [s.shape[axis]]
        return _dense(s, sizes, other if parameter is None else parameter.dtype)

    made: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.empty_like(s, dtype=_call.dtype_in(options)),
        lambda: torch.empty_like(s, dtype=_call.sum_dtype_in(options)),
        lambda: along(1, weight),
        lambda: along(1, bias),
        lambda: along(2, column_scale),
        lambda: along(3, scale),
        lambda: along(3, shift),
        lambda: torch.empty_like(s, dtype=other if gate is None else gate.dtype),
    )
    wanted = _call.wanted_in(options)
    return tuple([make() if want else None for make, want in zip(made, wanted, strict=True)])


def _statistics_fake(x: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    reduce = _call.axes_of(axes, 0)
    shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _dense(x, shape, dtype), _dense(x, shape, dtype)


def _quantized_fake(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    y_scale: Tensor | None,
    axes: int,
    options: int,
    eps: float,
    block: int,
    least: float,
    most: float,
) -> tuple[Tensor | None, ...]:
    scales = None
    reduce, as_bytes = _call.axes_of(axes, 0), bool(options & _call.SCALES_AS_BYTES)
    if y_scale is None:
        kept = [size for axis, size in enumerate(x.shape) if axis not in reduce]
        shape = [1 if axis in reduce else size for axis, size in enumerate(x.shape)]
        if block:
            columns = math.prod(x.shape[axis] for axis in reduce)
            blocks, rows = -(-columns // block), math.prod(kept)
            step = 16 if as_bytes else 4
            padded = -(-rows // step) * step
            shape = [blocks, padded] if options & _call.TRANSPOSED else [*kept, blocks]
        scales = _dense(x, shape, torch.uint8 if as_bytes else torch.float32)
    total = _call.sum_dtype_in(options)
    return (
        torch.empty_like(x, dtype=_call.dtype_in(options)),
        scales,
        None if total is None else torch.empty_like(x, dtype=total),
    )


def _into_fake(*arguments: Any) -> None:
    return None


def _pair_fake(
    first: Tensor,
    second: Tensor,
    first_weight: Tensor | None,
    second_weight: Tensor | None,
    options: int,
    eps: float,
) -> tuple[Tensor | None, ...]:
    save, rms = options & _call.SAVE, options & _call.RMS
    made: list[Tensor | None] = []
    for x, weight in ((first, first_weight), (second, second_weight)):
        shape, dtype = [*x.shape[:-1], 1], _statistics_dtype(options, x, weight, None, None)
        mean = _dense(x, shape, dtype) if save and not rms else None
        made += torch.empty_like(x), mean, _dense(x, shape, dtype) if save else None
    return tuple(made)


def _pair_backward_fake(
    first_dy: Tensor,
    second_dy: Tensor,
    first: Tensor,
    second: Tensor,
    first_mean: Tensor | None,
    second_mean: Tensor | None,
    first_rstd: Tensor,
    second_rstd: Tensor,
    first_weight: Tensor | None,
    second_weight: Tensor | None,
    options: int,
) -> tuple[Tensor | None, ...]:
    wanted = _call.wanted_in(options)
    made: list[Tensor | None] = []
    for x, weight, want in (
        (first, first_weight, wanted[:2]),
        (second, second_weight, wanted[2:4]),
    ):
        dweight = None
        if want[1]:
            shape = x.shape[-1:] if weight is None else x.shape[x.dim() - weight.dim() :]
            dweight = _dense(x, shape, x.dtype if weight is None else weight.dtype)
        made += torch.empty_like(x) if want[0] else None, dweight
    return tuple(made)


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


def _recorded(
    name: str, save: _Save, differentiate: _Differentiate, shown: Any, statistics: tuple[int, ...]
) -> Any:
    """The torch.autograd.Function of an operator. Its first argument is the dispatch keys of the
    call, or None for tensors that only eager autograd looks at: the operator is then called past
    autograd, and the results are what ``shown`` picks. ``statistics``: results without a
    derivative."""
    overload = getattr(torch.ops.planish, name).default
    plain = overload._op

    def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
        if keys is None:
            with below_autograd():
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


def _autograd_kernel(name: str, function: Any) -> Callable[..., Any]:
    """What runs at the Autograd keys, by the operator's function."""
    overload = getattr(torch.ops.planish, name).default

    def kernel(keys: Any, *arguments: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        _refuse_tangents(name, tensors)
        if needs_graph(*tensors):
            return function.apply(keys, *arguments)
        return _below(overload, keys, arguments)

    return kernel


#: name: fake, save, differentiate, results shown to plain calls, results without a derivative
_OPERATORS: dict[str, tuple[Any, Any, Any, Any, tuple[int, ...]]] = {
    "norm_forward": (
        _forward_fake,
        _derivatives.save_forward,
        _derivatives.differentiate_forward,
        itemgetter(0, 1),
        (2, 3),
    ),
    "norm_backward": (
        _backward_fake,
        _derivatives.save_backward,
        _derivatives.differentiate_backward,
        None,
        (),
    ),
    "norm_statistics": (
        _statistics_fake,
        _derivatives.save_statistics,
        _derivatives.differentiate_statistics,
        None,
        (),
    ),
    "quantized_norm": (
        _quantized_fake,
        _derivatives.save_quantized,
        _derivatives.differentiate_quantized,
        None,
        (),
    ),
    "norm_pair": (
        _pair_fake,
        _derivatives.save_pair,
        _derivatives.differentiate_pair,
        itemgetter(0, 3),
        (1, 2, 4, 5),
    ),
    "norm_pair_backward": (
        _pair_backward_fake,
        _derivatives.save_pair_backward,
        _derivatives.differentiate_pair_backward,
        None,
        (),
    ),
}


def _define() -> tuple[Any, dict[str, Any]]:
    """The library object whose life is that of the registrations, and the operators' functions."""
    library().define()
    made: Any = torch.library.Library("planish", "FRAGMENT")  # type: ignore[no-untyped-call]
    torch.library.register_fake("planish::norm_into", _into_fake)
    functions: dict[str, Any] = {}
    for name, (fake, *rest) in _OPERATORS.items():
        torch.library.register_fake(f"planish::{name}", fake)
        functions[name] = _recorded(name, *rest)
        made.impl(name, _autograd_kernel(name, functions[name]), "Autograd", with_keyset=True)
    return made, functions


_registered, _functions = _define()  # at import: tracing must not come across it

#: Through the dispatcher, traced and differentiated.
FORWARD = torch.ops.planish.norm_forward.default
BACKWARD = torch.ops.planish.norm_backward.default
STATISTICS = torch.ops.planish.norm_statistics.default
QUANTIZED = torch.ops.planish.quantized_norm.default
INTO = torch.ops.planish.norm_into.default
PAIR = torch.ops.planish.norm_pair.default
PAIR_BACKWARD = torch.ops.planish.norm_pair_backward.default


def _record(name: str) -> Any:
    """torch.autograd.Function.apply without what it does for the transforms of torch.func, at a
    third of its cost: for calls where there are none."""
    return super(torch.autograd.Function, _functions[name]).apply


#: Recorded calls of tensors that only eager autograd looks at; the first argument is None.
record_forward = _record("norm_forward")
record_pair = _record("norm_pair")
record_quantized = _record("quantized_norm")


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
    options = _call.pack_options(rms=rms, dense=dense, activation=activation)
    none = None
    axes = _call.pack_axes(reduce, affine)
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
    options = _call.pack_options(
        rms=rms, activation=activation, save=False, wanted=dx | dweight << 2 | dbias << 3
    )
    none = None
    axes = _call.pack_axes(reduce, affine)
    tensors = dy, x, rstd, none if rms else mean, none, none, none, none, none, weight, bias
    results = BACKWARD(*tensors, none, none, none, axes, options, split, 0.0)
    return results[0], results[2], results[3]
