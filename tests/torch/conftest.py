"""What every test here stands on: torch and planish's library load, and nothing stays enabled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import planish  # noqa: E402
from planish._library import library  # noqa: E402

library()  # an installation without the library is an error here, not a skip


@pytest.fixture(autouse=True)
def nothing_stays_enabled() -> Iterator[None]:
    """Each test starts without planish, from the same seed."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert planish.disable(), "a test left a kernel running"
