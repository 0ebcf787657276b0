"""A gradient that is a sum of matrix products, as that of the input of queries, keys and values.
planish's backward of a norm reads one tensor, so that the sum is a pass of its own. Here each
product is added to what there is by the call that makes it, in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from planish.compile.joins import is_sum_of_alike
from planish.compile.nodes import argument
from planish.compile.putting import Writer
from planish.compile.reading import Norm, value
from torch import Tensor, fx

__all__ = ["Sum", "add_in_place", "of"]

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
#: A longer product is slower where it is added to something: on an H200 by 20% (5632 terms), where
#: up to 4096 it was by 2%.
_LONGEST = 4096


@dataclass(frozen=True)
class Sum:
    """The gradient, the products that are added to each other, and the other terms."""

    node: fx.Node
    products: tuple[fx.Node, ...]
    others: tuple[fx.Node, ...]

    @property
    def start(self) -> bool:
        """Whether the products are added to the other terms, and not these to the products."""
        others = self.others
        return len(others) > 1 or any(_is_overwritable(one, self.node) for one in others)

    @property
    def is_whole(self) -> bool:
        """Whether no pass over memory is left of the sum."""
        return not self.others or (len(self.others) == 1 and self.start)


def _terms(node: fx.Node, top: fx.Node) -> list[fx.Node]:
    if is_sum_of_alike(node) and (node is top or len(node.users) == 1):
        return [term for one in node.all_input_nodes for term in _terms(one, top)]
    return [node]


def _product(term: fx.Node) -> fx.Node | None:
    """That of two matrices of which a term is a view, and which nothing else reads."""
    node = term
    while node.target in _VIEWS and len(node.users) == 1:
        node = cast(fx.Node, node.args[0])
    if node.target is not aten.mm.default or len(node.users) != 1:
        return None
    sizes = [size for one in (term, *node.all_input_nodes) for size in value(one).shape]
    return node if all(type(size) is int for size in sizes) else None


def _length(product: fx.Node) -> int:
    return int(value(argument(product, "self")).shape[1])


def _is_overwritable(node: fx.Node, before: fx.Node) -> bool:
    """Whether nothing reads a tensor of this graph any more where its sum is made."""
    made = node
    while made.target in _VIEWS:
        made = cast(fx.Node, made.args[0])
    if made.op != "call_function" or not value(node).is_contiguous():
        return False
    readers = [user for one in {made, node} for user in one.users if user is not before]
    return all(reader < before or reader is node for reader in readers)


def _pays(x: Tensor) -> bool:
    return x.is_cuda  # on a CPU it was not measured


def _compiler_writes_in_place() -> bool:
    from torch._inductor import config

    try:
        from planish.compile import in_place
    except (ImportError, AttributeError):  # of a torch whose inductor is another one
        return False
    own = config.cpp_wrapper or config.max_autotune or config.max_autotune_gemm
    return not own and in_place.is_there()


def of(norm: Norm) -> Sum | None:
    """None where the gradient of a norm's result is no sum that can be made in place."""
    node = norm.tensors.dy if norm.is_backward else None
    if node is None or not _pays(norm.x) or not is_sum_of_alike(node):
        return None
    if list(node.users) != [norm.node]:
        return None
    products: list[fx.Node] = []
    others: list[fx.Node] = []
    for term in _terms(node, node):
        product = _product(term)
        (others if product is None else products).append(product or term)
    products.sort(key=_length, reverse=True)
    found = Sum(node, tuple(products), tuple(others))
    added = products if found.start else products[1:]
    if not added or _length(added[0]) > _LONGEST or not _compiler_writes_in_place():
        return None
    return found


def add_in_place(found: Sum) -> None:
    """Puts the products in the place of the sum. As in eager mode each of them rounds it."""
    from planish.compile.in_place import MARK

    node, writer, others = found.node, Writer(found.node), list(found.others)
    total, *products = found.products
    if found.start:
        first, *rest = others
        for other in rest:
            first = writer.add(aten.add.Tensor, first, other)
        shape, products, others = value(total).shape, list(found.products), []
        total = writer.add(aten.view.default, first, list(shape))
    for product in products:
        total = writer.add(aten.addmm.default, total, *product.args)
        total.meta[MARK] = True
    whole = writer.add(aten.view.default, total, list(value(node).shape))
    for other in others:
        whole = writer.add(aten.add.Tensor, whole, other)
    node.replace_all_uses_with(whole)
    node.graph.erase_node(node)
