"""The package: what importing it costs, how it finds its library, and the planish command."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import planish
from planish.commands import cli, doctor
from planish.library.loaded import library

ROOT = Path(__file__).resolve().parents[2]


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


def _imports() -> dict[str, set[str]]:
    """What each module of the package imports of it, also inside of functions; the package's own
    __init__, which only names things, is none."""
    package = ROOT / "python"
    modules = {
        ".".join(p.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): p
        for p in (package / "planish").rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = []
        named: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {one if one in modules else node.module for one in full}
        found[name] = named & set(modules) - {name, "planish"}
    return found


def test_modules_import_each_other_in_a_circle() -> None:
    imports = _imports()
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in imports[name]:
                visit(other, (*above, name))
            done.add(name)

    for name in imports:
        visit(name, ())


def test_a_folder_stands_on_one_above_it() -> None:
    """docs/internals/architecture.md has their order."""
    order = ["library", "operators", "functions", "modules", "replacing"]
    for name, others in _imports().items():
        own = name.split(".")[1] if "." in name else ""
        for other in others:
            theirs = other.split(".")[1]
            if own in order and theirs in order:
                assert order.index(theirs) <= order.index(own), f"{name} imports {other}"


@pytest.mark.skipif(
    library().path.parent.name == "planish", reason="this installation has its library beside it"
)
@pytest.mark.parametrize("named", ["", "/nowhere/libplanish.so"])
def test_a_missing_library_is_not_explained(named: str) -> None:
    done = run("-c", "import planish; planish.enable()", PLANISH_LIBRARY=named)
    assert done.returncode == 1
    assert "ImportError: planish: no libplanish.so: " in done.stderr
    assert "$PLANISH_LIBRARY" in done.stderr


def test_another_library_is_taken_for_planish(tmp_path: object) -> None:
    from pathlib import Path

    from planish.library.loaded import Library

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


def test_the_devices_of_enable_are_not_checked() -> None:
    with pytest.raises(ValueError, match="devices has 'tpu'; known are cpu, cuda"):
        planish.enable(devices="tpu")
    with pytest.raises(ValueError, match="autocast is 'fast'; known are None and 'keep'"):
        planish.enable(autocast="fast")
    if library().cuda_is_missing():
        with pytest.raises(RuntimeError, match="this torch has no CUDA"):
            planish.enable(devices=["cpu", "cuda"])
        assert library().enabled() == 0


def test_the_gpu_report_is_no_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = library().gpu_report()
    assert set(report) == {"driver", "devices", "nvrtc", "packs", "cache"}
    assert bool(report["driver"]["version"]) != ("problem" in report["driver"])
    monkeypatch.setenv("PLANISH_CACHE_DIR", str(tmp_path / 'a "quoted" \\ folder'))
    assert library().gpu_report()["cache"] == str(tmp_path / 'a "quoted" \\ folder')


def kernel_file(key: str, code: bytes) -> bytes:
    """As src/cuda/cache.h has it."""
    return struct.pack("=8sQQQ", b"planish1", len(key), len(code), 0) + key.encode() + code


def test_the_cache_is_not_listed_or_cleared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("PLANISH_CACHE_DIR", str(folder))
    assert cli.main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    key = (
        "planish_forward vocabulary 01 kernel 02 --gpu-architecture=sm_90 --std=c++17\n"
        "#define REAL_DOUBLE 0\nconstexpr int KIND = 1;\nconstexpr int COLS = 4096;\n"
        "constexpr int TYPES[] = {2, 0, 4};\nnvrtc 13.0\n"
    )
    (folder / "good.kernel").write_bytes(kernel_file(key, b"x" * 2048))
    (folder / "short.kernel").write_bytes(kernel_file(key, b"x" * 2048)[:100])
    (folder / "other.kernel").write_bytes(b"something else, long enough for a header")
    (folder / "mine.txt").write_text("not planish's")
    assert cli.main(["cache", "list"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"forward +4096 columns rms +bf16 +weight f32 +sm_90, NVRTC 13.0", listed)
    assert listed.count("damaged") == 2
    assert "3 kernels" in listed
    assert cli.main(["cache", "clear"]) == 0
    assert "removed 3 kernels" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    monkeypatch.setenv("PLANISH_CACHE_DIR", "")
    assert cli.main(["cache", "list"]) == 1
    assert "keeps no kernels" in capsys.readouterr().out


def operators() -> dict[str, list[str]]:
    from planish.library import dispatcher

    return {op: dispatcher.replaced(op, "cpu") for op in dispatcher.OPS}


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


def test_without_torch_the_error_does_not_name_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import planish\n"
        "try:\n    planish.enable()\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    wanted = "planish.enable needs PyTorch 2.10 or newer, and there is none: pip install torch"
    assert done.stdout.strip() == wanted


def test_an_entry_point_is_no_function() -> None:
    """What pyproject.toml names is there: tests run the package, installed users its scripts."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.findall(r'^planish = "([\w.]+):(\w+)"', text, re.MULTILINE)
    assert len(found) == 3  # the command, vLLM's plugin and torch.compile's backend
    for module, function in found:
        assert callable(getattr(importlib.import_module(module), function))
