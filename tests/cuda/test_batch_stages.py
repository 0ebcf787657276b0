"""Batch norms with kept statistics and with an addend: the kernels' text on the host."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
from collections.abc import Iterator

import pytest
from batch_stages import BatchCase, batch_stage_cases
from stage_emulation import build, checked, processes

COMPILERS = (os.environ.get("CC", "clang"), os.environ.get("CXX", "clang++"))
pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in COMPILERS),
    reason="no clang to compile the kernels' text with",
)
JOBS = int(os.environ.get("JOBS") or os.cpu_count() or 1)
CASES = batch_stage_cases()


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, concurrent.futures.Future[list[str]]]]:
    """What is wrong with each case, by its name; every other one in a random order of threads."""
    folder = tmp_path_factory.mktemp("batch")
    build(folder, CASES, JOBS)
    with processes(JOBS) as pool:
        yield {c.name(): pool.submit(checked, folder, c, i % 2 == 1) for i, c in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES, ids=BatchCase.name)
def test_values_and_bits(
    results: dict[str, concurrent.futures.Future[list[str]]], case: BatchCase
) -> None:
    assert results[case.name()].result() == []
