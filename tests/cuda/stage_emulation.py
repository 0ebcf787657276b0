"""The cases of stages around a norm in the emulation of a GPU (tests/cuda/emulation), without one.

As emulation/run.py, but not sanitized, and driven by the cases that check_stages.py runs on a GPU.
Cases run in processes of their own: there the emulated device's functions, which specialisations
look up, hide no other library's.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_stages import BatchCase
from c_api import Library, PlanishError
from pair_cases import PairCase
from stage_backward import BackwardCase
from stage_forward import ForwardCase
from sync_cases import SyncCase

sys.path.append(str(Path(__file__).parent / "emulation"))

import run as emulation

Case = ForwardCase | BackwardCase | PairCase | BatchCase | SyncCase


class Emulation(Library):
    """The emulated device; `write`: it only writes down the specialisations of what would run."""

    device = "cpu"

    def __init__(self, folder: Path, write: bool) -> None:
        super().__init__(folder / "libemulated.so", ctypes.RTLD_GLOBAL)
        self.units = str(folder / "units").encode()  # the library keeps the address
        where = "write_folder" if write else "unit_folder"
        ctypes.c_char_p.in_dll(self.lib, where).value = self.units
        ctypes.c_ubyte.in_dll(self.lib, "fill").value = 0xFF

    def become(self, case: Case, shuffled: bool) -> None:
        """What plans are made for, and whether threads take turns in a random order."""
        self.lib.set_device(case.arch, case.multiprocessors)
        self.lib.set_cooperative(int(getattr(case, "cooperative", False)))
        ctypes.c_int.in_dll(self.lib, "order").value = int(shuffled)


@functools.cache
def opened(folder: Path, write: bool) -> Emulation:
    """This process's device."""
    return Emulation(folder, write)


def written(folder: Path, cases: Sequence[Case]) -> list[str]:
    """What refuses to be planned, of cases whose specialisations are written down."""
    refused = []
    device = opened(folder, True)
    for case in cases:
        device.become(case, False)
        try:
            case.write(device)
        except PlanishError as e:
            refused.append(f"{case.name()}: {e}")
    return refused


def checked(folder: Path, case: Case, shuffled: bool) -> list[str]:
    """What is wrong with a case, in order or not."""
    device = opened(folder, False)
    device.become(case, shuffled)
    return case.check(device)


def processes(jobs: int) -> concurrent.futures.ProcessPoolExecutor:
    """Where cases run."""
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(jobs, context)


def build(folder: Path, cases: Sequence[Case], jobs: int) -> int:
    """Compiles all that the cases need; how many specialisations that is."""
    units = folder / "units"
    units.mkdir(parents=True, exist_ok=True)
    for old in units.glob("*.cpp"):
        old.unlink()
    sources = [emulation.HERE / f"{name}.c" for name in emulation.DEVICE]
    sources += [*emulation.host_sources(folder), emulation.ROOT / "tests/c/check.c"]
    emulation.compile_host(folder / "libemulated.so", sources, "-fPIC", "-shared")
    with processes(1) as pool:
        refused = pool.submit(written, folder, cases).result()
    if refused:
        raise RuntimeError("\n".join(refused))
    made = sorted(units.glob("*.cpp"))
    compile_unit = functools.partial(emulation.build_unit, sanitize=False)
    with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
        failures = [text for text in threads.map(compile_unit, made) if text]
    if failures:
        raise RuntimeError(failures[0][:4000])
    return len(made)
