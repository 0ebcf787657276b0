"""The bench's providers, one file per family, and the list of all of them."""

from __future__ import annotations

from .base import Absent, Provider, Run, UnsupportedError
from .ceilings import Add, Copy
from .onednn import OneDnn
from .onnxruntime import OnnxRuntime
from .planish_c import PlanishC
from .planish_torch import PlanishTorch
from .processes import AsUsersSeeIt, Kept, Worker
from .pytorch import Compiled, Eager, Unfused

__all__ = ["Provider", "Run", "UnsupportedError", "all_providers", "in_process"]


def in_process() -> list[Provider]:
    """Every provider that runs in this process, in the order of the reports."""
    return [
        Copy(), Add(), Eager(), Compiled(), Unfused(), OnnxRuntime(), OneDnn(), PlanishC(),
        PlanishTorch(),
    ]  # fmt: skip


def gpu_peers() -> list[Provider]:
    """Peers that exist on a GPU only. None of them is measured yet."""
    reason = "runs on a GPU only; this bench measures CPUs only so far"
    return [
        Absent("liger", "Liger-Kernel's Triton norms", reason),
        Absent("quack", "quack's CuTe norms", reason),
        Absent("apex", "Apex's fused_layer_norm_cuda", reason),
        Absent("triton", "Triton's layer norm tutorial", reason),
    ]


def all_providers(worker: Worker) -> list[Provider]:
    """Every provider known, those measured in the worker process and the absent ones included.

    torch and planish-torch allocate their results, so they are there twice: as users see them, and
    "-kept" with malloc keeping its pages.
    """
    providers: list[Provider] = []
    for provider in in_process():
        if provider.name in ("torch", "planish-torch"):
            providers.append(AsUsersSeeIt(provider, provider.name, worker))
            providers.append(Kept(provider))
        else:
            providers.append(provider)
    return providers + gpu_peers()
