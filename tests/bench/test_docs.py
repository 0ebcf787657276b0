"""The documents: every link and every file that they name is there, tables and charts are those of
the committed results, pages for users stay short, and the committed results small."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    RESULTS / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:src|include|python|tests|bench|docs|examples|\.ci)/[\w./-]+)`")
# What a table of the how-to pages names without backticks.
BARE = re.compile(
    r"(?<![\w./`-])((?:src|include|python|tests)/[\w./-]*[\w-]\.(?:c|h|cu|py|md|hpp))\b"
)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def identifier(heading: str) -> str:
    """The anchor that a heading gets."""
    text = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    text = CODE.sub("", document.read_text(encoding="utf-8"))
    return {identifier(m[1]) for m in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)}


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in LINK.findall(CODE.sub("", document.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document):
    assert broken_links(document) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_that_are_named_are_there(document):
    if "notebook" in document.parts or document == RESULTS / "README.md":
        text = ""  # They name files of history; their links are looked at above.
    else:
        text = CODE.sub("", document.read_text(encoding="utf-8"))
    missing = {path for path in NAMED.findall(text) + BARE.findall(text)
               if not (ROOT / path).exists()}  # fmt: skip
    assert missing == set()


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n[a](#a) [b](#b) [c](none.md) [d](https://example.org)\n")
    assert broken_links(page) == ["#b", "none.md"]


def test_tables_and_charts_are_those_of_the_committed_results():
    command = [sys.executable, ROOT / "bench/tables.py", "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"run python bench/tables.py: {ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/guide").glob("*.md")), ids=name)
def test_pages_for_users_are_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 250


def test_readme_and_the_unreleased_changes_are_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## ")[0]
    assert unreleased
    assert len(unreleased.strip().splitlines()) <= 60


def test_committed_results_stay_small():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 3 << 20
    assert {path.suffix for path in files} <= {".csv", ".png", ".svg", ".txt", ".md"}


def test_every_page_of_the_notebook_is_in_its_index():
    notebook = ROOT / "docs/notebook"
    pages = {path.name for path in notebook.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\((\d{3}-[\w-]+\.md)\)", (notebook / "README.md").read_text()))


def rooms() -> list[str]:
    """What the page on architecture has to name: the folders of the code, the files that lie in
    none of them, but for headers of a source, and the sources under torch."""
    found = [*(ROOT / "src").iterdir(), *(ROOT / "src/torch").glob("*.c")]
    found += [p for p in (ROOT / "python/planish").iterdir() if p.is_dir() and list(p.glob("*.py"))]
    sources = [p for p in found if not (p.suffix == ".h" and p.with_suffix(".c") in found)]
    return [p.name for p in sources if p.is_dir() or p.suffix in (".c", ".h")]


def test_every_room_of_the_code_is_on_the_page_on_architecture():
    page = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    page = page.replace("src/stages*.c", "stages_modulated.c stages_sum.c stages.h")
    missing = [name for name in rooms() if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", page)]
    assert missing == []


def test_what_the_glossary_calls_the_codes_is_there():
    named = re.findall(
        r"`([\w.]+)`", (ROOT / "docs/internals/glossary.md").read_text(encoding="utf-8")
    )
    files = [p for f in ("src", "include", "python") for p in (ROOT / f).rglob("*") if p.is_file()]
    text = "".join(p.read_text(encoding="utf-8", errors="ignore") for p in files)
    text += "\n".join(p.name for p in files)
    fields = re.sub(r"\b\w+\.(?!(?:c|h|cu|py)\b)", "", " ".join(named)).split()
    assert [name for name in fields if name not in text] == []


def test_every_document_is_linked_from_another():
    linked = set()
    for document in DOCUMENTS:
        for link in LINK.findall(document.read_text(encoding="utf-8")):
            linked.add((document.parent / link.partition("#")[0]).resolve())
    assert {name(d) for d in DOCUMENTS if d.parts[-1] != "README.md"} - {
        str(p.relative_to(ROOT)) for p in linked if p.is_relative_to(ROOT)
    } == set()
