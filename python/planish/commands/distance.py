"""How far a model's results move when its norms run on planish.

Outputs and gradients of a step, before and after, each beside the same model in float64: what the
model itself is off is the measure of what may change. A model that does not run in float64 is
measured by what it makes of inputs that are one rounding larger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from planish import zoo
from torch import Tensor, nn

__all__ = ["Distance", "apart", "measure", "step"]

#: A step's results may be this many times as far from float64 as without planish ...
FACTOR = 3.0
#: ... or this many roundings of the dtype, where a model happens to be nearer.
ROUNDINGS = 32.0


@dataclasses.dataclass(frozen=True)
class Distance:
    """Largest errors relative to the largest magnitude of each tensor."""

    outputs: float
    gradients: float
    outputs_before: float
    gradients_before: float
    #: What these may be.
    floor: float

    @property
    def within(self) -> bool:
        """Whether results are as exact as they were."""
        pairs = (self.outputs, self.outputs_before), (self.gradients, self.gradients_before)
        return all(now <= max(FACTOR * before, self.floor) for now, before in pairs)


def step(model: nn.Module, inputs: dict[str, Any]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs, and the gradients of a loss of them, in float64."""
    model.zero_grad(set_to_none=True)
    outputs = zoo.tensors_of(model(**inputs))
    # Weighed by noise: the squares of a norm's results hardly depend on what went into it.
    generator = torch.Generator().manual_seed(3)
    weighed = [
        (output * torch.randn(output.shape, generator=generator).to(output)).float().mean()
        for output in outputs
    ]
    loss: Any = torch.stack(weighed).sum()
    loss.backward()
    gradients = {
        name: parameter.grad.double()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return [output.detach().double() for output in outputs], gradients


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _next(value: Tensor) -> Tensor:
    return torch.nextafter(value, value + 1) if value.is_floating_point() else value


def apart(found: list[Tensor], exact: list[Tensor]) -> float:
    """Tensors of next to nothing are measured by the others."""
    largest = max((float(t.abs().max()) for t in exact if t.numel()), default=0.0)
    worst = 0.0
    for one, other in zip(found, exact, strict=True):
        if one.numel():
            scale = max(float(other.abs().max()), 1e-3 * largest, 1e-30)
            worst = max(worst, float((one - other).abs().max()) / scale)
    return worst


def measure(
    entry: zoo.Entry,
    dtype: torch.dtype,
    change: Callable[[nn.Module], contextlib.AbstractContextManager[Any]],
) -> Distance:
    """The distances of one model; ``change`` puts planish under it, for a context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = []
        for kind in ("exact", "before", "after"):
            model, inputs = zoo.build(entry, dtype)
            if kind == "exact":
                model, inputs = model.double(), zoo.mapped(inputs, _double)
            with change(model) if kind == "after" else contextlib.nullcontext():
                try:
                    results.append(step(model, inputs))
                except (RuntimeError, NotImplementedError, ValueError):
                    if kind != "exact":
                        raise
                    model, inputs = zoo.build(entry, torch.float32)
                    results.append(step(model, zoo.mapped(inputs, _next)))
    exact, before, after = results
    names = [name for name in exact[1] if name in before[1] and name in after[1]]

    def gradients(found: tuple[list[Tensor], dict[str, Tensor]]) -> list[Tensor]:
        return [found[1][name] for name in names]

    return Distance(
        apart(after[0], exact[0]),
        apart(gradients(after), gradients(exact)),
        apart(before[0], exact[0]),
        apart(gradients(before), gradients(exact)),
        ROUNDINGS * torch.finfo(dtype).eps,
    )
