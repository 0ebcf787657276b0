"""What stands beside a norm in a graph and is no part of planish's call (joins.py has what is): the
copies and views of images, and what it costs that inductor would have fused its neighbours."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from torch.utils.checkpoint import CheckpointPolicy

import torch
from planish.compile import nodes, reading, sums
from planish.compile.joins import Join, depends, is_sum_of_alike
from planish.compile.putting import Writer, fake_mode, result_of
from planish.compile.reading import DRESIDUAL, DX, SUM, Norm, Y, hint, is_by_channel, value
from planish.operators import call
from torch import Tensor, fx

__all__ = [
    "drop_ones",
    "extra_passes",
    "lay_gradient",
    "make_views_again",
    "of_one_input",
    "spare_copies",
    "without_copy",
]

aten, prims = torch.ops.aten, torch.ops.prims

_VIEWS = (
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.permute.default),
    *(aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.expand.default, aten.alias.default, aten.slice.Tensor),
)
#: What has an image as its ``input``.
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_POINTWISE = (prims.convert_element_type.default, aten.clone.default, aten._to_copy.default)


# ---- Copies and views ----------------------------------------------------------------------------


def drop_ones(graph: fx.Graph) -> None:
    """Takes out products with the number one and quotients by it, as diffusers' blocks have them
    around their norms: inductor makes a pass of each that it does not fuse."""
    for target in (aten.div.Tensor, aten.mul.Tensor):
        for node in graph.find_nodes(op="call_function", target=target):
            of, one = node.args
            if isinstance(of, fx.Node) and not isinstance(one, fx.Node) and one == 1:
                made, given = value(node), value(of)
                if (made.dtype, made.stride()) == (given.dtype, given.stride()):
                    node.replace_all_uses_with(of)
                    graph.erase_node(node)


def _is_copy(node: fx.Node | None) -> bool:
    """That lies row by row, whatever it is a copy of."""
    return node is not None and node.target is aten.clone.default and value(node).is_contiguous()


def without_copy(norm: Norm) -> Norm:
    """A group norm of images as they lie: on a GPU torch's copies images that are stored by pixel
    first, and so the gradients of its results; planish's operator writes what it reads."""
    if not norm.call.split:
        return norm
    tensors, x = norm.tensors, norm.input
    if _is_copy(x):
        tensors = tensors._make(_copied(x) if t is x else t for t in tensors)
        x = _copied(x)
    if norm.is_backward and _is_copy(tensors.dy):
        dy = _copied(tensors.dy)
        if value(dy).stride() == value(x).stride():
            tensors = tensors._replace(dy=dy)
    made = norm.call._replace(options=norm.call.options & ~call.DENSE)
    return replace(norm, tensors=tensors, call=made)


def _is_of_channels(norm: Norm) -> bool:
    """Over the last axis of an image that is stored by channel."""
    return norm.call.is_over_last(norm.x.dim()) and is_by_channel(norm.x)


def _lies_otherwise(norm: Norm) -> bool:
    """Whether the gradient of such a norm's result does not lie as x, which planish's kernels of
    channels ask for."""
    if not norm.is_backward or not _is_of_channels(norm):
        return False
    return bool(value(norm.tensors.dy).stride() != norm.x.stride())


def lay_gradient(norm: Norm) -> Norm:
    """With a copy of that gradient that lies as x: a pass that inductor fuses with what makes it.
    planish's operator would have torch copy it."""
    if not _lies_otherwise(norm):
        return norm
    writer, last = Writer(norm.node), norm.x.dim() - 1
    there, back = [0, last, *range(1, last)], [0, *range(2, last + 1), 1]
    image = writer.add(aten.permute.default, norm.tensors.dy, there)
    copy = writer.add(aten.clone.default, image, memory_format=torch.contiguous_format)
    dy = writer.add(aten.permute.default, copy, back)
    return replace(norm, tensors=norm.tensors._replace(dy=dy))


def _copied(copy: fx.Node) -> fx.Node:
    return cast(fx.Node, copy.args[0])


def _strides(values: Any) -> list[Any]:
    found = values if isinstance(values, tuple | list) else [values]
    return [None if one is None else one.stride() for one in found]


def _reads_as_well(reader: fx.Node, copy: fx.Node, x: fx.Node) -> bool:
    """Whether a convolution, or its gradient, returns the same of x as of the copy."""
    if reader.target not in _CONVOLUTIONS or reader.kwargs or reader.args.count(copy) != 1:
        return False
    if nodes.argument(reader, "input") is not copy:
        return False
    arguments = [x if argument is copy else argument for argument in reader.args]
    found = result_of(reader.target, arguments, fake_mode(reader))
    return _strides(found) == _strides(value(reader))


def spare_copies(norm: Norm) -> None:
    """Has convolutions read the image that a group norm reads, where the model copies it for them:
    else a graph keeps both."""
    x = norm.input
    if not norm.call.split:
        return
    for copy in list(filter(_is_copy, x.users)):
        for reader in list(copy.users):
            if _reads_as_well(reader, copy, x):
                reader.replace_input_with(copy, x)


# ---- What a call of its own costs ---------------------------------------------------------------


def _is_pointwise(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.target in _POINTWISE or torch.Tag.pointwise in tags


def _is_nothing(node: fx.Node) -> bool:
    """What costs no pass: a view, or a copy that inductor takes out (a dropout of 0 leaves one)."""
    if node.target is aten.clone.default:
        of = node.args[0]
        return isinstance(of, fx.Node) and value(of).stride() == value(node).stride()
    return node.target in _VIEWS


def _producer(node: fx.Node | None) -> fx.Node | None:
    while node is not None and _is_nothing(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def make_views_again(norm: Norm) -> None:
    """Has the backward make the permuted views of images that it reads out of the images: what a
    graph saves is laid out anew, as inductor wishes images to be, and of a view with the channels
    last that is a copy into an order that is nobody's."""
    for tensor in norm.tensors:
        node = tensor
        while node is not None and node.target in _VIEWS:
            if value(node).dim() >= 4:
                node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
            node = node.args[0]


def _consumers(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    for user in node.users:
        found += _consumers(user) if _is_nothing(user) else [user]
    return found


def _size(node: fx.Node) -> int | None:
    found = value(node)
    return hint(found.numel()) if isinstance(found, Tensor) else None


def _reads(node: fx.Node | None) -> int:
    """The tensors of its size that inductor reads for one that it makes in its fused operators."""
    made = _producer(node)
    if made is None or made.target is aten.convolution.default or not _is_made(made):
        return 1
    inputs = [one for one in made.all_input_nodes if _size(one) == _size(made)]
    return sum(1 if len(_consumers(one)) > 1 else _reads(one) for one in inputs)


def _is_made(node: fx.Node) -> bool:
    """By inductor, as a convolution's bias is added on a GPU, whose input is read by others."""
    if node.target is aten.convolution.default:
        return nodes.argument(node, "bias") is not None and value(node).is_cuda
    return node.op == "call_function" and _is_pointwise(node)


def splits_sums(groups: int, elements: int, multiprocessors: int) -> bool:
    """Whether inductor's sums of each group are of several kernels: of few groups, and long ones.
    What it makes for these is a pass of its own, as it is in front of planish's norm."""
    return groups < 2 * multiprocessors and elements > 8192


def _is_split(norm: Norm) -> bool:
    """That of images stored by channel on a GPU."""
    x, split = norm.x, norm.call.split
    if norm.is_backward or split <= 0 or not x.is_cuda or reading.is_by_pixel(x):
        return False
    groups, elements = hint(x.shape[0]), hint(x.numel())
    if groups is None or elements is None:
        return False
    groups *= split
    found = torch.cuda.get_device_properties(x.device).multi_processor_count
    return splits_sums(groups, elements // max(groups, 1), found)


def _passes_before(norm: Norm, node: fx.Node | None) -> tuple[int, int]:
    """Over a tensor that is made for the norm: one to read it, and one to write it unless something
    else reads it, too. Beside it the passes that inductor's norm has more for making it, which are
    none of planish's, but of a kernel that does nothing else."""
    made, own = _producer(node), sums.of(norm)
    if made is None or not _is_made(made) or (own is not None and own.is_whole) or _is_split(norm):
        return 0, 0
    more = max(_reads(made), 1) - 1
    return (2, more) if all(user is norm.node for user in _consumers(made)) else (1, more + 1)


def _passes_of_layout(norm: Norm) -> int:
    """Over memory for a norm over channels, of which inductor's way had more in what the rows were
    measured of: a copy of the gradient, and results with their channels last. Of an image that is
    seen so a gradient that lies otherwise is copied, and an image that inductor makes might not
    lie so."""
    if _is_of_channels(norm):
        x = _producer(norm.input)
        made = x is not None and _is_pointwise(x)
        return 2 + 2 * _lies_otherwise(norm) + 2 * made if norm.is_backward else 0
    if norm.call.split or call.axes_of(norm.call.axes, 0) != [1] or norm.x.dim() < 3:
        return 0
    return 0 if reading.is_by_pixel(norm.x) else 3 if norm.is_backward else 1


def of_one_input(norms: Sequence[fx.Node]) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """The other norms whose forward, or backward, reads the same x, of each that has such ones:
    inductor has one kernel for all of these. Not one that waits for what the other returns."""
    readers: dict[Any, list[fx.Node]] = {}
    for node in norms:
        norm = reading.read(node)
        if norm is not None:
            made = norm.call
            alike = norm.input, norm.is_backward, made.axes, made.split
            readers.setdefault(alike, []).append(node)
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for several in readers.values():
        for one, two in itertools.combinations(several, 2):  # in the order of the graph
            if not depends(two, one, one.__lt__):
                found[one] = *found.get(one, ()), two
                found[two] = *found.get(two, ()), one
    return found


def _fuses(node: fx.Node) -> bool:
    return node.target is operator.getitem or _is_nothing(node) or _is_pointwise(node)


def _is_fused(user: fx.Node, norm: fx.Node) -> bool:
    """Whether inductor would have fused an operator with the norm whose result it reads: not where
    another operand waits for a product of that, as in the gradient of a residual stream."""
    if not _is_pointwise(user):
        return False
    sources = user.all_input_nodes
    return not any(depends(one, norm) and not depends(one, norm, _fuses) for one in sources)


def _is_theirs(user: fx.Node, others: Sequence[fx.Node]) -> bool:
    """A sum with the gradient of another norm of the same input, which the other's call makes."""
    return is_sum_of_alike(user) and any(
        one.target is operator.getitem and one.args[0] in others for one in user.all_input_nodes
    )


def _passes_behind(
    results: list[fx.Node], gone: Sequence[fx.Node], norm: fx.Node, others: Sequence[fx.Node]
) -> int:
    """Likewise of a result: y, dx or what the call returns in their place."""
    users = [user for node in results for user in _consumers(node) if user not in gone]
    users = [user for user in users if not _is_theirs(user, others)]
    fused = [user for user in users if _is_fused(user, norm)]
    if not fused:
        return 0
    return 2 if len(fused) == len(users) else 1


def _own_passes(join: Join) -> int:
    """Over memory by the call: the tensors of x's size that it reads and writes."""
    if not join.norm.is_backward:
        return 4 if SUM in join.places else 2  # a sum is read and written
    return 3 + len(join.norm.values("dsum", "branch")) + (DRESIDUAL in join.places)


def extra_passes(
    norm: Norm,
    join: Join | None = None,
    others: Sequence[fx.Node] = (),
    are_inductors: bool = True,
) -> float:
    """Passes over memory that inductor would have saved by fusing its own norm with what stands
    around it, as a share of those of its norm. ``join``: with what is part of planish's call.
    ``others``: norms of the same input, of all of which inductor has one kernel."""
    own, results = 3 if norm.is_backward else 2, [norm.picked(DX if norm.is_backward else Y)]
    called, gone = (norm, ()) if join is None else (join.norm, join.gone)
    if join is not None:
        own = _own_passes(join)
        if norm.is_backward:
            results = [[node] for place, node in join.places.items() if place in (DX, DRESIDUAL)]
    before, common = _passes_before(norm, called.tensors.dy if norm.is_backward else called.input)
    before += _passes_of_layout(norm)
    behind = sum(_passes_behind(several, gone, norm.node, others) for several in results)
    more = len(others) if are_inductors else 0
    own -= any(_is_theirs(node, others) for node in gone)  # of which one has no sum to add to
    if norm.is_backward:  # each has a gradient of its own, and all have one result
        before, common = before * (1 + more), common * (1 + more)
    else:
        behind *= 1 + more
    # Of four tensors of planish's backward and two of its forward inductor saves half with another
    # norm: on an H200 its backward of two took 1.5 to 2.1 times as long as of one.
    shared = more * (2 if norm.is_backward else 1)
    return (before + behind + shared) / (own + common + shared)
