"""Which norms of a graph planish takes, each pass on its own, and why."""

from __future__ import annotations

from typing import NamedTuple

from planish.compile import formulas, table
from planish.compile.neighbours import extra_passes
from planish.compile.reading import Norm
from planish.library.available import is_available
from planish.operators.call import Tensors
from planish.operators.formulas import Given
from torch import fx

__all__ = ["ALWAYS", "FASTER", "MODES", "NEVER", "Choice", "choose"]

#: planish where the table has it faster, or for every norm that it has.
FASTER, ALWAYS = "faster", "always"
MODES = (FASTER, ALWAYS)
#: For measuring: planish for no norm.
NEVER = "never"


class Choice(NamedTuple):
    planish: bool
    why: str


def _has_formula(norm: Norm) -> bool:
    values = norm.values()
    return formulas.has_formula(Given(*values) if norm.is_backward else Tensors(*values))  # type: ignore[arg-type]


def choose(norm: Norm, mode: str, joined: fx.Node | None = None) -> Choice:
    """``joined``: the sum beside the norm that is part of it (neighbours.py)."""
    if norm.x.device.type == "cuda" and not is_available("cuda"):
        return Choice(False, "planish has no kernels for this GPU")
    if norm.is_planishs and not _has_formula(norm):
        return Choice(True, "dropout and scales of a branch are planish's")
    if mode == NEVER:
        return Choice(False, "no norm was asked for")
    if mode == ALWAYS:
        return Choice(True, "every norm was asked for")
    site = table.site_of(norm)
    if site is None:
        return Choice(False, "the table has no such norms")
    row = table.look_up(site)
    if row is None:
        return Choice(False, f"the table has no row for {site.layout} on {site.device}")
    wanted = table.MARGIN * (1 + extra_passes(norm, joined))
    found = f"measured {row.speedup:.2f} times as fast as inductor's; wanted {wanted:.2f}"
    return Choice(row.speedup >= wanted, found)
