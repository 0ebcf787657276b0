"""The bench's providers, one file per family, and the list of all of them."""

from __future__ import annotations

import importlib.util

from planish.commands.command_lines import UsageError

from .base import Absent, Provider, Run, UnsupportedError
from .ceilings import Add, Copy
from .gpu_libraries import Apex, Liger, Quack
from .onednn import OneDnn
from .onnxruntime import OnnxRuntime
from .planish_c import PlanishC
from .planish_torch import PlanishTorch
from .processes import Apart, Workers
from .pytorch import Compiled, Eager, Unfused

__all__ = [
    "Provider", "Run", "UnsupportedError", "all_providers", "gpu_providers", "in_process",
]  # fmt: skip


def in_process() -> list[Provider]:
    """Every provider that runs in this process, in the order of the reports."""
    return [
        Copy(), Add(), Eager(), Compiled(), Unfused(), OnnxRuntime(), OneDnn(), PlanishC(),
        PlanishTorch(),
    ]  # fmt: skip


def elsewhere(device: str) -> list[Provider]:
    """The peers that this device has not."""
    if device == "cpu":
        gpu = [Liger(), Quack(), Apex()]
        return [
            *(Absent(p.name, p.what, "runs on a GPU only: --device cuda") for p in gpu),
            Absent("triton", "Triton's layer norm tutorial", "runs on a GPU only: --device cuda"),
        ]
    return [
        Absent(p.name, p.what, "measured on the CPU only: --device cpu")
        for p in (OnnxRuntime(), OneDnn())
    ]


def gpu_providers() -> list[Provider]:
    """Every provider known for GPUs, the absent ones included."""
    if importlib.util.find_spec("triton") is None:
        raise UsageError("--device cuda needs Triton, which comes with torch for CUDA")
    from .gpu_ceilings import GpuAdd, GpuCopy
    from .triton_tutorial import TritonTutorial

    return [
        GpuCopy(), GpuAdd(), Eager(), Compiled(), Unfused(), TritonTutorial(), Liger(), Quack(),
        Apex(), PlanishC(), PlanishTorch(), *elsewhere("cuda"),
    ]  # fmt: skip


def all_providers(workers: Workers) -> list[Provider]:
    """Every provider known for CPUs, those measured in worker processes and the absent ones
    included.

    torch and planish-torch allocate their results, so they are there twice: as users see them, and
    "-kept" with malloc keeping its pages.
    """
    providers: list[Provider] = []
    for provider in in_process():
        if provider.name in ("torch", "planish-torch"):
            providers += [Apart(provider, kept, workers) for kept in (False, True)]
        else:
            providers.append(provider)
    return providers + elsewhere("cpu")
