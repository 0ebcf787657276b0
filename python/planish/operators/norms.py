"""The norms that planish's functions and modules are made of, each by the way that its tensors ask
for (ways.py)."""

from __future__ import annotations

import functools

from planish.operators import call, composite, ops
from planish.operators.arguments import rms_eps as rms_eps
from planish.operators.call import Call
from planish.operators.stage_calls import is_distributed
from planish.operators.ways import Way, below_autograd, needs_graph, way_of
from torch import Tensor

__all__ = ["group_norm", "norm", "rms_eps", "split_channels", "statistics"]

_forward_op = ops.FORWARD._op


def split_channels(x: Tensor, groups: int) -> Tensor:
    """(N, C, ...) seen as (N, groups, C / groups, ...), whatever the strides."""
    batch, channels, *pixels = x.shape
    return x.view(batch, groups, channels // groups, *pixels)


def _make(
    reduce: tuple[int, ...],
    affine: tuple[int, ...],
    split: int,
    eps: float,
    rms: bool,
    dense: bool,
    activation: int,
) -> tuple[Call, Call]:
    """What norm_forward is called with, to save for a derivative and without."""
    options = call.pack_options(rms=rms, dense=dense, activation=activation)
    saving = Call(call.pack_axes(reduce, affine), options, split, eps)
    return saving, saving._replace(options=saving.options & ~call.SAVE)


_made = functools.lru_cache(maxsize=1024)(_make)


def _run(
    way: Way, x: Tensor, weight: Tensor | None, bias: Tensor | None, calls: tuple[Call, Call]
) -> Tensor:
    """By way of eager autograd, or of what traces."""
    none, (saving, alone) = None, calls
    y: Tensor
    if way is Way.OPERATOR:
        return ops.FORWARD(  # type: ignore[no-any-return]
            x, none, none, none, none, weight, bias, none, none, none, *saving
        )[0]
    if needs_graph(x, weight, bias):
        if x.is_inference():
            x = x.clone()  # autograd saves no tensor that was made in inference mode
        y, _ = ops.record_forward(
            none, x, none, none, none, none, weight, bias, none, none, none, *saving
        )
        return y
    with below_autograd():
        y, _, _, _ = _forward_op(x, none, none, none, none, weight, bias, none, none, none, *alone)
        return y


def norm(
    way: Way,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    keep: bool = False,
    activation: str | None = None,
) -> Tensor:
    """The general operator, by this way; axes are sorted and not negative. ``keep``: the result is
    laid out as torch.empty_like(x), else dense."""
    if way is Way.TORCH:
        y = composite.norm(x, weight, bias, reduce, affine, eps, rms)
        return composite.activate(y, activation)
    code = call.ACTIVATIONS[activation]
    make = _made if way is Way.PLAIN else _make  # what is traced looks into no cache
    calls = make(tuple(reduce), tuple(affine), 0, eps, rms, not keep, code)
    return _run(way, x, weight, bias, calls)


def group_norm(
    way: Way,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
) -> Tensor:
    """Group norm of (N, C, ...), laid out as x; weight and bias have C elements."""
    if way is Way.TORCH:
        return composite.activate(composite.group_norm(x, groups, weight, bias, eps), activation)
    code = call.ACTIVATIONS[activation]
    reduce = tuple(range(2, x.dim() + 1))
    if way is Way.OPERATOR and is_distributed(x):  # groups are an axis that may be sharded
        w, b = (None if t is None else t.view(groups, -1) for t in (weight, bias))
        calls = _make(reduce, (1, 2), 0, eps, False, False, code)
        return _run(way, split_channels(x, groups), w, b, calls).flatten(1, 2)
    make = _made if way is Way.PLAIN else _make
    calls = make(reduce, (1, 2), groups, eps, False, False, code)
    return _run(way, x, weight, bias, calls)


def statistics(x: Tensor, reduce: list[int]) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squares of what is left beside it, over these axes, kept with size 1."""
    if way_of(x) is Way.TORCH:
        return composite.statistics(x, reduce)
    mean, m2 = ops.STATISTICS(x, call.pack_axes(reduce))
    return mean, m2
