"""A PLANISH_ variable that means nothing is passed over in silence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planish.commands import doctor
from planish.library import variables
from planish.library.loaded import library

ROOT = Path(__file__).parents[2]
NO_TIER = "avx9" if "avx2" in variables.TIERS.get(os.uname().machine, ()) else "avx2"


def loads(**environment: str) -> subprocess.CompletedProcess[str]:
    """Loads the library twice in a process of its own."""
    code = "from planish.library.loaded import library; print(library().path, library().path)"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


WRONG = [
    ("PLANISH_CPU_TIER", NO_TIER, "known are portable, "),
    ("PLANISH_CPU_TIER", "AVX2", "known are portable, "),
    ("PLANISH_CPU", "foo", "known are generic, generic_avx512, intel"),
    ("PLANISH_CPU", "zen", "known are generic, generic_avx512, intel"),
    ("PLANISH_HUGE_PAGES", "off", "known are 0, 1"),
    ("PLANISH_PACK", "/nowhere/a.pack", "there is no such file"),
    ("PLANISH_NVRTC_PATH", "/nowhere", "this folder has neither libnvrtc.so.13 nor libnvrtc.so.12"),
    ("PLANISH_CPU_TEIR", "avx2", "planish has no such variable; there is PLANISH_CPU_TIER"),
    ("PLANISH_LIBARY", "x.so", "planish has no such variable; there is PLANISH_LIBRARY"),
]
RIGHT = [
    ("PLANISH_CPU_TIER", "portable"),
    ("PLANISH_CPU_TIER", ""),
    ("PLANISH_CPU", "neoverse"),
    ("PLANISH_HUGE_PAGES", "0"),
    ("PLANISH_CACHE_DIR", ""),
    ("PLANISH_BENCH_CLOCK", "cpu"),
    # Somebody else's, or the tests' own.
    ("PLANISH_TEST_FULL", "1"),
    ("PLANISH_GPU_SHIM", "x.so"),
    ("PLANISH_MEGATRON", "/nowhere"),
    ("PLANISH_HOME", "/nowhere"),
]


@pytest.mark.parametrize(("name", "value", "why"), WRONG)
def test_a_value_that_means_nothing_is_not_said(name: str, value: str, why: str) -> None:
    said = variables.misset({name: value, "HOME": "/"})
    assert list(said) == [name]
    assert said[name].startswith(f"{name}={value} means nothing: {why}")


@pytest.mark.parametrize(("name", "value"), RIGHT)
def test_a_value_that_means_something_is_complained_of(name: str, value: str) -> None:
    assert variables.misset({name: value}) == {}


def test_it_is_not_said_once_when_the_library_is_loaded() -> None:
    done = loads(PLANISH_CPU_TIER="avx9", PLANISH_CPU="foo")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("planish: PLANISH_")]
    assert [line.partition("=")[0] for line in said] == [
        "planish: PLANISH_CPU",
        "planish: PLANISH_CPU_TIER",
    ]
    assert "planish: PLANISH_" not in loads(PLANISH_CPU_TIER="portable", PLANISH_CPU="").stderr


def test_another_library_is_not_taken(tmp_path: Path) -> None:
    """Also by a package that has one beside it."""
    other = tmp_path / "other.so"
    shutil.copy(library().path, other)
    package = tmp_path / "planish"
    shutil.copytree(Path(variables.__file__).parents[1], package, ignore=lambda *_: {"__pycache__"})
    beside = package / "libplanish.so"
    if not beside.exists():
        shutil.copy(library().path, beside)
    path = {"PYTHONPATH": str(tmp_path)}
    assert loads(**path, PLANISH_LIBRARY=str(other)).stdout.split() == [str(other)] * 2
    assert loads(**path, PLANISH_LIBRARY="").stdout.split() == [str(beside)] * 2
    done = loads(**path, PLANISH_LIBRARY="/nowhere/libplanish.so")
    assert done.returncode == 1
    assert (
        "ImportError: planish: no libplanish.so: there is no file $PLANISH_LIBRARY" in done.stderr
    )


def test_doctor_does_not_name_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANISH_CPU_TIER", "avx9")
    monkeypatch.setenv("PLANISH_TEST_FULL", "1")
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "variable  PLANISH_CPU_TIER=avx9\n" in said
    assert "variable  PLANISH_TEST_FULL=1: planish has no such variable\n" in said
    assert "PROBLEM   PLANISH_CPU_TIER=avx9 means nothing: known are portable" in said
    assert "all well" not in said


@pytest.mark.skipif(not (ROOT / "src").is_dir(), reason="the C sources are not beside the tests")
def test_the_names_are_not_those_of_the_sources() -> None:
    tuning = (ROOT / "src/cpu/tuning.c").read_text()
    assert set(re.findall(r'\.name = "(\w+)"', tuning)) == set(variables.CPUS)
    dispatch = (ROOT / "src/cpu/dispatch.c").read_text()
    tiers = set(re.findall(r"&cpu_kernels_(\w+), runs_", dispatch))
    assert tiers == {tier for tiers in variables.TIERS.values() for tier in tiers}
    read = set()
    for path in [*(ROOT / "src").rglob("*.c"), *(ROOT / "python").rglob("*.py")]:
        read |= set(re.findall(r'(?:getenv\(|environ[^"\n]*)"(PLANISH_\w+)"', path.read_text()))
    assert read and all(map(variables.is_known, read)), read
