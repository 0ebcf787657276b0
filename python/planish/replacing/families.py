"""Which modules may be norms, and which forms they may have.

Everything here is a guess by attributes, and by class names only to leave out what is none; a form
counts only after replacing/probe.py has found the same results. The tables say what is known by
name.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any

from torch.nn.parameter import is_lazy

import torch
from planish.modules import channel_modules, instance_modules, norm_modules
from planish.replacing import batch_known, state
from planish.replacing.forms import Form
from torch import Tensor, nn

__all__ = [
    "ACTIVATIONS",
    "DIRECT",
    "TORCH",
    "Signature",
    "class_name",
    "forms",
    "is_called_norm",
    "name_of",
    "no_forms",
    "signature",
    "why_not",
]

#: torch's own modules, and planish's that hold and compute the same.
TORCH: dict[type[nn.Module], type[nn.Module]] = {
    nn.LayerNorm: norm_modules.LayerNorm,
    nn.RMSNorm: norm_modules.RMSNorm,
    nn.GroupNorm: channel_modules.GroupNorm,
    nn.InstanceNorm1d: instance_modules.InstanceNorm1d,
    nn.InstanceNorm2d: instance_modules.InstanceNorm2d,
    nn.InstanceNorm3d: instance_modules.InstanceNorm3d,
    **batch_known.TYPES,
}

#: Classes that become planish's own once their form is proven, because their results then keep the
#: memory format or have an activation fused. By name, so that nothing is imported.
DIRECT: dict[tuple[str, str], type[nn.Module]] = {
    ("timm.layers.norm", "GroupNorm"): channel_modules.GroupNorm,
    ("timm.layers.norm", "LayerNorm2d"): channel_modules.LayerNorm2d,
    ("timm.layers.norm_act", "GroupNormAct"): channel_modules.GroupNorm,
    ("torchvision.models.convnext", "LayerNorm2d"): channel_modules.LayerNorm2d,
}

#: Activations that planish fuses behind a group norm.
ACTIVATIONS: dict[type[nn.Module], str | None] = {
    nn.Identity: None,
    nn.SiLU: "silu",
    nn.ReLU: "relu",
}

#: Packages whose subclasses of torch's modules are looked at. Elsewhere such a class is its
#: author's, and reached by planish.enable().
_LIBRARIES = (
    *("transformers", "transformers_modules", "diffusers", "diffusers_modules"),
    *("timm", "torchvision"),
)

_INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_TORCH_BASES = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *_INSTANCE)

_LAZY = "a lazy module: its parameters have no shape before its first forward"
_SYNC = (
    "statistics over several processes; planish.SyncBatchNorm.convert_sync_batchnorm takes "
    "nn.BatchNorm and planish's"
)
_BATCH = "a subclass of torch's BatchNorm; planish.enable() reaches it"
#: Norms of torch that planish has not, under whatever name a subclass has.
_TORCH_OTHERS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.SyncBatchNorm, _SYNC),
    (nn.modules.batchnorm._LazyNormBase, _LAZY),
    (nn.modules.batchnorm._BatchNorm, _BATCH),
    (nn.LocalResponseNorm, "a window over channels: planish has no kernel for it"),
    (nn.CrossMapLRN2d, "a window over channels: planish has no kernel for it"),
)

#: Names of what is left alone, and why.
_KNOWN = (
    ("FrozenBatchNorm", "an affine map: it has no statistics of its own"),
    ("LocalResponseNorm", "a window over channels: planish has no kernel for it"),
    ("LpNorm", "a plain Lp norm of vectors, no norm of a layer"),
    ("NoNorm", "an affine map: it has no statistics of its own"),
)

_EPS = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")
#: Tried where the attribute is missing or not what forward() uses.
_EPS_NUMBERS = (1e-5, 1e-6, 1e-8)
#: The usual names; others are tried as they come.
_WEIGHTS = ("weight", "gamma", "scale", "g", "a_2", "a", "w")
_BIASES = ("bias", "beta", "b", "b_2", "shift")

#: What the forward of a norm names that divides by a root, or leaves it to a function.
_ROOTS = {
    *("rsqrt", "sqrt", "rsqrt_", "sqrt_", "norm", "vector_norm", "normalize", "std", "std_mean"),
    *("layer_norm", "rms_norm", "group_norm", "instance_norm", "native_layer_norm"),
}
_POWERS = (0.5, -0.5)


def name_of(cls: type) -> str:
    """For a person: the package and the class."""
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


@dataclasses.dataclass(frozen=True)
class Signature:
    """The arguments of a norm's forward: the input, and perhaps a gate."""

    names: tuple[str, ...]
    required: int

    @property
    def gated(self) -> bool:
        """Whether there is one argument more, and it is a gate."""
        return len(self.names) == 2 and "gate" in self.names[1]


def signature(cls: type[nn.Module]) -> Signature | None:
    """None where forward takes what no norm takes."""
    try:
        parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}
    positional = [p for p in parameters if p.kind in kinds]
    required = sum(p.default is inspect.Parameter.empty for p in positional)
    if not positional or len(positional) != len(parameters) or required > 2:
        return None
    return Signature(tuple(p.name for p in positional), required)


def class_name(module: nn.Module) -> str:
    """Of a compiled TorchScript module, that of the class it was made of."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", ""))
    return type(module).__qualname__.rpartition(".")[2]


def is_called_norm(module: nn.Module) -> bool:
    """By its own name or that of its base in torch."""
    name = class_name(module)
    bases = (*_TORCH_BASES, *(base for base, _ in _TORCH_OTHERS))
    named = "norm" in name.lower() or name.endswith("GRN") or "StdConv" in name
    return named or isinstance(module, bases)


def why_not(module: nn.Module, parametrized: bool = False) -> str | None:
    """None: it may be a norm. An empty text: it is no norm, and nothing to speak of."""
    cls = type(module)
    name = class_name(module)
    if not is_called_norm(module):
        return None if _may_be_norm(module) else ""
    for word, reason in _KNOWN:
        if word in name:
            return reason
    for base, reason in _TORCH_OTHERS:
        if isinstance(module, base):
            return reason
    if isinstance(module, torch.jit.ScriptModule):
        return "a compiled TorchScript module"
    held = (*module._parameters.values(), *module._buffers.values())
    if any(one is not None and is_lazy(one) for one in held):
        return _LAZY
    if isinstance(module, nn.Conv2d):
        return None
    children = () if parametrized else module._modules.values()
    if any(child is not None and _counts(child) for child in children):
        return ""  # a block: the norms in it are looked at by themselves
    own = cls.__module__.partition(".")[0]
    if isinstance(module, _TORCH_BASES) and own not in _LIBRARIES and own != "planish":
        base = next(base for base in _TORCH_BASES if isinstance(module, base))
        reaches = "" if issubclass(base, _INSTANCE) else "; planish.enable() reaches it"
        return f"a subclass of torch's {base.__name__} outside of {', '.join(_LIBRARIES)}{reaches}"
    return None


def _may_be_norm(module: nn.Module) -> bool:
    """Whether a module that nothing calls a norm holds what a norm holds, and its class's source
    takes a root. Whether it is like a norm, a probe says."""
    if type(module).__module__.partition(".")[0] in ("torch", "planish"):
        return False
    if any(child is not None for child in module._modules.values()):
        return False
    held = [p for p in module._parameters.values() if p is not None]
    if len(held) > 2 or any(is_lazy(p) or not _is_along(p) for p in held):
        return False
    cls: Any = type(module)
    if not _takes_root(cls):
        return False
    known = signature(type(module))
    return known is not None and known.required == 1


def _is_along(parameter: Tensor) -> bool:
    """Whether it has one axis that counts, as (C,) or (C, 1, 1)."""
    return parameter.is_floating_point() and sum(size != 1 for size in parameter.shape) <= 1


@functools.cache
def _takes_root(cls: type[nn.Module]) -> bool:
    making = ("__init__", "reset_parameters", "extra_repr")
    found = (one for one in state.functions(cls) if one.__name__ not in making)
    return any(_roots(function.__code__) for function in found)


def _roots(code: types.CodeType) -> bool:
    if not _ROOTS.isdisjoint(code.co_names):
        return True
    return any(
        _roots(one) if isinstance(one, types.CodeType) else one in _POWERS
        for one in code.co_consts
        if isinstance(one, types.CodeType | float)
    )


def _counts(child: nn.Module) -> bool:
    return any(True for _ in child.parameters()) or bool(
        re.search("norm", type(child).__name__, re.I)
    )


def forms(module: nn.Module) -> Iterator[Form]:
    """What the module may compute, likeliest first."""
    name = type(module).__name__
    if isinstance(module, nn.GroupNorm):
        yield from _group_forms(module)
    elif isinstance(module, nn.Conv2d):
        yield Form("convolution", eps="eps", weight="gain" if hasattr(module, "gain") else None)
    elif "GlobalResponseNorm" in name or name.endswith("GRN"):
        names: list[str | float] = [eps for eps in _EPS if hasattr(module, eps)]
        base = Form("response", weight="weight", bias="bias", order="wide")
        for eps, axis in itertools.product([*names, *_EPS_NUMBERS], (-1, 1)):
            yield dataclasses.replace(base, eps=eps, axis=axis)
    elif name.startswith("FilterResponseNorm"):
        yield Form("filter", 1, weight="weight", bias="bias", eps="eps", then=_then(module))
    elif name.startswith("EvoNorm2dS0"):
        if isinstance(getattr(module, "v", None), Tensor):
            yield Form("evo", 1, weight="weight", bias="bias", eps="eps")
    else:
        yield from _row_forms(module)


def no_forms(module: nn.Module) -> str:
    """Why :func:`forms` has none."""
    then = [type(module._modules[name]).__name__ for name in _then(module)]
    if isinstance(module, nn.GroupNorm) and then:
        return (
            f"planish fuses no {' and '.join(then)} behind a group norm; planish.enable() reaches "
            "the norm"
        )
    held = [name for name, value in module._parameters.items() if value is not None]
    return f"no norm that planish has holds {', '.join(held) or 'nothing'}"


def _then(module: nn.Module) -> tuple[str, ...]:
    """Children that forward applies to the norm's result, in their order; Identity adds nothing."""
    return tuple(
        name
        for name, child in module._modules.items()
        if child is not None and type(child) is not nn.Identity
    )


def _group_forms(module: nn.GroupNorm) -> Iterator[Form]:
    form = Form("group", 1, weight="weight", bias="bias", eps="eps")
    then = _then(module)
    if not then:
        yield form
        return
    act: Any = module._modules[then[0]]
    if len(then) == 1 and type(act) in ACTIVATIONS:
        yield dataclasses.replace(form, activation=ACTIVATIONS[type(act)])


def _names(module: nn.Module, known: tuple[str, ...]) -> str | None:
    for name in known:
        if any(
            isinstance(held.get(name), Tensor) for held in (module._parameters, module._buffers)
        ):
            return name
    return None


def _assigned(module: nn.Module) -> list[tuple[str | None, str | None]]:
    """Names of weight and bias: the usual ones, or else whatever holds as many parameters, in
    either order."""
    weight, bias = _names(module, _WEIGHTS), _names(module, _BIASES)
    held = [name for name, value in module._parameters.items() if value is not None]
    if all(name in (weight, bias) for name in held):
        return [(weight, bias)]
    if len(held) > 2:
        return []
    one, other = [*held, None][:2]
    found = [(one, other), (other, one)]
    return sorted(found, key=lambda pair: (pair[0] != weight, pair[1] != bias))


def _row_forms(module: Any) -> Iterator[Form]:
    for weight, bias in _assigned(module):
        yield from _forms_of(module, weight, bias)


def _forms_of(module: Any, weight: str | None, bias: str | None) -> Iterator[Form]:
    count = 1
    shape = getattr(module, "normalized_shape", None)
    if isinstance(shape, list | tuple):
        count = len(shape)
    found = [name for name in _EPS if isinstance(getattr(module, name, None), float)]
    small = {n for n, value in vars(module).items() if type(value) is float and 0 < value <= 0.01}
    found += sorted(small.difference(found))
    base = Form("rms", count=count, weight=weight, bias=bias, then=_then(module))
    gated = False
    known = signature(type(module))
    if known is not None and known.gated:
        gated = True
    every: list[str | float] = [*found, *_EPS_NUMBERS]
    for eps in every:
        form = dataclasses.replace(base, eps=eps)
        yield from _gated_forms(module, form) if gated else _plain_forms(module, form)


def _gated_forms(module: Any, base: Form) -> Iterator[Form]:
    given = getattr(module, "activation", None) or getattr(module, "act", None)
    activations = [given] if given in ("silu", "swish", "sigmoid") else ["silu", "sigmoid"]
    parts: list[dict[str, Any]] = [{}]
    if isinstance(getattr(module, "group_size", None), int):
        parts.insert(0, {"group_size": "group_size"})
    if isinstance(getattr(module, "n_groups", None), int):
        parts.insert(0, {"groups": "n_groups"})
    for part in parts:
        for gate in ("before", "behind"):
            for activation in activations:
                for order in ("xhat", "once"):
                    yield dataclasses.replace(
                        base, gate=gate, gate_activation=activation, order=order, **part
                    )


def _plain_forms(module: Any, base: Form) -> Iterator[Form]:
    kinds = ["rms", "layer"]
    if isinstance(module, nn.LayerNorm) or "layernorm" in type(module).__name__.lower():
        kinds.reverse()
    if "simplenorm" in type(module).__name__.lower():
        kinds.insert(0, "simple")
    offsets: list[dict[str, Any]] = [{}]
    if base.weight is not None:
        offsets += [{"offset": 1.0}, {"offset": 1.0, "offset_in_weight": True}]
    orders = ("once", "xhat", "weight", "wide") if base.weight or base.bias else ("once",)
    weight = None if base.weight is None else getattr(module, base.weight)
    axes = (-1, 1) if base.count == 1 else (-1,)
    if weight is not None and weight.dim() > 1 and base.count == 1:
        axes = (1,)  # of the shape (C, 1, 1)
    for axis in axes:
        for kind in kinds:
            for order in orders if kind != "simple" else ("once", "wide"):
                for offset in offsets:
                    yield dataclasses.replace(base, kind=kind, axis=axis, order=order, **offset)
        if base.eps == _EPS_NUMBERS[0] and not hasattr(module, "eps"):
            form = dataclasses.replace(base, kind="l2", axis=axis, order="wide", eps=0.0)
            yield from (form, dataclasses.replace(form, unit=True))
