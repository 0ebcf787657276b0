"""``planish cache``: the folder in which compiled GPU kernels are kept (docs/guide/gpu.md).

planish cache path     where it is
planish cache list     what it holds, newest first
planish cache clear    remove everything from it
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from planish.library import structs
from planish.library.loaded import library

__all__ = ["Kernel", "clear", "kernels", "main"]

#: What a file begins with: magic, bytes of key and of code, check sum (src/cuda/cache.h).
_HEADER = struct.Struct("=8sQQQ")
_MAGIC = b"planish1"
_LONGEST_KEY = 1 << 16

_DTYPES = (*structs.DTYPES, "none")
_KINDS = ("layer", "rms", "l2")


class Kernel(NamedTuple):
    """One compiled kernel on disk."""

    path: Path
    bytes: int
    age_seconds: float
    #: What it is: entry, architecture, kind, row length, dtypes; a sentence if it is damaged.
    text: str


def _describe(key: str) -> str:
    first, *lines = key.splitlines() or [""]
    words = first.split()
    constants = {}
    for line in lines:
        name, _, value = line.removeprefix("constexpr int ").partition(" = ")
        constants[name] = value.rstrip(";")
    entry = words[0].removeprefix("planish_") if words else "?"
    arch = next((word.partition("=")[2] for word in words if word.startswith("--gpu-a")), "?")
    compiler = next((line.partition(" ")[2] for line in lines if line.startswith("nvrtc ")), "?")
    said = [f"{entry:8}", f"{constants.get('COLS', '?'):>8} columns"]
    # The dtypes of the tensors in the library's order: x, weight, ...
    types = constants.get("TYPES[]", "").strip("{}").split(", ")
    for value, known, form in (
        (constants.get("KIND", ""), _KINDS, "{:5}"),
        (types[0], _DTYPES, "{:5}"),
        (types[1] if len(types) > 1 else "", _DTYPES, "weight {:4}"),
    ):
        if value.isdigit() and int(value) < len(known):
            said.append(form.format(known[int(value)]))
    return " ".join([*said, f"{arch}, NVRTC {compiler}"])


def _read(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return "damaged: it ends early"
        magic, key_bytes, code_bytes, _ = _HEADER.unpack(head)
        if magic != _MAGIC or key_bytes > _LONGEST_KEY:
            return "damaged, or of another planish"
        if path.stat().st_size != _HEADER.size + key_bytes + code_bytes:
            return "damaged: it ends early"
        return _describe(file.read(key_bytes).decode(errors="replace"))


def kernels() -> list[Kernel]:
    """What the cache holds, newest first."""
    folder = library().cache_path()
    if folder is None:
        return []
    found = []
    for path in folder.glob("*.kernel"):
        try:
            at = path.stat()
            found.append(Kernel(path, at.st_size, time.time() - at.st_mtime, _read(path)))
        except OSError:  # another process removed it meanwhile
            continue
    return sorted(found, key=lambda kernel: kernel.age_seconds)


def clear() -> int:
    """Removes every kernel; returns how many. Processes that have loaded one go on with it."""
    removed = 0
    for kernel in kernels():
        kernel.path.unlink(missing_ok=True)
        removed += 1
    return removed


def _list() -> None:
    found = kernels()
    for kernel in found:
        print(f"{kernel.bytes / 1024:8.1f} KiB  {kernel.age_seconds / 3600:8.1f} h  {kernel.text}")
    total = sum(kernel.bytes for kernel in found)
    print(f"{len(found)} kernels, {total / 1024:.1f} KiB in {library().cache_path()}")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="planish cache", description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("path", "list", "clear"))
    action = parser.parse_args(argv).action
    folder = library().cache_path()
    if folder is None:
        print(
            "planish keeps no kernels: PLANISH_CACHE_DIR is empty, or the folder cannot be "
            "made, or others may write to it"
        )
        return 1
    if action == "path":
        print(folder)
    elif action == "list":
        _list()
    else:
        print(f"removed {clear()} kernels from {folder}")
    return 0
