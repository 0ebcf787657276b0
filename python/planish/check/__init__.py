"""planish check: one kernel at a time, right first and then how fast, in seconds.

planish check                    every variant of every kernel of the CPU, on one core
planish check rows bf16 avx2     only these
planish check --cuda             the kernels of the GPU
planish check --list             the names

Every variant of a kernel that this machine can run (each tier of the CPU) is held against a
reference in double or long double, with the bounds of docs/internals/numerics.md, then timed by
turns beside a copy of as many bytes. A case whose problem is planned for another kernel is an
error, too.

case.py        what a case is
cpu_table.py, cuda_table.py    the cases
problem.py     their tensors
exact.py       what is right; judge.py: found against wanted
engine.py      the C library, once for each tier; cuda.py: the GPU
runner.py      checks and times one case
command.py     the command line and the table
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; see `planish check --help`."""
    from .command import main as run

    return run(argv)
