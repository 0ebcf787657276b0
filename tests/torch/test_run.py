"""planish run: a program cannot tell it from python, but for who runs its norms."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ENABLED = """import planish
from planish.library.switch import is_enabled
print(is_enabled('layer_norm'))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def planish_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "planish", "run", *arguments)


LOOK = """\
import __main__, os, pickle, sys
from beside import here
class Mine: pass
print(sys.argv, sys.path[0], os.getcwd())
print(__name__, __file__, __package__, __spec__ and __spec__.name, __doc__)
print(sorted(k for k in vars(__main__) if not k.startswith("__")))
print(__main__.Mine is pickle.loads(pickle.dumps(Mine)), __main__ is sys.modules["__main__"])
print(type(__loader__).__name__ if __spec__ else "", __builtins__ is __import__("builtins"))
print("torch" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place in (tmp_path, tmp_path / "deep", tmp_path / "package", tmp_path / "program"):
        place.mkdir(exist_ok=True)
        (place / "beside.py").write_text("here = True\n")
        for name in ("look", "__main__") if place.name in ("package", "program") else ("look",):
            (place / f"{name}.py").write_text(LOOK)
    (tmp_path / "package" / "__init__.py").write_text("")
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.writestr("__main__.py", LOOK)
        archive.writestr("beside.py", "here = True\n")
    return tmp_path


@pytest.mark.parametrize(
    "program",
    [
        ["look.py", "--lr", "1e-3", "--apex", "-m", "--", "x"],
        ["deep/look.py"],
        ["-m", "look", "--no-enable"],
        ["-m", "package"],
        ["-m", "package.look", "a"],
        ["program", "a"],
        ["archive.pyz", "a"],
    ],
    ids=" ".join,
)
def test_a_program_sees_planish_in_front_of_it(folder: Path, program: list[str]) -> None:
    mine, pythons = planish_run(folder, *program), run(folder, *program)
    assert pythons.returncode == 0, pythons.stderr
    assert (mine.returncode, mine.stdout, mine.stderr) == (0, pythons.stdout, pythons.stderr)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit('a sentence')", 1),
        ("import os; os._exit(5)", 5),
        ("def f():\n    raise ValueError('a reason')\nf()", 1),
        ("import atexit\natexit.register(print, 'last')\nraise KeyError(1)", 1),
        ("import sys\nsys.excepthook = lambda *e: print('hook', e[0])\n1 / 0", 1),
        ("1 +", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError() from e", 1),
    ],
)
def test_an_exit_or_a_traceback_is_not_pythons(tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "script.py").write_text(text + "\n")
    mine, pythons = planish_run(tmp_path, "script.py"), run(tmp_path, "script.py")
    assert pythons.returncode == status
    assert (mine.returncode, mine.stdout, mine.stderr) == (status, pythons.stdout, pythons.stderr)


@pytest.mark.parametrize(
    ("program", "status", "sentence"),
    [
        (["missing.py"], 2, "can't open file"),
        (["-m", "missing"], 1, "No module named missing"),
        (["-m", "json"], 1, "'json' is a package and cannot be directly executed"),
        (["."], 2, "can't find '__main__' module in '.'"),
        ([], 2, "there is no program to run"),
        (["--unknown", "x.py"], 2, "--unknown"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_program_that_is_not_there(
    tmp_path: Path, program: list[str], status: int, sentence: str
) -> None:
    done = planish_run(tmp_path, *program)
    assert done.returncode == status and sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_planish_is_not_enabled_behind_the_first_import_of_torch(tmp_path: Path) -> None:
    look = "import importlib.util, inspect, sys\nimportlib.util.find_spec('torch')\n"
    look += "assert 'torch' not in sys.modules\nimport torch\n"
    look += "assert len(inspect.getsource(torch)) > 1000 and torch.__spec__.loader is not None\n"
    (tmp_path / "script.py").write_text(look + ENABLED)
    done = planish_run(tmp_path, "script.py")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_no_enable_enables_or_apex_is_missing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from apex.normalization import FusedLayerNorm\nimport torch\n"
        "print(FusedLayerNorm(8)(torch.ones(1, 8)).shape)\n" + ENABLED
    )
    done = planish_run(tmp_path, "--apex", "--no-enable", "script.py")
    assert (done.returncode, done.stdout) == (0, "torch.Size([1, 8])\nFalse\n"), done.stderr
    without = planish_run(tmp_path, "script.py")
    assert without.returncode == 1 and "No module named 'apex'" in without.stderr


def test_the_command_does_not_know_run(tmp_path: Path) -> None:
    assert "run" in run(tmp_path, "-m", "planish", "--help").stdout
    said = planish_run(tmp_path, "--help")
    assert said.returncode == 0 and "--no-enable" in said.stdout and "--apex" in said.stdout
