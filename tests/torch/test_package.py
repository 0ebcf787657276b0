"""The package: what importing it costs, how it finds its library, and the planish command."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import planish
from planish import cli, doctor
from planish._library import library


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def test_importing_planish_imports_torch_or_lacks_a_name() -> None:
    done = run("-c", "import sys, planish; print('torch' in sys.modules); dir(planish)")
    assert done.stdout == "False\n", done.stderr
    assert all(getattr(planish, name) is not None for name in planish.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        planish.nothing  # noqa: B018


@pytest.mark.skipif(
    library().path.parent.name == "planish", reason="this installation has its library beside it"
)
@pytest.mark.parametrize("named", ["", "/nowhere/libplanish.so"])
def test_a_missing_library_is_not_explained(named: str) -> None:
    done = run("-c", "import planish; planish.enable()", PLANISH_LIBRARY=named)
    assert done.returncode == 1
    assert "ImportError: planish: no libplanish.so: looked for " in done.stderr
    assert "$PLANISH_LIBRARY" in done.stderr


def test_another_library_is_taken_for_planish(tmp_path: object) -> None:
    from pathlib import Path

    from planish._library import Library

    assert isinstance(tmp_path, Path)
    wrong = tmp_path / "libplanish.so"
    wrong.write_bytes(b"no library")
    with pytest.raises(ImportError, match="does not load"):
        Library(wrong)


def test_doctor_finds_problems_or_leaves_planish_enabled() -> None:
    report = doctor.report()
    assert report["problems"] == []
    assert report["operators"] == {
        f"{name}": "planish" for names in operators().values() for name in names
    }
    required = [symbol for symbol in report["torch"]["symbols"] if symbol["required"]]
    assert required
    assert all(symbol["found"] for symbol in required)
    assert library().enabled() == 0


def operators() -> dict[str, list[str]]:
    from planish import _enable

    return _enable._REPLACED


def test_the_command_misses_its_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    assert "doctor" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"planish {planish.__version__}\n"
    assert cli.main(["polish"]) == 2
    assert "no command 'polish'" in capsys.readouterr().err
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planish"] == planish.__version__
    assert cli.main(["doctor", "--verbose"]) == 0
    assert "aoti_torch_library_init_impl" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        cli.main(["doctor", "--help"])
    assert left.value.code == 0
    done = run("-m", "planish", "--version")
    assert done.stdout == f"planish {planish.__version__}\n"
