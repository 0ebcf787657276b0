"""Rewrites the tables of README.md and of the documents under docs, and the charts beside them,
from the committed results in bench/results.

    python bench/tables.py            rewrite what changed
    python bench/tables.py --check    change nothing; exit with 1 and name what is out of date

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; what is between them is made anew.
Which files a table is made of is said in bench/documents/tables.py.
Nothing is measured here.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from documents.chart import CHARTS
from documents.tables import TABLES

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK = re.compile(r"\]\(bench/results/")


def documents() -> list[Path]:
    """The documents that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rewritten(path: Path) -> str:
    """The text of the document with all its tables made anew."""
    root = os.path.relpath(ROOT, path.parent)
    prefix = "" if root == "." else root + "/"

    def table(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            raise SystemExit(f"{path.relative_to(ROOT)}: no table is called {name!r}")
        text = LINK.sub(f"]({prefix}bench/results/", TABLES[name]())
        return f"{match[1]}{text.strip()}\n{match[3]}"

    return MARKED.sub(table, path.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    """Rewrites, or with --check compares."""
    if arguments not in ([], ["--check"]):
        print("usage: python bench/tables.py [--check]", file=sys.stderr)
        return 2
    wanted = {path: rewritten(path) for path in documents()}
    wanted |= {ROOT / name: draw() for name, draw in CHARTS.items()}
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text("utf-8") != text]
    for path in stale:
        if not arguments:
            path.write_text(wanted[path], encoding="utf-8")
        print(f"{'out of date' if arguments else 'rewritten'}: {path.relative_to(ROOT)}")
    used = {m[2] for p in documents() for m in MARKED.finditer(p.read_text("utf-8"))}
    for name in sorted(TABLES.keys() - used):
        print(f"in no document: the table {name!r}")
    return 1 if arguments and (stale or TABLES.keys() - used) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
