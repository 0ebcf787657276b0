"""Folds the BatchNorms of a model in eval mode into the convolutions before them, and back.

A convolution and a batch norm by running statistics are one convolution: with weight * scale and
(bias - running_mean) * scale + bias of the norm, where scale = weight of the norm /
sqrt(running_var + eps). Both are computed in f64 and rounded once to the convolution's dtype. The
convolution gets new parameters; the norm's place is taken by a module that does nothing, and
remembers the old ones.
"""

from __future__ import annotations

from typing import Any

import torch
from planish.replacing import batch_known, batch_layers, fusion, pairs
from torch import Tensor, nn

__all__ = ["Folded", "count", "fold", "unfold"]

#: The convolutions, with the batch norms of their results.
_NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
}
#: In the __dict__ of Folded: the convolution, its parameters, and the norm.
_WAS = "_planish_folded"


class Folded(nn.Identity):
    """Where a batch norm was that is part of the convolution before it; its children are what that
    called behind the norm, in their order."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError(
                "planish.replace: the batch norm that was here is folded into the convolution "
                "before it, by its running statistics; call planish.restore(model) before training"
            )
        for child in self._modules.values():
            input = child(input)  # type: ignore[misc]
        return input


def _may_fold(conv: nn.Module | None, norm: nn.Module | None) -> bool:
    wanted = _NORMS.get(type(conv))  # type: ignore[arg-type]
    if wanted is None or norm is None or conv is None:
        return False
    held: Any = norm
    return (
        (
            type(norm) in (wanted, batch_known.TYPES[wanted])
            or (wanted is nn.BatchNorm2d and batch_layers.is_followed(norm))
        )
        and not norm.training
        and getattr(norm, "activation", None) is None
        and held.running_mean is not None
        and held.running_var is not None
        and held.num_features == conv.out_channels
        and not fusion.has_hooks(conv)
        and not fusion.has_hooks(norm)
    )


def _parameters(conv: Any, norm: Any) -> dict[str, nn.Parameter]:
    """The weight and bias of both as one."""
    wide = {
        name: None if tensor is None else tensor.detach().double()
        for name, tensor in (
            ("weight", conv.weight),
            ("bias", conv.bias),
            ("scale", norm.weight),
            ("shift", norm.bias),
        )
    }
    weight: Any = wide["weight"]
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if wide["scale"] is not None:
        scale = scale * wide["scale"]
    bias = -norm.running_mean.double() * scale
    if wide["bias"] is not None:
        bias = bias + wide["bias"] * scale
    if wide["shift"] is not None:
        bias = bias + wide["shift"]
    made = {"weight": weight * scale.view(-1, *[1] * (weight.dim() - 1)), "bias": bias}
    like = conv.weight
    found = {name: tensor.to(like.dtype) for name, tensor in made.items()}
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        found["weight"] = found["weight"].contiguous(memory_format=torch.channels_last)
    return {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in found.items()}


def fold(model: nn.Module) -> None:
    """What :func:`planish.replace` does for ``fold=True``."""
    if model.training:
        raise ValueError(
            "planish.replace: fold=True takes running statistics, but model is in training mode; "
            "call model.eval() first"
        )
    places = fusion.places_of(model)
    for parent, first, second in fusion.neighbours(model, pairs.once):
        conv: Any = parent._modules.get(first)
        norm = parent._modules.get(second)
        if _may_fold(conv, norm) and places[id(norm)] == 1:
            made, before = _parameters(conv, norm), conv._parameters
            conv._parameters = {**before, **made}
            folded = Folded()
            folded._modules.update(norm._modules)  # type: ignore[union-attr]
            folded.training = False
            folded.__dict__[_WAS] = conv, before, norm
            parent._modules[second] = folded


def unfold(model: nn.Module) -> list[nn.Module]:
    """Puts every convolution's own parameters and every norm back, and returns the norms."""
    found = []
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is None or _WAS not in child.__dict__:
                continue
            conv, parameters, norm = child.__dict__[_WAS]
            now, own = conv.weight, parameters["weight"]
            if (now.dtype, now.device) != (own.dtype, own.device):
                norm.to(now.device, now.dtype)
                for parameter in parameters.values():
                    if parameter is not None:
                        parameter.data = parameter.data.to(now.device, now.dtype)
            norm.train(child.training)
            conv._parameters = parameters
            parent._modules[name] = norm
            found.append(norm)
    return found


def count(model: nn.Module) -> int:
    """Batch norms that are part of a convolution."""
    return sum(_WAS in module.__dict__ for module in model.modules())
