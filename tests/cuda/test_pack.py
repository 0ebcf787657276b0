"""planish pack: kernels compiled by NVRTC without a GPU, packed, and found where NVRTC is not.

NVRTC is hidden from a process by a library of its name that lacks its functions: what looks for it
finds that one first. What needs no compiler (damaged, cut, foreign files): tests/c/test_pack.c.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gpu_shim
import pytest
from gpu_shim import BACKWARD, BUILT, FORWARD, LAYER, Plan, ShimError
from test_compile import UNAVAILABLE, same

SHIM = Path(os.environ.get("PLANISH_GPU_SHIM") or BUILT)
HALF = {"cols": [768, 131072], "dtype": "f16"}
GROUPS = {"shape": [None, 8, 4, 784], "reduce": [2, 3], "affine": [1, 2], "dtype": "f16"}
#: Every tensor's data at one address: only its alignment counts.
ALIGNED = dict.fromkeys(gpu_shim.ROLES, 4096)

#: Prints the kernels of the plans below as JSON, in hex, or the sentence why there are none.
KERNELS = """
import json, test_pack
print(json.dumps(test_pack.kernels()))
"""
#: Plans passes for these rows without a compiler; prints what is missing.
ROWS = """
import sys
from planish.library import ahead
wanted = ahead._wanted(__import__("json").loads(sys.argv[1]))
gpu = ahead.Gpu(90, 132, 232448, 16)
print([why for job in ahead._jobs([wanted], [gpu]) if (why := ahead._prepare(job))])
"""
#: What doctor says of GPUs.
PROBLEMS = """
from planish.commands import doctor
print(doctor._gpu_problems(doctor.library().gpu_report()))
"""


def kernels() -> list[str]:
    """The code of all kernels of a few plans for compute capability 9.0."""
    found = []
    for direction, cols in ((FORWARD, 768), (BACKWARD, 768), (FORWARD, 131072)):
        for rows in (1, 1 << 14):
            plan = Plan(direction, LAYER, rows, cols, same("f16", direction), arch=90)
            number = 0
            try:
                while (code := plan.code(ALIGNED, number)) is not None:
                    found.append(code.hex())
                    number += 1
            except ShimError as e:
                return [str(e)]
    return found


class Machine:
    """Processes with a kernel cache of their own, with or without NVRTC."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.empty = folder / "empty"
        self.hidden = folder / "hidden"
        self.hidden.mkdir()
        shutil.copy(SHIM, self.hidden / "libnvrtc.so.13")

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        gpu_shim.find_nvrtc()
        environment = {**os.environ, "PLANISH_CACHE_DIR": str(self.cache), **changes}
        environment.setdefault("PLANISH_PACK", "")
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=Path(__file__).parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def without_nvrtc(self, *arguments: str, **changes: str) -> str:
        changes = {"PLANISH_CACHE_DIR": str(self.empty), **changes}
        done = self.run(*arguments, PLANISH_NVRTC_PATH=str(self.hidden), **changes)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pack(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "planish", "pack", *arguments)

    def norms(self, *items: object) -> str:
        path = self.folder / "norms.json"
        path.write_text(json.dumps(items))
        return str(path)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    if not SHIM.exists():
        pytest.skip(f"{SHIM} is not built; make test builds it")
    try:
        Plan(FORWARD, LAYER, 1, 8, same("f32", FORWARD), arch=90).compile(90)
    except ShimError as e:
        if e.status != UNAVAILABLE:
            raise
        pytest.skip(f"no NVRTC here (pip install nvidia-cuda-nvrtc): {e}")
    return Machine(tmp_path_factory.mktemp("pack"))


@pytest.fixture(scope="module")
def compiled(machine: Machine) -> list[str]:
    """What NVRTC made of the plans; the cache has it, too."""
    found: list[str] = json.loads(machine.run("-c", KERNELS).stdout)
    assert len(found) >= 8
    return found


def test_kernels_of_the_cache_need_nvrtc(machine: Machine, compiled: list[str]) -> None:
    nothing = json.loads(machine.without_nvrtc("-c", KERNELS))
    assert len(nothing) == 1
    assert "no pack and no cache has planish_forward for compute capability 9.0" in nothing[0]
    stored = machine.without_nvrtc("-c", KERNELS, PLANISH_CACHE_DIR=str(machine.cache))
    assert json.loads(stored) == compiled


def test_a_packed_cache_is_not_what_was_compiled(machine: Machine, compiled: list[str]) -> None:
    out = machine.folder / "cache.pack"
    done = machine.pack(str(out), "--from-cache")
    assert done.returncode == 0, done.stderr
    assert f"{len(set(compiled))} kernels" in done.stdout
    found = machine.without_nvrtc("-c", KERNELS, PLANISH_PACK=str(out))
    assert json.loads(found) == compiled
    assert not list(machine.empty.glob("*")), "a kernel from a pack was written to the cache"
    report = "from planish.library.loaded import library; print(library().gpu_report()['packs'])"
    text = machine.without_nvrtc("-c", report, PLANISH_PACK=str(out))
    assert f"'kernels': {len(set(compiled))}, 'left_out': 0" in text


def test_a_list_of_norms_leaves_kernels_out(machine: Machine) -> None:
    out = machine.folder / "norms.pack"
    norms = machine.norms(HALF, GROUPS, {"kind": "rms", "shape": [None, 6, 20], "reduce": [1]})
    done = machine.pack(str(out), "--norms", norms, "--gpu", "h100")
    assert done.returncode == 0, done.stderr
    # Rows over groups of blocks need, beside their kernel, the one that runs where it is not held.
    text = out.read_bytes().decode(errors="replace")
    groups = set(re.findall(r"COLS = 131072;\n.*?COOPERATING_BLOCKS = (\d+);", text, re.DOTALL))
    assert "1" in groups and len(groups) > 1, groups
    rows = [1, 2, 130, 131, 133, 263, 264, 265, 527, 529, 1055, 1057, 5000, 34567, 1 << 19]
    for item in (
        {**HALF, "rows": rows},
        {**GROUPS, "rows": rows},
        {**HALF, "gradients": ["dx", "dweight", "dbias"]},
    ):
        text = machine.without_nvrtc("-c", ROWS, json.dumps(item), PLANISH_PACK=str(out))
        assert text == "[]\n"
    other = json.dumps({"cols": 769, "rows": 1})
    text = machine.without_nvrtc("-c", ROWS, other, PLANISH_PACK=str(out))
    assert text.count("no pack and no cache has planish_") == 2
    assert not list(machine.folder.glob(".new-*"))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_parts_of_rows_come_with_what_merges_them(machine: Machine, kind: str) -> None:
    out, rows = machine.folder / f"parts-{kind}.pack", {"kind": kind, **HALF, "rows": [1, 4096]}
    whole, parts = rows, {**rows, "passes": ["parts"]}
    for item, is_there in ((whole, False), (parts, True)):
        done = machine.pack(str(out), "--norms", machine.norms(item), "--gpu", "H200")
        assert done.returncode == 0, done.stderr
        assert (b"planish_merge" in out.read_bytes()) == is_there
        text = machine.without_nvrtc("-c", ROWS, json.dumps(parts), PLANISH_PACK=str(out))
        assert (text == "[]\n") == is_there, text


def test_wrong_orders_are_not_told(machine: Machine, compiled: list[str]) -> None:
    out = machine.folder / "wrong.pack"
    out.write_text("as it was")
    gpu = ["--gpu", "H100"]
    done = machine.pack(str(out), "--norms", machine.folder.as_posix(), *gpu)
    assert (done.returncode, "Is a directory" in done.stderr) == (1, True), done.stderr
    done = machine.pack(str(out), "--norms", machine.norms(HALF), "--gpu", "H1000")
    assert (done.returncode, "known are A100" in done.stderr) == (2, True), done.stderr
    items: list[tuple[object, str]] = [
        ({}, "wanted either cols or shape"),
        ({"cols": 0}, "cols has 0; wanted whole numbers from 1"),
        ({"cols": 8, "dtype": "float"}, "dtype is 'float'; known are f32"),
        ({"cols": 8, "colour": 1}, "a field is 'colour'"),
        ({"cols": 8, "rows": "many"}, "rows has 'many'"),
        ({"cols": 8, "passes": ["halves"]}, "passes is 'halves'; known are forward, backward"),
        ({"kind": "l2", "cols": 8, "passes": ["parts"]}, "wanted one of layer or rms"),
        ({"shape": [None, 8], "reduce": [7], "rows": 1}, "reduce_axes is 0x80"),
    ]
    for item, words in items:
        done = machine.pack(str(out), "--norms", machine.norms(item), *gpu)
        assert (done.returncode, words in done.stderr) == (1, True), (words, done.stderr)
    assert out.read_text() == "as it was"
    done = machine.run("-m", "planish", "pack", str(out), PLANISH_CACHE_DIR=str(machine.hidden))
    assert (done.returncode, "no kernel for" in done.stderr) == (1, True), done.stderr
    assert out.read_text() == "as it was"
    assert machine.pack(str(out)).returncode == 0
    assert out.read_bytes().startswith(b"planpack")


def test_a_wrong_pack_is_kept_quiet(machine: Machine, compiled: list[str]) -> None:
    wrong = machine.folder / "no.pack"
    wrong.write_text("not a pack")
    load = "import planish, sys; planish.load_pack(sys.argv[1])"
    for path, words in ((wrong, "is no pack"), (machine.folder / "none", "No such file")):
        done = machine.run("-c", load, str(path))
        assert f"OSError: planish.load_pack: pack {path}: " in done.stderr
        assert words in done.stderr
        done = machine.run("-c", PROBLEMS, PLANISH_PACK=str(path))
        assert words in done.stdout, done.stderr
