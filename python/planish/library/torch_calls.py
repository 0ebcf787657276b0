"""Calls of torch's operators that planish's own functions and modules make: of a norm that torch
has. Its derivative is then torch's, in C++, and costs the host what torch's costs.

Such a call is marked as planish's own (src/torch/own_call.h): planish's kernels stand under the
operators from the first one on. They run these calls and their derivatives, whether planish is
enabled or not, and pass all others on to torch's while it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

import torch
from planish.library import dispatcher, quick, switch
from planish.library.dtypes import DTYPES
from planish.library.loaded import library
from planish.library.seen import is_quiet
from torch import Tensor

__all__ = ["NUMBERS", "batch_norm", "group_norm", "is_possible", "layer_norm", "rms_norm"]
__all__ += ["runs_torchs", "short"]

#: The operators that can be called so, by kinds of device.
_CALLED = {
    (op, device)
    for op in ("layer_norm", "group_norm", "rms_norm", "batch_norm")
    for device in switch.DEVICES
}

#: Those that planish's kernels are under by now, and those where that cannot be.
_staying: set[tuple[str, str]] = set()
_refused: set[tuple[str, str]] = set()

_begin, _end = library().own()

_MOST_AXES = 16
#: quick.py's numbers.
NUMBERS = {
    "layer_norm": quick.LAYER_NORM,
    "group_norm": quick.GROUP_NORM,
    "rms_norm": quick.RMS_NORM,
    "batch_norm": quick.BATCH_NORM,
}
_OPERATORS = {number: name for name, number in NUMBERS.items()}


def _stay(group: tuple[str, str]) -> bool:
    """Puts planish under a group's operators, once; whether it is."""
    cuda = group[1] == "cuda"
    if cuda and torch.cuda.is_current_stream_capturing():
        return False
    with switch.lock:
        if group not in _staying and group not in _refused:
            try:
                if cuda:
                    switch.check_cuda()
                refused = library().stay(switch.GROUPS[group])
            except RuntimeError as error:
                refused = str(error)
            (_refused if refused else _staying).add(group)
            dispatcher.forget_resolved_kernels()
    return group in _staying


def is_possible(op: str, x: Tensor) -> bool:
    """Whether torch's operator of this group, called by one of the functions here, is planish:
    because it is enabled, or by a call of its own, which neither autocast nor a mode would see."""
    device = "cuda" if x.is_cuda else "cpu" if x.is_cpu else ""
    group = op, device
    enabled = group in switch.active()
    if enabled and op != "layer_norm":
        return True
    if not x.is_contiguous():  # of others torch makes copies, and planish has kernels for some
        return False
    if group not in _staying and (group not in _CALLED or group in _refused or not _stay(group)):
        return False
    return enabled or (
        x.dtype in DTYPES
        and (1 if op == "group_norm" else 0) < x.dim() <= _MOST_AXES
        and (group != ("rms_norm", "cpu") or x.numel() > 0)  # torch has no backward of it there
        and is_quiet()
        and not torch.is_autocast_enabled(device)
    )


def _own(function: Callable[..., Any], *arguments: Any) -> Any:
    _begin()
    try:
        return function(*arguments)
    finally:
        _end()


def layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """torch.layer_norm by planish; right to every order, which torch's is not (_replace)."""
    y: Tensor = _own(torch.layer_norm, x, shape, weight, bias, eps)
    return y


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """torch.group_norm by planish; while it is enabled, by torch where that was measured to be
    faster."""
    if switch.is_enabled("group_norm", "cuda" if x.is_cuda else "cpu"):
        return torch.group_norm(x, groups, weight, bias, eps)
    y: Tensor = _own(torch.group_norm, x, groups, weight, bias, eps)
    return y


def rms_norm(x: Tensor, shape: Any, weight: Tensor | None, eps: float | None) -> Tensor:
    """torch.rms_norm by planish."""
    if switch.is_enabled("rms_norm", "cuda" if x.is_cuda else "cpu"):
        return torch.rms_norm(x, shape, weight, eps)
    both = quick.fused_rms_norm_cpu if x.is_cpu else torch._fused_rms_norm
    y: Tensor = _own(both, x, shape, weight, eps)[0]
    return y


def _begins(op: int, x: Any) -> bool:
    """Whether planish comes under this operator now, by its first call."""
    if type(x) is not Tensor or not is_quiet():
        return False
    group = _OPERATORS[op], "cuda" if x.is_cuda else "cpu"
    return group in _CALLED and not (group in _staying or group in _refused) and _stay(group)


def runs_torchs(op: int, x: Any, *parameters: Any) -> bool:
    """Whether torch's operator (by quick.py's number), called by one of the functions here, is
    planish with nothing to decide: small models wait for the host."""
    if is_compiling():
        return False
    run = quick.runs_torchs
    return run(op, x, *parameters) or (_begins(op, x) and run(op, x, *parameters))


def short(op: int, x: Any, size: Any, weight: Any, bias: Any, eps: Any) -> Tensor | None:
    """y of that operator, where runs_torchs holds and torch refuses nothing; None otherwise: the
    call goes the long way. ``size``: normalized_shape or num_groups; None: the last axis."""
    if is_compiling():
        return None
    y: Tensor | None = quick.norm(op, x, size, weight, bias, eps)
    if y is None and _begins(op, x):
        y = quick.norm(op, x, size, weight, bias, eps)
    return y


def batch_norm(x: Any, *arguments: Any) -> Tensor | None:
    """A batch norm of (weight, bias, running_mean, running_var, training, momentum,
    eps) by torch's operator, as planish's own call of it; None where torch would refuse something,
    or planish is not under it: the call goes the long way."""
    if is_compiling():
        return None
    run = quick.batch_norm
    y: Tensor | None = run(x, *arguments)
    if y is None and _begins(quick.BATCH_NORM, x):
        y = run(x, *arguments)
    return y
