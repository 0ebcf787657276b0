"""Batch norm, by the way that its tensors ask for (ways.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

from planish.library.seen import needs_graph
from planish.operators import batch_formulas, batch_ops, kept, short
from planish.operators.arguments import DEVICES, DTYPES
from planish.operators.batch_formulas import Numbers
from planish.operators.call import ACTIVATIONS
from planish.operators.stage_calls import is_distributed
from planish.operators.ways import Way
from torch import Tensor

__all__ = ["batch_norm", "find", "run", "runs"]

_plain_forward, _plain_apply = short.of("batch_norm"), short.of("norm_apply")


def _fits(x: Tensor, vector: Tensor | None) -> bool:
    return vector is None or (
        vector.dim() == 1
        and vector.shape[0] == x.shape[1]
        and vector.dtype in DTYPES
        and vector.device == x.device
    )


def runs(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    eps: float,
) -> bool:
    """Whether planish runs it. All else is torch's: its dtypes and devices, its errors, and batches
    of nothing, for which it leaves the running statistics as they are."""
    if not 2 <= x.dim() <= 16 or x.dtype not in DTYPES or x.device.type not in DEVICES:
        return False
    if (running_mean is None) != (running_var is None):
        return False
    for vector in (running_mean, running_var, weight, bias):
        if not _fits(x, vector):
            return False
    if is_distributed(x):
        return False
    count = x.numel()
    if training:
        return bool(count > x.shape[1] and eps > 0)
    return bool(count > 0 and eps >= 0 and running_mean is not None)


# ---- Calls that are known ------------------------------------------------------------------------

#: x, addend, weight, bias, running_mean and running_var.
Tensors = tuple[Any, Any, Any, Any, Any, Any]


class _Prepared(NamedTuple):
    """A call to save for a derivative, and the options without."""

    recorded: batch_ops.Recorded
    alone: int
    training: bool


def _prepare(
    ndim: int,
    training: bool,
    eps: float,
    activation: str | None,
    addend: Tensor | None,
    bias: Tensor | None,
) -> _Prepared:
    code = ACTIVATIONS[activation]
    alone = batch_ops.options_of(code, not training)
    options = batch_ops.options_of(code, False, 0, True) if training else alone
    numbers = Numbers(batch_ops.axes_of(ndim), options, eps)
    return _Prepared(batch_ops.recorded(numbers, addend, bias), alone, training)


def find(training: bool, eps: float, activation: str | None, tensors: Tensors) -> tuple[Any, Any]:
    """(what run() takes, the key) of a call that was made before with tensors like these, which
    eager autograd alone looks at; None for either where it was not, or something else does."""
    key = kept.key_of((batch_norm, training, eps, activation), tensors)
    return kept.find(key), key


def run(prepared: _Prepared, momentum: float, tensors: Tensors) -> Tensor:
    """A call of plain tensors."""
    x, addend, weight, bias, running_mean, running_var = tensors
    record, alone, training = prepared
    records = needs_graph(x, addend, weight, bias)
    if records and x.is_inference():
        x = x.clone()  # autograd saves no tensor that was made in inference mode
    y: Tensor
    if training:
        if records:
            beside = record, running_mean, running_var, momentum
            y = batch_ops.record_forward(beside, x, addend, weight, bias)
            return y
        axes, _, eps = record.numbers
        y, _, _ = _plain_forward(x, *tensors[1:], axes, alone, momentum, eps)
        return y
    given = x, running_var, running_mean, addend, weight, bias
    if records:
        y = batch_ops.record_apply((None, *record.numbers), *given)
    else:
        y = _plain_apply(*given, *record.numbers)
    return y


def batch_norm(
    way: Way,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
    addend: Tensor | None,
    key: Any = None,
) -> Tensor:
    """What runs() says yes to, laid out as x; or by torch. ``key``: what the call is kept under."""
    if way is Way.TORCH:
        return batch_formulas.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum, eps, activation, addend
        )
    prepared = _prepare(x.dim(), training, eps, activation, addend, bias)
    if way is Way.PLAIN:
        tensors = x, addend, weight, bias, running_mean, running_var
        y = run(prepared, momentum, tensors)
        kept.keep(key, prepared)
        return y
    axes, options, _ = prepared.recorded.numbers
    if training:
        beside = addend, weight, bias, running_mean, running_var, axes, options, momentum, eps
        return batch_ops.FORWARD(x, *beside)[0]  # type: ignore[no-any-return]
    given = running_var, running_mean, addend, weight, bias, axes, options, eps
    return batch_ops.APPLY(x, *given)  # type: ignore[no-any-return]
