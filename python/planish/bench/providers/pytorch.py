"""torch's own kernels: eager, torch.compile, and the unfused composition.

Eager calls the operators that F.layer_norm and its autograd formula call, so no autograd
bookkeeping is timed; the others have no such operators and are differentiated by autograd.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from typing import Any

import torch

from ..case import Case, Data, by_pixel, nchw
from .base import Provider, Run, UnsupportedError, run_of

Norm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def eager_run(case: Case, data: Data) -> Run:
    """The aten operators themselves, with whatever kernels are registered under them."""
    x, weight, bias, dy = data.x, data.weight, data.bias, data.dy
    shape = [case.cols]
    if case.direction == "forward":
        if case.kind == "rms":
            return run_of(
                lambda: torch.rms_norm(x, shape, weight, case.eps),
                lambda: {"y": torch.rms_norm(x, shape, weight, case.eps)},
            )
        return run_of(
            lambda: torch.native_layer_norm(x, shape, weight, bias, case.eps),
            lambda: {"y": torch.native_layer_norm(x, shape, weight, bias, case.eps)[0]},
        )
    if case.kind == "rms":
        return autograd_run(lambda a, w, _: torch.rms_norm(a, shape, w, case.eps), case, data)
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, case.eps)
    backward: Any = torch.ops.aten.native_layer_norm_backward.default
    arguments = (dy, x, shape, mean, rstd, weight, bias, [True, True, True])

    def outputs() -> dict[str, torch.Tensor]:
        return dict(zip(("dx", "dweight", "dbias"), backward(*arguments), strict=True))

    return run_of(lambda: backward(*arguments), outputs)


def autograd_run(norm: Norm, case: Case, data: Data) -> Run:
    """Any differentiable function; backward is one autograd.grad over a graph that is kept."""
    if case.direction == "forward":
        with torch.no_grad():
            norm(data.x, data.weight, data.bias)

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return norm(data.x, data.weight, data.bias)

        return run_of(forward, lambda: {"y": forward()})
    assert data.dy is not None
    leaves = [
        t.detach().requires_grad_() for t in (data.x, data.weight, data.bias) if t is not None
    ]
    y = norm(leaves[0], leaves[1], leaves[2] if len(leaves) > 2 else None)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, leaves, data.dy, retain_graph=True)

    def outputs() -> dict[str, torch.Tensor]:
        return dict(zip(("dx", "dweight", "dbias"), backward(), strict=False))

    return run_of(backward, outputs)


def image_run(norm: Norm, case: Case, data: Data) -> Run:
    """A function of NCHW, its results brought back to (rows, cols)."""
    dy = None if data.dy is None else nchw(case, data.dy)
    images = Data(nchw(case, data.x), data.weight, data.bias, dy)
    run = autograd_run(norm, case, images)

    def outputs() -> dict[str, torch.Tensor]:
        found = run.outputs()
        return {k: by_pixel(case, t) if t.dim() == 4 else t for k, t in found.items()}

    return dataclasses.replace(run, outputs=outputs)


def permuted_norm(case: Case) -> Norm:
    """The layer over the last axis of a permuted view, and back: what models write."""
    layer = torch.nn.functional.layer_norm if case.kind == "layer" else None

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        view = x.permute(0, 2, 3, 1)
        if layer is not None:
            y = layer(view, [case.cols], weight, bias, case.eps)
        else:
            y = torch.nn.functional.rms_norm(view, [case.cols], weight, case.eps)
        return y.permute(0, 3, 1, 2)

    return norm


class Eager(Provider):
    """torch's fused kernels as eager mode calls them."""

    images = True

    name = "torch"
    what = "torch eager: aten::native_layer_norm and its backward; aten::rms_norm by autograd"

    def version(self) -> str | None:
        """torch's version."""
        return str(torch.__version__)

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases."""
        if case.image is not None:
            return image_run(permuted_norm(case), case, data)
        return eager_run(case, data)


class Compiled(Provider):
    """F.layer_norm through torch.compile, compiled for each shape."""

    name = "torch-compile"
    what = "torch.compile of F.layer_norm / F.rms_norm, static shapes"

    def __init__(self) -> None:
        self._made: tuple[Case, Any] | None = None

    def missing(self) -> str | None:
        """inductor's CPU code needs a C++ compiler."""
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            return "torch.compile needs a C++ compiler (g++ or clang++), and none is on PATH"
        return None

    def version(self) -> str | None:
        """torch's version."""
        return str(torch.__version__)

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases; compiles first, once for a case."""
        if case.direction == "forward" and case.kind == "layer":
            # As the others: mean and rstd are results, too.
            statistics = self._compiled(case, self._with_statistics)
            x, weight, bias = data.x, data.weight, data.bias
            with torch.no_grad():
                statistics(x, weight, bias)
            return run_of(
                lambda: statistics(x, weight, bias), lambda: {"y": statistics(x, weight, bias)[0]}
            )
        return autograd_run(self._compiled(case, self._norm), case, data)

    def _compiled(self, case: Case, make: Callable[[Case], Any]) -> Any:
        if self._made is None or self._made[0] != case:
            torch.compiler.reset()
            self._made = case, torch.compile(make(case), dynamic=False)
        return self._made[1]

    @staticmethod
    def _with_statistics(case: Case) -> Any:
        def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
            return torch.native_layer_norm(x, [case.cols], weight, bias, case.eps)

        return layer

    @staticmethod
    def _norm(case: Case) -> Norm:
        shape = [case.cols]

        def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return torch.nn.functional.layer_norm(x, shape, weight, bias, case.eps)

        def rms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, shape, weight, case.eps)

        return layer if case.kind == "layer" else rms


class Unfused(Provider):
    """mean, subtract, square, mean, rsqrt, multiply, add: one operator after the other."""

    name = "unfused"
    images = True
    what = "the formula as separate torch operators, the way it was written before fused kernels"

    def version(self) -> str | None:
        """torch's version."""
        return str(torch.__version__)

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases."""
        if (
            case.dtype in ("f16", "bf16")
            and case.direction == "backward"
            and case.elements > 1 << 27
        ):
            raise UnsupportedError("would need several copies of x in f32")

        axis = -1 if case.image is None else 1

        def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            if axis == 1:
                weight = weight[:, None, None]
                bias = None if bias is None else bias[:, None, None]
            wide = x if x.dtype == torch.float64 else x.float()
            if case.kind == "layer":
                wide = wide - wide.mean(axis, keepdim=True)
            xhat = wide * torch.rsqrt(wide.square().mean(axis, keepdim=True) + case.eps)
            y = xhat * weight
            return (y if bias is None else y + bias).to(x.dtype)

        return (autograd_run if case.image is None else image_run)(norm, case, data)
