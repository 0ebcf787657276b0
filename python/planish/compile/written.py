"""Norms as a model's code writes them, found in the graph before it is differentiated: torch's RMS
norm, norms by their formula, and torch's norms with a modulation or an activation behind them.
They become planish::norm_forward, so that the backward is a norm's, too, and each of both is chosen
later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from planish.compile import behind, by_formula, choice, nodes, table
from planish.compile.behind import Found
from planish.operators import call
from planish.operators.arguments import DTYPES, rms_eps
from planish.operators.call import Tensors
from planish.operators.ways import lacks_rules
from torch import Tensor, fx

__all__ = ["Left", "rewrite"]

#: torch's norms that are whole also where the graph is differentiated.
_WHOLE = ("layer_norm", "group_norm")


class Left(NamedTuple):
    """A norm that stays as it is written, what it is of, and why for each pass."""

    name: str
    x: Tensor
    why: dict[str, str]


class _Taken(NamedTuple):
    """A norm that planish.norm_forward is put in the place of, and the nodes that are it now."""

    found: Found
    inside: set[fx.Node]


# ---- torch's functions ---------------------------------------------------------------------------


def _torchs_rms(node: fx.Node) -> Found | None:
    x, shape = nodes.argument_at(node, 0, "input"), nodes.argument_at(node, 1, "normalized_shape")
    weight, eps = nodes.argument_at(node, 2, "weight"), nodes.argument_at(node, 3, "eps")
    value = nodes.value(x)
    if not isinstance(value, Tensor) or not isinstance(shape, list | tuple | torch.Size):
        return None
    count, given = len(shape), nodes.value(weight)
    fits = 0 < count <= value.dim() and (
        weight is None or list(given.shape) == nodes.sizes_of(shape)
    )
    if not fits or nodes.value(node).dtype != value.dtype or isinstance(eps, fx.Node):
        return None
    axes = list(range(value.dim() - count, value.dim()))
    made = call.make_call(axes, axes, eps=rms_eps(eps, value), rms=True)
    return Found(node, Tensors(x, weight=weight), made)


def _torchs(node: fx.Node, groups: bool) -> Found | None:
    """A layer norm over the last axis, or a group norm."""
    x = nodes.argument_at(node, 0, "input")
    sizes = nodes.argument_at(node, 1, "num_groups" if groups else "normalized_shape")
    weight, bias = nodes.argument_at(node, 2, "weight"), nodes.argument_at(node, 3, "bias")
    eps, value = nodes.argument_at(node, 4, "eps", 1e-5), nodes.value(x)
    if not isinstance(value, Tensor) or not isinstance(eps, float):
        return None
    if groups and not (isinstance(sizes, int) and value.dim() >= 3):
        return None
    if not groups and not (isinstance(sizes, list | tuple | torch.Size) and len(sizes) == 1):
        return None
    given = [nodes.value(parameter) for parameter in (weight, bias) if parameter is not None]
    if any(tensor.dtype != value.dtype for tensor in given):
        return None
    last, result = value.dim() - 1, nodes.value(node)
    made = call.make_call(
        range(2, value.dim() + 1) if groups else [last],
        (1, 2) if groups else [last],
        split=sizes if groups else 0,
        eps=eps,
        rms=False,
        dense=result.is_contiguous(),
        dtype=None if result.dtype == value.dtype else result.dtype,  # a GPU's autocast has f32
    )
    return Found(node, Tensors(x, weight=weight, bias=bias), made)


#: torch's norms that planish.replace() has modules for and this pass nothing, however a graph has
#: them.
_OTHERS = {"batch_norm", "native_batch_norm", "cudnn_batch_norm", "instance_norm"}
_OTHERS |= {f"_native_batch_norm_legit{kind}" for kind in ("", "_no_training", "_functional")}


def _others(graph: fx.Graph) -> Iterator[Left]:
    why = (
        "left: batch and instance norms of torch's; planish.replace() puts planish's in their place"
    )
    for node in graph.nodes:
        if nodes.name(node) not in _OTHERS or getattr(node.target, "namespace", "") == "planish":
            continue
        x, made = nodes.value(nodes.argument_at(node, 0, "input")), nodes.value(node)
        made = made[0] if isinstance(made, list | tuple) else made
        if isinstance(x, Tensor) and isinstance(made, Tensor):
            passes = ("forward", "backward") if made.requires_grad else ("forward",)
            yield Left(node.name, x, dict.fromkeys(passes, why))


# ---- The graph -----------------------------------------------------------------------------------


def _norms(graph: fx.Graph) -> Iterator[Found]:
    """Without what stands behind them."""
    for node in graph.nodes:
        name, found = nodes.name(node), None
        if name in by_formula.ROOTS:
            found = by_formula.found_at(node)
        elif name == "rms_norm":
            found = _torchs_rms(node)
        elif name in _WHOLE:
            found = _torchs(node, name == "group_norm")
        if found is not None and _runs(found):
            yield found


def _runs(found: Found) -> bool:
    if not isinstance(nodes.value(found.node), Tensor) or not math.isfinite(found.call.eps):
        return False
    tensors = [nodes.value(tensor) for tensor in found.tensors if tensor is not None]
    if not all(isinstance(t, Tensor) and t.dtype in DTYPES for t in tensors):
        return False
    if lacks_rules(*tensors):  # else DTensor has them from here on, before the graph is traced
        return False
    device = tensors[0].device
    return device.type in ("cpu", "cuda") and all(t.device == device for t in tensors)


def _choices(found: Found) -> dict[str, choice.Choice]:
    """By the table alone, for each pass that there is."""
    passes = ["forward"]
    if nodes.value(found.node).requires_grad:
        passes.append("backward")
    x = nodes.value(found.tensors.x)
    return {
        name: choice.by_table(table.site(x, found.call, found.staged, name == "backward"))
        for name in passes
    }


def _is_worth(found: Found) -> bool:
    """Whether one of the passes may become planish's: else the graph stays as it is."""
    return any(chosen.planish for chosen in _choices(found).values())


def _is_last(found: Found) -> bool:
    """Whether the norm is taken apart before planish sees it again."""
    return nodes.name(found.node) not in _WHOLE


def _whole(found: Found) -> Found:
    """The norm with what stands behind it, and without casts around it."""
    staged = behind.with_stages(found)
    bare = behind.without_casts(staged)
    return behind.with_stages(bare) if staged is found is not bare else bare


def _within(found: Found) -> set[fx.Node]:
    """The nodes that a norm takes the place of."""
    ends = {tensor for tensor in found.tensors if tensor is not None}
    inside: set[fx.Node] = set()
    ahead = [found.node]
    while ahead:
        node = ahead.pop()
        if node in inside or node in ends or not isinstance(nodes.value(node), Tensor | tuple):
            continue
        inside.add(node)
        ahead += node.all_input_nodes
    return inside


def _is_learned(node: fx.Node) -> bool:
    value = nodes.value(node)
    values = value if isinstance(value, tuple) else (value,)
    return any(isinstance(one, Tensor) and one.requires_grad for one in values)


def _why_not(found: Found, inside: set[fx.Node], order: dict[fx.Node, int]) -> str | None:
    """Why what is written is no norm, though it computes one; ``inside``: its nodes."""
    if nodes.is_written_between(min(inside, key=order.__getitem__), found.node):
        return "something is written in place between its parts"
    if _is_learned(found.node) and not all(
        _is_learned(node) == any(map(_is_learned, node.all_input_nodes)) for node in inside
    ):
        return "a part of it is not differentiated"
    return None


def _taken(
    found: Found, inside: set[fx.Node], mode: str, order: dict[fx.Node, int]
) -> _Taken | None:
    """The norm, with what stands behind it where that is faster, if it is to be planish's."""
    own = _Taken(found, inside) if _is_last(found) else None
    if mode == choice.ALWAYS:
        return own
    staged = _whole(found)
    if staged is not found:
        whole = _Taken(staged, _within(staged))
        if _why_not(*whole, order) is None and _is_worth(staged):
            return whole
    return own if own is not None and _is_worth(found) else None


def _left(found: Found, why: str | None) -> Left:
    chosen = _choices(found)
    whys = {name: why or one.why for name, one in chosen.items()}
    return Left(found.node.name, nodes.value(found.tensors.x), whys)


def rewrite(module: fx.GraphModule, mode: str) -> list[Left]:
    """Puts norm_forward in the place of the norms of a graph that is not differentiated yet. What
    is left, of those that are taken apart before planish sees them again."""
    graph, why = module.graph, choice.UNASKED if mode == choice.NEVER else None
    left = list(_others(graph))
    taken: list[_Taken] = []
    order = {node: place for place, node in enumerate(graph.nodes)}
    for one in list(_norms(graph)):
        inside = _within(one)
        reason = why or one.why or _why_not(one, inside, order)
        found = None if reason else _taken(one, inside, mode, order)
        if found is not None:
            taken.append(found)
        elif _is_last(one):
            left.append(_left(one, reason))
    if taken:
        _put(taken)
        module.recompile()
    return left


def _put(taken: list[_Taken]) -> None:
    """Norms in their places. Of the nodes that nobody reads then only their own parts go: others
    may be there for what they write."""
    parts = set().union(*(inside for _, inside in taken))
    replaced: dict[fx.Node, fx.Node] = {}
    for found, _ in taken:
        tensors = Tensors(*(replaced.get(t, t) for t in found.tensors))
        replaced[found.node] = behind.put(found._replace(tensors=tensors))
    graph = taken[0].found.node.graph
    for node in reversed(list(graph.nodes)):
        is_called = node.op in ("call_function", "call_method")
        if node in parts and is_called and not node.users and not nodes.writes(node):
            graph.erase_node(node)
