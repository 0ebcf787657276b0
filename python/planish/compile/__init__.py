"""planish in graphs that torch.compile makes: which norms run on planish's kernels there, and how.

    torch.compile(model, backend="planish")   # this graph
    planish.enable(compile=True)              # every graph that inductor makes from now on
    print(planish.compile.report())           # what was chosen for each norm, and why

Importing this package imports torch, but not its compiler.
"""

from __future__ import annotations

from planish.compile.inductor import backend as backend
from planish.compile.records import report as report

__all__ = ["backend", "report"]
