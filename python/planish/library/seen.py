"""What of torch's sees a call: autograd alone, or a tracing, a transform, a mode, a subclass of
Tensor. Nothing is decided here; operators/ways.py does that."""

from __future__ import annotations

import functools
from typing import Any

import torch
from planish.library import quick
from torch import Tensor

__all__ = [
    "LAYOUTS",
    "PLAIN_TYPES",
    "below_autograd",
    "is_hooked",
    "is_jit_tracing",
    "is_plain",
    "is_quiet",
    "is_same_size",
    "is_transformed",
    "needs_graph",
]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
LAYOUTS = (torch.strided,)


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


def is_quiet() -> bool:
    """Whether no tracing, transform or mode sees calls, whatever their tensors are."""
    return not _is_compiling() and quick.is_quiet()


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether only eager autograd sees these calls: no subclass, tracing, transform or mode. Then
    the kernels read what a tensor's memory has: no lazy negation, no tensor of zeros without any.
    """
    return not _is_compiling() and quick.is_plain(*tensors)


def is_jit_tracing() -> bool:
    """Whether torch.jit.trace is at work: sizes are then no numbers."""
    return torch._C._get_tracing_state() is not None


def is_same_size(size: Any, other: Any) -> bool:
    """Whether two sizes are the same for all values that symbols in them may have. Asking adds no
    guard to a graph."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(size == other))


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
