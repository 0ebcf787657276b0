"""What Python says of where kernels are (planish/operators/limits.py) is not what C has; the rows
that an activation is part of are in tests/cuda/test_plans.py."""

from __future__ import annotations

import re
from pathlib import Path

from planish.operators import limits

ROOT = Path(__file__).parents[2]


def constant(file: str, pattern: str) -> int:
    found = re.search(pattern, (ROOT / file).read_text())
    assert found, f"{file} has no {pattern}"
    return int(found[1])


def test_elements_are_not_those_of_c() -> None:
    pattern = r"GENERAL_ELEMENTS = (\d+)"
    assert constant("src/bound_call.c", pattern) == limits.GENERAL_ELEMENTS
    # The least number of elements, inclusive, of the rule that begins first.
    rule = r"CHANNELS_LAST, FORWARD, 0, 0, 0, 17, 0, (\d+), LARGE - 1"
    assert constant("src/torch/group_faster.c", rule) == limits.FEW_ELEMENTS + 1
