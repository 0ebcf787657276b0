"""fp8 or int8 behind a norm of an inference graph, with one scale that is given, or one found for
each row, as planish's quantised norms have it. That is one pass of planish's, where inductor's
kernel reads each row two or three times, and of a layer norm with scales of rows writes y, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from planish.compile.joins import Join, Quantised, depends
from planish.compile.nodes import argument, only_user
from planish.compile.putting import Writer
from planish.compile.reading import SUM, Norm, Y, hint, value
from planish.functions.quantizing import LARGEST
from planish.operators import asked, call
from planish.operators.quantized_calls import float_of
from torch import Tensor, fx

__all__ = ["of", "put"]

aten, prims = torch.ops.aten, torch.ops.prims

_CAST = prims.convert_element_type.default


def _pays(norm: Norm) -> bool:
    """On a CPU the norm of a sum was no faster than inductor's."""
    return norm.x.is_cuda or norm.tensors.residual is None


def _is_number(node: fx.Node, name: str, number: float) -> bool:
    return argument(node, name) in (number, int(number)) and not node.kwargs


def _dtype(node: fx.Node) -> Any:
    """What a cast is to; None for another node."""
    return argument(node, "dtype") if node.target is _CAST else None


def _bounds(node: fx.Node, largest: float) -> set[int]:
    """Which of both bounds an operator sets: -1 and 1."""
    if node.target is aten.clamp_min.default and _is_number(node, "min", -largest):
        return {-1}
    if node.target is aten.clamp_max.default and _is_number(node, "max", largest):
        return {1}
    if node.target is not aten.clamp.default:
        return set()
    both = _is_number(node, "min", -largest) and _is_number(node, "max", largest)
    return {-1, 1} if both else set()


def _rounded(quotient: fx.Node) -> list[fx.Node]:
    """What follows y / scale up to the cast; nothing where that is another rounding."""
    path: list[fx.Node] = []
    node = only_user(quotient)
    while node is not None and node.target is not _CAST and len(path) < 3:
        path.append(node)
        node = only_user(node)
    if node is None or _dtype(node) not in LARGEST:
        return []
    dtype = _dtype(node)
    bounds: set[int] = set()
    rounds = 0
    for one in path:
        found = _bounds(one, LARGEST[dtype])
        rounds += one.target is aten.round.default
        if not found and one.target is not aten.round.default:
            return []
        bounds |= found
    wanted = int(dtype == torch.int8)
    return [*path, node] if bounds == {-1, 1} and rounds == wanted else []


def _row_scales(absolute: fx.Node, largest: float) -> tuple[list[fx.Node], float] | None:
    """From |y| to the scale of each row, and the least scale."""
    path, node, least, divided = [absolute], only_user(absolute), 0.0, False
    while node is not None:
        path.append(node)
        if node.target is aten.amax.default:
            axes: Any = argument(node, "dim") if argument(node, "keepdim") is True else []
            if list(axes) not in ([-1], [value(absolute).dim() - 1]):
                return None
        elif node.target is aten.clamp_min.default:
            bound = argument(node, "min")
            if not isinstance(bound, int | float):
                return None
            least = bound if divided else float_of(float_of(bound) / largest)
        elif node.target is aten.div.Tensor and _is_number(node, "other", largest):
            divided = True
        elif _dtype(node) is not torch.float32:
            return None
        if divided and least > 0:
            first = next(one for one in path[1:] if one.target is not _CAST)
            return (path, least) if first.target is aten.amax.default else None
        node = only_user(node)
    return None


def _readers(node: fx.Node) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Who reads y, and the casts to f32 in between."""
    for user in node.users:
        if _dtype(user) is torch.float32:
            for reader, casts in _readers(user):
                yield reader, [*casts, user]
        else:
            yield user, []


def _is_scale(node: Any, x: Tensor) -> bool:
    if not isinstance(node, fx.Node) or not isinstance(value(node), Tensor):
        return False
    given = value(node)
    alike = given.dtype == torch.float32 and given.device == x.device and given.dim() <= x.dim()
    return alike and hint(given.numel()) == 1


def _behind(y: fx.Node, norm: Norm) -> tuple[Quantised, list[fx.Node]] | None:
    """And all that its call does the work of."""
    readers, gone = [], []
    for reader, casts in _readers(y):
        readers.append(reader)
        gone += casts
    quotients = [one for one in readers if one.target is aten.div.Tensor and not one.kwargs]
    rest = [one for one in readers if one not in quotients]
    if len(quotients) != 1 or len(rest) > 1 or value(quotients[0]).dtype != torch.float32:
        return None
    (quotient,) = quotients
    path = _rounded(quotient)
    of_it, scale = quotient.args
    if not path or of_it not in (y, *gone):
        return None
    q, dtype = path[-1], _dtype(path[-1])
    gone += [quotient, *path]
    if not rest:
        if not isinstance(scale, fx.Node) or not _is_scale(scale, norm.x):
            return None
        return Quantised(q, None, scale, 0.0), gone
    found = _row_scales(rest[0], LARGEST[dtype]) if rest[0].target is aten.abs.default else None
    if found is None or found[0][-1] is not scale:
        return None
    return Quantised(q, found[0][-1], None, found[1]), gone + found[0]


def _has_kernel(norm: Norm) -> bool:
    x, given = norm.x, norm.tensors
    others = given._replace(x=None, residual=None, weight=None, bias=None)
    if any(tensor is not None for tensor in others) or call.activation_in(norm.call.options):
        return False
    if norm.call.options & call.L2:
        return False
    if not norm.call.is_over_last(x.dim()):
        return False
    wide = norm.values("x", "residual")
    if x.dtype == torch.float64 or not all(tensor.is_contiguous() for tensor in wide):
        return False
    weight, bias = (
        None if node is None else value(node).dtype for node in (given.weight, given.bias)
    )
    if weight is not None and bias is not None and weight != bias:
        return False
    return not asked.why_not(x.device)


def of(norm: Norm, join: Join | None) -> Join | None:
    """With what stands in front of the norm (``join``); None where nothing is quantised."""
    whole = norm if join is None else join.norm
    if norm.is_backward or set(norm.results.values()) - {Y, SUM}:
        return None
    ys = norm.picked(Y)
    if len(ys) != 1 or not _pays(whole) or not _has_kernel(whole):
        return None
    found = _behind(ys[0], norm)
    if found is None:
        return None
    quantised, gone = found
    sums = [norm.node, *(() if join is None else join.places.values())]
    if quantised.given is not None and any(depends(quantised.given, one) for one in sums):
        return None  # the call returns the sum: it cannot be given what is made of it
    if join is None:
        return Join(norm, {}, tuple(gone), quantised)
    return replace(join, gone=(*join.gone, *gone), quantised=quantised)


def put(join: Join, quantised: Quantised) -> None:
    """planish's quantised norm in the place of the norm and all that is joined."""
    norm = join.norm
    given, made = norm.tensors, norm.call
    options = call.pack_options(
        rms=bool(made.options & call.RMS),
        weight_offset=call.weight_offset_in(made.options),
        save=False,
        dtype=_dtype(quantised.q),
        sum_dtype=call.sum_dtype_in(made.options),
    )
    writer, scale = Writer(norm.node), quantised.given
    if scale is not None and value(scale).dim():
        scale = writer.add(aten.view.default, scale, [])
    tensors = given.x, given.residual, given.weight, given.bias, scale
    numbers = made.axes, options, made.eps, 0, quantised.least, 0.0
    whole = writer.add(torch.ops.planish.quantized_norm.default, *tensors, *numbers)
    places = {0: quantised.q, 1: quantised.scales, 2: join.places.get(SUM)}
    for place, node in [*places.items(), *((2, node) for node in norm.picked(SUM))]:
        if node is not None:
            node.replace_all_uses_with(writer.like(writer.pick(whole, place), value(node)))
    picked = [user for users in norm.users.values() for user in users]
    waiting = [*join.gone, *picked, norm.node]
    while unused := [node for node in waiting if not node.users]:
        for node in unused:
            norm.node.graph.erase_node(node)
            waiting.remove(node)
