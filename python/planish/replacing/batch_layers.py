"""Norms by the statistics of a batch that are no plain BatchNorm of torch's: timm's BatchNormAct2d,
and the frozen ones of torchvision, timm, detectron2 and others, known by what they compute.

A module is taken if a copy of it, in float64 and with numbers of its own, gives what planish's does
on a seeded input.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from planish.functions.batch import batch_norm
from planish.library import counts
from planish.modules import batch_modules
from planish.operators.ways import Way, way_of
from planish.replacing import layers, probe
from planish.replacing.batch_known import activation_of
from torch import Tensor, nn

__all__ = ["decide", "is_followed", "swapped_forward"]

_WITH_ACTIVATION = ("timm.layers.norm_act", "BatchNormAct2d")
#: What such a module calls behind the norm, in this order.
_CALLED_BEHIND = ("drop", "act")
_STATISTICS = ("running_mean", "running_var")
_VECTORS = ("weight", "bias", *_STATISTICS)


def _behind(module: nn.Module) -> tuple[bool, str | None]:
    """Whether all children are such as planish fuses behind the norm, and what they are."""
    found: list[str] = []
    for child in module._modules.values():
        try:
            name = activation_of(child)
        except KeyError:
            return False, None
        if name is not None:
            found.append(name)
    return len(found) <= 1, found[0] if found else None


def _called_behind(module: nn.Module, y: Tensor) -> Tensor:
    for name in _CALLED_BEHIND:
        y = module._modules[name](y)  # type: ignore[misc]
    return y


class BatchNorm2dThenActivation(batch_modules.BatchNorm2d):
    """timm's BatchNormAct2d with an activation that planish does not fuse: its own runs behind
    planish's norm."""

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        return _called_behind(self, super().forward(input, addend))


def _is_frozen(module: nn.Module) -> bool:
    """Whether it holds what a frozen batch norm holds, and nothing to learn."""
    held: Any = module._buffers
    vectors = [held.get(name) for name in _VECTORS]
    return (
        not isinstance(module, nn.modules.batchnorm._BatchNorm)
        and not any(p is not None for p in module._parameters.values())
        and all(isinstance(v, Tensor) and v.dim() == 1 for v in vectors)
        and len({v.shape for v in vectors}) == 1
        and isinstance(getattr(module, "eps", None), float)
    )


def _small(module: nn.Module) -> Any:
    """A copy of it in float64 with other numbers."""
    made = copy.deepcopy(module).to("cpu", torch.float64)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name in _VECTORS:
            vector = getattr(made, name, None)
            if isinstance(vector, Tensor):
                values = torch.rand(vector.shape, generator=generator, dtype=torch.float64)
                vector.copy_(values + 0.5)
    return made


def _run(module: Any, x: Tensor, training: bool, activation: str | None) -> Tensor:
    vectors = module.running_mean, module.running_var, module.weight, module.bias
    momentum = 0.0 if getattr(module, "momentum", None) is None else module.momentum
    return batch_norm(x, *vectors, training, momentum, module.eps, activation=activation)


def _same(
    module: nn.Module, modes: tuple[bool, ...], activation: str | None, followed: bool
) -> bool:
    """Whether its own forward gives results, gradients and statistics of planish's; ``followed``:
    of planish's with the modules behind it."""

    def ours_of(x: Tensor, training: bool) -> Tensor:
        y = _run(ours, x, training, activation)
        return _called_behind(ours, y) if followed else y

    theirs, ours = _small(module), _small(module)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(3, theirs.running_mean.shape[0], 4, 5, generator=generator).double()
    for training in modes:
        theirs.train(training)
        pairs = []
        for call in (theirs, functools.partial(ours_of, training=training)):
            leaf = x.clone().requires_grad_()
            y = call(leaf)
            pairs.append([y, *torch.autograd.grad(y.square().sum(), leaf)])
        pairs = [
            [*found, m.running_mean, m.running_var]
            for found, m in zip(pairs, (theirs, ours), strict=True)
        ]
        for one, other in zip(*pairs, strict=True):
            if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-9, atol=1e-9):
                return False
    return True


_found: dict[Any, bool] = {}


def _prove(
    module: nn.Module, modes: tuple[bool, ...], activation: str | None, followed: bool = False
) -> bool:
    cls: Any = type(module)
    held = tuple(sorted((name, type(child)) for name, child in module._modules.items()))
    settings = (
        getattr(module, "track_running_stats", None),
        getattr(module, "momentum", None) is None,
    )
    key = cls, cls.forward, held, modes, activation, followed, settings
    if key not in _found:
        try:
            with counts.uncounted(), probe.apart(), torch.device("cpu"):
                _found[key] = _same(module, modes, activation, followed)
        except Exception:  # whatever a forward raises
            _found[key] = False
    return _found[key]


def swapped_forward(original: Any, activation: str | None) -> Any:
    """The forward of a frozen norm: planish's where x has the dtype of what it holds."""
    forward = original.forward

    @functools.wraps(forward)
    def frozen(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        mean = self.running_mean
        if (
            isinstance(x, Tensor)
            and x.dim() >= 2
            and x.dtype == mean.dtype == self.weight.dtype
            and x.device == mean.device
            and way_of(x, mean) in (Way.PLAIN, Way.OPERATOR)
        ):
            return _run(self, x, False, activation)
        return forward(self, *args, **kwargs)

    return frozen


def is_followed(module: nn.Module) -> bool:
    """Whether it is timm's BatchNormAct2d, which calls its children behind a proven batch norm."""
    cls: Any = type(module)
    named = (cls.__module__, cls.__qualname__) == _WITH_ACTIVATION
    return named and isinstance(decide(module), tuple)


def decide(module: nn.Module) -> tuple[Any, str | None, str] | str | None:
    """planish's class, the activation that it does and what that is in words; for a frozen norm no
    class. Or why not; None for what is none of these."""
    cls: Any = type(module)
    with_activation = (cls.__module__, cls.__qualname__) == _WITH_ACTIVATION
    if not with_activation and not _is_frozen(module):
        return None
    why = layers.bound_forward(module)
    if why or "parametrizations" in module._modules:
        return why or "its parameters are computed (torch.nn.utils.parametrize)"
    fits, activation = _behind(module)
    followed = with_activation and not fits and tuple(module._modules) == _CALLED_BEHIND
    if not fits and not followed:
        names = [type(child).__name__ for child in module._modules.values()]
        return (
            f"planish fuses no {' and '.join(n for n in names if n != 'Identity')} behind a batch "
            "norm; planish.enable() reaches the norm"
        )
    if with_activation:
        if not module.track_running_stats or not module.affine:
            return "without parameters or statistics of its own; planish.enable() reaches it"
        if not _prove(module, (True, False), activation, followed):
            return "its results are not those of a batch norm"
        if followed:
            return (
                BatchNorm2dThenActivation,
                None,
                f"planish.BatchNorm2d, then {type(module.act).__name__}",
            )
        name = "planish.BatchNorm2d" + (f" with {activation}" if activation else "")
        return batch_modules.BatchNorm2d, activation, name
    if not _prove(module, (False,), activation):
        return "an affine map that is not that of a batch norm"
    return (
        None,
        activation,
        "batch norm by the statistics it holds" + (f", with {activation}" if activation else ""),
    )
