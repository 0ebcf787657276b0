"""planish bench: measures planish beside its peers, each result checked before its time counts.

case.py       one piece of work: shape, dtype, direction, bytes, input
sweeps.py     the named lists of cases
providers/    who can do the work, one file per family
accuracy.py   the reference and distances in ULP
timing.py     interleaved trials, and what is noise
measure.py    one case over many providers: prepare, check, time
report.py, plots.py, machine.py   what is printed and written
command.py    the command line
program.py    what the benches with options of their own have in common: switch.py (shapes in
              switch_shapes.py), apex.py, unfused.py (norms in variants.py), batch.py, norms.py,
              bert.py (steps in steps.py)
fused/        norms with what stands around them, by the same means
allocator.py, worker.py   the same provider with malloc as users have it
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; see `planish bench --help`."""
    from .command import main as run

    return run(argv)
