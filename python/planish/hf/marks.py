"""Marks for the norms that Transformers does not mark for the package `kernels`: Gemma's, T5's.

A class is marked when a model that has it is bound by ``use_kernels=True``, and only where planish
knows what it computes. Where this Transformers binds in another place, that is said in the log.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["begin", "end"]

_log = logging.getLogger("planish")
_MARK = "kernel_layer_name"  # what `kernels` looks for in a class
#: Layer by the name of forward's argument, which `kernels` wants to be the class's own.
_LAYERS = {"hidden_states": "RMSNorm", "x": "RMSNormZeroCentered"}

_marked: list[type[nn.Module]] = []
#: Where Transformers binds, and its function.
_before: tuple[Any, Any] | None = None


def _layer(cls: type[nn.Module], is_known: Callable[[type[nn.Module]], bool]) -> str | None:
    """What the class would be marked as; None: it is left alone."""
    words = cls.__name__.lower()
    if hasattr(cls, _MARK) or "norm" not in words or not cls.__module__.startswith("transformers."):
        return None
    _, *given = inspect.signature(cls.forward).parameters
    layer = _LAYERS.get(given[0]) if len(given) == 1 else None
    return layer if layer and is_known(cls) else None


def begin(is_known: Callable[[type[nn.Module]], bool]) -> None:
    """From now on the classes of a model are marked before it is bound."""
    global _before
    place: Any = importlib.import_module("transformers.modeling_utils")
    bind = getattr(place, "kernelize", None)
    if bind is None:
        _log.warning(
            "planish.hf.register: this version of transformers binds elsewhere than 5.22 does: "
            "norms that it does not mark for kernels (Gemma's, T5's) stay as they are; "
            "planish.replace(model) takes them"
        )
        return

    def mark_and_bind(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for cls in {type(module) for module in model.modules()}:
            if layer := _layer(cls, is_known):
                setattr(cls, _MARK, layer)
                _marked.append(cls)
        return bind(model, *args, **kwargs)

    _before = place, bind
    place.kernelize = mark_and_bind


def end() -> None:
    """Takes the marks away again."""
    global _before
    if _before is not None:
        place, bind = _before
        place.kernelize = bind
        _before = None
    for cls in _marked:
        delattr(cls, _MARK)
    _marked.clear()
