"""planish::norm_pair and its backward in a graph, as the two norms that they are: the bits are the
same, and each can then be planish's or inductor's."""

from __future__ import annotations

from typing import Any

import torch
from planish.compile.putting import Writer
from planish.compile.reading import users_of_results, value
from planish.operators import call
from torch import fx

__all__ = ["take_apart"]


def _axes(x: Any, weight: Any) -> int:
    ndim = value(x).dim()
    count = 1 if weight is None else value(weight).dim()
    return call.pack_axes([ndim - 1], range(ndim - count, ndim))


def _replace(node: fx.Node, made: list[tuple[Any, list[Any], dict[int, int]]]) -> None:
    """``made``: an operator, its arguments, and which of its results are which of the node's."""
    users = users_of_results(node)
    if users is None:
        return
    writer = Writer(node)
    for target, arguments, places in made:
        if not any(at in users for at in places.values()):
            continue
        whole = writer.add(target, *arguments)
        for place, at in places.items():
            for user in users.get(at, []):
                picked = writer.pick(whole, place)
                user.replace_all_uses_with(picked)
                node.graph.erase_node(user)
    if not node.users:
        node.graph.erase_node(node)


def take_apart(graph: fx.Graph) -> None:
    ops = torch.ops.planish
    none = None
    for node in list(graph.nodes):
        if node.target is ops.norm_pair.default:
            first, second, *weights, options, eps = node.args
            made = [
                (
                    ops.norm_forward.default,
                    [
                        *(x, none, none, none, none, weight, none, none, none, none),
                        *(_axes(x, weight), options, 0, eps, 0.0),
                    ],
                    {0: 3 * k, 2: 3 * k + 1, 3: 3 * k + 2},
                )
                for k, (x, weight) in enumerate(zip((first, second), weights, strict=True))
            ]
            _replace(node, made)
        elif node.target is ops.norm_pair_backward.default:
            *tensors, options = node.args
            made = []
            for k in range(2):
                dy, x, mean, rstd, weight = tensors[k::2]
                wanted = options >> (call.WANTED_AT + 2 * k) & 3
                dtype = value(x).dtype
                both = (wanted & 1) | (wanted >> 1 & 1) << 2
                own = call.backward_options(options, both, dtype, dtype)
                made.append(
                    (
                        ops.norm_backward.default,
                        [
                            *(dy, x, rstd, mean, none, none, none, none, none, weight),
                            *(none, none, none, none, _axes(x, weight), own, 0, 0.0),
                        ],
                        {0: 2 * k, 2: 2 * k + 1},
                    )
                )
            _replace(node, made)
