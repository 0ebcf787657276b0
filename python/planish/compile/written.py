"""Norms as a model's code writes them, found in the graph before it is differentiated: torch's RMS
norm, RMS norms by their formula, and group norms with an activation behind them. They become
planish::norm_forward, so that the backward is a norm's, too, and each of both is chosen later.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from planish.compile import choice, table
from planish.operators import call
from planish.operators.arguments import DTYPES, rms_eps
from planish.operators.call import Call
from torch import Tensor, fx

__all__ = ["rewrite"]

_HALVES = (torch.float16, torch.bfloat16)
_CASTS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
_ACTIVATIONS = ("silu", "relu", "gelu")


class _Found(NamedTuple):
    """A norm: its tensors, what norm_forward takes behind them, and the node that it replaces."""

    node: fx.Node
    x: fx.Node
    weight: Any
    bias: Any
    call: Call


# ---- Nodes ---------------------------------------------------------------------------------------


def _value(node: Any) -> Any:
    if not isinstance(node, fx.Node):
        return None
    return node.meta.get("example_value", node.meta.get("val"))


def _name(node: Any) -> str:
    """What a node does, however it is written: by a method, a function or an operator."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", ""))


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[place] if len(node.args) > place else default


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_cast(node: Any) -> bool:
    """Whether it is a node's other dtype and nothing else."""
    name = _name(node)
    if name not in ("to", "_to_copy", "type_as", *_CASTS):
        return False
    source, made = _value(node.args[0]), _value(node)
    if not isinstance(source, Tensor) or not isinstance(made, Tensor):
        return False
    return source.device == made.device and source.shape == made.shape


def _source(node: Any) -> Any:
    """What a cast is of; the node itself if it is none."""
    while _is_cast(node):
        node = node.args[0]
    return node


def _other(node: fx.Node, one: fx.Node) -> Any:
    """The other of two operands; None where there are not two."""
    if len(node.args) != 2 or node.kwargs or one not in node.args:
        return None
    return node.args[1] if node.args[0] is one else node.args[0]


# ---- RMS norms by their formula ------------------------------------------------------------------


def _squared(node: Any) -> Any:
    """x of x ** 2, in each way to write it."""
    name = _name(node)
    if name in ("pow", "pow_") and len(node.args) == 2 and node.args[1] in (2, 2.0):
        return node.args[0]
    if name == "square":
        return node.args[0]
    if name == "mul" and len(node.args) == 2 and node.args[0] is node.args[1]:
        return node.args[0]
    return None


def _mean_square(node: Any) -> Any:
    """x of the mean of x ** 2 over the last axis, which stays."""
    if _name(node) != "mean" or "dtype" in node.kwargs:
        return None
    axis, kept = _argument(node, 1, "dim"), _argument(node, 2, "keepdim", False)
    axis = axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis
    x = _squared(node.args[0])
    if x is None or kept is not True or not isinstance(axis, int):
        return None
    return x if axis in (-1, _value(x).dim() - 1) else None


def _weighed(product: fx.Node, x: Tensor) -> tuple[fx.Node, Any, int, bool] | None:
    """What follows x / rms(x): the node of the result, weight, its offset, and whether xhat is
    rounded before it."""
    at, rounded = product, False
    cast = _only_user(at)
    if cast is not None and _is_cast(cast) and _value(cast).dtype == x.dtype:
        at, rounded = cast, True
    times = _only_user(at)
    if times is None or _name(times) != "mul":
        return (at, None, 0, False) if at is not product or x.dtype == _value(at).dtype else None
    weight, offset = _other(times, at), 0
    inner = _source(weight)
    if _name(inner) == "add" and len(inner.args) == 2 and 1 in inner.args[:2]:
        weight = inner.args[1] if inner.args[0] == 1 else inner.args[0]
        offset = 1
    weight = _source(weight)
    if not isinstance(_value(weight), Tensor) or list(_value(weight).shape) != [x.shape[-1]]:
        return None
    behind = _only_user(times)
    if not rounded and behind is not None and _is_cast(behind) and _value(behind).dtype == x.dtype:
        times = behind
    return times, weight, offset, rounded and x.dtype in _HALVES


def _by_formula(node: fx.Node) -> _Found | None:
    """Of the node of a reciprocal square root."""
    inside = node.args[0]
    if _name(inside) != "add" or len(inside.args) != 2:  # type: ignore[union-attr]
        return None
    variance, eps = inside.args  # type: ignore[union-attr]
    if isinstance(variance, float):
        variance, eps = eps, variance
    wide, product = _mean_square(variance), _only_user(node)
    if wide is None or not isinstance(eps, float) or product is None or _name(product) != "mul":
        return None
    x = _source(wide)
    if _other(product, node) not in (wide, x) or not isinstance(_value(x), Tensor):
        return None
    value = _value(x)
    if value.dtype in _HALVES and _value(wide).dtype != torch.float32:
        return None  # its squares are rounded
    found = _weighed(product, value)
    if found is None:
        return None
    result, weight, offset, rounds = found
    if rounds and (weight is None or _value(weight).dtype != value.dtype or offset):
        return None
    made = call.make_call(
        *([value.dim() - 1],) * 2,
        eps=eps,
        rms=True,
        weight_offset=offset,
        round_xhat=rounds,
        dtype=_value(result).dtype,
    )
    return _Found(result, x, weight, None, made)


# ---- torch's functions ---------------------------------------------------------------------------


def _torchs_rms(node: fx.Node) -> _Found | None:
    x, shape = node.args[0], _argument(node, 1, "normalized_shape")
    weight, eps = _argument(node, 2, "weight"), _argument(node, 3, "eps")
    value = _value(x)
    if not isinstance(value, Tensor) or not isinstance(shape, list | tuple | torch.Size):
        return None
    count, given = len(shape), _value(weight)
    fits = 0 < count <= value.dim() and (weight is None or list(given.shape) == list(shape))
    if not fits or _value(node).dtype != value.dtype or isinstance(eps, fx.Node):
        return None
    axes = list(range(value.dim() - count, value.dim()))
    made = call.make_call(axes, axes, eps=rms_eps(eps, value), rms=True)
    return _Found(node, x, weight, None, made)  # type: ignore[arg-type]


def _activated_group(node: fx.Node) -> _Found | None:
    behind = _only_user(node)
    name = _name(behind)
    x, groups = node.args[0], _argument(node, 1, "num_groups")
    weight, bias = _argument(node, 2, "weight"), _argument(node, 3, "bias")
    eps = _argument(node, 4, "eps", 1e-5)
    value = _value(x)
    if behind is None or name not in _ACTIVATIONS or not isinstance(value, Tensor):
        return None
    if not (isinstance(groups, int) and isinstance(eps, float)) or value.dim() < 3:
        return None
    if name == "gelu" and behind.kwargs.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    if any(_value(p) is not None and _value(p).dtype != value.dtype for p in (weight, bias)):
        return None
    made = call.make_call(
        range(2, value.dim() + 1),
        (1, 2),
        split=groups,
        eps=eps,
        rms=False,
        activation=call.ACTIVATIONS[name],
        dense=_value(node).is_contiguous(),
    )
    return _Found(behind, x, weight, bias, made)  # type: ignore[arg-type]


# ---- The graph -----------------------------------------------------------------------------------


def _norms(graph: fx.Graph, mode: str) -> Iterator[_Found]:
    for node in graph.nodes:
        name, found = _name(node), None
        if name == "rsqrt":
            found = _by_formula(node)
        elif name == "rms_norm":
            found = _torchs_rms(node)
        elif name == "group_norm" and mode == choice.FASTER:
            found = _activated_group(node)
        if found is not None and _runs(found):
            yield found


def _runs(found: _Found) -> bool:
    tensors = [_value(t) for t in (found.x, found.weight, found.bias) if t is not None]
    if not all(isinstance(t, Tensor) and t.dtype in DTYPES for t in tensors):
        return False
    device = tensors[0].device
    return device.type in ("cpu", "cuda") and all(t.device == device for t in tensors)


def _is_worth(found: _Found, mode: str) -> bool:
    """Whether one of the passes may become planish's: else the graph stays as it is."""
    if mode == choice.ALWAYS:
        return True
    sites = [table.site(_value(found.x), found.call, False, backward) for backward in (False, True)]
    rows = [None if site is None else table.look_up(site) for site in sites]
    return any(row is not None and row.speedup >= table.MARGIN for row in rows)


def _is_autocast(graph: fx.Graph) -> bool:
    """Whether dtypes are not what the nodes say."""
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return True
    return any("autocast" in _name(node) for node in graph.nodes)


def rewrite(module: fx.GraphModule, mode: str) -> None:
    """Puts norm_forward in the place of the norms of a graph that is not differentiated yet."""
    graph = module.graph
    if mode == choice.NEVER or _is_autocast(graph):
        return
    found = [one for one in _norms(graph, mode) if _is_worth(one, mode)]
    for one in found:
        none = None
        with graph.inserting_before(one.node):
            whole = graph.call_function(
                torch.ops.planish.norm_forward.default,
                (one.x, none, none, none, none, one.weight, one.bias, none, none, none, *one.call),
            )
            y = graph.call_function(operator.getitem, (whole, 0))
        for made in (whole, y):
            made.meta = {
                k: v for k, v in one.node.meta.items() if k not in ("example_value", "val")
            }
        if _value(one.node) is not None:
            y.meta["example_value"] = _value(one.node)
        one.node.replace_all_uses_with(y)
    if found:
        graph.eliminate_dead_code()
        module.recompile()
