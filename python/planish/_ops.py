"""planish's own operators, for axes that torch's cannot express.

C defines them and runs them on real tensors (src/torch/any_axes.c); this file adds what torch asks
of Python: shapes for fake tensors, and derivatives (the formulas are in _derivatives.py).
Forward-mode derivatives they have not, and say so: planish's functions go the way of torch's own
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from planish import _derivatives
from planish._derivatives import ACTIVATIONS
from planish._library import library
from planish._ways import below_autograd, needs_graph
from torch import Tensor

__all__ = ["ACTIVATIONS", "autograd_kernel", "backward", "forward", "recorded", "statistics"]


def _statistics_dtype(x: Tensor, activation: int = 0) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 or activation else torch.float32


def _statistics_shape(x: Tensor, reduce: list[int]) -> list[int]:
    return [1 if axis in reduce else size for axis, size in enumerate(x.shape)]


def _dense(x: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=x.device)


def _forward_fake(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    keep: bool,
    activation: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = _statistics_shape(x, reduce), _statistics_dtype(x, activation)
    mean = _dense(x, [0] if rms else shape, dtype)
    y = torch.empty_like(x) if keep else _dense(x, x.shape, x.dtype)
    return y, mean, _dense(x, shape, dtype)


def _backward_fake(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    reduce: list[int],
    affine: list[int],
    rms: bool,
    wanted: list[bool],
    bias: Tensor | None = None,
    activation: int = 0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    shape = [x.shape[axis] for axis in affine]
    dtype = x.dtype if weight is None else weight.dtype
    return (
        torch.empty_like(x) if wanted[0] else None,
        _dense(x, shape, dtype) if wanted[1] else None,
        _dense(x, shape, dtype) if wanted[2] else None,
    )


def _statistics_fake(x: Tensor, reduce: list[int]) -> tuple[Tensor, Tensor]:
    shape, dtype = _statistics_shape(x, reduce), _statistics_dtype(x)
    return _dense(x, shape, dtype), _dense(x, shape, dtype)


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


def recorded(name: str, save: _Save, differentiate: _Differentiate) -> Any:
    """The torch.autograd.Function of an operator. Its first argument is the dispatch keys of the
    call, or None for plain tensors outside of the dispatcher: the operator is then called past
    autograd."""
    overload = getattr(torch.ops.planish, name).default
    plain = overload._op

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
            if keys is None:
                with below_autograd():
                    results = plain(*arguments)
            else:
                results = _below(overload, keys, arguments)
            save(ctx, arguments, results)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return None, *differentiate(ctx, *gradients)

    return Recorded


def _below(overload: Any, keys: Any, arguments: tuple[Any, ...]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return overload.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def autograd_kernel(name: str, function: Any) -> Callable[..., Any]:
    """What runs at the Autograd keys, by the operator's function."""
    overload = getattr(torch.ops.planish, name).default
    defaults = [argument.default_value for argument in overload._schema.arguments]

    def kernel(keys: Any, *given: Any) -> Any:
        arguments = (*given, *defaults[len(given) :])  # torch drops what is the default
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        _refuse_tangents(name, tensors)
        if needs_graph(*tensors):
            return function.apply(keys, *arguments)
        return _below(overload, keys, arguments)

    return kernel


def _define() -> Any:
    """The library object whose life is that of the registrations."""
    library().define()
    made: Any = torch.library.Library("planish", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, fake, save, differentiate in (
        (
            "norm_forward",
            _forward_fake,
            _derivatives.save_forward,
            _derivatives.differentiate_forward,
        ),
        (
            "norm_backward",
            _backward_fake,
            _derivatives.save_backward,
            _derivatives.differentiate_backward,
        ),
        (
            "norm_statistics",
            _statistics_fake,
            _derivatives.save_statistics,
            _derivatives.differentiate_statistics,
        ),
    ):
        torch.library.register_fake(f"planish::{name}", fake)
        kernel = autograd_kernel(name, recorded(name, save, differentiate))
        made.impl(name, kernel, "Autograd", with_keyset=True)
    return made


_registered = _define()  # at import: tracing must not come across it

#: Through the dispatcher, traced and differentiated.
forward = torch.ops.planish.norm_forward.default
backward = torch.ops.planish.norm_backward.default
statistics = torch.ops.planish.norm_statistics.default
