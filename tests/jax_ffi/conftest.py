"""Two CPU devices, and f64 where a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
