"""The quotients of quantised outputs have the bits of IEEE divisions (quotients.cpp).

The hard cases of a division are few for each divisor, and all of them are looked at for every
significand of a scale with PLANISH_TEST_FULL=1, else for every 29th.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EMULATION = HERE / "emulation"
COMPILERS = (os.environ.get("CC", "clang"), os.environ.get("CXX", "clang++"))
pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in COMPILERS),
    reason="no clang to compile the kernels' text with",
)


def build(folder: Path) -> Path:
    """The program, from the kernels' text for the host."""
    kernels = sorted((HERE.parents[1] / "src/cuda/kernels").rglob("*.cu"))
    subprocess.run([sys.executable, EMULATION / "host_text.py", folder, *kernels], check=True)
    includes = [f"-I{EMULATION}", f"-I{folder}"]
    objects = []
    for source in (*sorted(EMULATION.glob("device*.c")), EMULATION / "fiber.c"):
        objects.append(folder / f"{source.stem}.o")
        command = [COMPILERS[0], "-O1", "-D_GNU_SOURCE", "-c", source]
        subprocess.run([*command, *includes, "-o", objects[-1]], check=True)
    program = folder / "quotients"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-w"]
    command = [COMPILERS[1], *flags, *includes, HERE / "quotients.cpp", *objects, "-o", program]
    subprocess.run(command, check=True)
    return program


def test_quotients_are_those_of_a_division(tmp_path: Path) -> None:
    step = "1" if os.environ.get("PLANISH_TEST_FULL") else "29"
    done = subprocess.run([build(tmp_path), step], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
