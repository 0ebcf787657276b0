"""On which stream the GPU benches call what they record afterwards, without a GPU: torch.cuda is
stood in for by a record of what is asked of it."""

from __future__ import annotations

from typing import Any

import pytest

import torch
from planish.bench import gpu
from planish.bench.fused import command
from planish.bench.fused.way import Prepared, Way
from planish.bench.fused.works import Work


class Stream:
    """One that only has a name."""

    def __init__(self, name: object) -> None:
        self.name = name

    def wait_stream(self, other: object) -> None:
        pass


class Cuda:
    """What of torch.cuda the benches use: a current stream, and graphs that leave theirs current
    where a recording fails, as torch.cuda.graph does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.default = self.now = Stream("default")
        self.recorded: list[object] = []
        gpu._stream_of.cache_clear()
        for name, value in {
            "Stream": Stream,
            "current_stream": lambda: self.now,
            "set_stream": lambda stream: setattr(self, "now", stream),
            "current_device": lambda: 0,
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "CUDAGraph": object,
            "Event": lambda **_: None,
            "graph": self.graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def graph(self, _graph: object, stream: Stream, capture_error_mode: str) -> Any:
        cuda = self

        class Recording:
            def __enter__(self) -> None:
                cuda.before, cuda.now = cuda.now, stream

            def __exit__(self, kind: object, *_: object) -> None:
                if kind is None:
                    cuda.recorded.append(stream)
                    cuda.now = cuda.before

        return Recording()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield Cuda(monkeypatch)
    gpu._stream_of.cache_clear()


def test_a_graph_is_recorded_on_another_stream_than_its_forward(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd runs a backward on its forward's stream: that has to be the recorded one."""
    prepared = []

    class Noted(Way):
        name = "noted"

        def prepare(self, work: Work, sets: Any) -> Prepared:
            prepared.append(torch.cuda.current_stream())
            return Prepared([lambda: None], dict)

    monkeypatch.setattr(command, "make_data", lambda work: {})
    monkeypatch.setattr(command, "copies", lambda data, count: [data])
    monkeypatch.setattr(command, "Truth", lambda work, data: None)
    monkeypatch.setattr(command, "_verdict", lambda truth, way, found: (0.0, ""))
    monkeypatch.setattr(command, "interleave", lambda timed, effort: {})
    work = Work("add", "add", "rms", "backward", 4096, 1024, "bf16", "cuda")
    (cell,) = command.measure(work, [Noted()], command.QUICK)
    assert cell.status == "ok", cell.reason
    assert prepared == cuda.recorded and prepared[0] is not cuda.default
    assert torch.cuda.current_stream() is cuda.default


def test_a_failed_recording_leaves_its_stream_current(cuda: Cuda) -> None:
    def fails() -> None:
        if cuda.now is not cuda.default and gpu._stream_of.cache_info().hits:
            raise RuntimeError("operation failed due to a previous error during capture")

    with gpu.side_stream():
        pass
    with pytest.raises(RuntimeError, match="during capture"):
        gpu.replayed([fails])
    assert torch.cuda.current_stream() is cuda.default
