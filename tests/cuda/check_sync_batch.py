"""torch's SyncBatchNorm operators on a GPU, with planish enabled and not: values, layouts, times.

    PYTHONPATH=python:tests/torch python tests/cuda/check_sync_batch.py --out times.csv

Every operator is compared with its formula in f64 and with torch's own kernel. nn.SyncBatchNorm's
function then runs by NCCL in a group of one process and, where there are two GPUs, of two, with
batches of unlike sizes and an empty one. Last, the operators are timed in CUDA graphs, with tensors
that the L2 does not keep, and on the host. Prints every failure and ends with their number; --out
names a file for the table of times.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import sync_batch_support as exact
import torch.distributed as dist
import torch.multiprocessing as mp
from sync_batch_support import BACKWARD, ELEMT, EPS, OPERATORS, REDUCE, STATS, laid, normal
from torch.nn.modules import _functions

import planish
import torch
from torch import Tensor

GPU = torch.device("cuda", 0)
SHAPES = [(64, 64, 56, 56), (8, 512, 28, 28), (16, 2048, 7, 7), (2, 3, 33, 5), (33, 36, 7, 7)]
SHAPES += [(16, 24, 1, 1), (300, 128), (5, 41), (12, 40, 50), (2, 24, 4, 9, 8), (1, 2, 300, 300)]
SHAPES += [(4, 2500, 3, 3)]
TIMED = [(64, 256, 56, 56), (64, 64, 112, 112), (64, 2048, 7, 7), (8, 512, 28, 28)]
DTYPES = [torch.bfloat16, torch.float32, torch.float16, torch.float64]
#: Of a result that is rounded once, and of a sum: shares of the largest value.
ROOM = {
    torch.float32: (1e-6, 6e-6),
    torch.bfloat16: (8e-3, 6e-6),
    torch.float16: (1e-3, 6e-6),
    torch.float64: (1e-13, 1e-12),
}
failures: list[str] = []


def fail(text: str) -> None:
    failures.append(text)
    print(f"WRONG {text}", flush=True)


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- The operators -----------------------------------------------------------------------------


def random(sizes: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator(GPU).manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, device=GPU).to(dtype)


def given(shape: tuple[int, ...], dtype: torch.dtype, last: bool, seed: int = 0) -> dict[str, Any]:
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    x, dy = (laid(random(shape, dtype, seed + i), last) for i in range(2))
    w, b, mean, rstd, *sums = (random(shape[1:2], kind, i) for i in range(2, 8))
    count = torch.tensor([[5], [x.numel()]], dtype=torch.int32, device=GPU)
    moments = {"mean": mean / 8, "rstd": rstd.square() + 0.5}
    return {"x": x, "dy": dy, "w": w, "b": b, **moments, "sums": sums, "count": count}


def calls(g: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Each operator's call of what was given."""
    x, dy, w, b, mean, rstd = (g[name] for name in ("x", "dy", "w", "b", "mean", "rstd"))
    return {
        STATS: lambda: torch.batch_norm_stats(x, EPS),
        ELEMT: lambda: torch.batch_norm_elemt(x, w, b, mean, rstd, EPS),
        REDUCE: lambda: torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, True, True, True),
        BACKWARD: lambda: torch.batch_norm_backward_elemt(
            dy, x, mean, rstd, w, *g["sums"], g["count"]
        ),
    }


def wanted(g: dict[str, Any]) -> dict[str, list[Tensor]]:
    x, dy, w, b, mean, rstd = (g[name] for name in ("x", "dy", "w", "b", "mean", "rstd"))
    count = int(g["count"].sum())
    return {
        STATS: exact.statistics(x),
        ELEMT: [exact.elemt(x, w, b, mean, rstd)],
        REDUCE: exact.reduce(dy, x, mean, rstd),
        BACKWARD: [exact.backward(dy, x, mean, rstd, w, *g["sums"], count)],
    }


def listed(made: Any) -> list[Any]:
    return [made] if isinstance(made, Tensor) else list(made)


def error(found: Tensor, right: Tensor, least: float = 0.0) -> float:
    largest = max(float(right.abs().max()), least) or 1.0
    return float((found.double() - right).abs().max()) / largest


def compare(name: str, ours: Any, torchs: Any, right: list[Tensor], dtype: torch.dtype) -> None:
    """Dtypes and strides as torch's; values within the room, or no worse than twice torch's."""
    for i, (mine, theirs) in enumerate(zip(listed(ours), listed(torchs), strict=True)):
        if (mine is None) != (theirs is None):
            fail(f"{name}: result {i} is {mine}, torch's {theirs}")
            continue
        if mine is None:
            continue
        if (mine.dtype, mine.shape, mine.stride()) != (theirs.dtype, theirs.shape, theirs.stride()):
            fail(
                f"{name}: result {i} is {mine.dtype} {[*mine.shape]} {mine.stride()}, torch's "
                f"{theirs.dtype} {[*theirs.shape]} {theirs.stride()}"
            )
        room = ROOM[dtype][mine.dim() == 1]
        least = 1.0 if STATS in name else 0.0  # the deviation of what a mean is of
        found, other = error(mine, right[i], least), error(theirs, right[i], least)
        if not found <= max(room, 2 * other):
            fail(f"{name}: result {i} is {found:.2g} off, torch's {other:.2g}")


def served(before: dict[str, Any], operator: str) -> int:
    return int(planish.stats()[operator]["planish"] - before[operator]["planish"])


def check_operators() -> None:
    left: dict[str, set[str]] = {}
    for shape, dtype, last in itertools.product(SHAPES, DTYPES, (False, True)):
        if last and len(shape) < 4:
            continue
        g = given(shape, dtype, last)
        right = wanted(g)
        torchs = {name: call() for name, call in calls(g).items()}
        for name in OPERATORS:
            before = planish.stats()
            with planish.enabled():
                ours = calls(g)[name]()
            case = f"{name} {shape} {word(dtype)} {'last' * last}"
            if not served(before, name):
                reasons = planish.stats()[name]["torch"]
                new = [r for r, n in reasons.items() if n > before[name]["torch"].get(r, 0)]
                left.setdefault(f"{name} {word(dtype)}: {', '.join(new)}", set()).add(str(shape))
            compare(case, ours, torchs[name], right[name], dtype)
    for why, shapes in left.items():
        print(f"left to torch: {why}: {' '.join(sorted(shapes))}")


def check_variants() -> None:
    """Parameters of 16 bits, none, .out, masks, another layout of dy, an empty x."""
    g = given((8, 64, 14, 14), torch.bfloat16, True)
    x, dy, mean, rstd = (g[name] for name in ("x", "dy", "mean", "rstd"))
    w, b = g["w"].bfloat16(), g["b"].bfloat16()
    first = dy.contiguous()
    variants: dict[str, Callable[[], Any]] = {
        "elemt of bf16 parameters": lambda: torch.batch_norm_elemt(x, w, b, mean, rstd, EPS),
        "elemt without": lambda: torch.batch_norm_elemt(x, None, None, mean, rstd, EPS),
        "elemt.out": lambda: torch.batch_norm_elemt(
            x, w, b, mean, rstd, EPS, out=torch.empty_like(x)
        ),
        "reduce of bf16 parameters": lambda: torch.batch_norm_backward_reduce(
            dy, x, mean, rstd, w, True, True, True
        ),
        "reduce of two layouts": lambda: torch.batch_norm_backward_reduce(
            first, x, mean, rstd, w, True, True, True
        ),
        "backward without": lambda: torch.batch_norm_backward_elemt(
            dy, x, mean, rstd, None, *g["sums"], g["count"]
        ),
        "backward of two layouts": lambda: torch.batch_norm_backward_elemt(
            first, x, mean, rstd, g["w"], *g["sums"], g["count"]
        ),
        "elemt of an odd layout": lambda: torch.batch_norm_elemt(
            x.transpose(2, 3), w, b, mean, rstd, EPS
        ),
        "elemt.out of two layouts": lambda: torch.batch_norm_elemt(
            x, w, b, mean, rstd, EPS, out=torch.empty_like(first)
        ),
        "elemt of nothing": lambda: torch.batch_norm_elemt(x[:0], w, b, mean, rstd, EPS),
    }
    for mask in exact.masks():
        variants[f"reduce {mask}"] = lambda mask=mask: torch.batch_norm_backward_reduce(
            g["dy"].contiguous(), x.contiguous(), mean, rstd, g["w"], *mask
        )
    for name, call in variants.items():
        results = []
        for on in (False, True):
            try:
                with planish.enabled() if on else torch.no_grad():
                    results.append(call())
            except RuntimeError as raised:
                results.append(str(raised).splitlines()[0])
        if isinstance(results[0], str) or isinstance(results[1], str):
            if results[0] != results[1]:
                fail(f"{name}: {results[1]}, torch: {results[0]}")
            continue
        right = [None if t is None else t.double() for t in listed(results[0])]
        if name.startswith("reduce ("):  # torch's own sums of 16 bits are not exact
            right = exact.reduce(g["dy"], x, mean, rstd)
        compare(name, results[1], results[0], right, torch.bfloat16)


# ---- Processes ---------------------------------------------------------------------------------


def step(sizes: list[int], rank: int, dtype: torch.dtype, last: bool) -> list[Tensor]:
    """The loss of a rank, and what follows from it, of SyncBatchNorm's own function."""
    device = torch.device(GPU.type, rank)
    wholes = [normal(sum(sizes), 48, 14, 14, dtype=dtype, seed=i) for i in range(2)]
    x, dy = (laid(whole.split(sizes)[rank].to(device), last) for whole in wholes)
    x = x.detach().requires_grad_()
    params = [torch.linspace(i, 2, 48, device=device).requires_grad_() for i in (0.5, -1)]
    running = [torch.zeros(48, device=device), torch.ones(48, device=device)]
    group = dist.group.WORLD
    y = _functions.SyncBatchNorm.apply(x, *params, *running, EPS, 0.3, group, len(sizes))
    loss = (y.float() * dy.float()).sum()
    loss.backward()
    found = [loss.detach(), y.detach(), x.grad, *(p.grad for p in params), *running]
    return [torch.zeros(0, device=device) if t is None else t for t in found]


def rank_main(rank: int, sizes: list[int], store: str, results: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=len(sizes))
    found = []
    for dtype, last in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        if not all(sizes) and dtype != torch.float32:
            continue  # torch's rank without values sends another dtype than the others do
        torchs = step(sizes, rank, dtype, last)
        before = planish.stats()
        with planish.enabled():
            ours = step(sizes, rank, dtype, last)
        counts = [served(before, name) for name in OPERATORS]
        strides = [a.stride() == b.stride() for a, b in zip(ours, torchs, strict=True)]
        errors = [
            error(a, b.double()) if b.numel() else 0.0 for a, b in zip(ours, torchs, strict=True)
        ]
        found.append((word(dtype), last, errors, strides, counts))
    torch.save(found, f"{results}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


def check_processes() -> None:
    cases = [[6], [5, 3], [4, 0], [0, 4]] if torch.cuda.device_count() > 1 else [[6]]
    for sizes in cases:
        with tempfile.TemporaryDirectory() as folder:
            results = f"{folder}/results"
            mp.spawn(rank_main, (sizes, f"{folder}/store", results), nprocs=len(sizes))
            for rank in range(len(sizes)):
                for dtype, last, errors, strides, counts in torch.load(f"{results}.{rank}"):
                    name = f"batches of {sizes}, rank {rank}, {dtype} {'last' * last}"
                    room = 1e-5 if dtype == "float32" else 1.6e-2
                    print(f"{name}: {max(errors):.2g} from torch's, on planish {counts}")
                    if max(errors) > room or not all(strides):
                        fail(f"{name}: {errors}, strides {strides}")
                    if sizes[rank] and not all(counts):
                        print(f"{name}: some operators are torch's")


# ---- Times -------------------------------------------------------------------------------------


def on_the_gpu(all_calls: list[Callable[[], Any]]) -> float:
    """Microseconds of a call in a CUDA graph of calls of several tensors."""
    repeats = -(-12 // len(all_calls))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in all_calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in all_calls:
                call()
    times = []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / (repeats * len(all_calls)))
    return statistics.median(times)


def on_the_host(name: str) -> float:
    """Microseconds until a call of few values returns."""
    call = calls(given((4, 16, 4, 4), torch.float32, False))[name]
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(20):
            call()
        times.append((time.perf_counter() - start) / 20 * 1e6)
        torch.cuda.synchronize()
    return statistics.median(times)


def measure(out: str) -> None:
    rows: list[list[Any]] = []
    for shape, dtype, last in itertools.product(
        TIMED, (torch.bfloat16, torch.float32), (False, True)
    ):
        # so many that the L2 keeps little of them
        size = dtype.itemsize * torch.Size(shape).numel()
        sets = [given(shape, dtype, last, 9 * i) for i in range(max(2, -(-(300 << 20) // size)))]
        layout = "channels last" if last else "contiguous"
        for name in OPERATORS:
            each = [calls(g)[name] for g in sets]
            torchs = on_the_gpu(each)
            with planish.enabled():
                ours = on_the_gpu(each)
            rows.append([name, "x".join(map(str, shape)), word(dtype), layout, torchs, ours])
        del sets, each
        torch.cuda.empty_cache()
    for name in OPERATORS:
        torchs = on_the_host(name)
        with planish.enabled():
            rows.append([name, "4x16x4x4", "float32", "host", torchs, on_the_host(name)])
    with open(out, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["operator", "shape", "dtype", "layout", "torch_us", "planish_us", "times"])
        for *what, torchs, ours in rows:
            row = [*what, f"{torchs:.1f}", f"{ours:.1f}", f"{torchs / ours:.2f}"]
            table.writerow(row)
            print(" ".join(map(str, row)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="the file for the table of times; none: they are not taken")
    out = parser.parse_args().out
    check_operators()
    check_variants()
    torch.cuda.synchronize()
    check_processes()
    if out:
        measure(out)
    print(f"{len(failures)} wrong")
    return min(len(failures), 99)


if __name__ == "__main__":
    sys.exit(main())
