"""The same work again and again on several streams at the same time, under load: for
check_repeats.py and check_stage_repeats.py. What a work compares is its own matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Queued(Protocol):
    """Something that is done again."""

    def queue(self) -> None:
        """Queues it on the current stream."""


def repeat(streams: Sequence[tuple[torch.cuda.Stream, Sequence[Queued]]], repeats: int) -> None:
    """All works of each stream so many times, the tenth part of them call by call."""
    load = torch.cuda.Stream()
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))

    def work_beside() -> None:
        with torch.cuda.stream(load):
            for _ in range(100):
                torch.matmul(left, right)

    torch.cuda.synchronize()
    singly = max(1, repeats // 10)
    for _ in range(singly):
        work_beside()
        for pair in zip(*(works for _, works in streams), strict=True):
            for (stream, _), work in zip(streams, pair, strict=True):
                with torch.cuda.stream(stream):
                    work.queue()
        torch.cuda.synchronize()
    graphs = []
    for stream, works in streams:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            for work in works:
                work.queue()
    for _ in range(repeats - singly):
        work_beside()
        for (stream, _), graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
