"""Time on a GPU: CUDA graphs over buffers that exceed the cache, and plain queues of calls. Knows
nothing of what it times."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from .case import Case, Data
from .timing import Timed

# The buffers of one provider together: several times the size of any L2.
ROTATE_BYTES = 400 << 20
MOST_SETS = 64
LEAST_CALLS = 24  # in a graph: a launch of the graph itself costs some microseconds
OTHER_BYTES = 256 << 20  # more than any L2


def data_sets(case: Case, data: Data) -> list[Data]:
    """The data and as many copies of its large tensors as it takes to leave nothing in the L2 from
    one use to the next; the data alone on the CPU."""
    if case.device == "cpu":
        return [data]
    count = max(1, min(MOST_SETS, -(-ROTATE_BYTES // case.needed_bytes)))
    copies = [
        Data(
            data.x.clone(),
            data.weight,
            data.bias,
            None if data.dy is None else data.dy.clone(),
        )
        for _ in range(count - 1)
    ]
    return [data, *copies]


@functools.cache
def _other_data() -> torch.Tensor:
    return torch.zeros(OTHER_BYTES // 4, device="cuda")


@functools.cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def side_stream() -> Iterator[torch.cuda.Stream]:
    """The stream on which :func:`replayed` records, as the current one: whatever autograd is to
    differentiate in a graph must have been called on it.

    Autograd runs a backward on the stream of its forward. The default stream cannot be part of a
    graph that is recorded on another, so that a backward of what was called there ends the
    recording; and torch.cuda.graph then leaves its own stream the current one. Here the one of
    before is current again, whatever happened inside.
    """
    before = torch.cuda.current_stream()
    stream = _stream_of(torch.cuda.current_device())
    # Else it would write where kernels that make the data still have what is freed already.
    stream.wait_stream(before)
    torch.cuda.set_stream(stream)
    try:
        yield stream
    finally:
        torch.cuda.set_stream(before)
        before.wait_stream(stream)


def replayed(calls: Sequence[Callable[[], object]]) -> Timed:
    """Times calls, one on each set of buffers, by replays of a CUDA graph of them.

    What the calls allocate is kept until the graph is made, so that no two of them write to the
    same memory. The calls themselves are kept as long as what is returned: the graph works on the
    memory of their arguments. What they differentiate was called on :func:`side_stream`.

    Before each trial the L2 is filled with other data, as a model's other operators leave it. Some
    kernels' own traffic never evicts that, and is slower by it: left to chance, a trial would
    depend on which provider came before (docs/notebook/024).
    """
    graph = torch.cuda.CUDAGraph()
    rounds = -(-LEAST_CALLS // len(calls))
    results = []
    with side_stream() as stream:
        for call in calls[:3]:
            call()
        torch.cuda.synchronize()
        # thread_local: autograd runs a backward in a thread of its own.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(rounds):
                # A second round may write where the first did: all buffers lie between.
                results = [call() for call in calls]
    del results
    each = rounds * len(calls)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def timed(count: int, _kept: object = calls) -> float:
        replays = -(-count // each)
        _other_data().sum()
        graph.replay()
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 * count / (replays * each)

    return timed


def queued(work: Callable[[], object]) -> Timed:
    """Times work that is only queued, by the GPU's clock: what a call takes in a queue of them."""

    def timed(count: int) -> float:
        work()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    return timed
