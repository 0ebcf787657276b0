"""What a way is: someone who can do works of the table, made ready before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .works import Data, Work

#: What ways quantise to.
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Prepared:
    """A call for each set of data, and what the first of them gives, by name."""

    calls: Sequence[Callable[[], object]]
    outputs: Callable[[], dict[str, Tensor]]


class Way:
    """Someone who can do the works, or some of them."""

    name: str
    what: str

    def missing(self, device: str) -> str | None:
        """Why it cannot be used here at all; None if it can."""
        return None

    def prepare(self, work: Work, sets: Sequence[Data]) -> Prepared:
        """Makes a work ready; raises UnsupportedError where it is not done."""
        raise NotImplementedError
