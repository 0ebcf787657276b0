"""What of torch's sees a call: autograd alone, or a tracing, a transform, a mode, a subclass of
Tensor. Nothing is decided here; operators/ways.py does that."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "DTYPES",
    "LAYOUTS",
    "PLAIN_TYPES",
    "below_autograd",
    "is_hooked",
    "is_jit_tracing",
    "is_plain",
    "is_quiet",
    "is_transformed",
    "needs_graph",
    "signature",
]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
LAYOUTS = (torch.strided,)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _keys(*names: str) -> Any:
    sets = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names]
    return functools.reduce(lambda one, other: one | other, sets)


#: What differentiates, and what notes that a tensor is a view of another: an activation in place
#: would make autograd copy the gradients of a view.
_AUTOGRAD = _keys("AutogradFunctionality", "AutogradOther", "ADInplaceOrView")


def below_autograd() -> Any:
    """A context in which calls go past autograd."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOGRAD)


_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_interpreter = torch._C._functorch.peek_interpreter_stack
_tracing_state = torch._C._get_tracing_state
_forward_ad = torch.autograd.forward_ad


def is_quiet() -> bool:
    """Whether no tracing, transform or mode sees calls, whatever their tensors are."""
    return not (
        _is_compiling()
        or _dispatch_modes()
        or _function_modes()
        or _interpreter() is not None
        or _tracing_state() is not None
        or _forward_ad._current_level >= 0
    )


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether only eager autograd sees these calls: no subclass, tracing, transform or mode. Then
    the kernels read what a tensor's memory has: no lazy negation, no tensor of zeros without any.
    """
    if not is_quiet():
        return False
    for tensor in tensors:  # a loop: all() of a generator takes twice as long
        if tensor is not None and (
            type(tensor) not in PLAIN_TYPES
            or tensor.layout not in LAYOUTS
            or tensor.is_nested
            or tensor.is_neg()
            or tensor._is_zerotensor()
        ):
            return False
    return True


def signature(options: Any, tensors: Iterable[Tensor | None]) -> tuple[Any, ...] | None:
    """What plain calls have in common that a look at one of them settles for all: options, and of
    each tensor dtype, shape and device. None for calls that are not plain."""
    if not is_quiet():
        return None
    parts: list[Any] = [options]
    try:
        for tensor in tensors:
            if tensor is None:
                parts.append(None)
            elif (
                type(tensor) not in PLAIN_TYPES
                or tensor.layout not in LAYOUTS
                or tensor.is_neg()
                or tensor._is_zerotensor()
            ):
                return None
            else:
                parts += (tensor.dtype, tensor.shape, tensor.device)
    except RuntimeError:  # a nested one has no shape
        return None
    return tuple(parts)


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace is at work: sizes are then no numbers."""
    return torch._C._get_tracing_state() is not None


def needs_graph(*tensors: Tensor | None) -> bool:
    """Whether autograd records a call of these."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def is_hooked() -> bool:
    """Whether hooks, such as those of a checkpoint, take what autograd saves: a node of torch's can
    be asked for it once only, and what is saved must not depend on whether planish is enabled, for
    the call may be repeated under another switch."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward mode is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )
