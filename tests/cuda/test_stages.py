"""The GPU's kernels of the stages around a norm, their text run on the host (no GPU needed).

Without STAGES_FULL=1 only cases in which something is that is in no case before them, so that every
stage, dtype, layout and length is in one. Threads take turns in order and, every other case, in a
random order; with STAGES_FULL=1 each case in both. STAGES_FOLDER is where it is
compiled, in place of a temporary folder.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage_backward_cases import backward_cases
from stage_emulation import Case, build, checked, processes
from stage_forward_cases import forward_cases
from stage_reference import representative

COMPILERS = (os.environ.get("CC", "clang"), os.environ.get("CXX", "clang++"))
pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in COMPILERS),
    reason="no clang to compile the kernels' text with",
)
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 1)


def runs() -> list[tuple[Case, bool]]:
    """Cases, and whether threads take turns in a random order."""
    forwards: list[Case] = [*forward_cases(quick=True)]
    backwards: list[Case] = [*backward_cases()]
    if os.environ.get("STAGES_FULL"):
        return list(itertools.product(forwards + backwards, (False, True)))
    chosen = representative(forwards) + representative(backwards)
    return [(case, i % 2 == 1) for i, case in enumerate(chosen)]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, concurrent.futures.Future[list[str]]]]:
    """What is wrong with each run that was asked for, by its name."""
    items = [i for i in request.session.items if i.path == request.path]
    todo: list[tuple[Case, bool]] = [
        i.callspec.params["run"] for i in items if isinstance(i, pytest.Function)
    ]
    folder = Path(os.environ.get("STAGES_FOLDER") or tmp_path_factory.mktemp("stages"))
    build(folder, [case for case, _ in todo], JOBS)
    with processes(JOBS) as pool:
        yield {told(r): pool.submit(checked, folder, *r) for r in todo}


def told(run: tuple[Case, bool]) -> str:
    """A run's name."""
    return f"{run[0].name()}{' shuffled' * run[1]}"


@pytest.mark.parametrize("run", runs(), ids=told)
def test_values_and_bits(
    results: dict[str, concurrent.futures.Future[list[str]]], run: tuple[Case, bool]
) -> None:
    assert results[told(run)].result() == []
