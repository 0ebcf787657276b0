"""A norm that autograd records: what the call hands over beside its tensors, what it saves, and the
first derivative, which is planish's own backward.

torch.autograd.Function looks at each of its arguments, so that it is given the tensors that are
there and one record of all else. Derivatives of the backward are in derivatives.py.
"""

from __future__ import annotations

import dataclasses
from operator import itemgetter
from typing import Any

import torch
from planish.library.loaded import ERROR_UNAVAILABLE, library
from planish.library.seen import is_plain
from planish.operators import call as _call
from planish.operators import formulas, short
from planish.operators.call import GRADIENTS, Call, Tensors
from planish.operators.formulas import Given
from torch import Tensor

__all__ = ["Record", "differentiate", "save", "thrown"]

_Like = tuple[torch.Size, torch.dtype]

#: What may be saved, in this order; branch is x beside a column_scale.
_SAVED = ("s", "rstd", "mean", "branch", *Tensors._fields[2:])
#: Where norm_backward has the gradient of what norm_forward takes.
_GRADIENT_OF = {name: GRADIENTS.index(name) for name in Tensors._fields if name in GRADIENTS}
#: Behind norm_backward's results: a gradient of shift that is dy, and None.
_DY_AS_DSHIFT, _NONE = len(GRADIENTS), -1
#: Gradients that have the sizes of their axes, not always those of the parameter.
_PARAMETERS = ("weight", "bias", "column_scale", "scale", "shift")


def thrown(*statuses: int) -> bool:
    """Whether the operator whose exception was just caught threw with one of these statuses."""
    return library().take_thrown() in statuses


@dataclasses.dataclass(slots=True)
class _Plan:
    """What is saved, and the backward, for one set of gradients that are wanted."""

    options: int  # norm_backward's
    keeps: Any  # what is saved out of all of _SAVED
    reads: Any  # what norm_backward takes out of (dy, dsum, zeros, None, *saved)
    gather: Any  # the gradients of what the Function was given out of (*results, dshift, None)
    zeros: bool  # whether a shift of zeros stands for the one that makes no difference
    dshift_is_dy: bool  # y is the sum of shift with the norm's result
    refuses: bool  # row_scale has no gradient
    #: Results of another shape or dtype than their parameters; None: no backward ran yet.
    reshaped: list[tuple[int, _Like]] | None = None


class Record:
    """What norm_forward is called with beside its tensors, of one combination of dtypes, sizes and
    devices. ``keys``: the dispatch keys of the call, None for plain tensors."""

    __slots__ = ("call", "keys", "likes", "plain_shift", "plans", "present", "spread")

    def __init__(self, call: Call, given: Tensors, keys: Any = None) -> None:
        self.call, self.keys = call, keys
        self.present = [name for name, t in given._asdict().items() if t is not None]
        self.likes = {n: (t.shape, t.dtype) for n, t in given._asdict().items() if t is not None}
        self.plain_shift = type(given.shift) in (Tensor, torch.nn.Parameter)
        #: All ten out of (*tensors that are there, None).
        self.spread = _pick(Tensors._fields, [*self.present, ""])
        self.plans: dict[tuple[bool, ...], _Plan] = {}

    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Of dx and dresidual."""
        x = self.likes["x"]
        return x[1], self.likes.get("residual", x)[1]

    def _saved(self, needs: Tensors) -> list[str]:
        """What the backward reads, and no more: what was given beside it may be written to."""
        options, there = self.call.options, self.likes
        before = bool(options & _call.GATE_BEFORE)
        through = needs.x or needs.column_scale  # else dresidual is the norm's gradient as it is
        reads_shift = bool(_call.activation_in(options)) or ("gate" in there and not before)
        reads = {
            "s": True,
            "rstd": True,
            "mean": not options & _call.RMS,
            "branch": "column_scale" in there and needs.column_scale and not before,
            "row_scale": through,
            "column_scale": through or before,
            "rng": True,  # the kernels ask for it
            "weight": True,
            "bias": reads_shift or "scale" in there,
            "scale": True,
            "shift": reads_shift or not self.plain_shift,
            "gate": True,
        }
        made = ("s", "rstd", "mean", "branch")
        return [name for name in _SAVED if reads[name] and (name in made or name in there)]

    def plan(self, given: tuple[bool, ...]) -> _Plan:
        """For what autograd has as ctx.needs_input_grad."""
        plan = self.plans.get(given)
        if plan is None:
            plan = self.plans[given] = self._make_plan(Tensors(*self.spread((*given[1:], False))))
        return plan

    def _make_plan(self, needs: Any) -> _Plan:
        likes, saved = self.likes, self._saved(needs)
        dx, dresidual = self.dtypes()
        scaled = "row_scale" in likes or "column_scale" in likes or self.call.dropout_p > 0
        shared = needs.x and needs.residual and not scaled and dx == dresidual  # written once
        unread = needs.shift and "shift" not in saved  # what it was makes no difference
        dshift_is_dy = unread and "scale" not in likes and likes["shift"][0] == likes["x"][0]
        alike = self.keys is None and likes.get("scale") == likes.get("shift")
        stand_in = "scale" if alike else "zeros"
        wanted = needs._asdict() | {"residual": needs.residual and not shared}
        wanted["shift"] = needs.shift and not dshift_is_dy
        places = _GRADIENT_OF | {"row_scale": _NONE, "rng": _NONE}
        if shared:
            places["residual"] = places["x"]
        if dshift_is_dy:
            places["shift"] = _DY_AS_DSHIFT
        bits = sum(wanted[name] << bit for bit, name in enumerate(GRADIENTS))
        read = ["dy", "dsum", "zeros", "", *saved]
        fields = [stand_in if name == "shift" and unread else name for name in Given._fields]
        return _Plan(
            options=_call.backward_options(self.call.options, bits, dx, dresidual),
            keeps=_pick(saved, _SAVED),
            reads=_pick(fields, read, 3),
            gather=itemgetter(_NONE, *(places[name] for name in self.present)),
            zeros=unread and not dshift_is_dy and not alike,
            dshift_is_dy=dshift_is_dy,
            refuses=needs.row_scale,
        )

    def differences(self, results: Any) -> list[tuple[int, _Like]]:
        """Which of norm_backward's results are not as their parameters, and these."""
        found = []
        for name in _PARAMETERS:
            result = results[_GRADIENT_OF[name]]
            if result is not None and (result.shape, result.dtype) != self.likes[name]:
                found.append((_GRADIENT_OF[name], self.likes[name]))
        return found


def _pick(names: Any, out_of: Any, otherwise: int = -1) -> Any:
    """What takes these, two at least, out of a sequence in this order; what is not there is taken
    from one place of it."""
    return itemgetter(*(out_of.index(n) if n in out_of else otherwise for n in names))


def _shaped(gradient: Tensor, like: _Like) -> Tensor:
    """Of the parameter's shape and dtype."""
    shape, dtype = like
    if gradient.shape != shape:
        gradient = gradient.reshape(shape)
    return gradient if gradient.dtype == dtype else gradient.to(dtype)


def save(ctx: Any, record: Record, given: tuple[Any, ...], results: tuple[Any, ...]) -> None:
    """What the backward reads."""
    plan = record.plan(ctx.needs_input_grad)
    _, total, mean, rstd = results
    x = given[0]
    s = x if total is None else total
    ctx.record, ctx.plan = record, plan
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*plan.keeps((s, rstd, mean, x, *given[2:])))


def differentiate(
    ctx: Any, dy: Tensor | None, dsum: Tensor | None = None, *_: Any
) -> tuple[Any, ...]:
    """The gradients of what the Function was given: the record, and the tensors that are there."""
    record, plan = ctx.record, ctx.plan
    if dy is None and dsum is None:
        return (None,) * len(ctx.needs_input_grad)
    call = record.call
    if plan.refuses:
        raise NotImplementedError("planish::norm_forward: row_scale has no gradient")
    saved = ctx.saved_tensors
    if dy is None:
        y_dtype = _call.dtype_in(call.options) or record.dtypes()[0]
        dy = torch.zeros_like(saved[0], dtype=y_dtype)
    zeros = dshift = None
    if plan.zeros:
        shape, dtype = record.likes["shift"]
        zeros = torch.zeros(shape, dtype=dtype, device=dy.device)
    elif plan.dshift_is_dy:
        dshift = _shaped(dy, record.likes["shift"])
    given = plan.reads((dy, dsum, zeros, None, *saved))
    results, composed = _run_backward(
        given, call.axes, plan.options, call.split, call.last_of_backward
    )
    reshaped = plan.reshaped
    if reshaped is None or composed:
        reshaped = record.differences(results)
        if not composed:
            plan.reshaped = reshaped
    if reshaped:
        results = list(results)
        for place, like in reshaped:
            results[place] = _shaped(results[place], like)
    gathered: tuple[Any, ...] = plan.gather((*results, dshift, None))
    return gathered


def _run_backward(given: Any, axes: int, options: int, split: int, p: float) -> tuple[Any, bool]:
    """norm_backward's results, and whether they are composed."""
    if torch.is_grad_enabled() or not is_plain(*given):
        return torch.ops.planish.norm_backward.default(*given, axes, options, split, p), False
    try:
        return short.BACKWARD(*given, axes, options, split, p), False
    except RuntimeError:
        if not thrown(ERROR_UNAVAILABLE):
            raise
    return _composed_backward(Given(*given), axes, options, split, p), True


def _composed_backward(
    given: Given, axes: int, options: int, split: int, p: float
) -> list[Tensor | None]:
    """The same in torch's operators, each result in its own dtype."""
    with torch.enable_grad():
        results = formulas.backward(given, axes, options, split, p, [])
    others = given.weight, given.bias, given.column_scale, given.scale, given.shift, given.gate
    own = given.s.dtype
    dtypes = (
        _call.dtype_in(options) or own,
        _call.sum_dtype_in(options) or own,
        *(own if t is None else t.dtype for t in others),
    )
    return [
        None if result is None else result.detach().to(dtype)
        for result, dtype in zip(results, dtypes, strict=True)
    ]
