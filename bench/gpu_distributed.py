"""Sharded norms on the GPUs of one host, by NCCL: time of a forward and backward, and that the
results are those of whole rows.

    python bench/gpu_distributed.py [--ranks=2] [--out=FILE] [--turns=7] [--sharded]

--sharded leaves all_reduce_add_rms_norm out. "on one thread": without autograd's thread for a GPU,
by torch.autograd.set_multithreading_enabled(False).

Each way is timed in turns, by CUDA events on every rank; a turn's time is the slowest rank's.
Written are medians and the spread from the first to the last quarter, in microseconds."""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

import planish
import torch
from planish.distributed import peers
from torch import Tensor

Way = Callable[[], Any]
COLUMNS, EPS = 8192, 1e-6


def _timed(way: Way, repeats: int) -> float:
    """Microseconds a call, the slowest rank's."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    begin.record()
    for _ in range(repeats):
        way()
    end.record()
    torch.cuda.synchronize()
    found = torch.tensor(begin.elapsed_time(end) / repeats * 1000, device="cuda")
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _turns(ways: dict[str, Way], turns: int, repeats: int = 20) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(3):
            way()
    for _ in range(turns):
        for name, way in ways.items():
            times[name].append(_timed(way, repeats))
    return {
        name: {
            "median": round(statistics.median(found), 1),
            "first quarter": round(statistics.quantiles(found, n=4)[0], 1),
            "last quarter": round(statistics.quantiles(found, n=4)[2], 1),
        }
        for name, found in times.items()
    }


def _graph(way: Way) -> Way:
    """The same as a CUDA graph, in which the host costs nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            way()
    torch.cuda.current_stream().wait_stream(side)
    dist.barrier()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = way()

    def replay(kept: Any = kept) -> None:
        graph.replay()

    return replay


def _on_one_thread(way: Way) -> Way:
    def run() -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return way()

    return run


def _messages(turns: int) -> dict[str, Any]:
    """The exchange of an RMSNorm alone, by its rows, as a CUDA graph."""
    from planish.operators import parts

    ways: dict[str, Way] = {}
    for rows in (64, 1024, 4096, 16384, 65536, 1 << 18, 1 << 20):
        sent = torch.rand(1, 1 + rows, device="cuda", dtype=torch.float64)
        ways[str(rows)] = _graph(functools.partial(parts.gather, sent, dist.group.WORLD))
    return _turns(ways, turns)


def _whole(part: Tensor) -> Tensor:
    """All ranks' columns, gathered."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts, -1)


class _Gather(torch.autograd.Function):
    """What is done without a sharded norm: the columns of all ranks; backward, this rank's."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _whole(part)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


def _sharded(rows: int, turns: int) -> dict[str, Any]:
    """A sharded RMSNorm beside gathering its input, and its passes alone."""
    size = COLUMNS // dist.get_world_size()
    make = torch.Generator(device="cuda").manual_seed(3 + dist.get_rank())
    x, dy = (torch.randn(rows, size, device="cuda", generator=make).bfloat16() for _ in range(2))
    weight = torch.rand(size, device="cuda", generator=make).bfloat16()
    whole_weight = _whole(weight[None])[0]
    whole_dy = _whole(dy)

    # Leaves of its own for each call: a graph may not wait for the stream of earlier ones.
    def sharded() -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, weight)]
        y = planish.distributed.rms_norm(*leaves, EPS)
        return y, *torch.autograd.grad(y, leaves, dy)

    def gathered() -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, whole_weight)]
        y = planish.rms_norm(_Gather.apply(leaves[0]), -1, leaves[1], eps=EPS)
        return y, *torch.autograd.grad(y, leaves, whole_dy)

    from planish.operators import call

    ops, axes = torch.ops.planish, call.pack_axes([1], [1])
    options, of_dx = (call.pack_options(rms=True, wanted=bits) for bits in (4, 1))
    _, m2 = ops.norm_part_statistics(x, axes, options)
    rstd = (m2 / size + EPS).rsqrt()
    passes: dict[str, Way] = {
        "statistics": lambda: ops.norm_part_message(x, axes, options, 2),
        "apply": lambda: ops.norm_apply(x, rstd, None, None, weight, None, axes, options, EPS),
        "backward statistics": lambda: ops.norm_backward_statistics(
            dy, x, rstd, None, weight, axes, options, 2, EPS
        ),
        "backward apply": lambda: ops.norm_backward_apply(
            dy, x, rstd, None, None, rstd, None, None, weight, None, axes, of_dx, EPS
        ),
        "local norm": lambda: planish.rms_norm(x, -1, weight, eps=EPS),
    }
    y, dx, dweight = sharded()
    wanted = gathered()
    parts = [t.chunk(dist.get_world_size(), -1)[dist.get_rank()] for t in (wanted[0], wanted[2])]
    errors = [
        float((one.float() - other.float()).abs().max() / other.float().abs().max())
        for one, other in ((y, parts[0]), (dx, wanted[1]), (dweight, parts[1]))
    ]
    ways: dict[str, Way] = {"sharded": sharded, "gathered": gathered}
    graphs = {f"{name}, as a CUDA graph": _graph(way) for name, way in ways.items()}
    ways |= {f"{name}, on one thread": _on_one_thread(way) for name, way in ways.items()}
    return {
        "errors of y, dx, dweight": errors,
        "microseconds": _turns({**ways, **graphs, **passes}, turns),
    }


class _AllReduce(torch.autograd.Function):
    """Of summands; backward, every rank has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d


class _Shares(torch.autograd.Function):
    """What column-parallel layers take: backward, each rank has a share of the gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        total = d.clone()
        dist.all_reduce(total)
        return total


def _by_collectives(way: Way) -> Way:
    """The same without copies from GPU to GPU."""

    def run() -> Any:
        least, peers.LEAST_BYTES = peers.LEAST_BYTES, peers.MOST_BYTES
        try:
            return way()
        finally:
            peers.LEAST_BYTES = least

    return run


def _reduced(rows: int, turns: int) -> dict[str, Any]:
    """all_reduce_add_rms_norm beside an all-reduce and a norm of all rows."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    make = torch.Generator(device="cuda").manual_seed(3 + rank)
    x, dy = (torch.randn(rows, COLUMNS, device="cuda", generator=make).bfloat16() for _ in range(2))
    whole = torch.randn(rows, COLUMNS, device="cuda", generator=make).bfloat16()
    dist.broadcast(whole, 0)
    own = whole.chunk(ranks)[rank].contiguous()
    weight = torch.ones(COLUMNS, device="cuda").bfloat16()
    both = planish.distributed.all_reduce_add_rms_norm

    def apart() -> tuple[Tensor, Tensor]:
        total = x.clone()
        dist.all_reduce(total)
        return planish.add_rms_norm(total, whole, weight, EPS)

    def copied() -> Tensor:  # what apart() spends on keeping x
        return x.clone()

    def together() -> tuple[Tensor, Tensor]:
        return both(x, own, weight, EPS)

    def trained_apart() -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, whole, weight)]
        total = _AllReduce.apply(leaves[0])
        y, total = planish.add_rms_norm(total, *leaves[1:], EPS)
        return torch.autograd.grad((_Shares.apply(y), total), leaves, (dy, whole))

    def trained() -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, own, weight)]
        return torch.autograd.grad(both(*leaves, EPS), leaves, (dy, own))

    error = float((together()[0].float() - apart()[0].float()).abs().max())
    forward: dict[str, Way] = {
        "together": together,
        "together, by collectives": _by_collectives(together),
        "apart": apart,
    }
    graphs = {f"{name}, as a CUDA graph": _graph(way) for name, way in forward.items()}
    with torch.enable_grad():
        backward: dict[str, Way] = {
            "together, forward and backward": trained,
            "together, by collectives, forward and backward": _by_collectives(trained),
            "apart, forward and backward": trained_apart,
        }
        errors = [
            float((one.float() - other.float()).abs().max())
            for one, other in zip(trained()[::2], trained_apart()[::2], strict=True)
        ]
        times = _turns({**forward, **graphs, "copy of x": copied, **backward}, turns)
    return {
        "largest difference of y": error,
        "largest differences of dx, dweight": errors,
        "microseconds": times,
    }


def _rank(rank: int, ranks: int, turns: int, out: str | None, alone: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    sharded: dict[str, Any] = {}
    summed: dict[str, Any] = {}
    found = {
        "gpu": torch.cuda.get_device_name(),
        "ranks": ranks,
        "torch": torch.__version__,
        "columns": COLUMNS,
        "an exchange alone, by rows": _messages(turns),
        "rms_norm, by rows": sharded,
        "all_reduce_add_rms_norm, by rows": summed,
    }
    for into, rows, measure in (
        (sharded, 16384, _sharded),
        (sharded, 4096, _sharded),
        (summed, 16384, _reduced),
        (summed, 4096, _reduced),
        (summed, 1024, _reduced),
        (summed, 64, _reduced),
    ):
        if alone and measure is not _sharded:
            continue
        with torch.set_grad_enabled(measure is _sharded):
            into[str(rows)] = measure(rows, turns)
        if rank == 0 and out:  # what is there so far
            with open(out, "w") as file:
                file.write(json.dumps(found, indent=1) + "\n")
    if rank == 0:
        print(json.dumps(found, indent=1))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out")
    parser.add_argument("--sharded", action="store_true")
    given = parser.parse_args()
    if torch.cuda.device_count() < given.ranks:
        raise SystemExit(f"{given.ranks} GPUs are wanted, {torch.cuda.device_count()} are there")
    mp.spawn(_rank, (given.ranks, given.turns, given.out, given.sharded), given.ranks)


if __name__ == "__main__":
    main()
