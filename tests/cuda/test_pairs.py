"""Norms of queries and keys in one launch, the kernels' text run on the host (no GPU needed).

Each case in order and, every other one, in a random order; with STAGES_FULL=1 each in both.
STAGES_FOLDER is where they are compiled, in place of a temporary folder.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair_cases import PairCase, pair_cases
from stage_emulation import build, checked, processes

COMPILERS = (os.environ.get("CC", "clang"), os.environ.get("CXX", "clang++"))
pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in COMPILERS),
    reason="no clang to compile the kernels' text with",
)
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 1)

Run = tuple[PairCase, bool]


def runs() -> list[Run]:
    """Cases, and whether threads take turns in a random order."""
    if os.environ.get("STAGES_FULL"):
        return list(itertools.product(pair_cases(), (False, True)))
    return [(case, i % 2 == 1) for i, case in enumerate(pair_cases())]


def told(run: Run) -> str:
    """A run's name."""
    return f"{run[0].name()}{' shuffled' * run[1]}"


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, concurrent.futures.Future[list[str]]]]:
    """What is wrong with each run that was asked for, by its name."""
    items = [i for i in request.session.items if i.path == request.path]
    todo: list[Run] = [i.callspec.params["run"] for i in items if isinstance(i, pytest.Function)]
    folder = Path(os.environ.get("STAGES_FOLDER") or tmp_path_factory.mktemp("pairs"))
    build(folder, [case for case, _ in todo], JOBS)
    with processes(JOBS) as pool:
        yield {told(run): pool.submit(checked, folder, *run) for run in todo}


@pytest.mark.parametrize("run", runs(), ids=told)
def test_bits_and_launches(
    results: dict[str, concurrent.futures.Future[list[str]]], run: Run
) -> None:
    assert results[told(run)].result() == []
