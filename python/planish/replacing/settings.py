"""What of a module tells it from others of its class, and its state without what others hung on it.

A proof (probe.py) holds for all modules with the same key.
"""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["key_of", "unmarked"]


def _settings(module: nn.Module, depth: int = 0) -> tuple[Any, ...]:
    """What forward may depend on besides its input: plain attributes, dtypes and children."""
    plain = (bool, int, float, str, type(None))
    found: list[Any] = []
    for name, value in sorted(module.__dict__.items()):
        if name.startswith("_planish") or name in ("training", "_hf_hook", "_old_forward"):
            continue
        if isinstance(value, plain) or (
            isinstance(value, tuple | list) and all(isinstance(item, plain) for item in value)
        ):
            found.append((name, tuple(value) if isinstance(value, list) else value))
    for name, parameter in module._parameters.items():
        found.append((name, None if parameter is None else parameter.dim()))
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
