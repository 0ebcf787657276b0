"""Layer and RMS norms by their formula, as the code of models writes them: found in the graph
before it is differentiated, by what is computed however it is written."""

from __future__ import annotations

from typing import Any

import torch
from planish.compile import nodes
from planish.compile.behind import Found, cast_back, is_view
from planish.library.seen import is_same_size
from planish.operators import call
from planish.operators.arguments import HALF
from planish.operators.call import Tensors
from torch import Tensor, fx

__all__ = ["ROOTS", "found_at"]

#: What a norm has in its denominator, or multiplies by.
ROOTS = ("rsqrt", "sqrt", "pow")

#: What is reduced, and along which axis.
Reduced = tuple[fx.Node, int]


def _is_kept(node: fx.Node, place: int) -> bool:
    return nodes.argument_at(node, place, "keepdim", False) is True


def _along(node: fx.Node, dim: Any) -> Reduced | None:
    """Of a node that reduces its first argument, one axis alone."""
    of = node.args[0] if node.args else None
    given = nodes.value(of)
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    if not isinstance(given, Tensor) or type(dim) is not int or given.dim() == 0:
        return None
    return of, dim % given.dim()  # type: ignore[return-value]


def _squared(node: Any) -> Any:
    """x of x ** 2, in each way to write it."""
    name = nodes.name(node)
    if name == "pow" and len(node.args) == 2 and node.args[1] in (2, 2.0):
        return node.args[0]
    if name == "square":
        return nodes.argument_at(node, 0, "input")
    if name == "mul" and len(node.args) == 2 and node.args[0] is node.args[1]:
        return node.args[0]
    return None


def _averaged(node: Any) -> Reduced | None:
    """What a mean is of, over an axis that stays."""
    if nodes.name(node) != "mean" or "dtype" in node.kwargs or not _is_kept(node, 2):
        return None
    return _along(node, nodes.argument_at(node, 1, "dim"))


def _is_biased(node: fx.Node) -> bool:
    """Whether a variance is the mean of squares."""
    if "correction" in node.kwargs:
        return bool(node.kwargs["correction"] == 0)
    return nodes.argument_at(node, 2, "unbiased", True) is False


def _of_both(node: Any, place: int) -> Reduced | None:
    """What a variance (0) or a mean (1) of var_mean is of."""
    if nodes.name(node) != "getitem" or node.args[1] != place:
        return None
    both = node.args[0]
    fits = nodes.name(both) == "var_mean" and _is_biased(both) and _is_kept(both, 3)
    return _along(both, nodes.argument_at(both, 1, "dim")) if fits else None


def _centred(node: Any) -> Reduced | None:
    """x of x less its mean."""
    if nodes.name(node) != "sub" or len(node.args) != 2 or node.kwargs:
        return None
    x, mean = node.args
    found = _averaged(mean) or _of_both(mean, 1)
    return found if found is not None and found[0] is x else None


def _variance(node: Any) -> Reduced | None:
    """What a variance is of."""
    if nodes.name(node) == "var":
        fits = _is_biased(node) and _is_kept(node, 3)
        return _along(node, nodes.argument_at(node, 1, "dim")) if fits else None
    found = _averaged(node)
    if found is None:
        return _of_both(node, 0)
    of = _centred(_squared(found[0]))
    return of if of is not None and of[1] == found[1] else None


def _mean_square(node: Any) -> Reduced | None:
    found = _averaged(node)
    x = None if found is None else _squared(found[0])
    return None if found is None or x is None else (x, found[1])


# ---- Around the root -----------------------------------------------------------------------------


def _inside(root: fx.Node) -> tuple[Any, float] | None:
    """The variance and eps of the root of their sum."""
    total = nodes.argument_at(root, 0, "input")
    if nodes.name(total) != "add" or len(total.args) != 2 or total.kwargs:
        return None
    variance, eps = total.args
    if isinstance(variance, float):
        variance, eps = eps, variance
    return (variance, eps) if isinstance(eps, float) else None


def _quotient(root: fx.Node) -> tuple[fx.Node, Any] | None:
    """What is divided by the root, as a product or a quotient, and that node."""
    at, name = nodes.only_user(root), nodes.name(root)
    if at is None or len(at.args) != 2 or at.kwargs:
        return None
    exponent = root.args[1] if name == "pow" and len(root.args) == 2 else None
    if name == "rsqrt" or exponent == -0.5:
        return (at, nodes.other(at, root)) if nodes.name(at) == "mul" else None
    if name == "sqrt" or exponent == 0.5:
        divided = nodes.name(at) in ("truediv", "div") and at.args[1] is root
        return (at, at.args[0]) if divided and at.args[0] is not root else None
    return None


def _parameter(node: Any, x: Tensor, axis: int) -> fx.Node | None:
    """A weight or bias along the axis, without the views that give it x's rank."""
    given = nodes.value(nodes.source(node))
    if not isinstance(given, Tensor) or given.dim() > x.dim():
        return None
    sizes = [1] * (x.dim() - given.dim()) + list(given.shape)
    wanted = (size if at == axis else 1 for at, size in enumerate(x.shape))
    if not all(map(is_same_size, sizes, wanted)):
        return None
    node = nodes.source(node)
    while is_view(node):
        node = nodes.source(node.args[0])
    whole = nodes.value(node)
    fits = isinstance(whole, Tensor) and whole.dim() == 1
    return node if fits and is_same_size(whole.shape[0], x.shape[axis]) else None


def _factor(node: Any, x: Tensor, axis: int) -> tuple[fx.Node, int] | None:
    """A weight, and what is added to it."""
    inner = nodes.source(node)
    if nodes.name(inner) == "add" and len(inner.args) == 2 and 1 in inner.args and not inner.kwargs:
        weight = _parameter(inner.args[1] if inner.args[0] == 1 else inner.args[0], x, axis)
        return None if weight is None else (weight, 1)
    weight = _parameter(node, x, axis)
    return None if weight is None else (weight, 0)


def _dtype(node: fx.Node) -> torch.dtype | None:
    return getattr(nodes.value(node), "dtype", None)


class _Behind:
    """What follows x / rms(x): the node of the result, weight and its offset, bias, and whether
    xhat is rounded before them."""

    def __init__(self, quotient: fx.Node, x: Tensor, axis: int, weight: fx.Node | None) -> None:
        self.result = quotient
        self.weight, self.bias, self.offset = weight, None, 0
        self.rounds = False
        self._x, self._axis = x, axis

    def read(self, rms: bool) -> None:
        at, x = self.result, self._x
        cast = cast_back(at, x) if self.weight is None else None
        at = cast or at
        rounded = cast is not None and x.dtype in HALF
        self.result = at
        times = at if self.weight is not None else self._times(at)
        if times is None or (rounded and not (rms and self._weighs_rounded(x))):
            self.weight, self.offset = None, 0
            return
        self.result, self.rounds = times, rounded
        plus = nodes.only_user(times)
        if not rms and plus is not None and nodes.name(plus) == "add" and not plus.kwargs:
            bias = _parameter(nodes.other(plus, times), x, self._axis)
            if bias is not None:
                self.bias, self.result = bias, plus  # type: ignore[assignment]
        if cast is None and _dtype(self.result) != x.dtype:
            self.result = cast_back(self.result, x) or self.result

    def _weighs_rounded(self, x: Tensor) -> bool:
        """Whether planish's norm has such a weight of what was rounded."""
        return self.weight is not None and not self.offset and _dtype(self.weight) == x.dtype

    def _times(self, at: fx.Node) -> fx.Node | None:
        times = nodes.only_user(at)
        if times is None or nodes.name(times) != "mul":
            return None
        found = _factor(nodes.other(times, at), self._x, self._axis)
        if found is None:
            return None
        self.weight, self.offset = found
        return times


# ---- The whole -----------------------------------------------------------------------------------


def _weighed(node: Any, x: Tensor, axis: int) -> tuple[Any, fx.Node | None]:
    """w * (x - mean) as what is in it, and the weight."""
    if nodes.name(node) == "mul" and len(node.args) == 2:
        for one, other in (node.args, node.args[::-1]):
            weight = _parameter(one, x, axis)
            if weight is not None:
                return other, weight
    return node, None


def found_at(root: fx.Node) -> Found | None:
    """The norm that a node is the root of; None where it is none."""
    inside, quotient = _inside(root), _quotient(root)
    if inside is None or quotient is None:
        return None
    layer = _variance(inside[0])
    reduced = layer or _mean_square(inside[0])
    if reduced is None:
        return None
    wide, axis = reduced
    x, rms = nodes.source(wide), layer is None
    value = nodes.value(x)
    if not isinstance(value, Tensor):
        return None
    numerator, weight = _weighed(quotient[1], value, axis)
    if numerator not in (wide, x) if rms else _centred(numerator) != reduced:
        return None
    read = _Behind(quotient[0], value, axis, weight)
    read.read(rms)
    made = call.make_call(
        *([axis],) * 2,
        eps=inside[1],
        rms=rms,
        weight_offset=read.offset,
        round_xhat=read.rounds,
        dtype=_dtype(read.result),
    )
    why = f"its squares are of {_dtype(wide)}" if _dtype(wide) in HALF else None
    tensors = Tensors(x, weight=read.weight, bias=read.bias)  # type: ignore[arg-type]
    return Found(read.result, tensors, made, why=why)
