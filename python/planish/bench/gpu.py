"""Time on a GPU: CUDA graphs over buffers that exceed the cache, and plain queues of calls. Knows
nothing of what it times."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

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


def replayed(calls: Sequence[Callable[[], object]]) -> Timed:
    """Times calls, one on each set of buffers, by replays of a CUDA graph of them.

    What the calls allocate is kept until the graph is made, so that no two of them write to the
    same memory. The calls themselves are kept as long as what is returned: the graph works on the
    memory of their arguments.

    Before each trial the L2 is filled with other data, as a model's other operators leave it. Some
    kernels' own traffic never evicts that, and is slower by it: left to chance, a trial would
    depend on which provider came before (docs/notebook/024).
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    # Else it would write where kernels that make the data still have what is freed already.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    rounds = -(-LEAST_CALLS // len(calls))
    results = []
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
