"""One tiny model: how it is made, built and called."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from planish._torchvision import mend_torchvision
from torch import Tensor, nn

__all__ = [
    "BATCH",
    "FAMILIES",
    "IMAGES",
    "LANGUAGE",
    "VISION",
    "Built",
    "Entry",
    "build",
    "hugging_face",
    "loss_of",
    "mapped",
    "missing_packages",
    "pixels",
    "tensors_of",
    "tokens",
]

#: The families of docs/guide/coverage.md.
FAMILIES = ("language", "vision, BERT, audio", "convolution, diffusion", "convolution, batch norm")
LANGUAGE, VISION, IMAGES, BATCH = FAMILIES

#: A model and the keyword arguments of its forward.
Built = tuple[nn.Module, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One model."""

    name: str
    family: str
    packages: tuple[str, ...]
    make: Callable[[], Built]


def missing_packages(names: tuple[str, ...]) -> list[str]:
    """Those of them that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def prepare() -> None:
    """Lets torchvision be imported beside any torch, and nothing be looked for on the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    mend_torchvision()


def _shake(model: nn.Module) -> None:
    """Weights that are no longer ones and zeros, and finite where they were never set."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if not bool(torch.isfinite(parameter).all()) or float(parameter.abs().max()) > 10:
                parameter.copy_(noise * 0.1)
            parameter.add_(noise * 0.05)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same with the function of every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(one, function) for key, one in value.items()}
    return value


def build(entry: Entry, dtype: torch.dtype = torch.float32) -> Built:
    """The model, in eval, and its inputs; the same every time."""
    prepare()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model, inputs = entry.make()
    _shake(model)
    cast = mapped(inputs, lambda t: t.to(dtype) if t.is_floating_point() else t)
    return model.eval().to(dtype), cast


def tensors_of(output: Any) -> list[Tensor]:
    """The floating tensors of what a model returned."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        return [tensor for value in output.values() for tensor in tensors_of(value)]
    if isinstance(output, list | tuple):
        return [tensor for value in output for tensor in tensors_of(value)]
    sample = getattr(output, "sample", None)
    return [sample] if isinstance(sample, Tensor) else []


def loss_of(output: Any) -> Tensor:
    """A number by which every tensor that a model returned, and that has a gradient, has one."""
    tensors = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
    return sum((tensor.float().sin().sum() for tensor in tensors), torch.zeros(()))


# ---- What the lists of models are made of -------------------------------------------------------


def tokens(batch: int = 2, length: int = 12, vocabulary: int = 100) -> Tensor:
    """Token ids that are no special ones."""
    return torch.randint(3, vocabulary, (batch, length))


def pixels(size: int, batch: int = 2) -> Tensor:
    """Images."""
    return torch.randn(batch, 3, size, size)


def hugging_face(
    name: str,
    family: str,
    model: str,
    config: str,
    inputs: Callable[[], dict[str, Any]],
    **given: Any,
) -> Entry:
    """A model of Transformers by the names of its classes."""

    def make() -> Built:
        import transformers

        transformers.logging.set_verbosity_error()
        made = getattr(transformers, model)(getattr(transformers, config)(**given))
        return made, inputs()

    return Entry(name, family, ("transformers",), make)
