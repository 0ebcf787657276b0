"""What stands beside a norm in a graph of forward and backward, and becomes part of planish's call:
a sum in front of it with the scale of a branch, and the same behind its gradient. Each is for norms
over the last axes, and is used only where nothing else reads what the call does not return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from planish.compile import nodes
from planish.compile.reading import (
    DCOLUMN,
    DRESIDUAL,
    DX,
    IN_FRONT,
    SUM,
    Norm,
    is_by_channel,
    value,
)
from planish.operators import call
from torch import Tensor, fx

__all__ = ["Join", "Quantised", "depends", "is_sum_of_alike", "of"]

aten = torch.ops.aten


@dataclass(frozen=True)
class Quantised:
    """What a call returns in place of y, and the scale: a tensor's that is given, or for each row
    one that is found and at least ``least`` (quantising.py)."""

    q: fx.Node
    scales: fx.Node | None
    given: fx.Node | None
    least: float


@dataclass(frozen=True)
class Join:
    """A norm with what became part of its call."""

    norm: Norm
    #: The nodes whose place a result of the call takes, by the place of that result.
    places: dict[int, fx.Node]
    #: The nodes that the call does the work of, each behind those that read it.
    gone: tuple[fx.Node, ...] = ()
    quantised: Quantised | None = None


def of(norm: Norm) -> Join | None:
    """None where there is nothing beside the norm that planish has a stage for. Of a forward x is a
    sum; of a backward dx is added to one other gradient, or scaled for a branch."""
    if not _is_plain(norm):
        return None
    return _behind_gradient(norm) if norm.is_backward else _in_front(norm)


def _is_plain(norm: Norm) -> bool:
    """Whether it is a norm of rows with nothing in front of it yet, and no gate."""
    x, reduce = norm.x, call.axes_of(norm.call.axes, 0)
    last = list(range(x.dim() - len(reduce), x.dim()))
    own = {DRESIDUAL, DCOLUMN} & set(norm.results.values()) if norm.is_backward else set()
    if norm.call.split or reduce != last or own or is_by_channel(x):
        return False  # a gradient of another layout would be a pass of its own
    if x.is_cuda and call.axes_of(norm.call.axes, 3):
        return False  # a GPU's fast kernels have a modulation alone
    return not norm.values(*IN_FRONT, "gate")


def is_sum_of_alike(node: Any) -> bool:
    """Of two tensors that differ in nothing but their numbers."""
    if not isinstance(node, fx.Node) or node.target is not aten.add.Tensor or node.kwargs:
        return False
    return all(isinstance(one, fx.Node) and _are_alike(one, node) for one in node.args)


def _are_alike(node: fx.Node, other: fx.Node) -> bool:
    a, b = value(node), value(other)
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride())


def depends(
    node: fx.Node, on: fx.Node, through: Callable[[fx.Node], bool] = lambda _: True
) -> bool:
    """Whether a node is another one, or made of it by operators of this kind alone."""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        if node is on:
            return True
        for source in node.all_input_nodes if through(node) else ():
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return False


# ---- A scale of a branch -------------------------------------------------------------------------


def _column_axes(scale: Any, x: Tensor) -> list[int] | None:
    """The axes of x along which a scale varies that is smaller than x; None for what is none."""
    if not isinstance(scale, fx.Node) or not isinstance(value(scale), Tensor):
        return None
    given, ndim = value(scale), x.dim()
    if given.dtype != x.dtype or given.dim() not in (1, ndim) or given.shape[-1] != x.shape[-1]:
        return None
    sizes = [1] * (ndim - given.dim()) + list(given.shape)
    axes = [axis for axis, size in enumerate(sizes) if axis == ndim - 1 or size != 1]
    if len(axes) == ndim or any(sizes[axis] != x.shape[axis] for axis in axes):
        return None
    if x.is_cuda and axes != [ndim - 1]:
        return None  # a GPU's fast kernels have one scale of columns for all rows
    return axes


def _factors(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The two operands of a product, in both orders."""
    if node.target is aten.mul.Tensor and not node.kwargs:
        one, other = node.args
        yield one, other
        yield other, one


def _scaled(node: fx.Node, total: fx.Node) -> tuple[fx.Node, fx.Node, list[int]] | None:
    """(branch, scale, its axes) of a branch that goes into a sum and nowhere else."""
    if len(node.users) != 1:
        return None
    for branch, scale in _factors(node):
        axes = _column_axes(scale, value(total))
        if axes is not None and isinstance(branch, fx.Node) and _are_alike(branch, total):
            return branch, scale, axes
    return None


# ---- Forward -------------------------------------------------------------------------------------


def _in_front(norm: Norm) -> Join | None:
    total = norm.input
    if not is_sum_of_alike(total):
        return None
    others = [tensor for tensor in norm.tensors._replace(x=None) if tensor is not None]
    if any(depends(tensor, total) for tensor in others):
        return None  # the call returns the sum: it cannot be given what is made of it
    one, other = cast("tuple[fx.Node, fx.Node]", total.args)
    options = norm.call.options | call.sum_bits(value(total).dtype)
    made = norm.call._replace(options=options)
    gone: tuple[fx.Node, ...] = (total,)
    tensors = norm.tensors._replace(x=one, residual=other)
    for branch, residual in ((one, other), (other, one)):
        scaled = _scaled(branch, total)
        if scaled is not None:
            x, scale, axes = scaled
            tensors = norm.tensors._replace(x=x, residual=residual, column_scale=scale)
            made, gone = made.with_axes(column=axes), (total, branch)
            break
    return Join(replace(norm, tensors=tensors, call=made), {SUM: total}, gone)


# ---- Backward ------------------------------------------------------------------------------------


def _behind_gradient(norm: Norm) -> Join | None:
    picked = norm.picked(DX)
    if len(picked) != 1:
        return None
    (dx,) = picked
    total = _sum_with(dx, norm)
    joined, gradient = norm, dx
    gone: tuple[fx.Node, ...] = ()
    if total is not None:
        (dsum,) = (node for node in total.all_input_nodes if node is not dx)
        joined = replace(norm, tensors=norm.tensors._replace(dsum=dsum))
        gone, gradient = (total,), total
    scaled = _with_branch(joined, gradient, gone)
    if scaled is not None or total is None:
        return scaled
    return Join(joined, {DX: total}, gone)


def _sum_with(dx: fx.Node, norm: Norm) -> fx.Node | None:
    """The sum of dx and another gradient, where nothing else reads dx."""
    if len(dx.users) != 1:
        return None
    (total,) = dx.users
    if not is_sum_of_alike(total) or value(total).dtype != norm.x.dtype:
        return None
    others = [node for node in total.all_input_nodes if node is not dx]
    if len(others) != 1 or depends(others[0], norm.node):
        return None
    return total


def _with_branch(norm: Norm, gradient: fx.Node, gone: tuple[fx.Node, ...]) -> Join | None:
    """The gradient of s, scaled for a branch, and the sums of its product with that branch."""
    for scaled in gradient.users:
        for source, scale in _factors(scaled):
            axes = _column_axes(scale, norm.x) if source is gradient else None
            if axes is not None and _are_alike(scaled, gradient):
                break
        else:
            continue
        break
    else:
        return None
    if not _are_alike(gradient, norm.input) or depends(scale, norm.node):
        return None
    tensors, places = norm.tensors._replace(column_scale=scale), {DX: scaled}
    found = _sums_with_branch(norm, gradient, scale, axes)
    ours = {scaled}
    if found is not None:
        branch, product, places[DCOLUMN] = found
        tensors = tensors._replace(branch=branch)
        ours.add(product)
        gone = (places[DCOLUMN], product, scaled, *gone)
    else:
        gone = (scaled, *gone)
    if any(user not in ours for user in gradient.users):
        places[DRESIDUAL] = gradient
    wanted = {place for place in norm.results.values() if place != DX} | set(places)
    options = norm.call.options & ~call.WANTED
    options |= sum(1 << place for place in wanted) << call.WANTED_AT
    made = norm.call._replace(options=options).with_axes(column=axes)
    return Join(replace(norm, tensors=tensors, call=made), places, gone)


def _sums_with_branch(
    norm: Norm, gradient: fx.Node, scale: fx.Node, axes: list[int]
) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(branch, the product with it, the sum of that) for the gradient of a scale."""
    x = norm.x
    summed = {axis for axis, size in enumerate(x.shape) if axis not in axes and size != 1}
    for product in gradient.users:
        for source, branch in _factors(product):
            if source is not gradient or not isinstance(branch, fx.Node) or branch is gradient:
                continue
            if not _are_alike(branch, gradient) or len(product.users) != 1:
                continue
            (total,) = product.users
            if total.target is not aten.sum.dim_IntList or total.kwargs:
                continue
            dims = {axis % x.dim() for axis in nodes.argument(total, "dim")}
            over = {axis for axis in dims if x.shape[axis] != 1}
            if over == summed and not depends(branch, norm.node):
                return branch, product, total
    return None
