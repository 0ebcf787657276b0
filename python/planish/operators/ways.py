"""Which way a call of planish's functions and modules goes: to planish's kernels at once, to the
operators that torch traces, or the way torch's own functions go.

Only that is decided here; nothing is computed.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

import torch
from planish.library.seen import (
    LAYOUTS,
    PLAIN_TYPES,
    is_hooked,
    is_jit_tracing,
    is_plain,
    is_transformed,
    needs_graph,
)
from torch import Tensor, fx

__all__ = ["Way", "give_rules", "lacks_rules", "leaf", "may_be_torchs", "way_of"]


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


def _is_transformed() -> bool:
    """Whether a transform of torch.func is at work, also inside of what torch.compile traces."""
    return torch._C._functorch.peek_interpreter_stack() is not None


#: What torch.compiler.assume_constant_result does, which would import all of torch's compiler: the
#: function is called while a graph is traced, and is no part of it.
_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _gives_rules() -> bool:
    """Gives DTensor the rules of planish's operators where it is loaded, and says whether it has
    them. A graph that is traced may come across DTensors before any call that is not traced."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    given = [give() for give in _rules]
    return any(given)


_gives_rules._dynamo_marked_constant = True  # type: ignore[attr-defined]


def way_of(*tensors: Tensor | None) -> Way:
    """The way of a call of these tensors."""
    if torch.compiler.is_compiling():
        _gives_rules()
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
    if type(tensor) in PLAIN_TYPES:
        return tensor.layout in LAYOUTS and not tensor.is_nested
    if isinstance(tensor, torch._subclasses.FakeTensor):
        return True
    return _is_placed(tensor) and _gives_rules()


def _is_placed(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def lacks_rules(*tensors: Tensor) -> bool:
    """Whether one of them is a DTensor, and this torch takes no rules for planish's operators."""
    return any(map(_is_placed, tensors)) and not _gives_rules()


_rules: list[Callable[[], bool]] = []


def give_rules(give: Callable[[], bool]) -> None:
    """What gives DTensor the rules of planish's operators, when the first one comes, and says
    whether this torch takes them."""
    _rules.append(give)


def _is_lazy(tensor: Tensor | None) -> bool:
    """Whether its memory is to be negated, or is none because it is all zeros."""
    return tensor is not None and (tensor.is_neg() or tensor._is_zerotensor())


def may_be_torchs(way: Way, x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether torch's own operator, if planish is under it, is as good as planish's: not where a
    compiler takes it apart, nor for DTensor, nor where it would have to save a tensor that was made
    in inference mode or that hooks take, nor where a tensor's memory is not what it stands for."""
    eager = way is Way.PLAIN or (way is Way.OPERATOR and not torch.compiler.is_compiling())
    if not eager or type(x) not in PLAIN_TYPES:
        return False
    if way is Way.OPERATOR and any(map(_is_lazy, (x, *parameters))):
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
