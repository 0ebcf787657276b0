"""What every test here stands on: torch and planish's library load, and nothing stays enabled."""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Iterator
from typing import Any

import pytest

# Processes of one test meet by the loopback interface: the address that a machine's name stands for
# may lead nowhere.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

torch = pytest.importorskip("torch", reason="torch is not installed")

import planish  # noqa: E402
from planish.library.loaded import library  # noqa: E402

library()  # an installation without the library is an error here, not a skip


@pytest.fixture(autouse=True)
def nothing_stays_enabled() -> Iterator[None]:
    """Each test starts without planish, from the same seed."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert planish.disable(), "a test left a kernel running"


@pytest.fixture
def in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sums and their norms go to planish's kernels as large ones do, at once, and not to
    torch's operators one after the other."""
    from planish.operators import steps

    monkeypatch.setattr(steps, "_SMALL", {False: 0, True: 0})


#: Of what stands around a norm.
_FUNCTIONS = ("add_layer_norm", "add_rms_norm", "modulated_layer_norm", "modulated_rms_norm")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[collections.Counter[str]]:
    """How often each fused function is called."""
    from planish.functions import heads, stage_norms  # not loaded for tests that do not ask for it

    counter: collections.Counter[str] = collections.Counter()
    for module, name in (*((stage_norms, name) for name in _FUNCTIONS), (heads, "qk_norm")):
        function = getattr(module, name)

        def counted(*args: Any, name: str = name, function: Any = function, **kwargs: Any) -> Any:
            counter[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, functools.wraps(function)(counted))
    yield counter
