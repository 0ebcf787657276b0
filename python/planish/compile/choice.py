"""Which norms of a graph planish takes, each pass on its own, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planish.compile import formulas, table
from planish.compile.channels import Own
from planish.compile.joins import Join
from planish.compile.neighbours import extra_passes
from planish.compile.reading import Norm, value
from planish.library.available import is_available
from torch import Tensor, fx

__all__ = ["ALWAYS", "FASTER", "MODES", "NEVER", "UNASKED"]
__all__ += ["Choice", "by_table", "choose", "of_own"]

#: planish where the table has it faster, or for every norm that it has.
FASTER, ALWAYS = "faster", "always"
MODES = (FASTER, ALWAYS)
#: For measuring: planish for no norm.
NEVER = "never"
UNASKED = "no norm was asked for"


class Choice(NamedTuple):
    planish: bool
    why: str


def _runs(x: Tensor) -> bool:
    return x.device.type != "cuda" or is_available("cuda")


def _without_table(x: Tensor, mode: str) -> Choice | None:
    """What needs no row."""
    if not _runs(x):
        return Choice(False, "planish has no kernels for this GPU")
    if mode == NEVER:
        return Choice(False, UNASKED)
    return Choice(True, "every norm was asked for") if mode == ALWAYS else None


def of_own(own: Own, mode: str) -> Choice:
    """Of an operator over channels, none of which has a row."""
    if own.formula is None:
        return Choice(True, f"stays planish's: {own.why}")
    return _without_table(value(own.x), mode) or by_table(None)


def choose(
    norm: Norm,
    mode: str,
    join: Join | None = None,
    others: Sequence[fx.Node] = (),
    first: Choice | None = None,
) -> Choice:
    """``join``: the norm with what stands beside it and is to be part of its call (joins.py);
    ``others``: other norms of the same input, and ``first`` what was chosen for the first of them:
    inductor's kernel of them is one, which none leaves alone."""
    if norm.is_planishs and not formulas.has_formula(norm.tensors) and _runs(norm.x):
        return Choice(True, "dropout and scales of a branch are planish's")
    without = _without_table(norm.x, mode)
    if without is not None:
        return without
    site = table.site_of(norm if join is None else join.norm)
    if first is not None and not first.planish:
        return first
    return by_table(site, extra_passes(norm, join, others, first is None))


def by_table(site: table.Site | None, extra: float = 0.0) -> Choice:
    """Of a pass of a norm; ``extra``: what inductor saves by its neighbours, as a share of it."""
    if site is None:
        return Choice(False, "the table has no such norms")
    row = table.look_up(site)
    if row is None:
        return Choice(False, f"the table has no row for {site.layout} on {site.device}")
    wanted = table.MARGIN * (1 + extra)
    found = f"measured {row.speedup:.2f} times as fast as inductor's; wanted {wanted:.2f}"
    return Choice(row.speedup >= wanted, found)
