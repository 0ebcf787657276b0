"""Libraries of GPU norms: Liger-Kernel, quack and Apex, each called below its autograd function
where it has such a door."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import torch

from ..case import Case, Data
from .base import Provider, Run, UnsupportedError, run_of
from .pytorch import autograd_run


class _Library(Provider):
    """A Python package that may be there."""

    module: str
    package: str

    def missing(self) -> str | None:
        """Whether it imports."""
        try:
            importlib.import_module(self.module)
        except Exception as error:  # some raise other errors than ImportError where CUDA differs
            return f"{self.module} does not import: {type(error).__name__}: {error}"
        return None

    def version(self) -> str | None:
        """The package's version."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


class Liger(_Library):
    """Triton kernels of a training library."""

    name = "liger"
    what = "Liger-Kernel's Triton norms"
    module, package = "liger_kernel.ops.layer_norm", "liger-kernel"

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases that Liger takes."""
        return self._layer(case, data) if case.kind == "layer" else self._rms(case, data)

    @staticmethod
    def _layer(case: Case, data: Data) -> Run:
        ops: Any = importlib.import_module("liger_kernel.ops.layer_norm")

        def forward() -> Any:
            return ops.layer_norm_forward(data.x, data.weight, data.bias, case.eps)

        if case.direction == "forward":
            return run_of(forward, lambda: {"y": forward()[0]})
        _, _, mean, rstd, *_ = forward()

        def backward() -> Any:
            return ops.layer_norm_backward(data.dy, data.x, data.weight, data.bias, mean, rstd)

        def outputs() -> dict[str, torch.Tensor]:
            return dict(zip(("dx", "dweight", "dbias"), backward(), strict=True))

        return run_of(backward, outputs)

    @staticmethod
    def _rms(case: Case, data: Data) -> Run:
        ops: Any = importlib.import_module("liger_kernel.ops.rms_norm")

        def forward() -> Any:
            return ops.rms_norm_forward(data.x, data.weight, case.eps, 0.0, "none", None)

        if case.direction == "forward":
            return run_of(forward, lambda: {"y": forward()[0]})
        assert data.dy is not None
        _, _, rstd, block, warps, mode = forward()
        dy = data.dy.clone()  # dx is written over dy: Liger's default, and its faster way

        def backward() -> Any:
            return ops.rms_norm_backward(
                dy, data.x, data.weight, rstd, 0.0, mode, block, warps, True, None
            )

        def outputs() -> dict[str, torch.Tensor]:
            dy.copy_(data.dy)  # type: ignore[arg-type]
            dx, dweight = backward()[:2]
            return {"dx": dx.clone(), "dweight": dweight}

        return run_of(backward, outputs)


class Quack(_Library):
    """CuTe kernels for Hopper and newer."""

    name = "quack"
    what = "quack's CuTe norms; its LayerNorm has f32 weights"
    module, package = "quack.rmsnorm", "quack-kernels"

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases that quack takes."""
        ops: Any = importlib.import_module(self.module)
        if case.dtype == "f64":
            raise UnsupportedError("quack has no f64")
        layer = case.kind == "layer"
        weight = data.weight.float() if layer else data.weight
        bias = None if data.bias is None else data.bias.float()

        def forward() -> Any:
            if layer:
                return ops.layernorm_fwd(
                    data.x, weight, bias, eps=case.eps, return_rstd=True, return_mean=True
                )
            y, _, rstd = ops.rmsnorm_fwd(data.x, weight, eps=case.eps, store_rstd=True)
            return y, rstd

        if case.direction == "forward":
            return run_of(forward, lambda: {"y": forward()[0]})
        _, *statistics = forward()

        def backward() -> Any:
            if layer:
                return ops.layernorm_bwd(data.x, weight, data.dy, *statistics)
            return ops.rmsnorm_bwd(data.x, weight, data.dy, *statistics)

        def outputs() -> dict[str, torch.Tensor]:
            found = dict(zip(("dx", "dweight", "dbias"), backward(), strict=False))
            return {
                key: value.to(data.x.dtype) for key, value in found.items() if value is not None
            }

        return run_of(backward, outputs)


class Apex(_Library):
    """The library that made fused LayerNorm popular; needs its own CUDA build."""

    name = "apex"
    what = "Apex's fused_layer_norm_cuda"
    module, package = "fused_layer_norm_cuda", "apex"

    def prepare(self, case: Case, data: Data) -> Run:
        """All cases that Apex takes, through its functions and autograd."""
        apex: Any = importlib.import_module("apex.normalization.fused_layer_norm")

        def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            y: torch.Tensor
            if case.kind == "layer":
                y = apex.fused_layer_norm_affine(x, weight, bias, (case.cols,), case.eps)
            else:
                y = apex.fused_rms_norm_affine(x, weight, (case.cols,), case.eps)
            return y

        return autograd_run(norm, case, data)
