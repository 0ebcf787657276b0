"""Which kernels the cases of dsum in images' kernels go through: no GPU, only plans.

stage_joined_cases.py holds what they compute against two steps, which says nothing where both ways
are one.
"""

from __future__ import annotations

import os

import pytest
from gpu_shim import BACKWARD, BUILT
from stage_joined_cases import JoinedCase, joined_cases
from stage_plans import StagePlan

pytestmark = pytest.mark.skipif(
    not os.environ.get("PLANISH_GPU_SHIM") and not BUILT.exists(),
    reason=f"{BUILT} is not built; make test builds it",
)


def plan_of(case: JoinedCase) -> str:
    """What the plan of a case says of itself."""
    placed, _ = case.place("cpu")
    shapes = {r: (tuple(t.shape), case.type_of(r)) for r, t in placed.items()}
    strides = {r: t.stride() for r, t in placed.items()}
    return StagePlan(BACKWARD, case.op(), shapes, arch=case.arch, strides=strides).describe()


@pytest.mark.parametrize("case", list(joined_cases()), ids=lambda case: case.name())
def test_dsum_is_added_where_dx_is_made_or_behind(case: JoinedCase) -> None:
    assert plan_of(case).endswith(", with dsum")
    assert plan_of(case.apart()).startswith("cuda stages sum behind")


def test_every_way_is_there() -> None:
    plans = [plan_of(case) for case in joined_cases()]
    ways = ("one read", "two reads", "tiles", "channels last", "cluster 2", "cuda channels")
    assert [way for way in ways if not any(way in plan for plan in plans)] == []


def test_an_f32_tile_takes_no_other_dtype() -> None:
    """dx waits in a tile in the place of x, and dsum comes to it in whole pieces."""
    case = JoinedCase(
        (2, 3, 5, 49), ("weight", "dx", "dsum"), (2, 3), (1, 2), types={"dsum": "bf16"}
    )
    assert plan_of(case).startswith("cuda stages sum behind")
