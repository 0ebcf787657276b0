"""Sums and rows by copies between GPUs, here between processes: the memory that GPUs of one host
have in common is files of this machine, and their signals are numbers in another. What is copied,
in which pieces, and who waits for whom is what runs on GPUs."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import time
from typing import Any

import pytest
import torch.distributed as dist
from distributed_support import run, same_on_all_ranks

import planish
import torch
from planish.distributed import peers
from torch import Tensor

COLUMNS = 32


class Memory:
    """As torch's handle of symmetric memory, in files of a folder."""

    def __init__(self, folder: str, size: int) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        path = pathlib.Path(folder)
        self.rooms, self.signals = [], []
        for rank in range(self.ranks):
            for into, name, count, dtype in (
                (self.rooms, "room", size, torch.uint8),
                (self.signals, "signals", 64 * self.ranks, torch.int32),
            ):
                file = str(path / f"{name}{rank}")
                into.append(torch.from_file(file, shared=True, size=count, dtype=dtype))
        dist.barrier()

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, offset: int) -> Tensor:
        count = torch.Size(sizes).numel()
        return self.rooms[rank].view(dtype)[offset : offset + count].view(sizes)

    def barrier(self, channel: int, timeout_ms: int) -> None:
        dist.barrier()

    def put_signal(self, rank: int, channel: int, timeout_ms: int) -> None:
        self._turn(rank, channel * self.ranks + self.rank, 0, 1, timeout_ms)

    def wait_signal(self, rank: int, channel: int, timeout_ms: int) -> None:
        self._turn(self.rank, channel * self.ranks + rank, 1, 0, timeout_ms)

    def _turn(self, of: int, at: int, old: int, new: int, timeout_ms: int) -> None:
        end = time.monotonic() + min(timeout_ms / 1000, 60)
        while int(self.signals[of][at]) != old:
            assert time.monotonic() < end, "a signal did not come"
            time.sleep(0)
        self.signals[of][at] = new


def _summands(rows: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(5)
    sizes = (rows, 3, COLUMNS)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=make).to(dtype)

    return [draw(*sizes) for _ in range(4)], draw(*sizes), draw(*sizes), draw(COLUMNS)


def _on_ranks(folder: str, rows: int, dtype: torch.dtype, pieces: int) -> list[Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    patch = pytest.MonkeyPatch()
    summands, residual, dy, weight = _summands(rows, dtype)
    memory = Memory(folder, summands[0].numel() * dtype.itemsize)
    room = peers.Room(memory, memory.rooms[rank], dist.group.WORLD)
    asked: list[int] = []

    def between(group: Any, own: Tensor, size: int) -> peers.Room:
        asked.append(size)
        return room

    patch.setattr(peers, "between", between)
    patch.setattr(peers, "_lanes", lambda: [None, None])
    patch.setattr(peers, "_joined", lambda lanes: None)
    patch.setattr(peers, "_is_captured", lambda: True)
    patch.setattr(peers, "_on", contextlib.nullcontext)
    patch.setattr(peers, "PIECES", pieces)
    try:
        tensors = [summands[rank], residual.chunk(ranks)[rank], weight]
        found = []
        with torch.no_grad():
            for _ in range(2):  # what the first call left in the room is overwritten
                found += planish.distributed.all_reduce_add_rms_norm(*tensors, 1e-6)
        leaves = [t.clone().requires_grad_() for t in tensors]
        y, total = planish.distributed.all_reduce_add_rms_norm(*leaves, 1e-6)
        loss = (y * dy).sum() / ranks + total.sum()
        return [*found, y.detach(), total.detach(), *torch.autograd.grad(loss, leaves), asked]
    finally:
        patch.undo()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("ranks", "pieces"), [(2, 1), (2, 2), (4, 1), (4, 2)])
def test_all_reduce_add_rms_norm(ranks: int, pieces: int, dtype: torch.dtype) -> None:
    rows = 20
    summands, residual, dy, weight = _summands(rows, dtype)
    with tempfile.TemporaryDirectory() as folder:
        results = run(ranks, _on_ranks, folder, rows, dtype, pieces)
    for rank, got in enumerate(results):
        own = slice(rank * rows // ranks, (rank + 1) * rows // ranks)
        others = [summand[own] for at, summand in enumerate(summands[:ranks]) if at != rank]
        theirs = others[0] if ranks == 2 else torch.stack(others).sum(0)
        y, total = planish.add_rms_norm(summands[rank][own] + theirs, residual[own], weight, 1e-6)
        for one in got[0:6:2]:  # twice in pieces, and once where gradients are wanted
            assert torch.equal(one[own], y)
        for one in got[1:6:2]:
            assert torch.equal(one, total)
        assert got[-1] == [rows] * 6  # two calls, two halves of a forward, two of a backward
    assert same_on_all_ranks([got[0] for got in results])
    assert same_on_all_ranks([got[8] for got in results])

    tensors = [t.double().requires_grad_() for t in (sum(summands[:ranks]), residual, weight)]
    y, total = planish.add_rms_norm(*tensors, 1e-6)
    dx, dresidual, dweight = torch.autograd.grad((y * dy).sum() + total.sum(), tensors)
    bound = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.2}
    for got in results:
        torch.testing.assert_close(got[6].double(), dx, **bound)
        torch.testing.assert_close(got[8].double(), dweight, **bound)
    torch.testing.assert_close(torch.cat([got[7] for got in results]).double(), dresidual, **bound)


# ---- Without room --------------------------------------------------------------------------------


def _has_room(rows: int) -> bool:
    own = torch.zeros(rows // dist.get_world_size(), 1 << 16)
    return peers.between(dist.group.WORLD, own, rows) is not None


def test_processes_without_gpus_have_no_room() -> None:
    assert not any(run(2, _has_room, 256))


def _inferred(rows: int) -> list[Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    summands, residual, _, weight = _summands(rows, torch.float32)
    own = residual.split(-(-rows // ranks))
    tensors = summands[rank], own[rank] if rank < len(own) else residual[:0], weight
    with torch.no_grad():
        return list(planish.distributed.all_reduce_add_rms_norm(*tensors, 1e-6))


@pytest.mark.parametrize(("ranks", "rows"), [(2, 4), (2, 3), (4, 6), (4, 1)])
def test_inference_by_the_collectives(ranks: int, rows: int) -> None:
    summands, residual, _, weight = _summands(rows, torch.float32)
    wanted = planish.add_rms_norm(sum(summands[:ranks]), residual, weight, 1e-6)
    results = run(ranks, _inferred, rows)
    for y, _ in results:
        torch.testing.assert_close(y, wanted[0], rtol=1e-5, atol=1e-5)
    totals = torch.cat([total for _, total in results])
    torch.testing.assert_close(totals, wanted[1], rtol=1e-5, atol=1e-5)
    assert same_on_all_ranks([y for y, _ in results])


# ---- Quantised -----------------------------------------------------------------------------------


def _quantized(rows: int, dim: int, dtype: torch.dtype, static: bool) -> list[Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    summands, residual, _, weight = _summands(rows, torch.bfloat16)
    x, residual = (t.movedim(0, dim).contiguous() for t in (summands[rank], residual))
    own = residual.split(-(-rows // ranks), dim)
    mine = own[rank] if rank < len(own) else residual.narrow(dim, 0, 0)
    scale = torch.tensor(0.02) if static else None
    x.requires_grad_()
    q, found, total = planish.distributed.all_reduce_quantized_rms_norm(
        x, mine, weight, 1e-6, dim=dim, dtype=dtype, scale=scale
    )
    assert q.shape == x.shape
    assert q.dtype == dtype
    assert not q.requires_grad
    assert not total.requires_grad
    return [q.view(torch.uint8).clone(), found, total]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("ranks", "rows", "dim"), [(2, 4, 0), (2, 3, 1), (4, 6, 0), (4, 1, 0)])
def test_quantised_rows_go_around_as_bytes(
    ranks: int, rows: int, dim: int, dtype: torch.dtype, static: bool
) -> None:
    summands, residual, _, weight = _summands(rows, torch.bfloat16)
    results = run(ranks, _quantized, rows, dim, dtype, static)
    total = torch.cat([total for *_, total in results], dim).movedim(dim, 0)
    exact = sum(summand.float() for summand in summands[:ranks]) + residual.float()
    torch.testing.assert_close(total.float(), exact, rtol=0.02, atol=0.1)
    scale = torch.tensor(0.02) if static else None
    q, found = planish.quantized_rms_norm(total, weight, 1e-6, dtype=dtype, scale=scale)
    for mine, of_rows, _ in results:
        assert torch.equal(mine.movedim(dim, 0), q.view(torch.uint8))
        assert torch.equal(of_rows if static else of_rows.movedim(dim, 0), found)
