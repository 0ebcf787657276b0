"""The norms that planish's functions and modules are made of, each by the way that its tensors ask
for (ways.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

from planish.library import torch_calls
from planish.library.seen import is_hooked, needs_graph
from planish.operators import call, composite, kept, ops, placed, short, stage_calls
from planish.operators.arguments import rms_eps as rms_eps
from planish.operators.call import Norm, Tensors
from planish.operators.stage_calls import is_distributed
from planish.operators.ways import Way, way_of
from torch import Tensor

__all__ = ["ByTorch", "group_norm", "known", "norm", "rms_eps", "split_channels", "statistics"]


def split_channels(x: Tensor, groups: int) -> Tensor:
    """(N, C, ...) seen as (N, groups, C / groups, ...), whatever the strides."""
    batch, channels, *pixels = x.shape
    return x.view(batch, groups, channels // groups, *pixels)


class ByTorch(NamedTuple):
    """A norm that is a call of torch's operator, which planish is under."""

    kind: str
    size: Any  # normalized_shape, or num_groups
    eps: float

    def run(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y = torch_calls.short(torch_calls.NUMBERS[self.kind], x, self.size, weight, bias, self.eps)
        if y is not None:
            return y
        if self.kind == "layer_norm":
            return torch_calls.layer_norm(x, self.size, weight, bias, self.eps)
        if self.kind == "rms_norm":
            return torch_calls.rms_norm(x, self.size, weight, self.eps)
        return torch_calls.group_norm(x, self.size, weight, bias, self.eps)


def known(
    options: tuple[Any, ...], x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Any]:
    """y of a call that is known (kept.py), or None, and what it is kept under."""
    results, key, prepared = kept.run(options, (x, weight, bias))
    return (_known(prepared, x, weight, bias) if results is None else results[0]), key


def _known(prepared: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if prepared is None:
        return None
    if type(prepared) is ByTorch:  # as ways.may_be_torchs has it of plain tensors
        if needs_graph(x, weight, bias) and (x.is_inference() or is_hooked()):
            return None
        if not torch_calls.is_possible(prepared.kind, x):
            return None
        return prepared.run(x, weight, bias)
    tensors = Tensors(x, None, None, None, None, weight, bias)
    both = stage_calls.run_plain(tensors, prepared)
    return None if both is None else both[0]


def _run(
    way: Way,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    problem: Norm,
    key: Any = None,
) -> Tensor:
    """By way of eager autograd, or of what traces."""
    y: Tensor
    tensors = Tensors(x, weight=weight, bias=bias)
    if way is Way.OPERATOR:
        y, _, _, _ = ops.FORWARD(*tensors, *problem.call())
        return y
    own = kept.key_of((problem,), (x, weight, bias))
    prepared = kept.find(own)
    if prepared is None:
        prepared = stage_calls.prepare(problem.call(), tensors)
        kept.keep(own, prepared)
    kept.keep(key, prepared)
    if not needs_graph(x, weight, bias):
        y, _, _, _ = short.FORWARD(*tensors, *prepared.alone)
        return y
    if x.is_inference():
        x = x.clone()  # autograd saves no tensor that was made in inference mode
    y = ops.record_forward(prepared.record, *[t for t in (x, weight, bias) if t is not None])
    return y


def norm(
    way: Way,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    problem: Norm,
    *,
    key: Any = None,
) -> Tensor:
    """The general operator, by this way. ``key``: what the call is kept under."""
    if way is Way.TORCH:
        return composite.activate(composite.norm(x, weight, bias, problem), problem.activation)
    if way is Way.OPERATOR and is_distributed(x):
        split = placed.norm(x, weight, bias, problem)
        if split is not None:
            return composite.activate(split, problem.activation)
    return _run(way, x, weight, bias, problem, key)


def group_norm(
    way: Way,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
    *,
    key: Any = None,
) -> Tensor:
    """Group norm of (N, C, ...), laid out as x; weight and bias have C elements. ``key``: what the
    call is kept under."""
    if way is Way.TORCH:
        return composite.activate(composite.group_norm(x, groups, weight, bias, eps), activation)
    axes = tuple(range(2, x.dim() + 1))
    problem = Norm(axes, (1, 2), eps, False, True, activation, groups)
    if way is Way.OPERATOR and is_distributed(x):  # groups are an axis that may be sharded
        shared = placed.group_norm(x, groups, weight, bias, eps)
        if shared is not None:
            return composite.activate(shared, activation)
        w, b = (None if t is None else t.view(groups, -1) for t in (weight, bias))
        seen, problem = split_channels(x, groups), problem._replace(split=0)
        split = placed.norm(seen, w, b, problem)
        if split is not None:
            return composite.activate(split.flatten(1, 2), activation)
        return _run(way, seen, w, b, problem).flatten(1, 2)
    return _run(way, x, weight, bias, problem, key)


def statistics(x: Tensor, reduce: list[int], way: Way | None = None) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squares of what is left beside it, over these axes, kept with size 1."""
    way = way or way_of(x)
    if way is Way.TORCH:
        return composite.statistics(x, reduce)
    axes = call.pack_axes(reduce)
    if way is not Way.PLAIN:
        mean, m2 = ops.STATISTICS(x, axes)
    elif needs_graph(x):
        mean, m2 = ops.record_statistics((None, axes), x)
    else:
        mean, m2 = short.STATISTICS(x, axes)
    return mean, m2
