"""planish's norms over channels in a graph that are no pass of planish.compile.reading: batch norms
by the batch's statistics and by those that are given, their backward, and the sums that an EvoNorm
asks for. There is no row of the table for any of them: they become the formula in torch's operators
where not every norm is asked for. What else planish has in a graph stays as it is, which is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from planish.compile.formulas import dtype_of, slope
from planish.compile.nodes import argument, arguments, name
from planish.operators import call, fakes
from planish.operators.batch_formulas import Given, Numbers, affine, along, normalized, rstd_of
from planish.operators.formulas import activated
from torch import Tensor, fx

__all__ = ["Own", "read"]

ops = torch.ops.planish


class Own(NamedTuple):
    """An operator of planish's: whether it is a backward's, the node of x (s of a backward), the
    formula and what it takes, and the place in its results of each of the node's (None: the node
    has one result alone); or why there is none."""

    node: fx.Node
    is_backward: bool
    x: fx.Node
    formula: Callable[..., tuple[Tensor | None, ...]] | None = None
    arguments: tuple[Any, ...] = ()
    results: dict[int, int] | None = None
    why: str = ""


# ---- The formulas --------------------------------------------------------------------------------


def _behind(
    xhat: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    addend: Tensor | None,
    activation: int,
) -> tuple[Tensor, Tensor]:
    """(y, what its activation is of)."""
    z = affine(xhat, weight, bias)
    if addend is not None:
        z = z + addend.to(z.dtype)
    return activated(activation, z), z


def _forward(
    x: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    axes: int,
    options: int,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """batch_norm's three results, and what the running statistics are then."""
    given = x, addend, weight, bias, running_mean, running_var
    wide, reduce = x.to(dtype_of(given)), call.axes_of(axes, 0)
    variance, mean = torch.var_mean(wide, reduce, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    y, _ = _behind((wide - mean) * rstd, weight, bias, addend, call.activation_in(options))
    made: list[Tensor | None] = [y.to(x.dtype), None, None]
    if options & call.SAVE:
        like = (x, weight, bias, running_mean, running_var, addend, None)
        kept = fakes.statistics_dtype(options, *like)
        made[1:] = mean.flatten().to(kept), rstd.flatten().to(kept)
    if running_mean is None or running_var is None:
        return *made, None, None
    count = math.prod(x.shape[axis] for axis in reduce)
    unbiased = variance * (count / (count - 1))
    for running, found in ((running_mean, mean), (running_var, unbiased)):
        old, new = running.to(wide.dtype), found.flatten()
        made.append((old + momentum * (new - old)).to(running.dtype))
    return tuple(made)


def _apply(
    x: Tensor,
    variance: Tensor,
    mean: Tensor,
    addend: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    axes: int,
    options: int,
    eps: float,
) -> tuple[Tensor]:
    dtype = dtype_of((x, variance, mean, addend, weight, bias))
    xhat = normalized(x.to(dtype), variance, mean, Numbers(axes, options, eps))
    y, _ = _behind(xhat, weight, bias, addend, call.activation_in(options))
    return (y.to(call.dtype_in(options) or x.dtype),)


def _backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """norm_backward_apply's four results, None where not wanted."""
    count = len(Given._fields)
    given, numbers = Given(*arguments[:count]), Numbers(*arguments[count:])
    dtype, reduce = dtype_of(given), call.axes_of(numbers.axes, 0)
    wide, dz = given.x.to(dtype), given.dy.to(dtype)
    xhat = normalized(wide, given.spread, given.mean, numbers)
    if given.y is not None:  # of a ReLU, with what is saved of it: NaN has slope 1
        dz = torch.where(given.y <= 0, 0.0, dz)
    elif numbers.activation:
        tensors = given.weight, given.bias, given.addend
        dz = dz * slope(numbers.activation, _behind(xhat, *tensors, 0)[1])
    total, dot = dz.sum(reduce, keepdim=True), (dz * xhat).sum(reduce, keepdim=True)
    factor, dx = rstd_of(given.spread, wide, numbers), dz
    if given.weight is not None:
        factor = factor * along(given.weight, wide, dtype)
    if not numbers.running:
        share = 1 / math.prod(given.x.shape[axis] for axis in reduce)
        dx = dz - total * share - xhat * (dot * share)
    other = given.x.dtype if given.weight is None else given.weight.dtype
    unrounded = call.wanted_in(numbers.options)[4]

    def vector(sums: Tensor, like: Tensor | None) -> Tensor:
        kind = other if like is None else like.dtype
        return sums.flatten().to(dtype if unrounded else kind)

    made: tuple[Callable[[], Tensor], ...] = (
        lambda: (dx * factor).to(call.dtype_in(numbers.options) or given.x.dtype),
        lambda: dz.to(given.x.dtype if given.addend is None else given.addend.dtype),
        lambda: vector(dot, given.weight),
        lambda: vector(total, given.bias),
    )
    return tuple(make() if want else None for make, want in zip(made, numbers.wanted, strict=True))


def _statistics(x: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """norm_statistics' mean and sum of squares around it."""
    wide, reduce = x.to(dtype_of((x,))), call.axes_of(axes, 0)
    variance, mean = torch.var_mean(wide, reduce, correction=0, keepdim=True)
    return mean, variance * math.prod(x.shape[axis] for axis in reduce)


# ---- Reading -------------------------------------------------------------------------------------

_PARTS = "its rows are those of several processes"
#: What has no formula here, and why.
_STAY = {
    ops.quantized_norm.default: "its result is quantised",
    ops.norm_into.default: "it writes into a tensor that is given",
    ops.norm_part_statistics.default: _PARTS,
    ops.norm_part_message.default: _PARTS,
    ops.norm_part_apply.default: _PARTS,
    ops.norm_backward_statistics.default: _PARTS,
    ops.norm_part_backward_apply.default: _PARTS,
}
#: The formulas, and how many results the operators have.
_FORMULAS: dict[Any, tuple[Callable[..., tuple[Tensor | None, ...]], int]] = {
    ops.norm_statistics.default: (_statistics, 2),
    ops.batch_norm.default: (_forward, 3),
    ops.norm_apply.default: (_apply, 1),
    ops.norm_backward_apply.default: (_backward, 4),
}
_FUNCTIONAL = torch.ops.higher_order.auto_functionalized_v2


def _written_to(node: fx.Node) -> Own:
    """Of an operator that writes into its arguments, as torch has it in a graph: what it writes is
    a result behind its own."""
    target: Any = node.args[0]
    named: dict[str, Any] = dict(node.kwargs)
    x = named["x"]
    if target is not ops.batch_norm.default:
        return Own(node, False, x, why=_STAY[target])
    bases: Any = named.pop("_all_bases")
    results = {0: 0, 1: 1, 2: 2}
    for place, running in ((3, "running_mean"), (4, "running_var")):
        base: Any = named.pop(f"_{running}_base_index", None)
        named[running] = None if base is None else bases[base]
        if base is not None:
            results[3 + base] = place
    if any(key.startswith("_") for key in named) or len(results) != 3 + len(bases):
        return Own(node, False, x, why="its running statistics are views")
    arguments = tuple(named[one.name] for one in target._schema.arguments)
    return Own(node, False, x, _forward, arguments, results)


def read(node: fx.Node) -> Own | None:
    """None of what is none of these."""
    target: Any = node.target
    if target is _FUNCTIONAL:
        written: Any = node.args[0]
        known = written is ops.batch_norm.default or written in _STAY
        return _written_to(node) if known else None
    if target not in _FORMULAS and target not in _STAY:
        return None
    x, is_backward = argument(node, "x"), "backward" in name(node)
    why = _STAY.get(target)
    if target is ops.norm_apply.default and not argument(node, "options") & call.RUNNING:
        why = _PARTS
    if target is ops.norm_backward_apply.default and arguments(node, "c1", "c2") != (None, None):
        why = _PARTS
    if why is not None:
        return Own(node, is_backward, x, why=why)
    formula, count = _FORMULAS[target]
    results = None if count == 1 else {at: at for at in range(count)}
    return Own(node, is_backward, x, formula, node.args, results)
