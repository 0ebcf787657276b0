"""What is asked of a node of a graph, most of all of one that is not differentiated yet: what it
does however it is written, what goes in, and who reads it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from planish.operators.arguments import DTYPES
from torch import Tensor, fx

__all__ = [
    "argument",
    "argument_at",
    "arguments",
    "is_cast",
    "is_written_between",
    "name",
    "only_user",
    "other",
    "sizes_of",
    "source",
    "value",
    "writes",
]

#: Methods that are a cast by their name.
_CASTS = ("float", "half", "bfloat16", "double")
#: Operators of Python that write, beside names that end in an underscore.
_IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"}
_IN_PLACE |= {"ilshift", "irshift", "imatmul", "setitem", "delitem"}
#: Functions with an argument of their own for that.
_MAY_BE_IN_PLACE = {"relu", "relu6", "silu", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu"}
_MAY_BE_IN_PLACE |= {"elu", "selu", "celu", "rrelu", "mish", "threshold", "dropout"}


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


def argument_at(node: fx.Node, place: int, key: str, default: Any = None) -> Any:
    """An argument of one of Python's functions or methods, which have no schema, by its place or
    its name."""
    if key in node.kwargs:
        return node.kwargs[key]
    return node.args[place] if len(node.args) > place else default


@functools.cache
def _schema(target: Any) -> dict[str, tuple[int, Any]]:
    """Where an operator has each of its arguments, and the default."""
    named = enumerate(target._schema.arguments)
    return {one.name: (place, one.default_value) for place, one in named}


def argument(node: fx.Node, name: str) -> Any:
    """An argument of an operator, aten's or planish's, by the name that its schema has for it; the
    default where it is not given. Arguments that differ in kind are read so. By place are read the
    one tensor of a view, a copy or a cast, the two operands of a sum, a product or a quotient, and
    what getitem has."""
    place, default = _schema(node.target)[name]
    return argument_at(node, place, name, default)


def arguments(node: fx.Node, *names: str) -> tuple[Any, ...]:
    """Several of them."""
    return tuple(argument(node, name) for name in names)


def only_user(node: fx.Node) -> fx.Node | None:
    """Who reads a node, where there is one who does."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def sizes_of(shape: Any) -> list[Any]:
    """Sizes, those among them that are nodes of symbols as what stands for these."""
    return [value(size) if isinstance(size, fx.Node) else size for size in shape]


def is_cast(node: Any) -> bool:
    """Whether it is a node's other dtype and nothing else."""
    if name(node) not in ("to", "_to_copy", "type_as", *_CASTS) or not node.args:
        return False
    before, made = value(node.args[0]), value(node)
    if not isinstance(before, Tensor) or not isinstance(made, Tensor):
        return False
    return before.device == made.device and before.shape == made.shape


def source(node: Any) -> Any:
    """What casts are of, to dtypes that have all its numbers; the node itself if it is none."""
    while is_cast(node):
        before, made = value(node.args[0]).dtype, value(node).dtype
        known = before in DTYPES and made in DTYPES
        if not known or torch.promote_types(before, made) != made:
            break
        node = node.args[0]
    return node


def writes(node: fx.Node) -> bool:
    """Whether a node may write to one of its arguments."""
    target, called = node.target, name(node)
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if isinstance(target, torch._ops.OpOverloadPacket):
        named: list[str] = target.overloads()  # type: ignore[no-untyped-call]
        overloads = (getattr(target, overload) for overload in named)
        return any(one._schema.is_mutable for one in overloads)
    if called.endswith("_") and not called.endswith("__"):
        return True
    return called in _IN_PLACE or (called in _MAY_BE_IN_PLACE and True in node.args[1:])


def is_written_between(first: fx.Node, last: fx.Node) -> bool:
    """Whether one of the nodes from the one to the other, both included, may write."""
    node = first
    while node is not last:
        if writes(node):
            return True
        node = node.next
        if node.op == "root":
            return True  # the last one is not behind the first
    return writes(last)


def other(node: fx.Node, one: fx.Node) -> Any:
    """The other of two operands; None where there are not two."""
    if len(node.args) != 2 or node.kwargs or one not in node.args:
        return None
    return node.args[1] if node.args[0] is one else node.args[0]
