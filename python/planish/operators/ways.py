"""Which way a call of planish's functions and modules goes: to planish's kernels at once, to the
operators that torch traces, or the way torch's own functions go.

Only that is decided here; nothing is computed.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx

__all__ = [
    "Way",
    "below_autograd",
    "is_hooked",
    "is_jit_tracing",
    "is_plain",
    "is_transformed",
    "leaf",
    "may_be_torchs",
    "needs_graph",
    "way_of",
]


class Way(enum.Enum):
    """What sees a call decides how it is made."""

    #: Eager autograd alone: straight to the kernels.
    PLAIN = enum.auto()
    #: torch.compile, torch.export, fake tensors, DTensor: planish's own operators, which have fake
    #: implementations, derivatives and sharding rules.
    OPERATOR = enum.auto()
    #: Transforms of torch.func, forward-mode derivatives, TorchScript, nested tensors and every
    #: other subclass, export to ONNX: torch's own functions, which have rules for all of these.
    TORCH = enum.auto()
    #: torch.fx's symbolic tracing: a node of the graph.
    NODE = enum.auto()


_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_LAYOUTS = (torch.strided,)


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


def _is_quiet() -> bool:
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
    if not _is_quiet():
        return False
    for tensor in tensors:  # a loop: all() of a generator takes twice as long
        if tensor is not None and (
            type(tensor) not in _PLAIN_TYPES
            or tensor.layout not in _LAYOUTS
            or tensor.is_nested
            or tensor.is_neg()
            or tensor._is_zerotensor()
        ):
            return False
    return True


def signature(options: Any, tensors: Iterable[Tensor | None]) -> tuple[Any, ...] | None:
    """What plain calls have in common that a look at one of them settles for all: options, and of
    each tensor dtype, shape and device. None for calls that are not plain."""
    if not _is_quiet():
        return None
    parts: list[Any] = [options]
    try:
        for tensor in tensors:
            if tensor is None:
                parts.append(None)
            elif (
                type(tensor) not in _PLAIN_TYPES
                or tensor.layout not in _LAYOUTS
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


def _is_transformed() -> bool:
    """Whether a transform of torch.func is at work, also inside of what torch.compile traces."""
    return torch._C._functorch.peek_interpreter_stack() is not None


#: What torch.compiler.assume_constant_result does, which would import all of torch's compiler: the
#: function is called while a graph is traced, and is no part of it.
_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def way_of(*tensors: Tensor | None) -> Way:
    """The way of a call of these tensors."""
    if torch.compiler.is_compiling():
        through_torch = _is_transformed() or torch.onnx.is_in_onnx_export()
        return Way.TORCH if through_torch else Way.OPERATOR
    if is_plain(*tensors):
        return Way.PLAIN
    if any(isinstance(tensor, fx.Proxy) for tensor in tensors):
        return Way.NODE
    if (
        is_transformed()
        or is_jit_tracing()
        or not all(_is_known(tensor) for tensor in tensors if tensor is not None)
    ):
        return Way.TORCH
    return Way.OPERATOR


def _is_known(tensor: Tensor) -> bool:
    """Whether planish's operators run on it, or say what they would make of it."""
    if type(tensor) in _PLAIN_TYPES:
        return tensor.layout in _LAYOUTS and not tensor.is_nested
    if isinstance(tensor, torch._subclasses.FakeTensor):
        return True
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return False
    from planish.operators import sharding

    return sharding.register()


def may_be_torchs(way: Way, x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether torch's own operator, if planish is under it, is as good as planish's: not where a
    compiler takes it apart, nor for DTensor, nor where it would have to save a tensor that was made
    in inference mode or that hooks take."""
    eager = way is Way.PLAIN or (way is Way.OPERATOR and not torch.compiler.is_compiling())
    if not eager or type(x) not in _PLAIN_TYPES:
        return False
    saves_badly = x.is_inference() or is_hooked()
    return not (saves_badly and needs_graph(x, *parameters))


def leaf(module: torch.nn.Module, *inputs: Any) -> Tensor:
    """The call of a module as one node of the graph that torch.fx traces, which is what modules of
    torch.nn become. It stands for a tensor."""
    tracer = next(value for value in inputs if isinstance(value, fx.Proxy)).tracer
    target = tracer.path_of_module(module)  # type: ignore[attr-defined]
    node: Any = tracer.create_proxy("call_module", target, inputs, {})
    return node  # type: ignore[no-any-return]
