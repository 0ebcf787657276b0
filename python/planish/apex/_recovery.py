"""What memory_efficient needs: x out of y, and whether y is enough for that.

    xhat = (y - bias) / weight,    x - mean = xhat / rstd

y was rounded to its dtype, so xhat comes back with an error of about

    (eps |y| + unit) / |weight|  <=  eps |xhat| + (eps |bias| + unit) / |weight|

where unit is the distance of the smallest numbers. The first part is the rounding that
every norm's result has. The second grows without bound as a weight gets small beside its bias, and
where a weight is 0 nothing of x is left in y. Apex divides by max(|weight|, eps) there, and its
gradients are wrong. Here y is kept only where that second part is at most 1/4 for every weight, and
x otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils.weak import WeakIdKeyDictionary

import torch
from torch import Tensor

__all__ = ["as_dtype", "recovered", "y_is_enough"]

#: The largest error of xhat beyond that of y's own rounding.
_LARGEST_ERROR = 0.25

_PLAIN = (Tensor, torch.nn.Parameter)


class _Answer(NamedTuple):
    bias: Tensor | None
    dtype: torch.dtype
    #: What the parameters were when it was found: where they lie and how often they were written.
    stamp: tuple[int, ...]
    enough: bool


#: By weight. It is looked at again when a parameter was written.
_answers: Any = WeakIdKeyDictionary()


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
    lost = Tensor.new_full(weight, (), unit, dtype=wide)
    if bias is not None:
        lost = lost + as_dtype(bias, wide).abs() * info.eps
    enough: Tensor = (as_dtype(weight, wide).abs() * _LARGEST_ERROR >= lost).all()
    return enough


def _look_again(dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> bool:
    """Answers for this weight and for all others of its device that were written since: after an
    optimizer's step the host waits for the device once, not once for each norm."""
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
    once after each time that they were written; a CUDA graph, which may not wait and in which they
    may change later, keeps x."""
    if torch.compiler.is_compiling():
        return False  # it decides what is kept
    if weight is None:
        return bias is None
    if type(weight) not in _PLAIN or weight.is_meta or torch._C._len_torch_dispatch_stack():
        return False  # there may be no numbers to look at
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    answer: _Answer | None = _answers.get(weight)
    if answer is not None and answer.bias is bias and answer.dtype == dtype:
        known = answer.stamp == _stamp(weight, bias)
        return answer.enough if known else _look_again(dtype, weight, bias)
    return _look_again(dtype, weight, bias)


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
