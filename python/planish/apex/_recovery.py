"""What memory_efficient needs: x out of y, and whether y is enough for that.

    xhat = (y - bias) / weight,    x - mean = xhat / rstd

y was rounded to its dtype, so xhat comes back with an error of about

    (eps |y| + unit) / |weight|  <=  eps |xhat| + (eps |bias| + unit) / |weight|

where unit is the distance of the smallest numbers. The first part is the rounding that
every norm's result has. The second grows without bound as a weight gets small beside its bias, and
where a weight is 0 nothing of x is left in y. Apex divides by max(|weight|, eps) there, and its
gradients are wrong. Here y is kept only where that second part is at most ``_digits_lost`` times
eps for every weight, and x otherwise.

Weights change, and not all that change them tell torch (Megatron and DeepSpeed write through
``.data``). So the weights of the forward are copied for the backward, beside y they are small, and
whether they are large enough is looked at in every forward on the CPU. On a GPU the host would have
to wait for that in every call: it is looked at again after what may have changed a weight, a write
that torch counts or a backward. Should a weight have been written in secret between two forwards
without a backward between them, the device finds that in the backward, from the copies, and the
gradients are NaN rather than wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils.weak import WeakIdKeyDictionary

import torch
from planish.operators.arguments import HALF
from torch import Tensor

__all__ = ["as_dtype", "copied", "may_have_changed", "proven", "recovered", "y_is_enough"]

_PLAIN = (Tensor, torch.nn.Parameter)


class _Answer(NamedTuple):
    bias: Tensor | None
    dtype: torch.dtype
    #: What the parameters were when it was found: where they lie and how often they were written.
    stamp: tuple[int, ...]
    enough: bool


#: By weight, on devices that have to be waited for.
_answers: Any = WeakIdKeyDictionary()


def _digits_lost(dtype: torch.dtype) -> int:
    """So many times larger than that of y's own rounding may the error of xhat be: of a half four
    bits are given, of the others eleven."""
    return 16 if dtype in HALF else 2048


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor itself where it has that dtype: an operator may not return what it was given by
    way of another, as ``to`` would."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _stamp(weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    mine = weight._version, weight.data_ptr()
    return mine if bias is None else (*mine, bias._version, bias.data_ptr())


def _is_enough(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> Tensor:
    """On the device: whether y of this dtype is enough."""
    info = torch.finfo(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    unit = max(info.tiny * info.eps, torch.finfo(wide).tiny)
    room = as_dtype(weight, wide).abs() * (_digits_lost(dtype) * info.eps)
    if bias is None:
        return (room >= unit).all()
    return (room >= as_dtype(bias, wide).abs() * info.eps + unit).all()


def _has_to_be_waited_for(weight: Tensor) -> bool:
    return not weight.is_cpu


def _look_again(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> bool:
    """Answers for this weight and for all others of its device that may have changed since: after
    an optimizer's step the host waits for the device once, not once for each norm."""
    due = [(weight, bias, dtype)]
    for other, answer in list(_answers.items()):
        stale = other.device == weight.device and other is not weight
        if stale and answer.stamp != _stamp(other, answer.bias):
            due.append((other, answer.bias, answer.dtype))
    with torch.no_grad():
        found = torch.stack([_is_enough(kind, w, b) for w, b, kind in due]).tolist()
    for (w, b, kind), enough in zip(due, found, strict=True):
        if isinstance(w, torch.nn.Parameter):
            _answers[w] = _Answer(b, kind, _stamp(w, b), enough)
    return bool(found[0])


def y_is_enough(dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether x can be had from y of this dtype, see above. On a GPU this waits for the weights,
    once after each backward and each time that they were written; a CUDA graph, which may not wait
    and in which they may change later, keeps x."""
    if torch.compiler.is_compiling():
        return False  # it decides what is kept
    if weight is None:
        return bias is None
    if type(weight) not in _PLAIN or weight.is_meta or torch._C._len_torch_dispatch_stack():
        return False  # there may be no numbers to look at
    if not _has_to_be_waited_for(weight):
        with torch.no_grad():
            return bool(_is_enough(dtype, weight, bias))
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    answer: _Answer | None = _answers.get(weight)
    if answer is not None and answer.bias is bias and answer.dtype == dtype:
        known = answer.stamp == _stamp(weight, bias)
        return answer.enough if known else _look_again(dtype, weight, bias)
    return _look_again(dtype, weight, bias)


def may_have_changed(weight: Tensor | None) -> None:
    """After a backward a step may follow that writes to the weight in secret."""
    if weight is not None and (answer := _answers.get(weight)) is not None:
        _answers[weight] = answer._replace(stamp=())


def copied(parameter: Tensor | None) -> Tensor | None:
    """As it is in the forward, for the backward."""
    return None if parameter is None else parameter.detach().clone()


def proven(rstd: Tensor, dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """rstd, of which gradients are made; NaN on a device where y of the forward's weights turns out
    not to be enough. The host does not wait for that."""
    if weight is None or not _has_to_be_waited_for(weight):
        return rstd
    return torch.where(_is_enough(dtype, weight, bias), rstd, torch.nan)


def recovered(
    y: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None, smallest: float = 0.0
) -> Tensor:
    """x - mean, in the dtype of rstd, which has the shape of x but 1 where the norm reduces.

    Weights nearer to 0 than ``smallest`` are taken for it, as Apex does; that gives a finite number
    where nothing can be recovered, not the right one."""
    wide = rstd.dtype
    x = as_dtype(y, wide)
    if bias is not None:
        x = torch.sub(x, as_dtype(bias, wide))
    if weight is not None:
        scale = as_dtype(weight, wide)
        least = max(smallest, torch.finfo(wide).tiny)
        floor = torch.full_like(scale, least).copysign(scale)
        scale = torch.where(scale.abs() < least, floor, scale)
        x = torch.div(x, scale)
    return torch.div(x, rstd)
