"""planish::norm_pair and its backward in a graph, as the two norms that they are: the bits are the
same, and each can then be planish's or inductor's."""

from __future__ import annotations

from typing import Any

import torch
from planish.compile.nodes import argument, arguments
from planish.compile.putting import Writer
from planish.compile.reading import users_of_results, value
from planish.operators import call
from planish.operators.call import Call, Tensors
from planish.operators.formulas import Given
from torch import fx

__all__ = ["take_apart"]

#: What the arguments of both norms are called by.
_PAIR = "first", "second"

#: An operator, its arguments, and which of its results are which of a node's.
_Made = tuple[Any, tuple[Any, ...], dict[int, int]]


def _axes(x: Any, weight: Any) -> int:
    ndim = value(x).dim()
    count = 1 if weight is None else value(weight).dim()
    return call.pack_axes([ndim - 1], range(ndim - count, ndim))


def _replace(node: fx.Node, made: list[_Made]) -> None:
    users = users_of_results(node)
    if users is None:
        return
    writer = Writer(node)
    for target, taken, places in made:
        if not any(at in users for at in places.values()):
            continue
        whole = writer.add(target, *taken)
        for place, at in places.items():
            for user in users.get(at, []):
                picked = writer.pick(whole, place)
                user.replace_all_uses_with(picked)
                node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)


def take_apart(graph: fx.Graph) -> None:
    ops = torch.ops.planish
    for node in list(graph.nodes):
        made: list[_Made] = []
        if node.target is ops.norm_pair.default:
            options, eps = argument(node, "options"), argument(node, "eps")
            for k, which in enumerate(_PAIR):
                x, weight = arguments(node, which, f"{which}_weight")
                numbers = Call(_axes(x, weight), options, eps=eps)
                forward = *Tensors(x, weight=weight), *numbers
                places = {0: 3 * k, 2: 3 * k + 1, 3: 3 * k + 2}
                made.append((ops.norm_forward.default, forward, places))
            _replace(node, made)
        elif node.target is ops.norm_pair_backward.default:
            options = argument(node, "options")
            for k, which in enumerate(_PAIR):
                dy, x = arguments(node, f"{which}_dy", which)
                rstd, mean = arguments(node, f"{which}_rstd", f"{which}_mean")
                weight = argument(node, f"{which}_weight")
                wanted = options >> (call.WANTED_AT + 2 * k) & 3
                dtype = value(x).dtype
                both = (wanted & 1) | (wanted >> 1 & 1) << 2
                own = call.backward_options(options, both, dtype, dtype)
                backward = *Given(dy, x, rstd, mean, weight=weight), _axes(x, weight), own, 0, 0.0
                made.append((ops.norm_backward.default, backward, {0: 2 * k, 2: 2 * k + 1}))
            _replace(node, made)
