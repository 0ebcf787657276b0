"""planish itself through its plain C API: one plan per case, buffers and workspace of the caller.

Which shared library is used is planish's own decision
(planish.library.loaded), so that the bench measures what the package runs.
"""

from __future__ import annotations

import ctypes
import dataclasses
from functools import cache

import torch
from planish.library import driver
from planish.library.loaded import library

from ..case import Case, Data, by_pixel, nchw
from .base import Provider, Role, Run, UnsupportedError, run_of

FORWARD, BACKWARD = 0, 1


@cache
def load(path: str = "") -> ctypes.CDLL:
    """A libplanish; the one that the planish package uses where no path is given."""
    return driver.load(path or str(library().path))


def plan_of(
    lib: ctypes.CDLL, case: Case, direction: int, tensors: dict[str, torch.Tensor | None]
) -> driver.Plan:
    """The plan of a case; UnsupportedError where planish makes none."""
    present = {name: t for name, t in tensors.items() if t is not None}
    op = driver.norm(
        kind=int(case.kind == "rms"), reduce_axes=1 << 1, affine_axes=1 << 1, eps=case.eps
    )
    try:
        return driver.Plan(lib, op, direction, present)
    except driver.PlanishError as error:
        raise UnsupportedError(f"planish: {error.text}") from None


class PlanishC(Provider):
    """planish's kernels with nothing between them and the clock but one ctypes call."""

    name = "planish"
    what = "planish through its C API: a plan, caller-owned memory, OpenMP threads"
    role: Role = "planish"
    images = True
    path = ""

    def missing(self) -> str | None:
        """Whether libplanish is there."""
        try:
            load(self.path)
        except (ImportError, OSError) as error:
            return f"libplanish does not load: {error}"
        return None

    def version(self) -> str | None:
        """The library's version and the CPU tier it chose."""
        if self.missing():
            return None
        lib = load(self.path)
        number = lib.planish_version()
        text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return f"{text} ({lib.planish_cpu_tier().decode()})"

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases."""
        stat_dtype = torch.float64 if case.dtype == "f64" else torch.float32
        x = nchw(case, data.x)
        y = data.result.view(x.shape)
        stat_shape = (case.rows,) if case.image is None else (x.shape[0], *case.image)
        rstd = torch.empty(stat_shape, dtype=stat_dtype, device=case.device)
        mean = torch.empty_like(rstd) if case.kind == "layer" else None
        lib = load(self.path)
        forward = plan_of(
            lib,
            case,
            FORWARD,
            {
                "x": x,
                "weight": data.weight,
                "bias": data.bias,
                "y": y,
                "mean": mean,
                "rstd": rstd,
            },
        )
        if case.direction == "forward":

            def forward_outputs() -> dict[str, torch.Tensor]:
                forward.run()
                return {"y": by_pixel(case, y)}

            run = run_of(forward.run, forward_outputs)
            return dataclasses.replace(run, close=forward.close)
        forward.run()
        forward.close()
        gradients = {"dx": y, "dweight": torch.empty_like(data.weight)}
        if data.bias is not None:
            gradients["dbias"] = torch.empty_like(data.bias)
        backward = plan_of(
            lib,
            case,
            BACKWARD,
            {
                "dy": None if data.dy is None else nchw(case, data.dy),
                "x": x,
                "mean": mean,
                "rstd": rstd,
                "weight": data.weight,
                **gradients,
            },
        )

        def backward_outputs() -> dict[str, torch.Tensor]:
            backward.run()
            return {**gradients, "dx": by_pixel(case, gradients["dx"])}

        run = run_of(backward.run, backward_outputs)
        return dataclasses.replace(run, close=backward.close)


class PlanishBefore(PlanishC):
    """Another build of planish, to compare this one with."""

    name = "planish-before"
    what = "planish through its C API, another build: --before names its libplanish"

    def __init__(self, path: str) -> None:
        self.path = path

    def missing(self) -> str | None:
        """Whether a library was named and loads."""
        return super().missing() if self.path else "--before names no libplanish"
