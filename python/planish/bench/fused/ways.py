"""Who can do the works: planish fused and unfused, torch, torch.compile, Liger.

A way is made ready for several sets of data at once, so that it can try what is the fastest where
it has a choice, and so that no call finds its data in a cache.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn import functional as F

import torch
from torch import Tensor

from ..providers.base import UnsupportedError
from .way import FP8, Prepared, Way
from .works import COMPILED, DROPOUT, Data, Work

#: y; y and the sum; the two norms of queries and keys; or the quantised result with its scale.
Function = Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]
LARGEST = 448.0


# ---- What a work is in functions of (data) -> results --------------------------------------------


def _silu_product(y: Tensor, gate: Tensor) -> Tensor:
    return y * F.silu(gate)


def _quantise(y: Tensor, work: Work, data: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """torch's operators for what follows the norm."""
    wide = y.float()
    if work.quantised == "tensor":
        scale = data["static"]
        return (wide / scale).clamp(-LARGEST, LARGEST).to(FP8), scale
    if work.quantised == "row":
        scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-10) / LARGEST
        return (wide / scale).clamp(-LARGEST, LARGEST).to(FP8), scale
    cols = wide.shape[-1]
    padded = F.pad(wide, (0, -cols % 128))
    blocks = padded.view(*padded.shape[:-1], -1, 128)
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-10) / LARGEST
    q = (blocks / scale).clamp(-LARGEST, LARGEST).to(FP8).flatten(-2)
    return q[..., :cols], scale.squeeze(-1)


def composed(work: Work, norm: Callable[..., Tensor]) -> Function:
    """A norm with torch's operators around it; ``norm(x, weight, bias)`` is over the last axis."""

    def function(data: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        if work.row == "qk":
            return (
                norm(data["q"], data["q_weight"], None),
                norm(data["k"], data["k_weight"], None),
            )
        s = data["x"]
        if work.row == "dropout":
            s = F.dropout(s, DROPOUT)
        if work.has_residual:
            s = s + data["residual"]
        y = norm(s, data.get("weight"), data.get("bias"))
        if work.row == "modulated":
            y = y * (1 + data["scale"]) + data["shift"]
        if work.row == "gated":
            y = _silu_product(y, data["gate"])
        if work.quantised:
            q, scale = _quantise(y, work, data)
            return (q, scale, s) if work.has_residual else (q, scale)
        return (y, s) if work.has_residual else (y,)

    return function


def of_torch(work: Work) -> Function:
    """torch's norm and operators."""

    def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if work.kind == "layer":
            return F.layer_norm(x, x.shape[-1:], weight, bias, work.eps)
        return F.rms_norm(x, x.shape[-1:], weight, work.eps)

    return composed(work, norm)


def of_planish_unfused(work: Work) -> Function:
    """planish's norm and torch's operators."""
    import planish

    def norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if work.kind == "layer":
            return planish.layer_norm(x, -1, weight, bias, work.eps)
        return planish.rms_norm(x, -1, weight, eps=work.eps)

    return composed(work, norm)


def of_planish(work: Work) -> Function:
    """planish's functions of norms with what stands around them."""
    import planish

    eps, layer = work.eps, work.kind == "layer"

    def function(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        weight, bias = t.get("weight"), t.get("bias")
        if work.row == "qk":
            return planish.qk_norm(t["q"], t["k"], t["q_weight"], t["k_weight"], eps)
        if work.quantised:
            per: Any = 128 if work.quantised == "128" else work.quantised
            static, residual = t.get("static"), t.get("residual")
            return planish.quantized_rms_norm(
                t["x"], weight, eps, per=per, scale=static, residual=residual
            )
        if work.has_residual:
            p = DROPOUT if work.row == "dropout" else 0.0
            if layer:
                return planish.add_layer_norm(t["x"], t["residual"], weight, bias, eps, dropout_p=p)
            return planish.add_rms_norm(t["x"], t["residual"], weight, eps, dropout_p=p)
        if work.row == "modulated":
            return (planish.modulated_layer_norm(t["x"], t["scale"], t["shift"], eps=eps),)  # type: ignore[return-value]
        return (planish.gated_rms_norm(t["x"], t["gate"], weight, eps),)

    return function


# ---- Functions as ways ---------------------------------------------------------------------------


def names_of(work: Work) -> tuple[str, ...]:
    """What a function's results are called."""
    if work.row == "qk":
        return ("q", "k")
    first = ("q8", "scale") if work.quantised else ("y",)
    return (*first, "sum") if work.has_residual else first


def prepared(work: Work, function: Function, sets: Sequence[Data]) -> Prepared:
    """A function's calls; a backward is one autograd.grad over a graph that is kept."""
    if work.direction == "forward":

        def forward(data: Data) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return function(data)

        return Prepared(
            [lambda data=data: forward(data) for data in sets],  # type: ignore[misc]
            lambda: dict(zip(names_of(work), forward(sets[0]), strict=True)),
        )
    calls, first = [], dict[str, Tensor]()
    for data in sets:
        leaves = [data[name].detach().requires_grad_() for name in work.inputs]
        results = function({**data, **dict(zip(work.inputs, leaves, strict=True))})
        incoming = [data[name] for name in work.gradients]
        first = first or dict(zip(names_of(work), results, strict=True))

        def backward(results: Any = results, leaves: Any = leaves, to: Any = incoming) -> Any:
            return torch.autograd.grad(results, leaves, to, retain_graph=True)

        calls.append(backward)

    def outputs() -> dict[str, Tensor]:
        found = {f"d{n}": g for n, g in zip(work.inputs, calls[0](), strict=True)}
        return {**found, **{n: t.detach() for n, t in first.items() if n == "sum"}}

    return Prepared(calls, outputs)


class Functions(Way):
    """A way that is a function for each work."""

    def __init__(self, name: str, what: str, make: Callable[[Work], Function]) -> None:
        self.name, self.what, self.make = name, what, make

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """All works."""
        return prepared(work, self.make(work), sets)


class Compiled(Way):
    """torch.compile of torch's composition, static shapes."""

    name = "torch-compile"
    what = "torch.compile of the same"

    def __init__(self, which: str) -> None:
        self.which = which  # few, all, none

    def missing(self, device: str) -> str | None:
        """Whether it is wanted, and has a compiler."""
        if self.which == "none":
            return "left out by --compile none"
        if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            return "torch.compile needs a C++ compiler (g++ or clang++), and none is on PATH"
        return None

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """The works whose shape is among the few, or all."""
        if self.which == "few" and work.row != "qk" and (work.rows, work.cols) not in COMPILED:
            raise UnsupportedError("not compiled for this shape; --compile all does")
        torch.compiler.reset()
        config: Any = importlib.import_module("torch._functorch.config")
        config.donated_buffer = False  # a graph that is kept for a second backward has none
        return prepared(work, torch.compile(of_torch(work), dynamic=False), sets)


class Liger(Way):
    """Liger-Kernel's fused residual RMSNorm."""

    name = "liger"
    what = "Liger-Kernel's fused_add_rms_norm"

    def missing(self, device: str) -> str | None:
        """Whether it imports."""
        if device == "cpu":
            return "runs on a GPU only"
        try:
            importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
        except Exception as error:  # other errors than ImportError come where CUDA differs
            return f"liger_kernel does not import: {type(error).__name__}: {error}"
        return None

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """RMSNorm of a sum."""
        if work.row != "add" or work.kind != "rms":
            raise UnsupportedError("Liger has the sum with RMSNorm only")
        ops: Any = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")

        def forward(t: Data) -> Any:
            return ops.fused_add_rms_norm_forward(
                t["x"], t["residual"], t["weight"], work.eps, 0.0, "llama"
            )

        if work.direction == "forward":
            return Prepared(
                [lambda t=t: forward(t) for t in sets],  # type: ignore[misc]
                lambda: dict(zip(("y", "sum"), forward(sets[0])[:2], strict=True)),
            )
        calls = []
        for t in sets:
            _, s, rstd, block, warps, stages, mode = forward(t)
            # Not in place: the second call of a replay would find another dy.
            calls.append(
                lambda t=t, s=s, rstd=rstd, rest=(0.0, mode, block, warps, stages, False): (
                    ops.fused_add_rms_norm_backward(t["dy"], t["dsum"], s, t["weight"], rstd, *rest)
                )
            )
        return Prepared(
            calls, lambda: dict(zip(("dx", "dresidual", "dweight"), calls[0](), strict=True))
        )


def all_ways(device: str, compiled: str) -> list[Way]:
    """Every way, in the order of the columns."""
    ways: list[Way] = [
        Functions("planish", "planish.add_rms_norm and its like", of_planish),
        Functions("unfused", "planish's norm, torch's operators", of_planish_unfused),
        Functions("torch", "torch's norm and operators", of_torch),
        Compiled(compiled),
    ]
    if device == "cuda":
        ways.append(Liger())
        if importlib.util.find_spec("triton") is not None:
            from .triton_ways import triton_ways

            ways += triton_ways()
        else:
            print("missing: the peers in Triton: triton is not installed")
    return ways
