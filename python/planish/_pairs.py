"""Two norms over the last axis by one call, such as those of queries and keys.

C defines the operators and runs them on real tensors (src/torch/norm_pair.c says what they take and
return); this file adds shapes for fake tensors, derivatives, and the way of tensors that only eager
autograd looks at, which costs the host little. What a caller may get wrong, _fused.py checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from planish import _derivatives, _ops, _prepared
from planish._arguments import rms_eps
from planish._ways import Way, below_autograd, is_plain, needs_graph, signature, way_of
from torch import Tensor

__all__ = ["Kept", "eps_of_both", "key_of", "known", "norms"]

#: first, second, first_weight, second_weight.
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


# ---- Operators -----------------------------------------------------------------------------------


def _statistics_dtype(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """As src/torch/norm_pair.c has it."""
    double = x.dtype == torch.float64 or (weight is not None and weight.dtype == torch.float64)
    return torch.float64 if double else torch.float32


def _forward_fake(
    first: Tensor,
    second: Tensor,
    first_weight: Tensor | None,
    second_weight: Tensor | None,
    eps: float,
    rms: bool,
    weight_offset: int,
    save: bool,
) -> tuple[Tensor | None, ...]:
    made: list[Tensor | None] = []
    for x, weight in ((first, first_weight), (second, second_weight)):
        shape, dtype = [*x.shape[:-1], 1], _statistics_dtype(x, weight)
        mean = torch.empty(shape, dtype=dtype, device=x.device) if save and not rms else None
        rstd = torch.empty(shape, dtype=dtype, device=x.device) if save else None
        made += torch.empty_like(x), mean, rstd
    return tuple(made)


def _backward_fake(
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
    rms: bool,
    weight_offset: int,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    made: list[Tensor | None] = []
    for x, weight, want in (
        (first, first_weight, wanted[:2]),
        (second, second_weight, wanted[2:]),
    ):
        dweight = None
        if want[1]:
            shape = x.shape[-1:] if weight is None else x.shape[x.dim() - weight.dim() :]
            dtype = x.dtype if weight is None else weight.dtype
            dweight = torch.empty(shape, dtype=dtype, device=x.device)
        made += torch.empty_like(x) if want[0] else None, dweight
    return tuple(made)


def _saved(
    needed: Sequence[bool], tensors: Tensors, statistics: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """What the gradients that are needed, in the order of ``tensors``, are made of: the first two
    of ``statistics`` are of the means, the others of rstd."""
    learned = [needed[0] or needed[2], needed[1] or needed[3]] * 2
    kept = [t if learns else None for t, learns in zip(tensors, learned, strict=True)]
    return *kept[:2], *statistics, *kept[2:]


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    first, second, first_weight, second_weight, _, rms, weight_offset, save = inputs
    _, first_mean, first_rstd, _, second_mean, second_rstd = output
    statistics = first_mean, second_mean, first_rstd, second_rstd
    ctx.mark_non_differentiable(*(t for t in statistics if t is not None))
    tensors = first, second, first_weight, second_weight
    # the first argument is the dispatch keys
    ctx.save_for_backward(*_saved(ctx.needs_input_grad[1:5], tensors, statistics))
    ctx.rms, ctx.weight_offset, ctx.saved = rms, weight_offset, save


def _whole(
    saved: tuple[Tensor | None, ...], first_dy: Tensor, second_dy: Tensor
) -> tuple[Tensor | None, ...]:
    """With what has no part in any gradient that is wanted in the places of norms that have none:
    the operator asks for both."""
    first, second, *rest = saved
    return first_dy if first is None else first, second_dy if second is None else second, *rest


def _gradients(
    ctx: Any, first_dy: Tensor, second_dy: Tensor, needed: list[bool]
) -> tuple[Tensor | None, ...]:
    """dx and dweight of the first, then of the second, through the dispatcher."""
    if not ctx.saved:
        raise RuntimeError(
            "planish::norm_pair: Expected save to be True where gradients are wanted"
        )
    found: tuple[Tensor | None, ...] = torch.ops.planish.norm_pair_backward(
        first_dy,
        second_dy,
        *_whole(ctx.saved_tensors, first_dy, second_dy),
        ctx.rms,
        ctx.weight_offset,
        needed,
    )
    return found


def _differentiate_forward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    first_dy, _, _, second_dy, _, _ = gradients
    first, second, first_weight, second_weight = ctx.needs_input_grad[1:5]
    assert first_dy is not None
    assert second_dy is not None
    needed = [first, first_weight, second, second_weight]
    dx, dweight, second_dx, second_dweight = _gradients(ctx, first_dy, second_dy, needed)
    return dx, second_dx, dweight, second_dweight, None, None, None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    first_dy, second_dy, first, second, _, _, first_rstd, second_rstd, *rest = inputs
    first_weight, second_weight, rms, weight_offset, wanted = rest
    ctx.save_for_backward(
        first_dy, second_dy, first, second, first_rstd, second_rstd, first_weight, second_weight
    )
    ctx.set_materialize_grads(False)
    ctx.rms, ctx.weight_offset, ctx.wanted = rms, weight_offset, wanted


def _differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """That of each norm alone: its backward's formula in torch's own operators."""
    saved = ctx.saved_tensors
    found: list[tuple[Any, Any, Any]] = []
    for i in (0, 1):
        dy, x, rstd, weight = saved[i], saved[2 + i], saved[4 + i], saved[6 + i]
        wanted, given = ctx.wanted[2 * i : 2 * i + 2], gradients[2 * i : 2 * i + 2]
        scale = weight
        if weight is not None and ctx.weight_offset:
            scale = weight.to(rstd.dtype) + ctx.weight_offset
        affine = range(x.dim() - (1 if weight is None else weight.dim()), x.dim())
        alone = SimpleNamespace(
            saved_tensors=(dy, x, rstd, scale, None),
            reduce=[x.dim() - 1],
            affine=list(affine),
            rms=ctx.rms,
            wanted=[*wanted, False],
            activation=0,
        )
        ddy, dx, _, _, dweight, *_ = _derivatives.differentiate_backward(alone, *given, None)
        if dweight is not None:
            dweight = dweight.to(weight.dtype)
        found.append((ddy, dx, dweight))
    (ddy, dx, dw), (second_ddy, second_dx, second_dw) = found
    nothing = (None,) * 4
    return ddy, second_ddy, dx, second_dx, *nothing, dw, second_dw, None, None, None


def _register() -> Any:
    """The library object whose life is that of the registrations."""
    made: Any = torch.library.Library("planish", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, fake, save, differentiate in (
        ("norm_pair", _forward_fake, _save_forward, _differentiate_forward),
        ("norm_pair_backward", _backward_fake, _save_backward, _differentiate_backward),
    ):
        torch.library.register_fake(f"planish::{name}", fake)
        kernel = _ops.autograd_kernel(name, _ops.recorded(name, save, differentiate))
        made.impl(name, kernel, "Autograd", with_keyset=True)
    return made


_registered = _register()  # at import: tracing must not come across it

_forward = torch.ops.planish.norm_pair.default
_forward_op = _forward._op
_backward_op = torch.ops.planish.norm_pair_backward.default._op


# ---- Tensors that only eager autograd looks at ---------------------------------------------------


class _Pair(torch.autograd.Function):
    """The derivative of a call of plain tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        first_weight: Tensor | None,
        second_weight: Tensor | None,
        eps: float,
        rms: bool,
        weight_offset: int,
    ) -> tuple[Tensor, Tensor]:
        tensors = first, second, first_weight, second_weight
        with below_autograd():
            y, first_mean, first_rstd, second_y, second_mean, second_rstd = _forward_op(
                *tensors, eps, rms, weight_offset, True
            )
        statistics = first_mean, second_mean, first_rstd, second_rstd
        ctx.save_for_backward(*_saved(ctx.needs_input_grad[:4], tensors, statistics))
        ctx.rms, ctx.weight_offset, ctx.saved = rms, weight_offset, True
        return y, second_y

    @staticmethod
    def backward(ctx: Any, first_dy: Tensor, second_dy: Tensor) -> tuple[Any, ...]:
        first, second, first_weight, second_weight = ctx.needs_input_grad[:4]
        needed = [first, first_weight, second, second_weight]
        if not torch.is_grad_enabled() and is_plain(first_dy, second_dy):
            saved = _whole(ctx.saved_tensors, first_dy, second_dy)
            with below_autograd():
                dx, dweight, second_dx, second_dweight = _backward_op(
                    first_dy, second_dy, *saved, ctx.rms, ctx.weight_offset, needed
                )
        else:
            dx, dweight, second_dx, second_dweight = _gradients(ctx, first_dy, second_dy, needed)
        return dx, second_dx, dweight, second_dweight, None, None, None


#: torch.autograd.Function.apply without what it does for the transforms of torch.func, at a third
#: of its cost: there are none here.
_record: Any = super(torch.autograd.Function, _Pair).apply


def _plain(tensors: Tensors, eps: float, rms: bool, weight_offset: int) -> tuple[Tensor, Tensor]:
    if needs_graph(*tensors):
        if weight_offset:  # torch would keep the sum; the weights may be written to
            first, second, *weights = tensors
            one, other = (None if w is None else w.clone() for w in weights)
            tensors = first, second, one, other
        both: tuple[Tensor, Tensor] = _record(*tensors, eps, rms, weight_offset)
        return both
    with below_autograd():
        y, _, _, second_y, _, _ = _forward_op(*tensors, eps, rms, weight_offset, False)
    return y, second_y


# ---- Calls ---------------------------------------------------------------------------------------

#: So many combinations of options, dtypes, shapes and devices are kept; then it begins anew.
_ROOM = 4096

#: What a call is kept under, once its arguments were looked at.
Kept = tuple[Any, ...]

_kept: set[Kept] = set()


def key_of(options: tuple[Any, ...], tensors: Tensors) -> Kept | None:
    """What a call is kept under; None for one that has to go the long way."""
    if not is_plain(*tensors):
        return None
    return signature(options, tensors)


def _is_inference(tensors: Tensors) -> bool:
    """Autograd saves no tensor that was made in inference mode."""
    return needs_graph(*tensors) and any(t is not None and t.is_inference() for t in tensors)


def eps_of_both(first: Any, second: Any) -> float | None:
    """eps=None of RMS norms as a number, if it is the same for both; None also for what is no
    tensor."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return None
    eps = rms_eps(None, first)
    return eps if eps == rms_eps(None, second) else None


def known(
    key: Kept | None, tensors: Tensors, eps: float | None, rms: bool, weight_offset: float
) -> tuple[Tensor, Tensor] | None:
    """The norms of a call that is known by this key; None otherwise."""
    try:
        if key is None or eps is None or key not in _kept or _is_inference(tensors):
            return None
    except TypeError:  # an option without a hash is none that the function takes
        return None
    return _plain(tensors, eps, rms, int(weight_offset))


def _takes(tensors: Tensors, weight_offset: float) -> bool:
    """Whether the operator has the result of each norm alone."""
    first, second, first_weight, second_weight = tensors
    if weight_offset not in (0, 1) or first.device != second.device:
        return False
    for x, weight in ((first, first_weight), (second, second_weight)):
        if x.device.type not in ("cpu", "cuda") or x.dim() < 1:
            return False
        if weight is None:
            continue
        if weight.device != x.device or not 1 <= weight.dim() <= x.dim():
            return False
        # What is computed in f64 is cast around the kernels.
        if torch.float64 in (x.dtype, weight.dtype) and x.dtype != weight.dtype:
            return False
    return True


def norms(
    key: Kept | None, tensors: Tensors, eps: float, rms: bool, weight_offset: float
) -> tuple[Tensor, Tensor] | None:
    """Both norms of arguments that were looked at; None where they are for one call each."""
    way = way_of(*tensors)
    if way not in (Way.PLAIN, Way.OPERATOR) or not _takes(tensors, weight_offset):
        return None
    if way is Way.PLAIN:
        if _is_inference(tensors):
            return None
        results = _plain(tensors, eps, rms, int(weight_offset))
        if key is not None and not _prepared.holds_tensors(key[0]):
            if len(_kept) >= _ROOM:
                _kept.clear()
            _kept.add(key)
        return results
    fakes = torch._subclasses.FakeTensor
    plain = (Tensor, torch.nn.Parameter, fakes)
    if not all(type(t) in plain for t in tensors if t is not None):
        return None  # DTensor has rules for the operators of one norm
    y, _, _, second_y, _, _ = _forward(*tensors, eps, rms, int(weight_offset), True)
    return y, second_y
