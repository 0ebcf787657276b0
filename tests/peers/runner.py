"""Runs another library's own tests of its norms against planish, and prints what came of them as a
table.

    python tests/peers/runner.py SUITE FOLDER [--every N] [pytest arguments]

SUITE is a module of adapters/; FOLDER is a checkout of the library, of which only test files (and
what the adapter names) are read. The files are copied to a folder of their own with the adapter's
replacements in their text (a device, mostly) and run by pytest there; the checkout is not changed.
``--every N`` runs each N-th case. Nothing here decides what passes: the suite's own assertions and
tolerances do.

An adapter has

    TESTS           {file: [(text, replacement), ...]}, each text being in the file; or a function
                    of the file's text in place of the list
    NOT_APPLICABLE  [(regular expression for the case's name, reason), ...]
    install(folder) puts modules of the library's names into sys.modules, over planish
    SUPPORT         files that the tests need beside them; may be left out
    IMPORT_MODE     pytest's; "importlib" where it is left out
"""

from __future__ import annotations

import collections
import importlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class Counts:
    """What became of the cases of one file."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: collections.Counter[str] = collections.Counter()
        self.skipped: collections.Counter[str] = collections.Counter()
        self.not_applicable: collections.Counter[str] = collections.Counter()

    def cases(self) -> int:
        others = (self.failed, self.skipped, self.not_applicable)
        return self.passed + sum(sum(counter.values()) for counter in others)


class Table:
    """A pytest plugin: counts results by file, and why what did not pass did not."""

    def __init__(self, not_applicable: list[tuple[str, str]], every: int) -> None:
        self._not_applicable = not_applicable
        self._every = every
        self.files: dict[str, Counts] = collections.defaultdict(Counts)

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        chosen, left = items[:: self._every], []
        if self._every > 1:
            taken = {id(item) for item in chosen}
            left = [item for item in items if id(item) not in taken]
            config.hook.pytest_deselected(items=left)
        kept = []
        for item in chosen:
            reason = self._reason(item.nodeid)
            if reason is None:
                kept.append(item)
            else:
                self.files[item.location[0]].not_applicable[reason] += 1
        items[:] = kept

    def _reason(self, name: str) -> str | None:
        return next((why for what, why in self._not_applicable if re.search(what, name)), None)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.files[report.nodeid].failed[_last_line(str(report.longrepr))] += 1
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.files[report.nodeid].skipped[report.longrepr[2]] += 1

    def pytest_runtest_logreport(self, report: Any) -> None:
        counts = self.files[report.location[0]]
        if report.failed and report.when in ("call", "setup"):
            crash = getattr(report.longrepr, "reprcrash", None)
            counts.failed[_first_line(crash.message if crash else str(report.longrepr))] += 1
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
            counts.skipped[why.removeprefix("Skipped: ")] += 1
        elif report.when == "call":
            counts.passed += 1

    def markdown(self) -> str:
        lines = [
            "| file | cases | passed | failed | skipped by the suite | not applicable |",
            "|---|---|---|---|---|---|",
        ]
        for name, counts in sorted(self.files.items()):
            cells = [_cell(c) for c in (counts.failed, counts.skipped, counts.not_applicable)]
            lines.append(
                f"| {name} | {counts.cases()} | {counts.passed} | " + " | ".join(cells) + " |"
            )
        return "\n".join(lines)


def _first_line(text: str) -> str:
    return re.sub(r"[0-9]+\.[0-9e+-]+", "N", text.strip().splitlines()[0])[:120] if text else ""


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:120] if text.strip() else ""


def _cell(counter: collections.Counter[str]) -> str:
    whole = sum(counter.values())
    if not whole:
        return "0"
    reasons = "; ".join(f"{count}: {reason}" for reason, count in counter.most_common(6))
    more = f"; and {len(counter) - 6} reasons more" if len(counter) > 6 else ""
    return f"{whole} ({reasons}{more})".replace("|", "\\|").replace("\n", " ")


def copy_tests(adapter: Any, folder: Path, to: Path) -> list[str]:
    """The suite's files with the adapter's replacements, under the names they have there."""
    tests = dict(adapter.TESTS)
    for name, change in {**tests, **dict.fromkeys(getattr(adapter, "SUPPORT", []), ())}.items():
        text = (folder / name).read_text()
        if callable(change):
            text = change(text)
        else:
            for old, new in change:
                if old not in text:
                    raise SystemExit(f"{name}: {old!r} is not in it; the suite has changed")
                text = text.replace(old, new)
        place = to / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return [str(to / name) for name in tests]


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    suite, folder, *rest = arguments
    every = 1
    if "--every" in rest:
        place = rest.index("--every")
        every = int(rest[place + 1])
        del rest[place : place + 2]
    sys.path.insert(0, str(HERE / "adapters"))
    adapter = importlib.import_module(suite)
    adapter.install(Path(folder).resolve())
    table = Table(adapter.NOT_APPLICABLE, every)
    with tempfile.TemporaryDirectory() as temporary:
        copies = copy_tests(adapter, Path(folder), Path(temporary))
        mode = getattr(adapter, "IMPORT_MODE", "importlib")
        options = ["-p", "no:cacheprovider", f"--import-mode={mode}", f"--rootdir={temporary}"]
        code = pytest.main([*options, "-c", "/dev/null", *copies, *rest], plugins=[table])
    print(table.markdown())
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
