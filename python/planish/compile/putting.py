"""Puts norms of a graph in place: as planish's operators for graphs (forms.py), or in the operators
of torch that a compiler fuses."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import torch
from planish.compile import forms, formulas, nodes
from planish.compile.channels import Own
from planish.compile.joins import Join
from planish.compile.reading import NOTHING, TORCHS, Norm, users_of_results, value
from planish.operators import call, fakes
from torch import Tensor, fx

__all__ = [
    "Formulas",
    "Writer",
    "as_formula",
    "as_planish",
    "as_torchs",
    "fake_mode",
    "result_of",
]

aten = torch.ops.aten

#: What a node's successors do not inherit: what its own result is.
_OWN_META = ("val", "tensor_meta", "eager_input_vals", "example_value", "unbacked_bindings")


def _meta_of(node: fx.Node) -> dict[str, Any]:
    """What is known of a node beside its result: where it comes from, whether a checkpoint computes
    it again, and the pass that it is of."""
    return {key: known for key, known in node.meta.items() if key not in _OWN_META}


def fake_mode(node: fx.Node) -> Any:
    return detect_fake_mode([value(one) for one in node.all_input_nodes])


def result_of(target: Any, arguments: Sequence[Any], mode: Any, **named: Any) -> Any:
    """What an operator returns of fake tensors, where the nodes of these are its arguments."""
    values = fx.map_arg(tuple(arguments), value)
    with mode, enable_python_dispatcher():
        return target(*values, **named)


def _more_ones(longer: Sequence[Any], shorter: Sequence[Any]) -> list[int]:
    """The axes of size 1 without which a shape is another."""

    def is_one(sizes: Sequence[Any], at: int) -> bool:
        return at < len(sizes) and isinstance(sizes[at], int) and sizes[at] == 1

    more, at = len(longer) - len(shorter), 0
    found: list[int] = []
    for axis in range(len(longer)):
        if len(found) < more and is_one(longer, axis) and not is_one(shorter, at):
            found.append(axis)
        else:
            at += 1
    return found


class Writer:
    """Adds nodes to a graph in front of a node, each with what it returns."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.meta, self.mode = node, _meta_of(node), fake_mode(node)

    def add(self, target: Any, *arguments: Any, result: Any = None, **named: Any) -> fx.Node:
        graph = self.node.graph
        if result is None:
            result = result_of(target, arguments, self.mode, **named)
        with graph.inserting_before(self.node):
            made = graph.call_function(target, arguments, named)
        made.meta.update(self.meta)
        made.meta["val"] = result
        return made

    def pick(self, whole: fx.Node, place: int) -> fx.Node:
        return self.add(operator.getitem, whole, place, result=value(whole)[place])

    def several(
        self, target: Any, arguments: Sequence[Any], results: list[Tensor]
    ) -> list[fx.Node]:
        """A node of each result of an operator that has these."""
        if len(results) == 1:
            return [self.add(target, *arguments, result=results[0])]
        whole = self.add(target, *arguments, result=tuple(results))
        return [self.pick(whole, place) for place in range(len(results))]

    def like(self, made: fx.Node, wanted: Tensor) -> fx.Node:
        """With the shape and the dtype of this tensor."""
        if value(made).dtype != wanted.dtype:
            made = self.add(torch.ops.prims.convert_element_type.default, made, wanted.dtype)
        return self.ranked(made, wanted.shape)

    def ranked(self, made: fx.Node, shape: Sequence[Any]) -> fx.Node:
        """With this shape, which has more or fewer axes of size 1: no size is named, as a number
        that is not known is none that a node's arguments may have."""
        have = list(value(made).shape)
        if len(have) > len(shape):
            axes = _more_ones(have, shape)
            return self.add(aten.squeeze.dims, made, axes)
        for axis in _more_ones(shape, have):
            made = self.add(aten.unsqueeze.default, made, axis)
        return made


def _hand_over(norm: Norm, made: dict[int, fx.Node], writer: Writer) -> None:
    """Gives the users of the node's results what was made, by its place in the operator's."""
    for at, users in norm.users.items():
        for user in users:
            place = norm.results.get(at)
            if place is not None:
                user.replace_all_uses_with(writer.like(made[place], value(user)))
            if not user.users:
                norm.node.graph.erase_node(user)
    if not norm.node.users:
        norm.node.graph.erase_node(norm.node)


# ---- As planish's operators ---------------------------------------------------------------------


def _statistic(norm: Norm, writer: Writer, node: fx.Node | None) -> fx.Node | None:
    """A statistic with x's rank, as planish has it: torch's group norm has other ones."""
    if node is None:
        return None
    shape = call.seen_shape(norm.x.shape, norm.call.split)
    if value(node).dim() == len(shape):
        return node
    made = node.args[0] if node.target is aten.squeeze.dims else None
    if isinstance(made, fx.Node) and value(made).dim() == len(shape):
        return made
    reduce = call.axes_of(norm.call.axes, 0)
    return writer.ranked(node, [1 if axis in reduce else n for axis, n in enumerate(shape)])


def as_planish(norm: Norm, join: Join | None = None) -> None:
    """One of planish's operators for graphs takes the place of the node, and of what stands beside
    it that is part of the call."""
    writer = Writer(norm.node)
    tensors = norm.tensors
    if norm.is_backward:
        rstd, mean = (_statistic(norm, writer, node) for node in (tensors.rstd, tensors.mean))
        tensors = tensors._replace(rstd=rstd, mean=mean)
    there = [tensor for tensor in tensors if tensor is not None]
    arguments = *there, forms.given_bits(tensors), *norm.numbers()
    values = [None if tensor is None else value(tensor) for tensor in tensors]
    whole: Any = fakes.backward if norm.is_backward else fakes.forward
    with writer.mode, enable_python_dispatcher():
        results = whole(*values, *norm.numbers())
    places = [place for place, result in enumerate(results) if result is not None]
    found = [result for result in results if result is not None]
    name = forms.BACKWARD if norm.is_backward else forms.FORWARD
    target = forms.form(name, len(there), len(found))
    made = dict(zip(places, writer.several(target, arguments, found), strict=True))
    if join is None:
        _hand_over(norm, made, writer)
        return
    for place, node in join.places.items():
        node.replace_all_uses_with(writer.like(made[place], value(node)))
    _hand_over(norm, made, writer)
    for node in join.gone:
        if not node.users:
            node.graph.erase_node(node)


# ---- As torch's operators -----------------------------------------------------------------------

Table = dict[Any, Callable[..., Any]]


def _anew(values: Any) -> Any:
    """Fake tensors like these. Tracing knows tensors by the object: no two nodes may share it."""
    return pytree.tree_map_only(Tensor, Tensor.detach, values)


def _own_of(node: fx.Node) -> dict[str, Any]:
    return {key: _anew(node.meta[key]) for key in _OWN_META if key in node.meta}


def _sized(argument: Any) -> Any:
    """With sizes that are not known as such, in place of their nodes."""
    if not isinstance(argument, list | tuple):
        return argument
    return nodes.sizes_of(argument)


def _flat(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The function of the tensors among these arguments, with the others as they are."""

    def flat(*tensors: Tensor) -> Any:
        given = iter(tensors)
        made = function(*(next(given) if isinstance(a, fx.Node) else _sized(a) for a in arguments))
        return tuple(made) if isinstance(made, tuple | list) else (made,)

    return flat


def _described(tensors: Sequence[Tensor]) -> Any:
    """What a traced formula depends on; None where a size is symbolic."""
    parts = []
    for tensor in tensors:
        sizes = *tensor.shape, *tensor.stride()
        if not all(type(size) is int for size in sizes):
            return None
        parts.append((sizes, tensor.dtype, tensor.device))
    return tuple(parts)


class Formulas:
    """Traces formulas by a table of decompositions, each once for tensors that are alike."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: dict[Any, fx.GraphModule] = {}

    def of(
        self, node: fx.Node, function: Callable[..., Any], arguments: Sequence[Any]
    ) -> tuple[fx.GraphModule, list[fx.Node]]:
        """The formula, and the nodes of its tensors."""
        given = [a for a in arguments if isinstance(a, fx.Node)]
        values = [value(a) for a in given]
        described = _described(values)
        rest = ["tensor" if isinstance(a, fx.Node) else a for a in arguments]
        key = None if described is None else (function, str(rest), described)
        traced = self._known.get(key) if key is not None else None
        if traced is None:
            with fake_mode(node), enable_python_dispatcher():
                flat = _flat(function, arguments)
                traced = make_fx(flat, self._table, tracing_mode="real")(*_anew(values))
            if key is not None:
                self._known[key] = traced
        return traced, given

    def torchs(self, norm: Norm) -> Callable[..., Any] | None:
        """What one of torch's norms is; None where there is nothing."""
        return self._table.get(norm.node.target)


def _copied(
    node: fx.Node, known: Formulas, function: Callable[..., Any], arguments: Sequence[Any]
) -> Any:
    """The results of a formula that is written in front of the node; None where it cannot be."""
    traced, given = known.of(node, function, arguments)
    graph, meta = node.graph, _meta_of(node)
    placeholders, mode = iter(given), fake_mode(node)
    copies: dict[fx.Node, Any] = {}
    results: Any = None
    with graph.inserting_before(node):
        for one in traced.graph.nodes:
            if one.op == "placeholder":
                copies[one] = next(placeholders)
            elif one.op == "output":
                results = fx.map_arg(one.args[0], copies.__getitem__)
            elif one.op == "get_attr":
                return None  # a constant: none of these formulas has one
            else:
                copies[one] = made = graph.node_copy(one, copies.__getitem__)
                with mode:
                    made.meta = {**meta, **_own_of(one)}
    return results


def as_torchs(norm: Norm, known: Formulas) -> bool:
    """What the node's formula is takes the place of the node; false where there is none."""
    own, function = norm.node.target not in TORCHS, known.torchs(norm)
    arguments: Sequence[Any] = norm.node.args
    if own:
        function = formulas.backward if norm.is_backward else formulas.forward
        arguments = *norm.tensors, *norm.numbers()
    results = None if function is None else _copied(norm.node, known, function, arguments)
    if results is None:
        return False
    by_place = {place: results[place if own else at] for at, place in norm.results.items()}
    _hand_over(norm, by_place, Writer(norm.node))
    return True


def as_formula(own: Own, known: Formulas) -> bool:
    """The same of an operator over channels."""
    node, users = own.node, users_of_results(own.node)
    if own.formula is None or (own.results is not None and users is None):
        return False
    results = _copied(node, known, own.formula, own.arguments)
    if results is None:
        return False
    if own.results is None or users is None:
        node.replace_all_uses_with(Writer(node).like(results[0], value(node)))
        node.graph.erase_node(node)
        return True
    whole = Norm(node, own.is_backward, (), NOTHING, own.results, users)
    made = {place: results[place] for place in own.results.values()}
    _hand_over(whole, made, Writer(node))
    return True
