"""Every block of Python that README and the guide show runs as it stands there, in an interpreter
of its own; every block of C compiles and runs; every command and flag that they name is there."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import page_blocks
import pytest

ROOT = page_blocks.ROOT
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|python -m )planish ([a-z]+)((?: [^#\n|>]+)?)", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
MAKE = re.compile(r"^make ([a-z-]+)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])-D([a-z_]+)=(\w+)")


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def with_blocks(language: str) -> list[Path]:
    return [
        document
        for document in page_blocks.documents()
        if page_blocks.blocks_of(document.read_text(encoding="utf-8"), language)
    ]


def python_of(document: Path) -> dict[str, str]:
    """Its blocks, by the place where each begins."""
    blocks = page_blocks.blocks_of(document.read_text(encoding="utf-8"), "python")
    return {f"{name(document)}:{line}": block for line, block in blocks.items()}


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """What came of the blocks of every page, run from one process that has imported torch."""
    blocks = {}
    for document in with_blocks("python"):
        blocks |= python_of(document)
    return page_blocks.run({k: v for k, v in blocks.items() if not page_blocks.missing_of(v)})


@pytest.mark.parametrize("document", with_blocks("python"), ids=name)
def test_python_of_documents_runs(document, failed):
    blocks = python_of(document)
    report = "\n".join(f"{place}\n{failed[place]}" for place in blocks if place in failed)
    assert not report, report
    for place, block in blocks.items():
        if missing := page_blocks.missing_of(block):
            pytest.skip(f"{place} needs {', '.join(missing)}")


def test_a_block_that_takes_names_for_granted_fails():
    failed = page_blocks.run(
        {"a": "import torch\n", "b": "torch.ones(1)\n", "c": "import os\nos.abort()\n"}
    )
    assert set(failed) == {"b", "c"}
    assert "NameError: name 'torch' is not defined" in failed["b"]
    assert "exit status -6" in failed["c"]


def test_blocks_know_nothing_of_one_another():
    first = "import planish\nplanish.enable()\nplanish.kept = 1\n"
    then = "import planish\nassert not hasattr(planish, 'kept')\nassert planish.disable()\n"
    assert page_blocks.run({"first": first, "then": then}) == {}


def test_what_a_block_needs_is_read_from_its_first_line():
    assert page_blocks.missing_of("# needs: torch, no_such_library\nimport torch\n") == [
        "no_such_library"
    ]
    assert page_blocks.missing_of("import torch\n# needs: no_such_library\n") == []


# ---- C ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", with_blocks("c"), ids=name)
def test_c_of_documents_runs(document, tmp_path):
    """A block with main() is a program and runs; one without is a part of one, and compiles."""
    for line, block in page_blocks.blocks_of(document.read_text(encoding="utf-8"), "c").items():
        source, program = tmp_path / f"line_{line}.c", tmp_path / f"line_{line}"
        source.write_text(block, encoding="utf-8")
        library = page_blocks.library_path()
        command = [
            "gcc",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{ROOT / 'include'}",
            source,
        ]
        if "int main(" in block:
            command += ["-o", program, library, f"-Wl,-rpath,{library.parent}", "-lm"]
        else:
            command += ["-c", "-o", program.with_suffix(".o")]
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, f"{name(document)}:{line}\n{made.stderr}"
        if "int main(" in block:
            ran = subprocess.run([program], capture_output=True, text=True)
            assert ran.returncode == 0, f"{name(document)}:{line}\n{ran.stdout}{ran.stderr}"


# ---- Commands -----------------------------------------------------------------------------------


@cache
def helped(command: str) -> str:
    """What `planish COMMAND --help` prints."""
    run = [sys.executable, "-m", "planish", command, "--help"]
    ran = subprocess.run(run, capture_output=True, text=True)
    assert ran.returncode == 0, f"planish {command}: {ran.stderr}"
    return ran.stdout


def wrong_commands(text: str) -> list[str]:
    """Commands, flags, targets of make and options of meson that are named and not there."""
    wrong = []
    shell = page_blocks.blocks_of(text, "").values()
    text = "\n".join([*shell, *INLINE.findall(page_blocks.without_blocks(text))])
    for command, rest in COMMAND.findall(text):
        flags = FLAG.findall(rest)
        if command == "run":  # what stands behind the program is the program's
            flags = FLAG.findall(re.split(r"\S+\.py|-m ", rest)[0])
        known = FLAG.findall(helped(command)) if command in commands() else None
        wrong += [f"planish {command}"] if known is None else []
        wrong += [f"planish {command} {flag}" for flag in flags if flag not in (known or [])]
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong += [f"make {target}" for target in MAKE.findall(text) if target not in targets]
    options = set(re.findall(r"option\('(\w+)'", (ROOT / "meson.options").read_text()))
    options |= {"buildtype", "default_library", "prefix", "b_sanitize", "b_ndebug"}
    return wrong + [f"-D{option}" for option, _ in OPTION.findall(text) if option not in options]


@cache
def commands() -> frozenset[str]:
    run = [sys.executable, "-m", "planish", "--help"]
    usage = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"^  ([a-z]+)  ", usage, re.MULTILINE))


@pytest.mark.parametrize("document", page_blocks.documents(), ids=name)
def test_commands_that_documents_name_are_there(document):
    assert wrong_commands(document.read_text(encoding="utf-8")) == []


def test_a_command_that_is_not_there_is_found():
    text = (
        "```\nplanish doctor --nothing   # none\nplanish none\nmake nowhere\n```\n`-Dno_option=1`"
    )
    assert wrong_commands(text) == [
        "planish doctor --nothing",
        "planish none",
        "make nowhere",
        "-Dno_option",
    ]
