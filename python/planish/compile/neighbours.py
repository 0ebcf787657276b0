"""What stands beside a norm in a graph: a sum in front of it, or behind its gradient, becomes part
of planish's call; for what else inductor would have fused with the norm, it is said what a call of
its own costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from torch.utils.checkpoint import CheckpointPolicy

import torch
from planish.compile.reading import Norm, value
from planish.operators import call
from torch import fx

__all__ = ["extra_passes", "make_views_again", "with_sum", "without_copy"]

aten, prims = torch.ops.aten, torch.ops.prims

_SUM, _DX = 1, 0
_DSUM_AT = 4

_VIEWS = (
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.permute.default),
    *(aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.expand.default, aten.alias.default, aten.slice.Tensor),
)
_POINTWISE = (prims.convert_element_type.default, aten.clone.default, aten._to_copy.default)


# ---- Sums that become part of the call ----------------------------------------------------------


def _is_sum_of_alike(node: Any) -> bool:
    """Of two tensors that differ in nothing but their numbers."""
    if not isinstance(node, fx.Node) or node.target is not aten.add.Tensor or node.kwargs:
        return False
    one, other = node.args
    if not (isinstance(one, fx.Node) and isinstance(other, fx.Node)):
        return False
    a, b, made = value(one), value(other), value(node)
    return all(
        t.shape == made.shape and t.dtype == made.dtype and t.stride() == made.stride()
        for t in (a, b)
    )


def _is_bare(norm: Norm) -> bool:
    """Whether it is a norm of rows with weight and bias, and nothing else yet."""
    values = norm.values()
    stages = [values[4], *values[11:]] if norm.is_backward else [*values[1:5], *values[7:]]
    x, reduce = norm.x, call.axes_of(norm.call.axes, 0)
    last = list(range(x.dim() - len(reduce), x.dim()))
    plain = not (norm.call.split or call.activation_in(norm.call.options))
    return plain and reduce == last and all(stage is None for stage in stages)


def with_sum(norm: Norm) -> tuple[Norm, fx.Node] | None:
    """The norm with the sum beside it as one call, and the node of that sum, which the call's
    result replaces; None where there is no such sum. Of a forward x is a sum, of a backward dx is
    added to one other gradient."""
    if not _is_bare(norm):
        return None
    return _behind_gradient(norm) if norm.is_backward else _in_front(norm)


def _in_front(norm: Norm) -> tuple[Norm, fx.Node] | None:
    total = norm.tensors[0]
    inputs = [t for t in norm.tensors[1:] if t is not None]
    if not _is_sum_of_alike(total) or any(t.op != "placeholder" for t in inputs):
        return None
    assert total is not None
    one, other = cast("tuple[fx.Node, fx.Node]", total.args)
    tensors = (one, other, *norm.tensors[2:])
    options = norm.call.options | call.sum_bits(value(total).dtype)
    return replace(norm, tensors=tensors, call=norm.call._replace(options=options)), total


def _behind_gradient(norm: Norm) -> tuple[Norm, fx.Node] | None:
    picked = [user for at, place in norm.results.items() if place == _DX for user in norm.users[at]]
    if len(picked) != 1 or len(picked[0].users) != 1:
        return None
    (total,) = picked[0].users
    if not _is_sum_of_alike(total) or value(total).dtype != norm.x.dtype:
        return None
    others = [node for node in total.all_input_nodes if node is not picked[0]]
    if len(others) != 1 or _is_of(others[0], norm):
        return None
    tensors = list(norm.tensors)
    tensors[_DSUM_AT] = others[0]
    return replace(norm, tensors=tuple(tensors)), total


def _is_of(node: Any, norm: Norm) -> bool:
    """Whether it is one of the norm's other results."""
    return isinstance(node, fx.Node) and norm.node in node.all_input_nodes


def without_copy(norm: Norm) -> Norm:
    """A group norm of images as they lie: on a GPU torch's copies images that are stored by pixel
    first, and planish's operator writes what it reads."""
    if not norm.call.split:
        return norm
    at = 1 if norm.is_backward else 0
    x, options = norm.tensors[at], norm.call.options & ~call.DENSE
    if x is not None and x.target is aten.clone.default and value(x).is_contiguous():
        source = cast(fx.Node, x.args[0])
        tensors = tuple(source if t is x else t for t in norm.tensors)
        norm = replace(norm, tensors=tensors)
    return replace(norm, call=norm.call._replace(options=options))


# ---- What a call of its own costs ---------------------------------------------------------------


def _is_pointwise(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if node.target in _POINTWISE or torch.Tag.pointwise in tags:
        return True
    # On a GPU inductor adds a convolution's bias itself.
    has_bias = node.target is aten.convolution.default and node.args[2] is not None
    return has_bias and value(node).is_cuda


def _is_nothing(node: fx.Node) -> bool:
    """What costs no pass: a view, or a copy that inductor takes out (a dropout of 0 leaves one)."""
    if node.target is aten.clone.default:
        of = node.args[0]
        return isinstance(of, fx.Node) and value(of).stride() == value(node).stride()
    return node.target in _VIEWS


def _producer(node: fx.Node | None) -> fx.Node | None:
    while node is not None and _is_nothing(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def make_views_again(norm: Norm) -> None:
    """Has the backward make the permuted views of images that it reads out of the images: what a
    graph saves is laid out anew, as inductor wishes images to be, and of a view with the channels
    last that is a copy into an order that is nobody's."""
    for tensor in norm.tensors:
        node = tensor
        while node is not None and node.target in _VIEWS:
            if value(node).dim() >= 4:
                node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
            node = node.args[0]  # type: ignore[assignment]


def _consumers(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    for user in node.users:
        found += _consumers(user) if _is_nothing(user) else [user]
    return found


def _passes_before(norm: Norm, node: fx.Node | None) -> int:
    """Over a tensor that is made for the norm: one to read it, and one to write it unless something
    else reads it, too."""
    made = _producer(node)
    if made is None or made.op != "call_function" or not _is_pointwise(made):
        return 0
    return 2 if all(user is norm.node for user in _consumers(made)) else 1


def _passes_behind(norm: Norm, joined: fx.Node | None) -> int:
    """Likewise of y or dx; ``joined``: the sum that the call returns in the place of dx."""
    picked = [user for at, place in norm.results.items() if not place for user in norm.users[at]]
    if joined is not None and norm.is_backward:
        picked = [joined]
    users = [user for node in picked for user in _consumers(node)]
    fused = [user for user in users if _is_pointwise(user)]
    if not fused:
        return 0
    return 2 if len(fused) == len(users) else 1


def extra_passes(norm: Norm, joined: fx.Node | None = None) -> float:
    """Passes over memory that inductor would have saved by fusing its own norm with what stands
    around it, as a share of the norm's. ``joined``: the sum that is part of the call."""
    own = 3 if norm.is_backward else 2
    if joined is not None:
        own += 1 if norm.is_backward else 2
    return (_passes_before(norm, norm.tensors[0]) + _passes_behind(norm, joined)) / own
