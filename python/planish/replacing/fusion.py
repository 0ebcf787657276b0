"""Moves activations into the GroupNorm or BatchNorm before them, and back.

Three places: neighbours in an nn.Sequential, a norm and an activation that are attributes of a
block (replacing/pairs.py reads its forward), and diffusers' ResnetBlock2D, whose one activation
serves twice (replacing/blocks.py). In the first two the norm does the activation and an nn.Identity
takes its place, which remembers both.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from planish.modules import channel_modules
from planish.replacing import batch_known, blocks, families, pairs
from planish.replacing.layers import original_of
from torch import nn

__all__ = ["count", "fuse", "has_hooks", "neighbours", "places_of", "unfuse"]

#: In the __dict__ of the nn.Identity: the activation that was there, and the norm that does it.
_WAS = "_planish_activation"

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Or a forward of its own."""
    return any(getattr(module, name, None) for name in _HOOKS) or "forward" in module.__dict__


def places_of(model: nn.Module) -> collections.Counter[int]:
    """In how many places each module is, by its id."""
    return collections.Counter(id(child) for m in model.modules() for child in m._modules.values())


def neighbours(
    model: nn.Module, of: Callable[[Any], Iterable[tuple[str, str]]] = pairs.of
) -> Iterator[tuple[nn.Module, str, str]]:
    """A module, and names of its children of which the second is applied to what the first returns,
    and only that; the first is nowhere else in the model. ``of``: such pairs of a class."""
    places = places_of(model)
    for parent in list(model.modules()):
        in_order = type(parent).forward is nn.Sequential.forward
        own = of(original_of(parent)) if not in_order else itertools.pairwise(parent._modules)
        for first, second in list(own):
            if places[id(parent._modules.get(first))] == 1:
                yield parent, first, second


def _fused(norm: nn.Module | None, then: nn.Module | None) -> str | None:
    """The activation, where planish has it behind such a norm."""
    if type(norm) is channel_modules.GroupNorm:
        return families.ACTIVATIONS.get(type(then))  # type: ignore[arg-type]
    if type(norm) in batch_known.TYPES.values() and then is not None:
        try:
            return batch_known.activation_of(then)
        except KeyError:
            return None
    return None


def fuse(model: nn.Module) -> None:
    """What :func:`planish.replace` does for ``activations=True``."""
    for parent in list(model.modules()):
        blocks.put(parent)
    for parent, norm_name, name in neighbours(model):
        norm, then = parent._modules.get(norm_name), parent._modules.get(name)
        activation = _fused(norm, then)
        if (
            norm is not None
            and activation is not None
            and norm.activation is None
            and not has_hooks(norm)
            and then is not None
            and not has_hooks(then)
        ):
            norm.activation = activation
            identity = nn.Identity()
            identity.__dict__[_WAS] = then, norm
            parent._modules[name] = identity


def unfuse(model: nn.Module) -> None:
    """Puts every activation back."""
    for parent in model.modules():
        for name, child in list(parent._modules.items()):
            if child is not None and _WAS in child.__dict__:
                activation, norm = child.__dict__[_WAS]
                parent._modules[name] = activation
                norm.activation = None


def count(model: nn.Module) -> int:
    """Activations that a norm does."""
    return sum((_WAS in module.__dict__) + blocks.count(module) for module in model.modules())
