"""Functions on several processes of this machine, which are ranks of a group: of gloo on CPUs, or
of NCCL with a GPU for each (test_distributed_nccl.py). Processes are kept from test to test. Every
run has a time limit: where a rank hangs or fails all of them are ended, and the test fails with
what each said."""

from __future__ import annotations

import atexit
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
from typing import Any, TypeVar

import pytest
import torch.distributed as dist

import torch

__all__ = ["cut", "draw", "here", "on_a_gpu", "over", "run", "same_on_all_ranks", "world_mesh"]

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

_Placed = TypeVar("_Placed", torch.Tensor, torch.nn.Module)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed.tensor", "planish"])

#: How long a collective may wait, in seconds.
_PATIENCE = 120


def _serve(backend: str, rank: int, ranks: int, store: str, pipe: Any) -> None:
    """Runs what comes through the pipe until it is closed."""
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # asked for, not used
    patience = datetime.timedelta(seconds=_PATIENCE)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=patience
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            room = io.BytesIO()  # tensors by themselves, not by shared memory
            torch.save(function(*args), room)
            pipe.send(("result", room.getvalue()))
        except BaseException:
            pipe.send(("error", traceback.format_exc()))


class _Pool:
    """The processes of a group."""

    def __init__(self, backend: str, ranks: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        store = str(pathlib.Path(self.folder.name) / "store")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_serve, args=(backend, rank, ranks, store, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


_pools: dict[tuple[str, int], _Pool] = {}
#: How the processes of a run meet.
_backend = "gloo"
#: Ranks that did nothing within a limit.
_hung: list[int] = []


@atexit.register
def _end_all() -> None:
    while _pools:
        _pools.popitem()[1].end()


@contextlib.contextmanager
def over(backend: str) -> Iterator[None]:
    """Has the processes of each run meet by this backend."""
    global _backend
    before, _backend = _backend, backend
    try:
        yield
    finally:
        _backend = before


def run(ranks: int, function: Callable[..., Any], *args: Any, limit: float = 240) -> list[Any]:
    """What ``function(*args)`` returns on each of so many ranks. It is of a module's own names, and
    arguments and results are pickled. Once ranks did nothing within the limit, later runs get a
    tenth of it: where no two processes here can meet, each test says so soon. Results come back to
    the CPU. Over NCCL it is skipped where there are fewer GPUs than ranks."""
    key = _backend, ranks
    if _backend == "nccl" and torch.cuda.device_count() < ranks:
        pytest.skip(f"{ranks} ranks of NCCL need a GPU each; there are {torch.cuda.device_count()}")
    if key not in _pools:
        _pools[key] = _Pool(*key)
    limit /= 10 if _hung else 1
    pool, results, errors = _pools[key], [], []
    end = time.monotonic() + limit
    for pipe in pool.pipes:
        pipe.send((function, args))
    for rank, pipe in enumerate(pool.pipes):
        try:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                errors.append(f"rank {rank} did nothing within {limit:.0f} s")
                _hung.append(rank)
                continue
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            errors.append(f"rank {rank} ended without a word")
            continue
        if kind == "result":
            results.append(torch.load(io.BytesIO(value), "cpu", weights_only=False))
        else:
            errors.append(f"rank {rank}:\n{value}")
            end = min(end, time.monotonic() + 5)  # the others wait for it in vain
    if errors:
        _pools.pop(key).end()
        pytest.fail("\n".join(errors), pytrace=False)
    return results


def draw(*sizes: int) -> torch.Tensor:
    """Numbers that are the same on every rank."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def on_a_gpu() -> bool:
    """Whether this is a rank that has one."""
    return dist.is_initialized() and dist.get_backend() == "nccl"


def here(what: _Placed) -> _Placed:
    """A tensor or a module on the device of this rank."""
    return what.cuda() if on_a_gpu() else what


def world_mesh(*names: str) -> Any:
    """All ranks, as a mesh of one axis; with two names of two, the first of which has two ranks."""
    size = dist.get_world_size()
    sizes = (2, size // 2) if names else (size,)
    return dist.init_device_mesh(
        "cuda" if on_a_gpu() else "cpu", sizes, mesh_dim_names=names or None
    )


def cut(tensor: torch.Tensor, sizes: list[int], axis: int) -> torch.Tensor:
    """This rank's part of a tensor that is cut into these sizes, on its device."""
    return here(tensor.split(sizes, axis)[dist.get_rank()].contiguous())


def same_on_all_ranks(results: list[Any]) -> bool:
    return all(torch.equal(result, results[0]) for result in results)
