"""planish.is_available: an answer for every device, and never an exception."""

from __future__ import annotations

import subprocess
import sys
import timeit
from typing import Any

import pytest

import planish
import torch
from planish.library import available
from planish.library.loaded import Library, library

GOOD: dict[str, Any] = {
    "devices": [{"name": "one", "capability": "9.0"}, {"name": "old", "problem": "7.0"}],
    "nvrtc": {"version": "13.0"},
    "packs": {"loaded": []},
}
NO_NVRTC = {"version": None, "problem": "no NVRTC"}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "_found", set())


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), torch.ones(1).device])
def test_a_cpu_is_not_available(device: Any) -> None:
    assert planish.is_available(device) is True


@pytest.mark.parametrize(
    "device", ["mps", "meta", "xpu:0", "cuda:99", "", "no device", "cuda:-1", None, [], -3]
)
def test_another_device_is_available_or_raises(device: Any) -> None:
    assert planish.is_available(device) is False


@pytest.mark.parametrize(
    ("device", "gpu", "wanted"),
    [
        ("cuda", {}, True),
        ("cuda:0", {}, True),
        (0, {}, True),
        ("cuda:1", {}, False),
        ("cuda:2", {}, False),
        ("cuda", {"nvrtc": NO_NVRTC}, False),
        ("cuda", {"nvrtc": NO_NVRTC, "packs": {"loaded": [{"path": "a.pack"}]}}, True),
    ],
)
def test_a_gpu_is_judged_otherwise_than_by_what_is_found(
    monkeypatch: pytest.MonkeyPatch, device: Any, gpu: dict[str, Any], wanted: bool
) -> None:
    monkeypatch.setattr(Library, "cuda_is_missing", lambda self: "")
    monkeypatch.setattr(Library, "gpu_report", lambda self: GOOD | gpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch, "device", lambda *d: _as_on_cuda(*d))
    assert planish.is_available(device) is wanted


_device = torch.device


def _as_on_cuda(*given: Any) -> torch.device:
    """A number is a GPU's, as in a torch that has them."""
    return _device("cuda", given[0]) if isinstance(given[0], int) else _device(*given)


def test_a_library_that_torch_does_not_fit_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [symbol._replace(found=False) for symbol in library().symbols()]
    monkeypatch.setattr(Library, "symbols", lambda self: lacking)
    assert planish.is_available("cpu") is False


def test_it_raises_without_torch_or_without_the_library() -> None:
    for before in (
        "import sys; sys.modules['torch'] = None",
        "import planish.library.loaded as lib; lib.refusal = lambda: 'another system'",
    ):
        program = f"{before}; import planish; print(planish.is_available())"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (0, "False\n"), ran.stderr


def test_an_answer_that_is_known_takes_long() -> None:
    assert planish.is_available("cpu")
    best = min(timeit.repeat(lambda: planish.is_available("cpu"), number=1000, repeat=5))
    assert best / 1000 < 20e-6
