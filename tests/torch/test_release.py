"""What a release rests on: one version everywhere, and systems that are refused with a sentence."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import planish
from planish.library import loaded

ROOT = Path(__file__).parents[2]


def found(path: str, pattern: str) -> list[str]:
    """What a pattern's group is in a file, every time."""
    return re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)


def test_the_versions_of_the_library_and_the_package_differ() -> None:
    (version,) = found("meson.build", r"^  version: '([\d.]+)',$")
    parts = [
        found("include/planish.h", rf"^#define PLANISH_VERSION_{part} (\d+)$")[0]
        for part in ("MAJOR", "MINOR", "PATCH")
    ]
    assert ".".join(parts) == version
    assert planish.__version__ == version
    assert found("CITATION.cff", r"^version: ([\d.]+)$") == [version]
    major, minor, patch = map(int, parts)
    assert 10000 * major + 100 * minor + patch == loaded._WANTED_VERSION
    assert loaded.library().version == loaded._WANTED_VERSION
    # pyproject.toml has none of its own: the wheel's is meson.build's.
    assert not found("pyproject.toml", r"^version = ")
    assert found("pyproject.toml", r"^dynamic = \[(\"version\")\]")


def test_the_least_versions_of_the_tools_are_not_told() -> None:
    (meson,) = found("meson.build", r"^  meson_version: '>=([\d.]+)',$")
    (python,) = found("pyproject.toml", r'^requires-python = ">=([\d.]+)"$')
    assert found("pyproject.toml", r'"meson>=([\d.]+)"') == [meson]
    assert found("Makefile", r'"meson>=([\d.]+)"') == [meson]
    assert found("Makefile", r"Python ([\d.]+) or newer is needed") == [python]
    assert found("docs/guide/install.md", r"meson ([\d.]+) or newer") == [meson]
    assert found("docs/guide/install.md", r"make, Python ([\d.]+) or newer") == [python]


def test_this_system_is_refused() -> None:
    assert loaded.refusal() == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda patch: patch.setattr(sys, "platform", "darwin"), "this is "),
        (lambda patch: patch.setattr(sys, "platform", "win32"), "this is "),
        (lambda patch: patch.setattr(sys, "maxsize", 2**31 - 1), "this Python has 32 bits"),
        (lambda patch: patch.setattr(os, "confstr", musl), "such as musl"),
    ],
    ids=["macOS", "Windows", "32 bits", "musl"],
)
def test_another_system_gets_no_sentence(
    monkeypatch: pytest.MonkeyPatch, change: object, words: str
) -> None:
    assert callable(change)
    with monkeypatch.context() as patch:
        change(patch)
        with pytest.raises(ImportError, match="planish runs on 64-bit Linux with glibc") as raised:
            loaded.library.__wrapped__()
    assert words in str(raised.value)


def musl(name: str) -> str:
    """os.confstr where the libc does not know glibc's names."""
    raise ValueError("unrecognized configuration name")
