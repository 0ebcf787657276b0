"""The tensors of a case: inputs from a fixed seed, outputs poisoned between guards.

Knows how they lie in memory. Does not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from planish.library.dtypes import BY_NAME

from .case import AFFINE, FULL, Case
from .exact import Exact, exact, moments, widened
from .judge import Verdict, judge, rounded, same_bits

EPS = 1e-5
#: Elements before and behind a tensor that nobody may write to.
GUARD = 64
_POISON = {2: 0x7E5A, 4: 0x7FC5A5A5, 8: 0x7FF85A5A5A5A5A5A}  # NaN in every dtype
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Placed:
    """A tensor of any order of its axes in memory, inside guards, poisoned."""

    def __init__(
        self, sizes: Sequence[int], order: Sequence[int], dtype: str, step: int, device: str
    ) -> None:
        strides, length = [0] * len(sizes), step
        for axis in reversed(order):
            strides[axis] = length
            length *= sizes[axis]
        bits = _INTEGERS[BY_NAME[dtype].itemsize]
        self._whole = torch.empty(length + 2 * GUARD, dtype=bits, device=device)
        self._poison = _POISON[BY_NAME[dtype].itemsize]
        self._whole.fill_(self._poison)
        self._strides = strides
        self.view = self._whole.view(BY_NAME[dtype]).as_strided(sizes, strides, GUARD)

    def strayed(self) -> bool:
        """Whether something was written beside the elements."""
        rest = self._whole.clone()
        rest.as_strided(self.view.shape, self._strides, GUARD).fill_(self._poison)
        return bool((rest != self._poison).any())

    def poison(self) -> None:
        """As it was when it was made."""
        self._whole.fill_(self._poison)


def _normal(case: Case, role: str, generator: torch.Generator) -> torch.Tensor:
    sizes = list(case.sizes_of(role))
    if role in FULL and case.repeats > 1:
        sizes[0] //= case.repeats
    scaled = case.scale != 1 or case.dy_scale != 1
    wide = torch.float64 if case.is_double or scaled else torch.float32
    value = torch.randn(sizes, generator=generator, dtype=wide, device=case.device)
    if role == "x":
        value = (value + 0.5) * case.scale
    elif role in ("scale", "shift"):
        value = value * 0.25
    elif role == "dy" and case.dy_scale != 1:
        value = (value + 1) * case.dy_scale
        value[1::2] *= -1
    elif role == "weight":
        value = value * 0.25 + 1
    elif role == "bias":
        value = value * 0.25
    return value.to(BY_NAME[case.dtype_of(role)])


class Problem:
    """A case with its tensors. With ``repeats`` of more than 1 ``sample`` is the case of the first
    rows, of which all others are copies, and ``inputs`` has theirs."""

    def __init__(self, case: Case, seed: int = 8) -> None:
        self.case = case
        self.tensors: dict[str, Placed] = {}
        generator = torch.Generator(case.device).manual_seed(seed)
        roles = ("x", "dy", "weight", "bias", "residual", "dsum", "gate", "scale", "shift")
        needed = {"x", "dy", "weight", "bias", *case.inputs}
        made = {r: _normal(case, r, generator) for r in roles if r in needed}
        self.inputs = self._with_given(made)
        for role in (*case.inputs, *case.outputs):
            self.tensors[role] = placed = Placed(
                case.sizes_of(role),
                case.order_of(role),
                case.dtype_of(role),
                case.step if role in FULL else 1,
                case.device,
            )
            if role in case.inputs:
                value = self.inputs[role]
                same = value.shape == placed.view.shape
                placed.view.copy_(value if same else self._repeated(value))

    @property
    def sample(self) -> Case:
        """The case of the rows that are not copies of others."""
        case = self.case
        return replace(case, shape=(case.shape[0] // case.repeats, *case.shape[1:]), repeats=1)

    @property
    def bytes(self) -> int:
        """The bytes that have to be moved: every tensor once."""
        return sum(t.view.numel() * t.view.element_size() for t in self.tensors.values())

    def _with_given(self, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Adds the statistics, and y, that a pass is given."""
        case = self.sample
        inputs = {role: made[role] for role in case.inputs if role in made}
        if case.direction in ("forward", "statistics"):
            return inputs
        x = widened(case, made["x"])
        mean, _, rstd = moments(case, x, EPS)
        inputs |= {
            role: rounded(value, case.statistics_dtype)
            for role, value in (("mean", mean), ("rstd", rstd))
            if role in case.inputs
        }
        if case.direction == "from-y":
            weight, bias = widened(case, made["weight"]), widened(case, made["bias"])
            y = (x - mean) * rstd * weight + (bias if "bias" in case.inputs else 0)
            inputs["y"] = rounded(y, case.dtype_of("y"))
        return {role: tensor.to(case.device) for role, tensor in inputs.items()}

    def poison(self) -> None:
        """Makes the outputs unlike any result."""
        for role in self.case.outputs:
            self.tensors[role].poison()

    def results(self) -> dict[str, torch.Tensor]:
        """Copies of the outputs."""
        return {role: self.tensors[role].view.clone() for role in self.case.outputs}

    @cached_property
    def wanted(self) -> dict[str, Exact]:
        """The outputs as they have to be; the first rows of those that are copies."""
        return exact(self.sample, self.inputs, EPS, self.case.repeats)

    def judged(self, results: Mapping[str, torch.Tensor]) -> Verdict:
        """The outputs of a run against their bounds."""
        rows = self.sample.shape[0]
        first = {r: t if r in AFFINE else t[:rows] for r, t in results.items()}
        verdict = judge(self.sample, first, self.wanted)
        if self.case.repeats == 1:
            return verdict
        skipped = verdict.wrong_roles | set(AFFINE)
        copies = {role: tensor for role, tensor in results.items() if role not in skipped}
        whole = {r: self._repeated(first[r]) for r in copies}
        return verdict.merged(Verdict(wrong=same_bits(copies, whole, "an equal row")))

    def strayed(self) -> tuple[str, ...]:
        """The outputs that were written beside."""
        return tuple(
            f"{role}: written beside its elements"
            for role in self.case.outputs
            if self.tensors[role].strayed()
        )

    def _repeated(self, first: torch.Tensor) -> torch.Tensor:
        return first.repeat(self.case.repeats, *[1] * (first.dim() - 1))
