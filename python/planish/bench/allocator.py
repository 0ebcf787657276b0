"""Two ways to let glibc's malloc treat large tensors, and how a process is started in either.

Left alone, glibc gives every freed large block back to the kernel, and the next allocation of a
result pays for fresh, zeroed pages: often more than the kernel that fills them. Told to keep its
pages it shows the kernel itself. The bench runs in a process of the second kind; providers that
allocate their results run in worker processes of both kinds, by turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

# Blocks up to 2^40 bytes come from the heap, and the heap never shrinks.
KEEP_PAGES = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
MARK = "PLANISH_BENCH_KEEPS_PAGES"


def keeps_pages(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started so that malloc keeps its pages."""
    return MARK in environment


def keeping(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """The environment of a process whose malloc keeps its pages."""
    return {**environment, **KEEP_PAGES, MARK: "1", "OMP_NUM_THREADS": str(threads)}


def ordinary(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """The environment of a process whose malloc is as users have it."""
    kept = {k: v for k, v in environment.items() if k not in KEEP_PAGES and k != MARK}
    return {**kept, "OMP_NUM_THREADS": str(threads)}


def run_kept(words: Sequence[str], threads: int, **more: str) -> int:
    """Runs the bench's command of these words again, in a process whose malloc keeps its pages;
    ``more`` is added to its environment. Returns its status."""
    command = [sys.executable, "-m", "planish.bench", *words]
    environment = {**keeping(os.environ, threads), **more}
    return subprocess.run(command, env=environment, check=False).returncode
