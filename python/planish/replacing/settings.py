"""What of a module tells it from others of its class, and its state without what others hung on it.

A proof (probe.py) holds for all modules with the same key.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["key_of", "unmarked"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_OTHER = object()
#: More members are not looked at.
_MANY = 1000
#: torch's bookkeeping of a module, and what other libraries hang on one.
_NOT_SETTINGS = {*vars(nn.Module()), "_hf_hook", "_old_forward", "forward"}


def _plain(value: Any, depth: int = 0) -> Any:
    """A value of which equal ones do the same in a forward, or _OTHER."""
    if isinstance(value, _PLAIN):
        return value
    if depth > 2:
        return _OTHER
    if isinstance(value, tuple | list):
        items = tuple(_plain(one, depth + 1) for one in value)
        return _OTHER if _OTHER in items else items
    if isinstance(value, types.MethodType):
        return value.__func__
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return value
    if isinstance(value, Tensor):
        return "tensor", value.dtype, tuple(value.shape)
    if isinstance(value, nn.Module | types.ModuleType):
        return _OTHER
    held = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if isinstance(held, dict) and len(held) <= _MANY:
        inner = [(str(name), _plain(one, depth + 1)) for name, one in held.items()]
        known = (pair for pair in inner if pair[1] is not _OTHER)
        return type(value), tuple(sorted(known, key=lambda pair: pair[0]))
    return type(value)


def _settings(module: nn.Module, depth: int = 0) -> tuple[Any, ...]:
    """What forward may depend on besides its input: attributes, dtypes and children."""
    found: list[Any] = []
    for name, value in sorted(module.__dict__.items()):
        if not name.startswith(("_planish", "_is_hf")) and name not in _NOT_SETTINGS:
            found.append((name, _plain(value)))
    for name, parameter in module._parameters.items():
        found.append((name, None if parameter is None else parameter.dim()))
    for name, buffer in module._buffers.items():
        found.append((name, None if buffer is None else (buffer.dtype, tuple(buffer.shape))))
    children = (
        ()
        if depth > 3
        else tuple(
            (name, type(child), _settings(child, depth + 1))
            for name, child in module._modules.items()
            if child is not None
        )
    )
    return (*found, *children)


def key_of(cls: type[nn.Module], module: nn.Module) -> Any:
    """Modules with the same key have the same proof."""
    size = next((p.numel() for p in module._parameters.values() if p is not None), 0)
    return cls, cls.forward, size, _settings(module)


def unmarked(module: nn.Module) -> dict[str, Any]:
    """The module's state without hooks and without what other libraries bound to it."""
    state = dict(module.__dict__)
    for name in ("forward", "_hf_hook", "_old_forward"):
        state.pop(name, None)
    for name, value in state.items():
        if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            state[name] = type(value)()
    return state
