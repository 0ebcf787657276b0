"""Runs blocks of Python of a document, each as its text stands there, one process for each.

What a block gets is an interpreter in which nothing was done but torch was loaded, once for all of
them: it is forked from there. A block that needs more than torch and planish says so in its first
line, "# needs: cuda, peft".
"""

import importlib.util
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NEEDS = re.compile(r"\A# needs: (.*)\n")

_MOST_SECONDS = 300


def documents() -> list[Path]:
    """What users read: README and the guide."""
    return [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]


def blocks_of(text: str, language: str) -> dict[int, str]:
    """The blocks in this language ("": of shell), by the line at which each begins."""
    found = {}
    for block in _BLOCK.finditer(text):
        if block[1] == language:
            found[text.count("\n", 0, block.start()) + 2] = block[2]
    return found


def without_blocks(text: str) -> str:
    """The text around them."""
    return _BLOCK.sub("", text)


def missing_of(block: str) -> list[str]:
    """What the block's first line says that it needs, and is not here."""
    needs = _NEEDS.match(block)
    names = needs[1].split(", ") if needs else []
    return [name for name in names if not _is_here(name)]


def _is_here(name: str) -> bool:
    if name == "cuda":
        import torch

        return torch.cuda.is_available()
    return importlib.util.find_spec(name) is not None


def run(blocks: dict[str, str]) -> dict[str, str]:
    """Runs each block; returns what a block printed to stderr, of those that failed."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).resolve())],
        input=json.dumps(blocks),
        capture_output=True,
        text=True,
    )
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr)
    failed: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return failed


def library_path() -> Path:
    """The library that the package has loaded, for programs in C to be linked with."""
    from planish.library.loaded import library

    return Path(library().path)


def _run_in_child(text: str, folder: str) -> str:
    """What went wrong, or nothing."""
    path, errors = Path(folder) / "block.py", Path(folder) / "errors.txt"
    path.write_text(text, encoding="utf-8")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(_MOST_SECONDS)
        try:
            os.chdir(folder)
            with open("output.txt", "w") as out, errors.open("w") as err:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
            sys.argv = [str(path)]
            if _NEEDS.match(text):
                _mend_torchvision()
            runpy.run_path(str(path), run_name="__main__")
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "" if status == 0 else f"exit status {status}\n{errors.read_text()}"


def _mend_torchvision() -> None:
    """Libraries of models import it, and the one beside a CPU build of torch may not fit it."""
    from planish._torchvision import mend_torchvision

    mend_torchvision()


def _main() -> None:
    import torch

    assert torch.__version__
    failed = {}
    for place, text in json.load(sys.stdin).items():
        with tempfile.TemporaryDirectory() as folder:
            wrong = _run_in_child(text, folder)
        if wrong:
            failed[place] = wrong
    print(json.dumps(failed))


if __name__ == "__main__":
    _main()
