"""apply_planish_to: the counterpart of Liger's apply_liger_kernel_to_<model>, for norms.

What a class of RMS norm computes is not taken from a list of models: a small module of the class is
run beside planish's function, and the class is taken if they agree, in float and in the order of
rounding of bfloat16. Rotary embeddings, losses and MLPs are left to others.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, NamedTuple

import torch
from planish._functional import rms_norm
from torch import Tensor, nn

__all__ = ["Convention", "apply_planish_to", "convention", "patch_classes"]

#: What Liger patches besides norms.
_NOT_NORMS = (
    "rope",
    "cross_entropy",
    "fused_linear_cross_entropy",
    "swiglu",
    "geglu",
    "relu_squared",
)

_COLUMNS = 48


class Convention(NamedTuple):
    """How a class of RMS norm computes y: the offset of its weight and its order of rounding."""

    offset: float
    cast: str
    #: The attribute that holds eps.
    eps: str


_known: dict[type[nn.Module], Convention | None] = {}


def _takes_one_tensor(cls: type[nn.Module]) -> bool:
    parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
    return len(parameters) == 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def _small(cls: type[nn.Module]) -> nn.Module | None:
    try:
        module = cls(_COLUMNS)
    except Exception:  # whatever another library's constructor raises: it is not taken
        return None
    weight = getattr(module, "weight", None)
    fits = isinstance(weight, nn.Parameter) and weight.shape == (_COLUMNS,)
    return module if fits and len(list(module.parameters())) == 1 else None


def _agrees(module: Any, found: Convention, dtype: torch.dtype, weights: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, _COLUMNS, generator=generator) * 3
    weight = torch.randn(_COLUMNS, generator=generator)
    module.weight = nn.Parameter(weight.to(weights))
    theirs = module(x.to(dtype))
    ours = _run(module, x.to(dtype), found)
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
        return False
    if dtype == torch.float32:
        return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    # f32 statistics differ in their last bits: now and then a value rounds to its neighbour
    return bool((ours == theirs).float().mean() > 0.99)


def _run(module: Any, x: Tensor, found: Convention) -> Tensor:
    eps = getattr(module, found.eps)
    return rms_norm(x, -1, module.weight, eps=eps, weight_offset=found.offset, cast=found.cast)


@torch.no_grad()
def convention(cls: type[nn.Module]) -> Convention | None:
    """What a class of RMS norm computes, or None where it is none that planish has."""
    if cls not in _known:
        _known[cls] = None
        module = _small(cls) if _takes_one_tensor(cls) else None
        name = next((n for n in ("variance_epsilon", "eps") if hasattr(module, n)), None)
        if module is not None and name is not None:
            for offset in (0.0, 1.0):
                for cast in ("xhat", "once"):
                    found = Convention(offset, cast, name)
                    if _known[cls] is None and all(
                        _agrees(module, found, dtype, weights)
                        for dtype, weights in (
                            (torch.float32, torch.float32),
                            (torch.bfloat16, torch.bfloat16),
                            (torch.bfloat16, torch.float32),
                        )
                    ):
                        _known[cls] = found
    return _known[cls]


def _on_planish(cls: type[nn.Module], found: Convention) -> type[nn.Module]:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        return _run(self, hidden_states, found)

    members = {
        "forward": forward,
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "__qualname__": cls.__qualname__,
        "planish_convention": found,
    }
    return type(cls.__name__, (cls,), members)


def patch_classes(module: Any) -> list[str]:
    """Rebinds the classes of RMS norm that a Python module defines to subclasses on planish, and
    returns their names. Models that are there already keep theirs."""
    names = []
    for name, cls in list(vars(module).items()):
        if (
            inspect.isclass(cls)
            and issubclass(cls, nn.Module)
            and name.endswith("RMSNorm")
            and cls.__module__ == module.__name__
            and not hasattr(cls, "planish_convention")
        ):
            found = convention(cls)
            if found is not None:
                setattr(module, name, _on_planish(cls, found))
                names.append(name)
    return names


def _patch_model(model: nn.Module, rms: bool, layer: bool) -> list[str]:
    """The same for a model that is there: its modules get the subclasses, and torch's LayerNorms
    planish's class. Parameters, hooks and all else are theirs."""
    from planish._modules import LayerNorm

    names = []
    made: dict[type[nn.Module], type[nn.Module]] = {}
    for name, child in model.named_modules():
        cls = type(child)
        if layer and cls is nn.LayerNorm:
            child.__class__ = LayerNorm
            names.append(name)
        elif (
            rms
            and cls.__name__.endswith("RMSNorm")
            and cls is not nn.RMSNorm
            and not hasattr(cls, "planish_convention")
            and getattr(child, "weight", None) is not None
        ):
            found = convention(cls)
            if found is not None:
                made.setdefault(cls, _on_planish(cls, found))
                child.__class__ = made[cls]
                names.append(name)
    return names


def _modeling(model_type: str) -> Any:
    """transformers' module of this model type."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    name = model_type_to_module_name(model_type)
    try:
        return importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("transformers.models."):
            raise
        raise ValueError(
            f"apply_planish_to: model_type is {model_type!r}; transformers has no such model"
        ) from None


def apply_planish_to(
    model_type: str,
    model: nn.Module | None = None,
    *,
    rms_norm: bool = True,
    layer_norm: bool = True,
    **others: bool,
) -> list[str]:
    """Puts the norms of a model of Transformers on planish, as Liger's
    ``apply_liger_kernel_to_<model_type>`` does, and returns the names of what it put there.

    Without ``model``: the classes of RMS norm of the model's Python module are rebound, before a
    model is made; torch's LayerNorm, which belongs to all models, is left (``planish.enable()``
    reaches it). With ``model``: the norms of this one, its LayerNorms included.

    A class is taken only if planish computes the same: see :func:`convention`. Liger's other
    switches (rope, cross_entropy, fused_linear_cross_entropy, swiglu, ...) may be given as False;
    True is a ValueError, for planish has norms only. ValueError for a model type that Transformers
    does not have; TypeError for another argument.
    """
    for name, value in others.items():
        if name not in _NOT_NORMS:
            raise TypeError(f"apply_planish_to: got an unexpected argument {name!r}")
        if value:
            raise ValueError(f"apply_planish_to: {name} is True; planish has norms only")
    if model is not None:
        return _patch_model(model, rms_norm, layer_norm)
    return patch_classes(_modeling(model_type)) if rms_norm else []
