"""The GPU's forward with stages around the norm, its kernels' text run on the host (no GPU needed)."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
from around_backends import Emulation
from around_cases import AroundCase, around_cases

ONLY = os.environ.get("AROUND_ONLY", "")
CASES = [c for c in around_cases(True) if ONLY in c.name()]

pytestmark = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "clang++")), reason="no clang to compile kernels with"
)


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    """All that the cases need, compiled."""
    where = os.environ.get("AROUND_FOLDER")
    made = Emulation(pathlib.Path(where) if where else tmp_path_factory.mktemp("emulation"))

    def write() -> None:
        for case in CASES:
            tensors, _ = case.place(case.inputs(), made.device)
            made.run(case.op(), tensors)
            case.unfused_runs(made)

    made.writing(write)
    made.compile(int(os.environ.get("JOBS") or os.cpu_count() or 1))
    return made


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name())
def test_values_and_bits(emulation: Emulation, case: AroundCase, shuffled: bool) -> None:
    emulation.shuffle(shuffled)
    assert case.check(emulation) == []
