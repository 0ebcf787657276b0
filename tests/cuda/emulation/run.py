"""Builds the emulation of the GPU kernels with the sanitizers and runs it: run.py BUILD_FOLDER.

Needs clang, or what CC and CXX name; no GPU and nothing of CUDA. What follows the folder goes to
test_emulation, such as --table=long, --share=3 or --numbers=N (other ones in every case).
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
# The emulated device, without the test's own cases.
DEVICE = (
    *("device", "device_clusters", "device_shared", "device_turns"),
    *("emulated", "emulated_pair", "fiber", "variants"),
)
SUPPORT = (
    *("check", "element", "tensor", "parts", "activation", "cases", "bundle", "values", "bounds"),
    *("reference", "reference_forward", "reference_backward", "quantised"),
)
# The parts of src/cuda that know of the driver, of NVRTC or of files; the rest are pure functions.
OUTSIDE = (
    "ahead",
    "cache",
    "cuda_backend",
    "driver",
    "jit",
    "key",
    "launch",
    "none",
    "pack",
    "report",
)
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1"]
# A kernel computes addresses before it knows whether they will be used.
UNIT_SANITIZE = ["-fno-sanitize=pointer-overflow,function"]
# Not optimized: that takes longer than it saves.
UNIT = ["-std=c++17", "-fPIC", "-shared", "-w"]


def call(*command: str | pathlib.Path) -> None:
    """Runs a program; ends this one where it fails."""
    if subprocess.run([str(c) for c in command], check=False).returncode:
        raise SystemExit(f"failed: {' '.join(str(c) for c in command)}")


def host_sources(folder: pathlib.Path) -> list[pathlib.Path]:
    """The library's own parts of the emulated device, and the kernels' text for the host."""
    kernels = sorted((ROOT / "src/cuda/kernels").rglob("*.cu"))
    arguments = sorted((ROOT / "src/cuda/kernels").rglob("*.h"))
    texts = folder / "texts.c"
    call(sys.executable, HERE / "host_text.py", folder, *kernels, *arguments)
    call(sys.executable, ROOT / "src/cuda/embed.py", texts, *kernels)
    common = (
        "dtypes",
        "problem",
        "problem_axes",
        "problem_checks",
        "problem_layouts",
        "roles",
        "problem_stages",
        "stages_modulated",
        "stages_sum",
        "status",
        "steps",
    )
    host = sorted((ROOT / "src/cuda").rglob("*.c"))
    return [
        texts,
        *(ROOT / f"src/{name}.c" for name in common),
        *(source for source in host if source.stem not in OUTSIDE),
    ]


def compile_host(output: pathlib.Path, sources: Sequence[pathlib.Path], *more: str) -> None:
    """A program or a library of C sources."""
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-ffp-contract=off"]
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}", f"-I{HERE}"]
    compiler = os.environ.get("CC", "clang")
    libraries = ["-lm", "-ldl", "-lpthread"]
    call(compiler, *flags, *more, *includes, "-o", output, *sources, *libraries)


def build_program(folder: pathlib.Path) -> pathlib.Path:
    """The test itself, and the kernels' text for the host."""
    program = folder / "test_emulation"
    sources = [*HERE.glob("*.c"), *host_sources(folder)]
    sources += [ROOT / f"tests/c/{name}.c" for name in SUPPORT]
    compile_host(program, sources, *SANITIZE, "-rdynamic")
    return program


def build_unit(source: pathlib.Path, sanitize: bool = True) -> str:
    """One specialisation as a library; the compiler's words where it fails."""
    library = source.with_suffix(".so")
    parts = [source, *HERE.glob("*.hpp"), HERE / "device.h", *source.parents[1].glob("*.inc")]
    if library.exists() and library.stat().st_mtime > max(p.stat().st_mtime for p in parts):
        return ""
    flags = [*SANITIZE, *UNIT_SANITIZE] * sanitize
    flags += [*UNIT, "-O0", "-fvisibility=hidden", "-ffp-contract=off"]
    includes = [f"-I{HERE}", f"-I{source.parents[1]}"]
    linker = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []  # takes half the time
    compiler = os.environ.get("CXX", "clang++")
    command = [compiler, *flags, *linker, *includes, "-o", library, source]
    done = subprocess.run([str(c) for c in command], check=False, stderr=subprocess.PIPE, text=True)
    return f"{source.name}: {done.stderr}" if done.returncode else ""


def run_parts(command: list[str], count: int) -> int:
    """Runs every `count`th case in a process each. A kind of kernel is missing if all name it."""
    parts = [
        subprocess.Popen(
            [*command, f"--parts={count}", f"--part={i}"], stdout=subprocess.PIPE, text=True
        )
        for i in range(count)
    ]
    outputs = [part.communicate()[0].splitlines() for part in parts]
    missing = set.intersection(
        *({line for line in output if line.startswith("not launched: ")} for output in outputs)
    )
    for output in outputs:
        print("\n".join(line for line in output if not line.startswith("not launched: ")))
    print(*sorted(missing), sep="\n")
    return int(any(part.returncode for part in parts) or bool(missing))


def main() -> int:
    """Builds and runs; the exit status is that of the test."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    units, arguments = folder / "units", sys.argv[2:]
    units.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    program = build_program(folder)
    for old in units.glob("*.cpp"):
        old.unlink()
    os.environ.setdefault("UBSAN_OPTIONS", "halt_on_error=1")
    call(program, f"--write={units}", *arguments)
    sources = sorted(units.glob("*.cpp"))
    jobs = int(os.environ.get("JOBS") or os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        failures = [text for text in pool.map(build_unit, sources) if text]
    print(f"{len(sources)} specialisations compiled, {time.monotonic() - begin:.0f} s", flush=True)
    if failures:
        print("\n".join(failures[:5]))
        raise SystemExit(f"{len(failures)} specialisations do not compile for the host")
    return run_parts([str(program), f"--units={units}", *arguments], jobs)


if __name__ == "__main__":
    sys.exit(main())
