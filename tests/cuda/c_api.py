"""ctypes over planish's C API: passes on torch tensors of any device, by the names of their roles.

For the checks of the stages around a norm, on a GPU and in the emulation of one. The driver is that
of the benches (planish/library/driver.py).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

ROOT = Path(__file__).parents[2]

if TYPE_CHECKING:
    from planish.library import driver as _driver

    driver = _driver
else:
    # The folder as a package of its own: the package would load the library and register operators.
    _folder = types.ModuleType("planish_library")
    _folder.__path__ = [str(ROOT / "python/planish/library")]
    sys.modules.setdefault("planish_library", _folder)
    driver = importlib.import_module("planish_library.driver")
structs, norm, described = driver.structs, driver.norm, driver.described
Exec, PlanishError, workspace = structs.Exec, driver.PlanishError, driver.workspace

FORWARD, BACKWARD = 0, 1
LAYER, RMS = 0, 1
IDENTITY, SILU, RELU, GELU, GELU_TANH, RELU6, HARDSWISH = range(7)
#: By architecture: multiprocessors, shared memory of a block, blocks of a cluster, cooperative.
LIMITS = {80: (108, 166912, 1, 1), 90: (132, 232448, 16, 1)}


class Library:
    """The library as it is built: PLANISH_LIBRARY, or what `make test` builds; on a GPU."""

    device = "cuda"

    def __init__(self, path: str | Path = "", mode: int = ctypes.DEFAULT_MODE) -> None:
        built = ROOT / "build/release/libplanish.so"
        path = path or os.environ.get("PLANISH_LIBRARY") or built
        self.lib = ctypes.CDLL(str(path), mode=mode)  # the emulation's has no plans
        structs.name_fields(self.lib)

    def queue(
        self,
        op: structs.Norm,
        which: int,
        tensors: Mapping[str, torch.Tensor],
        second: Mapping[str, torch.Tensor] | None = None,
    ) -> object:
        """Queues a pass on the current stream, of two problems if there is a second; what is
        returned has to live until it has run: the workspace, which holds NaN."""
        given = [described(t) for t in (tensors, second) if t is not None]
        of_two = "_pair" * (second is not None)
        text = ctypes.create_string_buffer(600)
        how = Exec(ctypes.sizeof(Exec), message_bytes=len(text))
        how.message = ctypes.addressof(text)
        if self.device == "cuda":
            how.stream = torch.cuda.current_stream().cuda_stream
        size = ctypes.c_size_t()
        problem = (ctypes.byref(op), which, *(ctypes.byref(found) for found, _ in given))
        status = getattr(self.lib, f"planish_norm{of_two}_workspace_bytes")(
            *problem, ctypes.byref(size), ctypes.byref(how)
        )
        work = None
        if not status:
            if size.value:
                work = workspace(how, size.value, self.device, filled=True)
            status = getattr(self.lib, f"planish_norm{of_two}_run")(*problem, ctypes.byref(how))
        del given
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))
        return work

    def run(self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Runs a pass, to its end."""
        work = self.queue(op, which, tensors)
        if self.device == "cuda":
            torch.cuda.synchronize()
        del work

    def run_pair(
        self,
        op: structs.Norm,
        which: int,
        first: Mapping[str, torch.Tensor],
        second: Mapping[str, torch.Tensor],
    ) -> None:
        """Runs a pass of two problems, to its end."""
        work = self.queue(op, which, first, second)
        if self.device == "cuda":
            torch.cuda.synchronize()
        del work

    def plan(
        self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]
    ) -> driver.Plan:
        """A plan that is made once."""
        return driver.Plan(driver.declared(self.lib), op, which, tensors)

    def describe(self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor]) -> str:
        """The plan in one line."""
        plan = self.plan(op, which, tensors)
        try:
            return plan.describe()
        finally:
            plan.close()

    def prepare(
        self, op: structs.Norm, which: int, tensors: Mapping[str, torch.Tensor], arch: int = 90
    ) -> None:
        """Compiles to the disk cache what a run on an A100, an H100 or H200 needs; asks no GPU."""
        given, kept = described(tensors)
        text = ctypes.create_string_buffer(4000)
        gpu = structs.Gpu(arch, *LIMITS[arch])
        status = self.lib.planish_pack_prepare(
            ctypes.byref(gpu), ctypes.byref(op), which, ctypes.byref(given), text, len(text)
        )
        del kept
        if status:
            raise PlanishError(status, text.value.decode(errors="replace"))


def axes(of: tuple[int, ...]) -> int:
    """A set of axes as bits."""
    return sum(1 << a for a in of)
