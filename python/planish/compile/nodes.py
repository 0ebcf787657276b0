"""What is asked of a node of a graph, most of all of one that is not differentiated yet: what it
does however it is written, what goes in, and who reads it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

__all__ = ["argument", "is_cast", "name", "only_user", "other", "sizes_of", "source", "value"]

#: Methods that are a cast by their name.
_CASTS = ("float", "half", "bfloat16", "double")


def value(node: Any) -> Any:
    """The fake tensor, or the number, that stands for a node's result; None where it is not known
    or this is no node."""
    if not isinstance(node, fx.Node):
        return None
    return node.meta.get("example_value", node.meta.get("val"))


def name(node: Any) -> str:
    """What a node does, however it is written: by a method, a function or an operator."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", ""))


def argument(node: fx.Node, place: int, key: str, default: Any = None) -> Any:
    """An argument by its place or its name."""
    if key in node.kwargs:
        return node.kwargs[key]
    return node.args[place] if len(node.args) > place else default


def only_user(node: fx.Node) -> fx.Node | None:
    """Who reads a node, where there is one who does."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def sizes_of(shape: Any) -> list[Any]:
    """Sizes, those among them that are nodes of symbols as what stands for these."""
    return [value(size) if isinstance(size, fx.Node) else size for size in shape]


def is_cast(node: Any) -> bool:
    """Whether it is a node's other dtype and nothing else."""
    if name(node) not in ("to", "_to_copy", "type_as", *_CASTS):
        return False
    before, made = value(node.args[0]), value(node)
    if not isinstance(before, Tensor) or not isinstance(made, Tensor):
        return False
    return before.device == made.device and before.shape == made.shape


def source(node: Any) -> Any:
    """What a cast is of; the node itself if it is none."""
    while is_cast(node):
        node = node.args[0]
    return node


def other(node: fx.Node, one: fx.Node) -> Any:
    """The other of two operands; None where there are not two."""
    if len(node.args) != 2 or node.kwargs or one not in node.args:
        return None
    return node.args[1] if node.args[0] is one else node.args[0]
