"""What a node of a graph says about a norm: planish's operators and torch's, read as one pass of
planish's operators with the nodes of its tensors. Nothing is decided or changed here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from planish.compile import nodes
from planish.operators import call
from planish.operators.arguments import DTYPES, rms_eps
from planish.operators.call import Call, Tensors
from planish.operators.formulas import Given
from torch import Tensor, fx

__all__ = [
    "DCOLUMN",
    "DRESIDUAL",
    "DX",
    "IN_FRONT",
    "NOTHING",
    "SUM",
    "TORCHS",
    "Norm",
    "Y",
    "hint",
    "is_by_channel",
    "is_by_pixel",
    "is_norm",
    "read",
    "users_of_results",
    "value",
]

aten = torch.ops.aten

#: Of a norm of which nothing is known.
NOTHING = Call(0, 0)

#: The results of norm_forward.
Y, SUM, _MEAN, _RSTD = range(4)
#: The first results of norm_backward (call.GRADIENTS).
DX, DRESIDUAL, _DWEIGHT, _DBIAS, DCOLUMN = range(5)

#: The tensors of the stages in front of a norm, in both passes; then those behind xhat.
IN_FRONT = ("residual", "dsum", "branch", "row_scale", "column_scale", "rng")
_AFFINE, _BEHIND = ("weight", "bias"), ("scale", "shift", "gate")


@dataclass(frozen=True)
class Norm:
    """One pass of one norm: ``tensors`` as norm_forward or norm_backward takes them, ``results``
    the place in that operator's results of each that is used, by its place in the node's."""

    node: fx.Node
    is_backward: bool
    #: A node in the place of each of planish.operators.call.Tensors, of a backward formulas.Given.
    tensors: Any
    call: Call
    results: dict[int, int]
    #: By the place in the node's results: what picks it.
    users: dict[int, list[fx.Node]]

    @property
    def input(self) -> fx.Node:
        """The node of x, or of s of a backward."""
        return self.tensors.s if self.is_backward else self.tensors.x  # type: ignore[no-any-return]

    @property
    def x(self) -> Tensor:
        found: Tensor = value(self.input)
        return found

    @property
    def is_planishs(self) -> bool:
        return self.node.target not in TORCHS

    @property
    def is_staged(self) -> bool:
        """Whether there are other tensors than weight and bias."""
        return bool(self.values(*IN_FRONT, *_BEHIND))

    def values(self, *roles: str) -> list[Tensor]:
        """What stands for the tensors of these roles that are there."""
        found = (getattr(self.tensors, role, None) for role in roles)
        return [value(tensor) for tensor in found if tensor is not None]

    def picked(self, place: int) -> list[fx.Node]:
        """The nodes of a result, by its place in the operator's."""
        return [
            one for at, known in self.results.items() if known == place for one in self.users[at]
        ]

    def numbers(self) -> tuple[Any, ...]:
        """What the operator takes behind its tensors."""
        axes, options, split, eps, p = self.call
        return (axes, options, split, p) if self.is_backward else (axes, options, split, eps, p)


def value(node: Any) -> Any:
    """The fake tensor that stands for a node's."""
    return node.meta["val"]


def hint(size: Any) -> int | None:
    """A size as a number, without a guard on it; None where nothing is known of it."""
    if isinstance(size, int):
        return size
    found = getattr(getattr(size, "node", None), "hint", None)
    return int(found) if isinstance(found, int) else None


def is_by_pixel(x: Tensor) -> bool:
    """Whether an image is stored with its channels last."""
    return hint(x.stride(1)) == 1 and hint(x.shape[1]) != 1


def is_by_channel(x: Tensor) -> bool:
    """Whether the last axis is that of an image's channels, which is stored channel by channel."""
    sizes, strides = [hint(n) for n in x.shape], [hint(n) for n in x.stride()]
    wanted = 1
    for size, stride in zip(sizes[-2:0:-1], strides[-2:0:-1], strict=True):
        if size is None or (size != 1 and stride != wanted):
            return False
        wanted *= size
    return wanted != 1 and sizes[-1] != 1 and strides[-1] == wanted


def users_of_results(node: fx.Node) -> dict[int, list[fx.Node]] | None:
    """The nodes that pick each result; None where one uses the node otherwise."""
    found: dict[int, list[fx.Node]] = {}
    for user in node.users:
        if user.target is not operator.getitem or user.args[0] is not node:
            return None
        found.setdefault(cast(int, user.args[1]), []).append(user)
    return found


def _made(
    node: fx.Node,
    is_backward: bool,
    tensors: Any,
    made: Call,
    places: Sequence[int | None],
) -> Norm | None:
    """With the options of the results that are used."""
    users = users_of_results(node)
    if users is None:
        return None
    results = {}
    for at, place in enumerate(places):
        if at in users and place is not None:
            results[at] = place
    used = set(results.values())
    options = made.options
    if is_backward:
        options = options & ~call.WANTED | sum(1 << place for place in used) << call.WANTED_AT
        if DCOLUMN not in used:
            tensors = tensors._replace(branch=None)  # it is read for that alone
    else:
        if not used & {_MEAN, _RSTD}:
            options &= ~call.SAVE
        if SUM not in used:
            options &= ~call.SUM_DTYPE
    return Norm(node, is_backward, tensors, made._replace(options=options), results, users)


# ---- planish's operators ------------------------------------------------------------------------


def _own_forward(node: fx.Node) -> Norm | None:
    tensors = Tensors(*nodes.arguments(node, *Tensors._fields))
    numbers = Call(*nodes.arguments(node, *Call._fields))
    return _made(node, False, tensors, numbers, (Y, SUM, _MEAN, _RSTD))


def _own_backward(node: fx.Node) -> Norm | None:
    given = Given(*nodes.arguments(node, *Given._fields))
    axes, options, split, p = nodes.arguments(node, "axes", "options", "split", "dropout_p")
    return _made(node, True, given, Call(axes, options, split, 0.0, p), range(len(call.GRADIENTS)))


# ---- torch's ------------------------------------------------------------------------------------


def _last(ndim: int, shape: Any) -> list[int]:
    return list(range(ndim - len(shape), ndim))


def _is_over_last(x: Any, shape: Any, *parameters: Any) -> bool:
    ndim, count = value(x).dim(), len(shape)
    if not 0 < count <= ndim:
        return False
    given = [list(value(parameter).shape) for parameter in parameters if parameter is not None]
    return all(sizes == nodes.sizes_of(shape) for sizes in given)


def _layer_norm(node: fx.Node) -> Norm | None:
    x, shape = nodes.arguments(node, "input", "normalized_shape")
    weight, bias, eps = nodes.arguments(node, "weight", "bias", "eps")
    if not _is_over_last(x, shape, weight, bias):
        return None
    axes = _last(value(x).dim(), shape)
    made = call.make_call(axes, axes, eps=eps, rms=False, dense=True)
    return _made(node, False, Tensors(x, weight=weight, bias=bias), made, (Y, _MEAN, _RSTD))


def _given(node: fx.Node, mean: fx.Node | None) -> Given:
    dy, x, rstd, weight = nodes.arguments(node, "grad_out", "input", "rstd", "weight")
    return Given(dy, x, rstd, mean, weight=weight)  # type: ignore[arg-type]


def _layer_norm_backward(node: fx.Node) -> Norm | None:
    shape, mean, bias = nodes.arguments(node, "normalized_shape", "mean", "bias")
    given = _given(node, mean)
    if not _is_over_last(given.s, shape, given.weight, bias):
        return None
    axes = _last(value(given.s).dim(), shape)
    return _of_gradients(node, given, axes, axes, False)


def _of_gradients(
    node: fx.Node, given: Given, reduce: list[int], affine: list[int], rms: bool, split: int = 0
) -> Norm | None:
    dtype = value(given.s).dtype
    made = call.make_call(
        reduce, affine, split=split, rms=rms, save=False, dtype=dtype, sum_dtype=dtype
    )
    return _made(node, True, given, made, (DX, _DWEIGHT) if rms else (DX, _DWEIGHT, _DBIAS))


def _rms_norm(node: fx.Node) -> Norm | None:
    x, shape = nodes.arguments(node, "input", "normalized_shape")
    weight, eps = nodes.arguments(node, "weight", "eps")
    if not _is_over_last(x, shape, weight):
        return None
    axes = _last(value(x).dim(), shape)
    made = call.make_call(axes, axes, eps=rms_eps(eps, value(x)), rms=True)
    return _made(node, False, Tensors(x, weight=weight), made, (Y, _RSTD))


def _rms_norm_backward(node: fx.Node) -> Norm | None:
    given, shape = _given(node, None), nodes.argument(node, "normalized_shape")
    if not _is_over_last(given.s, shape, given.weight):
        return None
    axes = _last(value(given.s).dim(), shape)
    return _of_gradients(node, given, axes, axes, True)


def _group_norm(node: fx.Node) -> Norm | None:
    x, weight, bias = nodes.arguments(node, "input", "weight", "bias")
    groups, eps = nodes.arguments(node, "group", "eps")
    axes = list(range(2, value(x).dim() + 1))
    made = call.make_call(axes, [1, 2], split=groups, eps=eps, rms=False)
    return _made(node, False, Tensors(x, weight=weight, bias=bias), made, (Y, _MEAN, _RSTD))


def _group_norm_backward(node: fx.Node) -> Norm | None:
    mean, groups = nodes.arguments(node, "mean", "group")
    given = _given(node, mean)
    axes = list(range(2, value(given.s).dim() + 1))
    return _of_gradients(node, given, axes, [1, 2], False, groups)


#: torch's operators, which its compilers take apart where they are not kept.
TORCHS: dict[Any, Callable[[fx.Node], Norm | None]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._fused_rms_norm.default: _rms_norm,
    aten._fused_rms_norm_backward.default: _rms_norm_backward,
}
_OWN: dict[Any, Callable[[fx.Node], Norm | None]] = {
    torch.ops.planish.norm_forward.default: _own_forward,
    torch.ops.planish.norm_backward.default: _own_backward,
}


def is_norm(node: fx.Node) -> bool:
    return node.target in TORCHS or node.target in _OWN


def read(node: fx.Node) -> Norm | None:
    """The norm of a node that is one; None where planish has no such operator."""
    if node.kwargs:
        return None
    norm = (TORCHS.get(node.target) or _OWN[node.target])(node)
    if norm is None:
        return None
    x = norm.x
    if x.device.type not in ("cpu", "cuda") or x.dim() + (norm.call.split != 0) > 16:
        return None
    dtypes = {x.dtype, *(v.dtype for v in norm.values(*_AFFINE, *_BEHIND))}
    values = norm.values(*norm.tensors._fields)
    if not dtypes <= set(DTYPES) or any(v.device != x.device for v in values):
        return None
    return norm
