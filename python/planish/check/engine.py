"""The C library under a check: one copy of it for each tier of the CPU, and plans that run.

planish chooses the tier once in a process (PLANISH_CPU_TIER in planish.h). A copy of the shared
library has a choice of its own, so that all tiers are there at once and can run by turns.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import torch
from planish.bench.providers.planish_c import Exec, dl_tensor
from planish.library.loaded import library
from planish.library.structs import Buffers, Norm, Tensors

from .ahead import norm_of
from .case import DIRECTIONS
from .problem import EPS, Problem

#: All that there are, the plainest first.
TIERS = ("portable", "avx2", "avx512", "avx512bf16", "neon")
VARIABLE = "PLANISH_CPU_TIER"


class RefusedError(RuntimeError):
    """planish did not take or run a problem; the text is its own."""


class Engine:
    """A loaded library and what it is called in the table: a tier, or "cuda"."""

    def __init__(self, dll: ctypes.CDLL, name: str) -> None:
        self.dll, self.name = dll, name
        dll.planish_plan_create.argtypes = [
            POINTER(Norm), c_int, POINTER(Tensors), POINTER(c_void_p), c_char_p, c_size_t,
        ]  # fmt: skip
        dll.planish_plan_workspace_bytes.argtypes = [c_void_p]
        dll.planish_plan_workspace_bytes.restype = c_size_t
        dll.planish_plan_run.argtypes = [c_void_p, POINTER(Buffers), POINTER(Exec)]
        dll.planish_plan_describe.argtypes = [c_void_p, c_char_p, c_size_t]
        dll.planish_plan_destroy.argtypes = [c_void_p]
        dll.planish_plan_destroy.restype = None

    def plan(self, problem: Problem) -> Plan:
        """Decides how to run a problem; RefusedError where planish does not."""
        return Plan(self.dll, problem)


class Plan:
    """A plan on the tensors of a problem, and its workspace."""

    def __init__(self, dll: ctypes.CDLL, problem: Problem) -> None:
        case = problem.case
        self._dll, self._plan = dll, c_void_p()
        self._message = ctypes.create_string_buffer(1024)
        self._problem = problem  # the buffers are its tensors
        described = {role: dl_tensor(t.view) for role, t in problem.tensors.items()}
        table = Tensors(
            ctypes.sizeof(Tensors), **{r: ctypes.pointer(d) for r, d in described.items()}
        )
        op = norm_of(case, EPS)
        direction = DIRECTIONS.index(case.direction)
        if dll.planish_plan_create(
            byref(op), direction, byref(table), byref(self._plan), self._message, 1024
        ):
            raise RefusedError(self._message.value.decode(errors="replace"))
        text = ctypes.create_string_buffer(512)
        dll.planish_plan_describe(self._plan, text, len(text))
        #: What planish says that it will do.
        self.described = text.value.decode(errors="replace")
        room = dll.planish_plan_workspace_bytes(self._plan)
        self._workspace = torch.empty(room + 256, dtype=torch.uint8, device=case.device)
        self._cuda = case.device == "cuda"
        self._exec = Exec(
            ctypes.sizeof(Exec),
            workspace=-(-self._workspace.data_ptr() // 256) * 256,
            workspace_bytes=room,
            message=ctypes.cast(self._message, c_char_p),
            message_bytes=len(self._message),
        )
        buffers = {role: t.view.data_ptr() for role, t in problem.tensors.items()}
        self._buffers = Buffers(ctypes.sizeof(Buffers), **buffers)
        self._arguments: Any = (self._plan, byref(self._buffers), byref(self._exec))

    def run(self) -> None:
        """Runs it, on a GPU on torch's current stream; RefusedError with planish's own words."""
        if self._cuda:
            self._exec.stream = torch.cuda.current_stream().cuda_stream
        if self._dll.planish_plan_run(*self._arguments):
            raise RefusedError(self._message.value.decode(errors="replace"))

    def close(self) -> None:
        """Frees it, when what it queued is done."""
        if self._cuda:
            torch.cuda.synchronize()
        self._dll.planish_plan_destroy(self._plan)
        self._plan = c_void_p()


def _copy_of(path: Path) -> ctypes.CDLL:
    """The library once more, with state of its own. The file of the copy is never closed: the
    loader knows it by its number, and would take a later file of that number for it."""
    fd = os.memfd_create("libplanish")
    with open(fd, "wb", closefd=False) as file:
        file.write(path.read_bytes())
    return ctypes.CDLL(f"/proc/self/fd/{fd}")


def _on_tier(dll: ctypes.CDLL, tier: str) -> str:
    """Makes a library that has not chosen yet choose; what it chose."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = tier
    try:
        dll.planish_cpu_tier.restype = c_char_p
        return str(dll.planish_cpu_tier().decode())
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def one_thread(dll: ctypes.CDLL) -> None:
    """On one core: what planish has of OpenMP need not be torch's."""
    setter = getattr(dll, "omp_set_num_threads", None)
    if setter is not None:
        setter(1)


@functools.cache
def cpu_engines() -> tuple[Engine, ...]:
    """One for every tier that this machine and this build have, each on one thread."""
    found = []
    for tier in TIERS:
        dll = _copy_of(library().path)
        one_thread(dll)
        if _on_tier(dll, tier) == tier:
            found.append(Engine(dll, tier))
    return tuple(found)


def cuda_engine() -> Engine:
    """The library itself, for tensors on a GPU."""
    return Engine(ctypes.CDLL(str(library().path)), "cuda")
