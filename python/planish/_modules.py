"""LayerNorm and RMSNorm as modules, and replace(), which puts planish's modules into a model.

Both are subclasses of torch's modules with nothing of their own: parameters, buffers, hooks and
state_dict are torch's.
"""

from __future__ import annotations

import collections
import itertools
from typing import TypeVar

import torch.nn.functional as F

import torch
from planish import _channels, _functional
from planish._ways import Way, leaf, way_of
from torch import Tensor, nn

__all__ = ["LayerNorm", "RMSNorm", "replace"]

_Module = TypeVar("_Module", bound=nn.Module)


def _planish_runs(x: Tensor, normalized_shape: tuple[int, ...], *parameters: Tensor | None) -> bool:
    """Anything else is torch's, its errors included."""
    count = len(normalized_shape)
    tensors = [x, *(parameter for parameter in parameters if parameter is not None)]
    return (
        0 < count <= x.dim() <= 16
        and tuple(x.shape[x.dim() - count :]) == normalized_shape
        and all(t.device == x.device and t.dtype in _functional._DTYPES for t in tensors)
        and x.device.type in _functional.DEVICES
        and (not x.is_cuda or x.numel() > 0)  # no GPU kernel for rows of no elements
        and all(tuple(t.shape) == normalized_shape for t in tensors[1:])
    )


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm on planish, whether planish is enabled or not.

    Input that planish does not run (another device or dtype) goes to torch.
    """

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        else:
            y = self._forward(input)
        return y

    def _forward(self, input: Tensor) -> Tensor:
        way = way_of(input, self.weight, self.bias)
        if way is Way.NODE:
            return leaf(self, input)
        shape = tuple(self.normalized_shape)
        if way is Way.TORCH or not _planish_runs(input, shape, self.weight, self.bias):
            return nn.LayerNorm.forward(self, input)
        dims = range(input.dim() - len(shape), input.dim())
        # dense, as torch's
        return _functional._norm("layer_norm", input, dims, self.weight, self.bias, self.eps, None)


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm on planish, whether planish is enabled or not.

    Input that planish does not run (another device or dtype) goes to torch.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        else:
            y = self._forward(x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        way = way_of(x, self.weight)
        if way is Way.NODE:
            return leaf(self, x)
        shape = tuple(self.normalized_shape)
        if way is Way.TORCH or not _planish_runs(x, shape, self.weight):
            return nn.RMSNorm.forward(self, x)
        eps = self.eps
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        dims = range(x.dim() - len(shape), x.dim())
        return _functional.rms_norm(x, dims, self.weight, eps=eps)


_REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    nn.GroupNorm: _channels.GroupNorm,
    nn.InstanceNorm1d: _channels.InstanceNorm1d,
    nn.InstanceNorm2d: _channels.InstanceNorm2d,
    nn.InstanceNorm3d: _channels.InstanceNorm3d,
}

#: Subclasses that hold what torch's class holds and compute the same, LayerNorms after a permute.
#: By name, so that nothing is imported.
_OTHERS = {
    ("timm.layers.norm", "GroupNorm"): _channels.GroupNorm,
    ("timm.layers.norm", "LayerNorm2d"): _channels.LayerNorm2d,
    ("torchvision.models.convnext", "LayerNorm2d"): _channels.LayerNorm2d,
}

#: A GroupNorm, then `drop`, then `act`.
_GROUP_NORM_ACT = ("timm.layers.norm_act", "GroupNormAct")

_ACTIVATIONS = {nn.Identity: None, nn.SiLU: "silu", nn.ReLU: "relu"}


def _name(module: nn.Module) -> tuple[str, str]:
    return type(module).__module__, type(module).__qualname__


def _is_group_norm_act(module: nn.Module) -> bool:
    """Whether it is timm's, with nothing in it that planish.GroupNorm has not."""
    return (
        _name(module) == _GROUP_NORM_ACT
        and type(module.drop) is nn.Identity
        and type(module.act) in _ACTIVATIONS
    )


def _new_type(module: nn.Module) -> type[nn.Module] | None:
    """What replaces modules of this type; subclasses are of another type."""
    if isinstance(module, nn.LayerNorm | nn.GroupNorm):
        other = _OTHERS.get(_name(module))
        if other is not None:
            return other
        if _is_group_norm_act(module):
            return _channels.GroupNorm
    return _REPLACEMENTS.get(type(module))


def _replacement(module: nn.Module, new_type: type[nn.Module]) -> nn.Module:
    """The same state in planish's class: Parameters, hooks, flags and all else are shared."""
    new: nn.Module = new_type.__new__(new_type)
    new.__dict__ = module.__dict__
    if _is_group_norm_act(module):
        new.activation = _ACTIVATIONS[type(module.act)]  # type: ignore[assignment]
    return new


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def _fuse_activations(model: nn.Module) -> None:
    """Puts the activation behind a GroupNorm of a Sequential into it, and Identity in its place."""
    places: collections.Counter[int] = collections.Counter()
    for parent in model.modules():
        places.update(id(child) for child in parent._modules.values())
    for parent in model.modules():
        if type(parent) is not nn.Sequential:
            continue
        for (_, norm), (name, then) in itertools.pairwise(list(parent._modules.items())):
            activation = _ACTIVATIONS.get(type(then))
            if (
                activation is not None
                and type(norm) is _channels.GroupNorm
                and norm.activation is None
                and places[id(norm)] == 1
                and not _has_hooks(norm)
                and not _has_hooks(then)
            ):
                norm.activation = activation
                parent._modules[name] = nn.Identity()


def replace(model: _Module, *, activations: bool = False) -> _Module:
    """Swaps the norms in ``model`` for planish's, in place: torch.nn's LayerNorm, RMSNorm,
    GroupNorm and InstanceNorm1d, 2d, 3d, timm's GroupNorm and (with SiLU, ReLU or no activation)
    GroupNormAct, and the LayerNorm2d of timm and torchvision (of these the results keep the input's
    memory format, where those return channels last).

    ``activations=True``: where an nn.Sequential has nn.SiLU or nn.ReLU right behind a GroupNorm,
    the norm does it (``activation`` of :class:`planish.GroupNorm`) and an nn.Identity takes its
    place; not where either has hooks or the norm is in several places. What calls the norm of such
    a Sequential by itself then gets the activation, too.

    The new modules hold the same Parameter objects, buffers, hooks, dtype, device and training
    flag, so optimizers and checkpoints go on as before. Subclasses of torch's modules are left
    alone, since their forward is their own. Returns the model (a new module only where ``model``
    itself is a norm).
    """
    root_type = _new_type(model)
    if root_type is not None:
        return _replacement(model, root_type)  # type: ignore[return-value]
    made: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            new_type = None if child is None else _new_type(child)
            if child is None or new_type is None:
                continue
            if id(child) not in made:
                made[id(child)] = _replacement(child, new_type)
            parent._modules[name] = made[id(child)]
    if activations:
        _fuse_activations(model)
    return model
