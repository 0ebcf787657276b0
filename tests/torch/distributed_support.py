"""Functions on several processes of this machine, which are ranks of a gloo group. Every run has a
time limit: processes that hang are ended, and the test fails."""

from __future__ import annotations

import contextlib
import datetime
import io
import multiprocessing
import os
import pathlib
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

import torch

__all__ = ["cut", "ranks_of", "run", "same_on_all_ranks"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed.tensor", "h_emul", "planish"])

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)


def _rank(
    function: Callable[..., Any], rank: int, ranks: int, store: str, limit: float, pipe: Any, args: Any
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=limit),
        )
        room = io.BytesIO()  # tensors by themselves: their memory ends with the process
        torch.save(function(*args), room)
        pipe.send(("result", room.getvalue()))
        dist.destroy_process_group()
    except BaseException:  # of a rank's own process, which ends here
        pipe.send(("error", traceback.format_exc()))
    pipe.close()


def run(ranks: int, function: Callable[..., Any], *args: Any, limit: float = 120) -> list[Any]:
    """What ``function(*args)`` returns on each of so many ranks. Its results are pickled."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(pathlib.Path(folder) / "store")
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_rank, args=(function, rank, ranks, store, limit, theirs, args), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return _results(pipes, time.monotonic() + limit)
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()


def _results(pipes: list[Any], end: float) -> list[Any]:
    results: list[Any] = []
    errors = []
    for rank, pipe in enumerate(pipes):
        if not pipe.poll(max(0.0, end - time.monotonic())):
            errors.append(f"rank {rank} did nothing within the time limit")
            continue
        with contextlib.suppress(EOFError):
            kind, value = pipe.recv()
            if kind == "result":
                results.append(torch.load(io.BytesIO(value), weights_only=False))
            else:
                errors.append(f"rank {rank}:\n{value}")
                end = min(end, time.monotonic() + 10)  # the others wait for it in vain
            continue
        errors.append(f"rank {rank} ended without a word")
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)
    return results


def ranks_of(*counts: int) -> Iterator[int]:
    yield from counts


def cut(tensor: torch.Tensor, sizes: list[int], axis: int) -> torch.Tensor:
    """This rank's part of a tensor that is cut into these sizes."""
    return tensor.split(sizes, axis)[dist.get_rank()].contiguous()


def same_on_all_ranks(results: list[Any]) -> bool:
    return all(torch.equal(result, results[0]) for result in results)
