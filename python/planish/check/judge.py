"""Found against wanted: the worst error of each output, its bound, and the first wrong element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import torch
from planish.library.dtypes import BY_NAME

from .case import Case
from .exact import Exact, ulp, widened

#: Of a 16-bit y this share may be the neighbour of the exact value rounded, and it is looked at
#: where there are so many elements.
NEIGHBOURS = 1e-3
NEIGHBOURS_OF = 4000


@dataclass(frozen=True)
class Wrong:
    """The first wrong element of an output."""

    role: str
    index: tuple[int, ...]
    found: float
    wanted: float
    why: str

    def __str__(self) -> str:
        at = ", ".join(map(str, self.index))
        return f"{self.role}[{at}] is {self.found:.9g}, wanted {self.wanted:.9g}: {self.why}"


@dataclass(frozen=True)
class Verdict:
    """What is known of one run: the output that is nearest to its bound, and what is wrong."""

    role: str = ""
    worst: float = 0.0
    bound: float = 1.0
    unit: str = "ULP"
    wrong: tuple[Wrong | str, ...] = ()

    @property
    def text(self) -> str:
        """The worst error and its bound."""
        return f"{self.role} {self.worst:.2f} of {self.bound:.3g}" if self.role else "-"

    @property
    def wrong_roles(self) -> set[str]:
        """The outputs of which a wrong element is known."""
        return {one.role for one in self.wrong if isinstance(one, Wrong)}

    def merged(self, other: Verdict) -> Verdict:
        """Of two runs, the errors that are nearer to their bound, and all that is wrong."""
        worse = self
        if other.role and (not self.role or other.worst / other.bound > self.worst / self.bound):
            worse = other
        return Verdict(worse.role, worse.worst, worse.bound, worse.unit, self.wrong + other.wrong)


def _as_numpy(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else value


def _ordinals(values: torch.Tensor) -> torch.Tensor:
    """The place of each 16-bit value among all values of its dtype."""
    bits = values.contiguous().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def _steps(found: torch.Tensor, wanted: Any) -> Any:
    """How many values of a 16-bit dtype lie between what was found and the exact value rounded."""
    narrow = rounded(wanted, "f64").to(found.device).expand(found.shape).to(found.dtype)
    return (_ordinals(found) - _ordinals(narrow)).abs()


def _first(bad: Any) -> tuple[int, ...]:
    flat = int(np.argmax(_as_numpy(bad)))
    return tuple(int(i) for i in np.unravel_index(flat, bad.shape))


def _at(value: Any, index: tuple[int, ...]) -> float:
    sizes = value.shape
    place = tuple(0 if size == 1 else i for i, size in zip(index, sizes, strict=True))
    return float(value[place])


def output(case: Case, role: str, found: torch.Tensor, exact: Exact) -> Verdict:
    """One output against its bound."""
    got = widened(case, found)
    library: Any = torch if isinstance(got, torch.Tensor) else np
    wanted = exact.value + got * 0 if tuple(exact.value.shape) != tuple(got.shape) else exact.value
    finite = library.isfinite(got)
    off = library.where(finite, abs(got - wanted), got * 0)
    error = off / ulp(exact.scale, exact.unit)
    bad, worst, bound, unit = error > exact.ulps, float(error.max()), exact.ulps, "ULP"
    note = ""
    if exact.rounds:
        steps = _steps(found, wanted)
        # Where the terms cancel so far that f32 has not the digits, f32's bound is what holds.
        rough = off <= exact.ulps * ulp(exact.scale, "f32")
        beyond = (steps > 1) & ~rough
        bad, worst, bound, unit = beyond, float((steps * ~rough).max()), 1.0, "steps"
        share = float((steps > 0).to(torch.float64).mean())
        if share > NEIGHBOURS and steps.numel() >= NEIGHBOURS_OF:
            note = f"{share:.2%} of all are not the exact value rounded, {NEIGHBOURS:.1%} allowed"
            bad = bad | (steps > 0)
    bad = bad | ~finite
    if not bool(bad.any()):
        return Verdict(role, worst, bound, unit)
    index = _first(bad)
    here = float(steps[index]) if exact.rounds else _at(error, index)
    why = note or f"{here:.3g} {unit} off, {bound:.3g} allowed"
    if not bool(finite[index]):
        why, worst = "not finite", float("inf")
    wrong = Wrong(role, index, float(found[index]), _at(wanted, index), why)
    return Verdict(role, worst, bound, unit, (wrong,))


def judge(case: Case, found: Mapping[str, torch.Tensor], wanted: Mapping[str, Exact]) -> Verdict:
    """All outputs of one run."""
    verdict = Verdict()
    for role, exact in wanted.items():
        verdict = verdict.merged(output(case, role, found[role], exact))
    return verdict


def same_bits(
    found: Mapping[str, torch.Tensor], first: Mapping[str, torch.Tensor], whose: str
) -> tuple[Wrong, ...]:
    """Where a run's outputs have not the bits of another one's: every tier has the same."""
    differing = []
    for role, tensor in found.items():
        other = first[role]
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        bad = tensor.contiguous().view(bits) != other.contiguous().view(bits)
        if bool(bad.any()):
            index = _first(bad)
            differing.append(
                Wrong(
                    role,
                    index,
                    float(tensor[index]),
                    float(other[index]),
                    f"{whose} has other bits",
                )
            )
    return tuple(differing)


def rounded(value: Any, dtype: str) -> torch.Tensor:
    """A value of the reference as a tensor of the dtype."""
    wide: torch.Tensor = (
        value
        if isinstance(value, torch.Tensor)
        else torch.from_numpy(np.asarray(value, dtype=np.float64))
    )
    return wide.to(BY_NAME[dtype])
