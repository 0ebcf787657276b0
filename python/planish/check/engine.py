"""The C library under a check: one copy of it for each tier of the CPU, and plans that run.

planish chooses the tier once in a process (PLANISH_CPU_TIER in planish.h). A copy of the shared
library has a choice of its own, so that all tiers are there at once and can run by turns.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from planish.library import driver
from planish.library.loaded import library

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
        self.dll, self.name = driver.declared(dll), name

    def plan(self, problem: Problem) -> Plan:
        """Decides how to run a problem; RefusedError where planish does not."""
        return Plan(self.dll, problem)


class Plan(driver.Plan):
    """A plan on the tensors of a problem."""

    def __init__(self, dll: ctypes.CDLL, problem: Problem) -> None:
        case = problem.case
        tensors = {role: t.view for role, t in problem.tensors.items()}
        try:
            super().__init__(dll, norm_of(case, EPS), DIRECTIONS.index(case.direction), tensors)
        except driver.PlanishError as error:
            raise RefusedError(error.text) from None
        #: What planish says that it will do.
        self.described = self.describe()

    def run(self) -> None:
        """Runs it, on a GPU on torch's current stream; RefusedError with planish's own words."""
        try:
            super().run()
        except driver.PlanishError as error:
            raise RefusedError(error.text) from None


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
        dll.planish_cpu_tier.restype = ctypes.c_char_p
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
