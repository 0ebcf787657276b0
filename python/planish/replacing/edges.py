"""What a module does beyond ordinary calls in eval: in training, without gradients, at the edges of
a dtype; and what a call leaves behind. A norm of planish is one result and nothing else, so a class
that clamps, counts, draws numbers or does another thing in training is not one.

probe.py asks here about a class whose results are a form's; :func:`is_norm_like` knows no form.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from planish.operators.arguments import HALF
from planish.replacing import inputs, state
from planish.replacing.forms import Form
from planish.replacing.state import Changes
from torch import Tensor, nn

__all__ = ["Changes", "at_edges", "first_calls", "is_norm_like", "tried"]

#: Far less than a clamp changes, and more than roundings do, in ULP of a row's largest magnitude.
_HALF_ULP, _WIDE_ULP = 16.0, 64.0
_TRAINING = "in training its result is another"


def _drawn() -> Any:
    """Where the generators of Python and numpy are; Watch sees torch's."""
    numpy = sys.modules.get("numpy")
    there = None if numpy is None else numpy.random.get_state()
    return random.getstate(), None if there is None else (*there[:1], there[1].tolist(), *there[2:])


def tried(new: nn.Module, given: Sequence[Tensor]) -> Tensor:
    """The module's result; raises Changes where the call left another trace."""
    before = state.snapshot(new)
    y: Any = new(*given)
    what = state.changed(before, state.snapshot(new))
    if what:
        raise Changes(f"its forward changes {what}")
    if not isinstance(y, Tensor):
        raise TypeError("its result is no tensor")
    return y.detach()


def _tried_alone(new: nn.Module, given: Sequence[Tensor]) -> Tensor:
    """The same, and nothing is drawn or changed outside of the module."""
    outside, drawn = state.outside(type(new)), _drawn()
    with state.Watch():
        y = tried(new, given)
    if drawn != _drawn() and _draws_again(new, given):
        raise Changes("its forward draws random numbers")
    what = state.changed(outside, state.outside(type(new)))
    if what:
        raise Changes(f"its forward changes {what}")
    return y


def _draws_again(new: nn.Module, given: Sequence[Tensor]) -> bool:
    """Whether it was this call: another thread may draw, too."""
    before = _drawn()
    new(*given)
    return bool(before != _drawn())


def same_bits(one: Tensor, other: Tensor) -> bool:
    """NaN is NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(0.0), other.nan_to_num(0.0)
    )


def first_calls(make: Callable[[], nn.Module], given: Sequence[Tensor]) -> set[str]:
    """The module's first calls of a probe, which nothing may come of but results, the same in
    training and without gradients; and the names of the buffers that were read. Raises Changes.

    A module with children may draw: whether it is what planish's way with them draws is seen later.
    """
    new = make()
    buffers: Any = new._buffers
    buffers.names.clear()
    y = _tried_alone(new, given)
    read = set(buffers.names)
    if any(child is not None for child in new._modules.values()):
        return read
    with torch.no_grad():
        if not same_bits(_tried_alone(make().train(), given), y):
            without = same_bits(_tried_alone(make(), given), y)
            raise Changes(_TRAINING if without else "without gradients its result is another")
    return read


# ---- Edges --------------------------------------------------------------------------------------


def _tolerance(result: torch.dtype, dtypes: Sequence[torch.dtype | None]) -> float:
    """As a share of a row's largest magnitude."""
    half = [torch.finfo(one).eps for one in (result, *dtypes) if one in HALF]
    return max(_HALF_ULP * eps for eps in half) if half else _WIDE_ULP * 2.0**-23


def _off(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference in each row, as a share of the other's largest magnitude."""
    least = torch.finfo(other.dtype).smallest_normal
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    gap = torch.where(same, 0.0, (one - other).abs())
    largest = other.nan_to_num(0.0, 0.0, 0.0).abs().amax(1)
    return gap.amax(1) / largest.clamp_min(least)


def _differs(
    theirs: Tensor, ours: Tensor, x: Tensor, dtypes: Sequence[torch.dtype | None], alike: int
) -> str:
    """Empty, or what is another. Rows are along the first axis, of which the first ``alike`` are
    multiples of one.

    planish's result may be the better one: where squares overflow in the original, its result is
    not finite, or that of a row of zeros, and planish's, if finite, has to be that of the smallest
    multiple. A row of x that is not finite has a result that is not, in some of its elements or in
    all.
    """
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        return "its result has another shape or dtype"
    theirs, ours = theirs.flatten(1), ours.flatten(1)
    finite, mine = theirs.isfinite(), ours.isfinite()
    sound = x.isfinite().flatten(1).all(1)
    if bool((finite.all(1) != mine.all(1))[~sound].any()):
        return "its result is finite for a row with a NaN or an infinity"
    if bool((finite & ~mine)[sound].any()):
        return "its result is finite where planish's overflows"
    limit = _tolerance(theirs.dtype, dtypes)
    expected = torch.where(finite, theirs, ours)
    nothing = theirs[~x.flatten(1).any(1)][:1]  # of a row of zeros
    nothing = nothing if len(nothing) else torch.zeros_like(theirs[:1])
    overflowed = ((~finite.all(1) | (theirs == nothing).all(1)) & mine.all(1))[:alike]
    if bool(overflowed.any()):
        expected[:alike] = torch.where(overflowed[:, None], theirs[0], expected[:alike])
    if bool((sound & ~(_off(ours, expected) <= limit)).any()):
        return "its result is another for large or small numbers"
    return ""


def at_edges(prober: Any, pair: Any, rank: int) -> str:
    """What differs at the edges of these dtypes; empty where nothing does. ``prober`` is one of
    probe.py, of a module and a form."""
    form: Form = prober.form
    if form.kind == "convolution":
        return ""  # the input is torch's convolution's
    makers: list[Any] = [inputs.edges]
    if form.weight is not None and form.kind not in inputs.UNLIKE:
        makers.append(inputs.near_largest)
    result: torch.dtype | None = None
    new: nn.Module = prober.copy(pair[1])  # for all calls: they leave no trace, or are no norm's
    for maker in makers:
        if result is None:
            inputs.spread(new)
        else:
            inputs.large_weight(new, form, result)
        x, gate = prober.kept(maker, rank, pair[0])
        given = (x, gate) if prober.gated else (x,)
        with torch.no_grad():
            theirs = tried(new.eval(), given)
            if prober.childless and not same_bits(tried(new.train(), given), theirs):
                return _TRAINING
            ours = prober.run(new.eval(), x, gate if prober.gated else None)
        alike = inputs.MULTIPLES if result is None and form.kind not in inputs.UNLIKE else 0
        why = _differs(theirs, ours, x, pair, alike)
        if why:
            return why
        result = theirs.dtype
    return ""


# ---- What is called no norm ---------------------------------------------------------------------


def is_norm_like(cls: type[nn.Module], module: nn.Module, size: int) -> bool:
    """Whether 16 times its input gives the same, and another input gives something else."""
    generator = torch.Generator().manual_seed(6)
    for shape in ((3, 5, size), (2, size, 3, 5)):
        x = inputs.seeded(shape, generator, torch.float32) + 0.25
        try:
            new = inputs.copied(cls, module, size, None)
            with torch.no_grad(), state.Watch():
                y, again, other = new(x), new(16 * x), new(x.flip(-1))
            if not (isinstance(y, Tensor) and y.is_floating_point() and y.shape == x.shape):
                continue
            close = float((again - y).abs().max()) <= 1e-2 * float(y.abs().max())
        except Exception:  # whatever a forward raises that wants something else
            continue
        if close and not torch.equal(y, other) and float(y.std()) > 0:
            return True
    return False
