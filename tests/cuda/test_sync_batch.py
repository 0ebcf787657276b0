"""What SyncBatchNorm's operators run on a GPU: the kernels' text on the host."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
from collections.abc import Iterator

import pytest
from stage_emulation import build, checked, processes
from sync_cases import SyncCase, sync_cases

COMPILERS = (os.environ.get("CC", "clang"), os.environ.get("CXX", "clang++"))
pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in COMPILERS),
    reason="no clang to compile the kernels' text with",
)
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 1)
CASES = sync_cases()


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, concurrent.futures.Future[list[str]]]]:
    """What is wrong with each case, by its name; every other one in a random order of threads."""
    folder = tmp_path_factory.mktemp("sync")
    build(folder, CASES, JOBS)
    with processes(JOBS) as pool:
        yield {c.name(): pool.submit(checked, folder, c, i % 2 == 1) for i, c in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES, ids=SyncCase.name)
def test_a_value_differs(
    results: dict[str, concurrent.futures.Future[list[str]]], case: SyncCase
) -> None:
    assert results[case.name()].result() == []
