"""planish's operators for tensors that only eager autograd sees: at once to the kernels of the
device, past all else that torch's dispatcher would look at.

C defines the operators (src/torch/norm_operators.c, norm_pair.c and quantized_norm.c say what they
take and return); ops.py has them as the dispatcher does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from planish.library import quick
from planish.library.quick import CPU, CUDA, KEYS
from planish.library.seen import below_autograd, is_plain

__all__ = [
    "BACKWARD",
    "FORWARD",
    "INTO",
    "KEYS",
    "PAIR",
    "PAIR_BACKWARD",
    "QUANTIZED",
    "STATISTICS",
    "at",
    "is_profiled",
    "of",
    "unrecorded",
]

_profiler = torch.autograd.profiler


def is_profiled() -> bool:
    """Whether torch's profiler is at work, which sees what is dispatched."""
    return bool(_profiler._is_profiler_enabled)


def at(keys: Any, name: str) -> Callable[..., Any]:
    """One operator on the device of these keys, where nothing is asked any more."""
    overload = getattr(torch.ops.planish, name).default
    return functools.partial(overload._handle.redispatch_boxed, keys)


def of(name: str) -> Callable[..., Any]:
    """The short way of one operator."""
    overload = getattr(torch.ops.planish, name).default
    operator, redispatch = overload._op, overload._handle.redispatch_boxed
    at_once = quick.own[name]

    def run(*arguments: Any) -> Any:
        results = at_once(*arguments)
        if results is not NotImplemented:
            return results
        x = arguments[0]
        keys = CPU if x.is_cpu else CUDA if x.is_cuda else None
        if keys is None or _profiler._is_profiler_enabled:
            with below_autograd():
                return operator(*arguments)
        return redispatch(keys, *arguments)

    return run


def tensors_of(overload: Any) -> int:
    """How many arguments of an operator are tensors, which come before all else."""
    return sum("Tensor" in str(argument.type) for argument in overload._schema.arguments)


def unrecorded(name: str) -> Callable[..., Any]:
    """An operator where autograd does not record: by the short way, or by the dispatcher for what
    else may see the call."""
    overload, plain = getattr(torch.ops.planish, name).default, of(name)
    count = tensors_of(overload)

    def run(*arguments: Any) -> Any:
        return (plain if is_plain(*arguments[:count]) else overload)(*arguments)

    return run


FORWARD = of("norm_forward")
BACKWARD = of("norm_backward")
STATISTICS = of("norm_statistics")
QUANTIZED = of("quantized_norm")
INTO = of("norm_into")
PAIR = of("norm_pair")
PAIR_BACKWARD = of("norm_pair_backward")
