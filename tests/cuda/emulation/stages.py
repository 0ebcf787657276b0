"""Backward passes with stages around the norm, emulated: stages.py BUILD_FOLDER [TABLE].

As run.py, but driven by tests/cuda/stage_cases.py, whose cases a GPU runs too (check_stages.py).
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import run as emulation  # noqa: E402
from planish_c import Library, PlanishError  # noqa: E402
from stage_cases import StageCase, all_cases  # noqa: E402

kept: dict[str, ctypes.Array[ctypes.c_char]] = {}  # what the library points to
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-ffp-contract=off", "-fPIC"]


def build_library(folder: pathlib.Path) -> pathlib.Path:
    """The emulated device as a library, and the kernels' text for the host."""
    kernels = sorted((ROOT / "src/cuda/kernels").rglob("*.cu"))
    library, texts = folder / "libemulated.so", folder / "texts.c"
    emulation.call(sys.executable, HERE / "host_text.py", folder, *kernels)
    emulation.call(sys.executable, ROOT / "src/cuda/embed.py", texts, *kernels)
    own = [HERE / f"{name}.c" for name in ("device", "emulated", "fiber")]
    sources = [*own, texts, ROOT / "tests/c/check.c"]
    common = ("problem", "problem_layouts", "roles", "stages", "status")
    sources += [ROOT / f"src/{name}.c" for name in common]
    host = sorted((ROOT / "src/cuda").rglob("*.c"))
    sources += [s for s in host if s.stem not in emulation.OUTSIDE]
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}", f"-I{HERE}"]
    compiler = os.environ.get("CC", "clang")
    emulation.call(
        compiler, *FLAGS, "-shared", *includes, "-o", library, *sources, "-lm", "-ldl", "-lpthread"
    )
    return library


def prepare(library: Library, case: StageCase, write: str, units: str) -> None:
    """Sets the emulated device for a case, and where its units are."""
    lib = library.lib
    lib.set_device(case.arch, case.multiprocessors)
    for name, value in (("write_folder", write), ("unit_folder", units)):
        kept[name] = ctypes.create_string_buffer(value.encode())
        address = ctypes.addressof(kept[name]) if value else None
        ctypes.c_void_p.in_dll(lib, name).value = address
    ctypes.c_int.in_dll(lib, "order").value = case.seed % 2


def main() -> int:
    """Builds and runs; the exit status is the number of failures, at most 99."""
    folder = pathlib.Path(sys.argv[1]).resolve()
    table = sys.argv[2] if len(sys.argv) > 2 else ""
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    units = folder / "units"
    units.mkdir(parents=True, exist_ok=True)
    emulation.SANITIZE[:] = []
    library = Library(str(build_library(folder)))
    emulation.UNIT[:] = [f for f in emulation.UNIT if "sanitize" not in f]
    for old in units.glob("*.cpp"):
        old.unlink()
    cases = [c for c in all_cases(table) if only in c.name()]
    refused = 0
    for case in cases:
        prepare(library, case, str(units), "")
        try:
            library.run(case.norm(), 1, case.place("cpu")[1])
        except PlanishError as e:
            print(f"REFUSED {case.name()}: {e}")
            refused += 1
    sources = sorted(units.glob("*.cpp"))
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        failures = [text for text in pool.map(emulation.build_unit, sources) if text]
    print(f"{len(sources)} specialisations compiled", flush=True)
    if failures:
        print("\n".join(f[:3000] for f in failures[:2]))
        return 99
    wrong = 0
    for case in cases:
        prepare(library, case, "", str(units))
        try:
            problems = case.check(library)
        except PlanishError as e:
            problems = [str(e)]
        if problems:
            wrong += 1
            print(f"WRONG {case.name()}: {'; '.join(problems)}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong, {refused} refused")
    return min(wrong + refused, 99)


if __name__ == "__main__":
    sys.exit(main())
