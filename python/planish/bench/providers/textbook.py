"""Three ways to take a variance in float that other implementations use, for the accuracy sweep.

They are written for their rounding, not for speed, and are never timed.
"""

from __future__ import annotations

import torch

from ..case import Case, Data
from .base import Provider, Run, UnsupportedError, run_of


def _welford(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.zeros(x.shape[0])
    m2 = torch.zeros(x.shape[0])
    for i, column in enumerate(x.unbind(1), start=1):
        delta = column - mean
        mean = mean + delta / i
        m2 = m2 + delta * (column - mean)
    return mean, m2 / x.shape[1]


def _two_pass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(1)
    return mean, (x - mean[:, None]).square().mean(1)


def _one_pass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(1)
    return mean, x.square().mean(1) - mean.square()


METHODS = {
    "welford": (_welford, "Welford's update in float, element by element"),
    "two-pass": (_two_pass, "mean, then mean of (x - mean)^2, in float"),
    "E[x2]-E[x]2": (_one_pass, "mean of x^2 minus the square of the mean, in float"),
}


class Textbook(Provider):
    """LayerNorm forward with float statistics by one named method."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.method, self.what = METHODS[name]

    def prepare(self, case: Case, data: Data) -> Run:
        """LayerNorm forward, f16, bf16 and f32."""
        if case.direction != "forward" or case.kind != "layer" or case.dtype == "f64":
            raise UnsupportedError("a LayerNorm forward in float")

        def outputs() -> dict[str, torch.Tensor]:
            x = data.x.float()
            mean, variance = self.method(x)
            y = (x - mean[:, None]) / torch.sqrt(variance + case.eps)[:, None] * data.weight.float()
            if data.bias is not None:
                y = y + data.bias.float()
            return {"y": y.to(data.x.dtype)}

        return run_of(outputs, outputs)


def textbook_providers() -> list[Provider]:
    """All of them."""
    return [Textbook(name) for name in METHODS]
