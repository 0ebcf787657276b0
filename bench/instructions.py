#!/usr/bin/env python3
"""Instructions an element that planish's CPU kernels execute, by instruction set: no machine that
has the set is needed, and no other work on this one changes the numbers.

    python bench/instructions.py [--out FILE.csv] [--x86 build/release] [--arm build/aarch64]

bench/instructions/count.c runs each pass on two problems under qemu's user mode, whose plugin
(bench/instructions/plugin.c) counts; the difference, divided by that of the elements, is the
number, without what a call costs besides. The tiers are those that qemu can run: portable and avx2
of a build for x86-64, portable and neon of one for aarch64 (`meson setup build/aarch64 --cross-file
.ci/aarch64.ini -Dopenmp=disabled -Dbuildtype=release`). Instructions are not time: an AVX2 vector
has eight floats, one of NEON four, and how many of them a core takes at once is its own.

Needs gcc and qemu-user, for aarch64 gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "bench/instructions"
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", f"-I{ROOT / 'include'}"]
#: compiler, emulator, tiers
MACHINES = {
    "x86-64": ("gcc", ["qemu-x86_64", "-cpu", "max"], ["portable", "avx2"]),
    "aarch64": (
        "aarch64-linux-gnu-gcc",
        ["qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"],
        ["portable", "neon"],
    ),
}
Key = tuple[str, str, str]


def counted(machine: str, build: Path, folder: Path) -> dict[str, dict[Key, float]]:
    """Instructions an element of each tier: by case, dtype and pass."""
    compiler, emulator, tiers = MACHINES[machine]
    program, plugin = folder / f"count-{machine}", folder / "plugin.so"
    library = [f"-L{build}", "-lplanish", f"-Wl,-rpath,{build}"]
    subprocess.run([compiler, *FLAGS, SOURCES / "count.c", "-o", program, *library], check=True)
    subprocess.run(
        ["gcc", *FLAGS, "-shared", "-fPIC", SOURCES / "plugin.c", "-o", plugin], check=True
    )
    found: dict[str, dict[Key, float]] = {}
    for tier in tiers:
        ran = subprocess.run(
            [*emulator, "-plugin", plugin, program],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PLANISH_CPU_TIER": tier},
        )  # fmt: skip
        first, *lines = ran.stdout.splitlines()
        if first != f"# {tier}":
            raise SystemExit(f"{machine}: wanted the tier {tier}, found {first!r}")
        name = f"{machine} {tier}"
        found[name] = {}
        for case, dtype, direction, *numbers in csv.reader(lines):
            few, count_few, many, count_many = map(int, numbers)
            found[name][case, dtype, direction] = (count_many - count_few) / (many - few)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the table as CSV")
    parser.add_argument("--x86", type=Path, default=ROOT / "build/release", help="its build")
    parser.add_argument("--arm", type=Path, default=ROOT / "build/aarch64", help="its build")
    options = parser.parse_args()
    found: dict[str, dict[Key, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for machine, build in (("x86-64", options.x86), ("aarch64", options.arm)):
            if not (build / "libplanish.so").exists():
                print(f"{machine}: no libplanish.so in {build}", file=sys.stderr)
                continue
            found |= counted(machine, build.resolve(), Path(folder))
    if not found:
        raise SystemExit("no build, no numbers")
    qemu, gcc = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for command in (["qemu-x86_64", "--version"], ["gcc", "-dumpfullversion"])
    )
    table = [["case", "dtype", "pass", *found]]
    for key in next(iter(found.values())):
        table.append([*key, *(f"{tier[key]:.3f}" for tier in found.values())])
    file = options.out.open("w", encoding="utf-8", newline="") if options.out else sys.stdout
    with file:
        print(f"# settings.command: python bench/instructions.py --out {options.out}", file=file)
        print(f"# machine.cpu: qemu {qemu[2]} in user mode, gcc {gcc[0]}", file=file)
        csv.writer(file, lineterminator="\n").writerows(table)


if __name__ == "__main__":
    main()
