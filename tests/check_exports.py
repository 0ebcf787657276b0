#!/usr/bin/env python3
"""Checks what the built library exports, imports and keeps, by reading its symbol tables.

    check_exports.py LIBRARY BUILD_FOLDER

The library must export what exports.txt lists and nothing else; import nothing that ends the
process or prints; be linked with no OpenMP runtime; ask for memory only where a plan or a device is
made; and keep no writable global but those listed here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Every name that the library exports.
EXPORTS = Path(__file__).with_name("exports.txt")
# What must not be called from anywhere: it ends the process, prints, or is unsafe.
FORBIDDEN = re.compile(
    r"^(abort|_?_?exit|_Exit|quick_exit|raise|kill|__assert_fail"
    r"|(__)?v?f?printf(_chk)?|puts|putchar|perror|__stack_chk_fail_local"
    r"|(__)?v?sprintf(_chk)?|gets|strcpy|strcat|system|popen|signal|setenv|putenv)$"
)
ALLOCATION = re.compile(
    r"^(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|alloca|free)$"
)

# Where memory may be asked for, by a pattern of the object's name: the reason.
MAY_ALLOCATE = {
    r"src_norm\.c": "planish_plan_create and planish_plan_destroy",
    r"src_kept_plans\.c": "plans that are kept for bindings",
    r"src_bound_call\.c": "workspaces of bindings whose engine lends none",
    r"src_jax_pool\.c": "work that XLA's pool helps with",
    r"src_ort_(batch|factory|kernel|nodes|provider|run)\.c": "providers, nodes, workspaces",
    r"src_(cuda|torch)_.*\.c": "devices and the torch layer keep what they loaded",
}
# Where a file may be written.
MAY_WRITE_FILES = re.compile(r"(^|_)cuda_.*\.c|src_cuda_")
# Writable globals by object and symbol, with what each is.
MAY_KEEP = {
    (r"src_cpu_caches\.c", r".*"): "bytes of caches, set once",
    (r"src_cpu_dispatch\.c", r".*"): "the table of kernels, set once",
    (r"src_cpu_identify\.c", r".*"): "what the CPU is, set once",
    (r"src_python_.*\.c", r".*"): "what Python handed over, set once",
    (r"src_cpu_openmp\.c", r".*"): "the entry points of an OpenMP runtime, set once",
    (r"src_kept_plans\.c", r"table"): "plans that are kept for bindings",
    (r"src_pages\.c", r"known(\.\d+)?"): "whether bindings want huge pages, read once",
    (
        r"src_(cuda|torch)_.*\.c",
        r".*",
    ): "loaded libraries, the kernel cache, the registration",
}
# Where the environment may be read.
MAY_READ_ENVIRONMENT = re.compile(r"src_(cpu_(dispatch|identify)|pages|(cuda|torch)_.*)\.c")


def output(*command: str) -> list[str]:
    """The lines a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def undefined(path: Path, *options: str) -> set[str]:
    """The names a library or object takes from elsewhere."""
    lines = output("nm", "--undefined-only", *options, str(path))
    return {line.split()[-1].split("@")[0] for line in lines if line.strip()}


def writable(path: Path) -> list[str]:
    """Variables in sections that stay writable (.data.rel.ro does not)."""
    found = []
    for line in output("objdump", "--syms", str(path)):
        match = re.match(r"^\S+ .{7} (\S+)\s+(\S+)\s+(?:\.hidden )?(\S+)$", line)
        if not match or int(match[2], 16) == 0:
            continue
        section, name = match[1], match[3]
        if section == "*COM*" or (
            re.match(r"\.(data|bss|tdata|tbss)", section) and not section.startswith(".data.rel.ro")
        ):
            found.append(name)
    return found


def allowed(table: dict[str, str] | dict[tuple[str, str], str], *names: str) -> bool:
    """Whether a row of the table matches all these names."""
    for key in table:
        patterns = (key,) if isinstance(key, str) else key
        if all(re.search(p, n) for p, n in zip(patterns, names, strict=True)):
            return True
    return False


def main() -> int:
    """Runs every check and prints the count."""
    library, folder = Path(sys.argv[1]), Path(sys.argv[2])
    parts = ("libplanish*.p", "libkernels*.p")
    objects = sorted(path for part in parts for path in folder.glob(f"{part}/*.o"))
    faults: list[str] = []
    checks = 0

    defined = output("nm", "-D", "--defined-only", str(library))
    exported = {line.split()[-1].split("@")[0] for line in defined}
    listed = set(re.findall(r"^planish_\w+$", EXPORTS.read_text(), re.MULTILINE))
    if not listed or not objects:
        faults.append(f"nothing to check: {len(listed)} names, {len(objects)} objects")
    for name in sorted(exported | listed):
        checks += 1
        if name not in listed:
            faults.append(f"{library.name} exports {name}, which {EXPORTS.name} has not")
        elif name not in exported:
            faults.append(f"{library.name} does not export {name}, which {EXPORTS.name} has")
    for line in output("objdump", "--private-headers", str(library)):
        if match := re.match(r"\s+NEEDED\s+(\S+)", line):
            checks += 1
            if re.match(r"lib(g|i)?omp", match[1]):
                faults.append(f"{library.name} is linked with {match[1]}, as torch's may not be")
    for name in sorted(undefined(library, "-D")):
        checks += 1
        if FORBIDDEN.match(name):
            faults.append(f"{library.name} imports {name}")
    for path in objects:
        for name in sorted(undefined(path)):
            checks += 1
            if ALLOCATION.match(name) and not allowed(MAY_ALLOCATE, path.name):
                faults.append(f"{path.name} asks for memory: {name}")
            if name in ("fwrite", "fputs", "fputc", "write") and not MAY_WRITE_FILES.search(
                path.name
            ):
                faults.append(f"{path.name} writes: {name}")
            if name in ("getenv", "secure_getenv") and not MAY_READ_ENVIRONMENT.search(path.name):
                faults.append(f"{path.name} reads the environment")
        for name in writable(path):
            checks += 1
            if not allowed(MAY_KEEP, path.name, name):
                faults.append(f"{path.name} keeps a writable global: {name}")

    for fault in faults:
        print(f"FAIL {fault}")
    print(f"exports: {checks - len(faults)} passed, {len(faults)} failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
