"""That a call of replace() is whole: it is asked for a module, and where it raises, the model is as
it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["check_model", "whole"]

_PARTS = ("unet", "transformer", "vae")


def check_model(function: str, model: Any) -> None:
    """Raises TypeError, in one sentence, for what is no module that can be changed."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"planish.{function}: model is a compiled TorchScript module, whose classes cannot be "
            "changed; call it before torch.jit.script"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"planish.{function}: model {_found(function, model)}")


def _found(function: str, model: Any) -> str:
    wanted = "has to be a torch.nn.Module"
    if isinstance(model, type) and issubclass(model, nn.Module):
        return f"{wanted}, but it is the class {model.__qualname__}; make a module of it first"
    if isinstance(model, torch.Tensor):
        return f"{wanted}, but it is a tensor of shape {list(model.shape)}"
    if model is None or isinstance(model, str | bytes | int | float):
        return f"{wanted}, but it is {model!r:.60}"
    name = f"{type(model).__module__.partition('.')[0]}.{type(model).__qualname__}"
    parts = _modules_of(model)
    if parts:
        calls = ", ".join(f"planish.{function}(pipe.{part})" for part in parts)
        return f"{wanted}, but it is a {name}, whose parts are: call {calls}"
    if isinstance(model, list | tuple | dict | set):
        return f"{wanted}, but it is a {type(model).__name__}; call it for each module of it"
    return f"{wanted}, but it is a {name}"


def _modules_of(pipe: Any) -> list[str]:
    """Names of a pipeline's modules: those with norms that pay, or else all that it has."""
    try:
        components = getattr(pipe, "components", None)
        held = components if isinstance(components, dict) else vars(pipe)
        found = [str(name) for name, part in held.items() if isinstance(part, nn.Module)]
    except Exception:  # whatever another library's object raises
        return []
    return [name for name in _PARTS if name in found] or found


@contextlib.contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Whatever is raised inside, and whatever had been changed by then, the model's modules and the
    attention processors on them have the classes and attributes that they had."""
    before: list[tuple[Any, type, dict[str, Any], dict[str, Any] | None]] = []
    for module in model.modules():
        before.append((module, type(module), dict(module.__dict__), dict(module._modules)))
        processor = module.__dict__.get("processor")
        if processor is not None and hasattr(processor, "__dict__"):
            before.append((processor, type(processor), dict(processor.__dict__), None))
    try:
        yield
    except BaseException:
        for one, cls, held, children in before:
            if type(one) is not cls:
                object.__setattr__(one, "__class__", cls)
            one.__dict__.clear()
            one.__dict__.update(held)
            if children is not None:
                one._modules.clear()
                one._modules.update(children)
        raise
