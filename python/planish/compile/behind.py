"""What a model writes behind a norm, found in the graph before it is differentiated: a modulation,
as diffusion transformers have it, an activation, and a SiLU gate. They become stages of the norm's
call."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from planish.compile import nodes
from planish.library.seen import is_same_size
from planish.operators import call
from planish.operators.arguments import DTYPES, HALF
from planish.operators.call import Call
from torch import Tensor, fx

__all__ = ["Found", "cast_back", "is_view", "put", "with_stages", "without_casts"]

_ACTIVATIONS = ("silu", "relu", "gelu")
#: What gives a modulation its rank, beside indexing with None.
_VIEWS = ("unsqueeze", "view", "reshape")


class Found(NamedTuple):
    """A norm: what norm_forward takes of it, and the node whose place that takes."""

    node: fx.Node
    #: A node in the place of each of planish.operators.call.Tensors.
    tensors: Any
    call: Call
    #: What scale is seen through, the innermost view first.
    views: tuple[fx.Node, ...] = ()
    #: Why it stays as it is written, whatever was asked for.
    why: str | None = None

    @property
    def staged(self) -> bool:
        """Whether there are other tensors than weight and bias."""
        given = self.tensors._replace(x=None, weight=None, bias=None)
        return any(tensor is not None for tensor in given)


def with_stages(found: Found) -> Found:
    """The norm with what stands behind it and nothing else reads; the same where nothing does."""
    staged = found
    if not found.call.options & call.ROUND_XHAT:
        staged = _activated(_modulated(found))
    return _gated(found) if staged is found else staged


def _returning(made: Call, node: fx.Node) -> Call:
    """With the dtype of a node as the result's."""
    options = made.options & ~call.DTYPE | call.dtype_bits(nodes.value(node).dtype)
    return made._replace(options=options)


# ---- Modulation ----------------------------------------------------------------------------------


def _is_like(node: Any, x: Tensor) -> bool:
    value = nodes.value(node)
    if not isinstance(value, Tensor) or value.dim() != x.dim():
        return False
    return all(map(is_same_size, value.shape, x.shape))


def _axes(tensor: Any, x: Tensor) -> list[int] | None:
    """The axes of x along which a modulation varies; None for what is none. With it the result has
    x's shape, so that its other sizes are 1."""
    value, ndim = nodes.value(tensor), x.dim()
    if not isinstance(value, Tensor) or value.dtype not in DTYPES or value.device != x.device:
        return None
    if value.dim() not in (1, ndim) or not is_same_size(value.shape[-1], x.shape[-1]):
        return None
    sizes = [1] * (ndim - value.dim()) + list(value.shape)
    last = ndim - 1
    return [axis for axis, size in enumerate(sizes) if axis == last or not is_same_size(size, 1)]


def is_view(node: Any) -> bool:
    """Of what is at the node's first place, in its dtype."""
    if nodes.name(node) in _VIEWS:
        before, made = (nodes.value(one) for one in (node.args[0] if node.args else None, node))
        return (
            isinstance(before, Tensor) and isinstance(made, Tensor) and before.dtype == made.dtype
        )
    if nodes.name(node) != "getitem" or not isinstance(node.args[1], tuple):
        return False
    return all(one is None or one == slice(None) for one in node.args[1])


def _less_one(factor: Any) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """scale of 1 + scale, and the views of that; None where this is no such sum."""
    views: list[fx.Node] = []
    while is_view(factor):
        views.insert(0, factor)
        factor = factor.args[0]
    if nodes.name(factor) != "add" or len(factor.args) != 2 or factor.kwargs:
        return None
    one, scale = factor.args
    if isinstance(one, fx.Node):
        one, scale = scale, one
    if isinstance(one, fx.Node) or one != 1 or not isinstance(scale, fx.Node):
        return None
    return scale, tuple(views)


def _modulated(found: Found) -> Found:
    """Of a norm over the last axis."""
    x = nodes.value(found.tensors.x)
    if not found.call.is_over_last(x.dim()):
        return found
    times = nodes.only_user(found.node)
    if times is None or nodes.name(times) != "mul" or not _is_like(times, x):
        return found
    factor = nodes.other(times, found.node)
    axes = _axes(factor, x)
    scale = None if axes is None else _less_one(factor)
    if axes is None or scale is None:
        return found
    at, shift = times, None
    plus = nodes.only_user(times)
    if plus is not None and nodes.name(plus) == "add":
        addend = nodes.other(plus, times)
        if _axes(addend, x) == axes and _is_like(plus, x):
            at, shift = plus, addend
    made = _returning(found.call.with_axes(modulation=axes), at)
    return Found(at, found.tensors._replace(scale=scale[0], shift=shift), made, scale[1])


# ---- Activations ---------------------------------------------------------------------------------


def _activated(found: Found) -> Found:
    behind = nodes.only_user(found.node)
    name = nodes.name(behind)
    if behind is None or name not in _ACTIVATIONS:
        return found
    made = nodes.value(behind)
    if not isinstance(made, Tensor) or made.dtype != nodes.value(found.node).dtype:
        return found
    if name == "gelu" and nodes.argument_at(behind, 1, "approximate", "none") == "tanh":
        name = "gelu_tanh"
    options = found.call.options | call.activation_bits(call.ACTIVATIONS[name])
    return found._replace(node=behind, call=found.call._replace(options=options))


# ---- Gates ---------------------------------------------------------------------------------------


def _gate_of(node: Any, x: Tensor) -> fx.Node | None:
    """gate of silu(gate), which has x's shape, however it is cast."""
    silu = nodes.source(node)
    if nodes.name(silu) != "silu" or nodes.argument_at(silu, 1, "inplace", False):
        return None
    gate = nodes.source(nodes.argument_at(silu, 0, "input"))
    given = nodes.value(gate)
    fits = _is_like(gate, x) and given.dtype in DTYPES and given.device == x.device
    return gate if fits and given.dtype != torch.float64 else None


def _gated(found: Found) -> Found:
    """Of a norm over the last axis; the product may be wider than the result."""
    x, behind = nodes.value(found.tensors.x), found.node
    if not found.call.is_over_last(x.dim()):
        return found
    cast = nodes.only_user(behind)
    if cast is not None and nodes.is_cast(cast):
        behind = cast
    times = nodes.only_user(behind)
    if times is None or nodes.name(times) != "mul" or not _is_like(times, x):
        return found
    gate = _gate_of(nodes.other(times, behind), x)
    if gate is None:
        return found
    at = cast_back(times, x) or times
    made = _returning(found.call, at)
    return found._replace(node=at, tensors=found.tensors._replace(gate=gate), call=made)


# ---- Casts ---------------------------------------------------------------------------------------


def cast_back(node: fx.Node, x: Tensor) -> fx.Node | None:
    """Who alone reads a node, if it casts it to x's dtype."""
    cast = nodes.only_user(node)
    fits = cast is not None and nodes.is_cast(cast) and nodes.value(cast).dtype == x.dtype
    return cast if fits else None


def _narrow(node: Any) -> Any:
    """What was cast from 16 bits to f32; the node itself if it is no such cast."""
    if not nodes.is_cast(node) or nodes.value(node).dtype != torch.float32:
        return node
    return node.args[0] if nodes.value(node.args[0]).dtype in HALF else node


def without_casts(found: Found) -> Found:
    """The norm of f32 of what is cast to that, and whose result is cast back, as the norm of what
    was cast: planish computes in f32. The same where it is no such norm."""
    x = _narrow(found.tensors.x)
    if x is found.tensors.x:
        return found
    result = cast_back(found.node, nodes.value(x))
    if result is None:
        return found
    tensors = found.tensors._replace(
        x=x, weight=_narrow(found.tensors.weight), bias=_narrow(found.tensors.bias)
    )
    return found._replace(node=result, tensors=tensors, call=_returning(found.call, result))


# ---- The graph -----------------------------------------------------------------------------------


def put(found: Found) -> fx.Node:
    """norm_forward in the place of the node: what is now its result."""
    node, scale = found.node, found.tensors.scale
    graph = node.graph
    with graph.inserting_before(node):
        for view in found.views:
            scale = graph.create_node(view.op, view.target, (scale, *view.args[1:]), view.kwargs)
            scale.meta = dict(view.meta)
        tensors = found.tensors._replace(scale=scale)
        whole = graph.call_function(torch.ops.planish.norm_forward.default, (*tensors, *found.call))
        y = graph.call_function(operator.getitem, (whole, 0))
    own = ("example_value", "val")
    for made in (whole, y):
        made.meta = {key: known for key, known in node.meta.items() if key not in own}
    if nodes.value(node) is not None:
        y.meta["example_value"] = nodes.value(node)
    node.replace_all_uses_with(y)
    return y
