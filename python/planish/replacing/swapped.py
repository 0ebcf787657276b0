"""How one module comes to run on planish, and back: its class changes, the object stays.

torch's own modules become planish's of the same name. Modules of other libraries get a subclass of
their class, made here, whose forward runs on planish what was proven and hands all else to the
original's. Name, isinstance, attributes, state_dict, hooks and whatever refers to the object are as
they were.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from planish.library import quick
from planish.library.torch_calls import short
from planish.operators.arguments import DEVICES, HALF
from planish.operators.ways import Way, way_of
from planish.replacing import batch_layers, families, layers
from planish.replacing.forms import Form, eps_of, parameter_of
from planish.replacing.layers import Layer
from planish.replacing.layers import original_of as original_class
from planish.replacing.probe import Proof, prove
from planish.replacing.runners import NotExact, runner
from torch import Tensor, nn

__all__ = ["Swapped", "decide", "form_of", "original_class", "put"]


class Swapped(Layer):
    """What the classes made here share."""

    _planish_proof: Proof

    @staticmethod
    def _planish_again(holder: Any) -> None:
        put(holder)


def _runs(proof: Proof, module: Any, x: Any) -> bool:
    """Whether this call is one of those that were proven, and planish's to make: transforms and
    TorchScript trace the original's forward."""
    form = proof.form
    if not isinstance(x, Tensor) or x.dim() not in proof.ranks:
        return False
    if proof.dropped and any(x.dim() == n and x.shape[axis] == 1 for n, axis in proof.dropped):
        return False
    weight, bias = parameter_of(module, form.weight), parameter_of(module, form.bias)
    if form.kind == "convolution":
        weight, bias = module.weight, module.bias
    first = weight if weight is not None else bias
    if (x.dtype, None if first is None else first.dtype) not in proof.pairs:
        return False
    return (
        x.device.type in DEVICES
        and (x.numel() > 0 or not x.is_cuda)
        and all(
            p is None or (p.device == x.device and p.dtype == first.dtype)  # type: ignore[union-attr]
            for p in (weight, bias)
        )
        and way_of(x, weight, bias) in (Way.PLAIN, Way.OPERATOR)
    )


def _short(proof: Proof) -> Callable[[Any, Any], Tensor | None] | None:
    """The call of torch's operator that says all of the form, with no more than is needed to know
    that planish runs it: small models wait for the host. None: there is no such operator, or, of
    its results, this call is another one."""
    form = proof.form
    bare = dataclasses.replace(form, weight=None, bias=None, eps=0.0, order="once")
    if bare not in (Form("layer", eps=0.0), Form("rms", eps=0.0)) or proof.dropped:
        return None
    rms, ranks, pairs = form.kind == "rms", proof.ranks, proof.pairs
    op, rounds = quick.RMS_NORM if rms else quick.LAYER_NORM, form.order in ("xhat", "weight")

    def call(module: Any, x: Any) -> Tensor | None:
        weight, bias = parameter_of(module, form.weight), parameter_of(module, form.bias)
        if torch.compiler.is_compiling() or type(x) is not Tensor or x.is_nested:
            return None
        dtype = x.dtype
        pair = dtype, None if weight is None and bias is None else dtype
        if x.dim() not in ranks or pair not in pairs or (rounds and dtype in HALF) or not x.numel():
            return None
        return short(op, x, None, weight, bias, eps_of(form, module))

    return call


@functools.cache
def _swapped_class(original: Any, proof: Proof) -> type[nn.Module]:
    form, run, short = proof.form, runner(proof.form), _short(proof)
    known = families.signature(original)
    names = known.names if known is not None else ()
    forward: Callable[..., Any] = original.forward
    takes_gate = form.gate is not None

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """x and gate, where nothing else is given."""
        given = dict(zip(names, args, strict=False)) | kwargs
        if len(given) != len(args) + len(kwargs):
            return None
        x = given.pop(names[0], None)
        gate = given.pop(names[1], None) if takes_gate else None
        return None if any(value is not None for value in given.values()) else (x, gate)

    @functools.wraps(forward)
    def swapped_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if short is not None and len(args) == 1 and not kwargs:
            y = short(self, args[0])
            if y is not None:
                return y
        found = bound(args, kwargs) if kwargs or len(args) != 1 else (args[0], None)
        if found is not None:
            x, gate = found
            given = not takes_gate or isinstance(gate, Tensor)
            if given and _runs(proof, self, x):
                try:
                    return run(self, x, gate)
                except NotExact:
                    pass
        return forward(self, *args, **kwargs)

    body = layers.body_of(original, forward=swapped_forward, _planish_proof=proof)
    return type(original.__name__, (Swapped, original), body)


class Frozen(Layer):
    """What the classes of frozen batch norms share."""

    _planish_what: str

    @staticmethod
    def _planish_again(holder: Any) -> None:
        put(holder)


@functools.cache
def _frozen_class(original: Any, activation: str | None, what: str) -> type[nn.Module]:
    forward = batch_layers.swapped_forward(original, activation)
    body = layers.body_of(original, forward=forward, _planish_what=what)
    return type(original.__name__, (Frozen, original), body)


def form_of(module: nn.Module) -> str:
    """What planish computes for it, in words; empty for a module that planish did not change."""
    if isinstance(module, Swapped):
        return str(module._planish_proof)
    if isinstance(module, Frozen):
        return module._planish_what
    if layers.WAS in module.__dict__ and original_class(module) is not type(module):
        return f"planish.{type(module).__name__}"
    return ""


def decide(module: nn.Module) -> tuple[type[nn.Module], str] | str:
    """The class that runs it on planish and what that computes; or why there is none, empty for
    what is no norm. Whatever the module's own attributes raise is a reason."""
    try:
        return _decide(module)
    except Exception as error:
        if not families.is_called_norm(module):
            return ""
        return f"looking at it raises {type(error).__name__}: {error}".splitlines()[0]


def _decide(module: nn.Module) -> tuple[type[nn.Module], str] | str:
    cls: Any = type(module)
    if isinstance(module, Swapped | Frozen) or cls.__module__.partition(".")[0] == "planish":
        return ""
    if isinstance(module, torch.jit.ScriptModule):
        return families.why_not(module) or ""
    why = layers.bound_forward(module)
    if cls in families.TORCH:
        return why or (families.TORCH[cls], f"planish.{families.TORCH[cls].__name__}")
    parametrized = "parametrizations" in module._modules
    batch = batch_layers.decide(module)
    if isinstance(batch, str):
        return batch
    if batch is not None:
        made, activation, what = batch
        return made or _frozen_class(cls, activation, what), what
    refused = families.why_not(module, parametrized)
    if refused is not None:
        return refused
    if why or parametrized:
        why = why or "its parameters are computed (torch.nn.utils.parametrize)"
        return why if families.is_called_norm(module) else ""
    proof = prove(cls, module)
    if isinstance(proof, str):
        return proof
    direct = families.DIRECT.get((cls.__module__, cls.__qualname__))
    if direct is not None:
        return direct, f"planish.{direct.__name__}"
    mine = _dtypes(module)
    if mine and not mine <= {pair[1] for pair in proof.pairs}:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in mine)
        more = f" ({proof.note})" if proof.note else ""
        return f"with parameters of {names} its results are not planish's within the bounds{more}"
    return _swapped_class(cls, proof), str(proof)


def _dtypes(module: nn.Module) -> set[torch.dtype | None]:
    return {p.dtype for p in module._parameters.values() if p is not None}


def put(module: nn.Module) -> str | None:
    """Changes one module to run on planish. None if it does now, or why not."""
    decision = decide(module)
    if isinstance(decision, str):
        return decision
    cls, _ = decision
    original = type(module)
    if not issubclass(cls, Layer):  # what its forward reads is there before the class
        module.__dict__[layers.WAS] = original
        if original not in families.TORCH and issubclass(cls, nn.GroupNorm):
            act = module._modules.get("act")
            module.__dict__["activation"] = families.ACTIVATIONS[type(act)] if act else None
        elif original not in families.TORCH and issubclass(cls, nn.BatchNorm2d):
            batch: Any = batch_layers.decide(module)
            module.__dict__["activation"] = batch[1]
        elif original not in families.TORCH:
            proof = prove(original, module)
            module.__dict__["channels_last"] = (
                not isinstance(proof, str) and proof.form.channels_last
            )
    layers.assign(module, cls)
    return None
