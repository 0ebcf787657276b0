"""Batch norm, by the way that its tensors ask for (ways.py)."""

from __future__ import annotations

from planish.library.seen import needs_graph
from planish.operators import batch_formulas, batch_ops, short
from planish.operators.arguments import DEVICES, DTYPES
from planish.operators.call import ACTIVATIONS
from planish.operators.stage_calls import is_distributed
from planish.operators.ways import Way
from torch import Tensor

__all__ = ["batch_norm", "runs"]

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
) -> Tensor:
    """What runs() says yes to, laid out as x; or by torch."""
    if way is Way.TORCH:
        return batch_formulas.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum, eps, activation, addend
        )
    code = ACTIVATIONS[activation]
    records = way is Way.OPERATOR or needs_graph(x, addend, weight, bias)
    if way is Way.PLAIN and records and x.is_inference():
        x = x.clone()  # autograd saves no tensor that was made in inference mode
    axes = batch_ops.axes_of(x.dim())
    if training:
        options = batch_ops.options_of(code, False, 0, records)
        beside = addend, weight, bias, running_mean, running_var, axes, options, momentum, eps
        if way is Way.PLAIN and records:
            return batch_ops.record_forward(  # type: ignore[no-any-return]
                (None, *beside[5:]), x, *beside[:5]
            )
        if way is Way.OPERATOR:
            results = batch_ops.FORWARD(x, *beside)
        else:
            results = _plain_forward(x, *beside)
        return results[0]  # type: ignore[no-any-return]
    assert running_mean is not None and running_var is not None
    options = batch_ops.options_of(code, True)
    given = running_var, running_mean, addend, weight, bias, axes, options, eps
    if way is Way.OPERATOR:
        return batch_ops.APPLY(x, *given)  # type: ignore[no-any-return]
    if records:
        return batch_ops.record_apply(  # type: ignore[no-any-return]
            (None, *given[5:]), x, *given[:5]
        )
    return _plain_apply(x, *given)  # type: ignore[no-any-return]
