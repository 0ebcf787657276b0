"""apply_planish_to: the counterpart of Liger's apply_liger_kernel_to_<model>, for norms.

What a class of RMS norm computes is not taken from a list of models: planish.replacing runs it
beside planish's function, and the class is taken if that proves it to compute one of planish's
forms, its order of rounding included. Rotary embeddings, losses and MLPs are left to others.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from planish.replacing import swapped
from torch import nn

__all__ = ["apply_planish_to", "patch_classes"]

#: What Liger patches besides norms.
_NOT_NORMS = (
    "rope",
    "cross_entropy",
    "fused_linear_cross_entropy",
    "swiglu",
    "geglu",
    "relu_squared",
)

#: Of the module that stands for its class in the proof.
_COLUMNS = 48


class _Rebound:
    """Marks the subclasses that stand where Transformers' classes stood."""


def _rebound(cls: type[nn.Module]) -> type[nn.Module]:
    """A subclass whose modules go onto planish when they are made."""

    def __init__(self: Any, *arguments: Any, **given: Any) -> None:
        cls.__init__(self, *arguments, **given)
        swapped.put(self)

    members = {
        "__init__": __init__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    return type(cls.__name__, (cls, _Rebound), members)


def _is_taken(cls: type[nn.Module]) -> bool:
    try:
        module = cls(_COLUMNS)
    except Exception:  # whatever another library's constructor raises: it is not taken
        return False
    return not isinstance(swapped.decide(module), str)


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
            and not issubclass(cls, _Rebound)
            and _is_taken(cls)
        ):
            setattr(module, name, _rebound(cls))
            names.append(name)
    return names


def _patch_model(model: nn.Module, rms: bool, layer: bool) -> list[str]:
    names = []
    for name, child in model.named_modules():
        cls = type(child)
        wanted = layer if cls is nn.LayerNorm else rms and cls.__name__.endswith("RMSNorm")
        if wanted and swapped.put(child) is None:
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
    reaches it). With ``model``: the norms of this one, its LayerNorms included;
    ``planish.restore(model)`` takes that back, and ``planish.replace(model)`` does the same for all
    kinds of norms.

    A class is taken only if it is proven to compute what planish does. Liger's other switches
    (rope, cross_entropy, fused_linear_cross_entropy, swiglu, ...) may be given as False; True is a
    ValueError, for planish has norms only. ValueError for a model type that Transformers does not
    have; TypeError for another argument.

    Example:

    >>> planish.compat.liger.apply_planish_to("no_model")
    Traceback (most recent call last):
    ValueError: ...
    """
    for name, value in others.items():
        if name not in _NOT_NORMS:
            raise TypeError(f"apply_planish_to: got an unexpected argument {name!r}")
        if value:
            raise ValueError(f"apply_planish_to: {name} is True; planish has norms only")
    if model is not None:
        return _patch_model(model, rms_norm, layer_norm)
    return patch_classes(_modeling(model_type)) if rms_norm else []
