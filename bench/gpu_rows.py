"""Times the GPU row kernels beside a copy, an add and torch, on one GPU.

Every figure is the median over trials of a CUDA graph that runs the kernel over a rotation of
buffer sets several times the size of the L2, divided by the number of runs. The ceilings (a plain
copy for the forward, an add of two inputs for the backward, of the same bytes) come first, then
all providers in turn. Writes CSV with --csv. Variants: --variants times other geometries of ours
as well.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import ctypes
import functools
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "cuda"))

from device_buffers import TORCH
from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, ROLES, Plan, ShimError, lib
from row_cases import types_of

import torch

ROTATE_BYTES = 400 << 20
OTHER_BYTES = 256 << 20
Run = Callable[[int], object]


@functools.cache
def other_data() -> torch.Tensor:
    """More than an L2 holds. Read before each trial, for some kernels are slower after others' data
    and stay so (docs/notebook/024)."""
    return torch.zeros(OTHER_BYTES // 4, device="cuda")


def graph_us(run: Run, sets: int, trials: int = 7) -> float:
    """Median microseconds of one run; run(i) works on buffer set i."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(sets, 3)):
            run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    count = max(sets, 24 // sets * sets)
    with torch.cuda.graph(graph, stream=stream):
        for i in range(count):
            run(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    replays = max(2, min(50, int(15.0 / max(start.elapsed_time(end), 1e-3))))
    times = []
    for _ in range(trials):
        other_data().sum()
        graph.replay()
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (replays * count))
    return statistics.median(times)


def ceiling_us(
    x: list[torch.Tensor], z: list[torch.Tensor], y: list[torch.Tensor], trials: int = 7
) -> float:
    """The best of a few shapes of a plain copy of x to y, or with z of an add of the two."""
    call = lib().shim_ceiling
    call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] + [ctypes.c_int] * 3
    call.argtypes += [ctypes.c_void_p]
    size = x[0].nbytes // 16 * 16

    def us(threads: int, unroll: int, hint: int) -> float:
        def run(i: int) -> None:
            other = z[i].data_ptr() if z else None
            stream = torch.cuda.current_stream().cuda_stream
            at = x[i].data_ptr(), other, y[i].data_ptr()
            failed = call(*at, size, threads, unroll, hint, stream)
            assert not failed, failed

        return graph_us(run, len(x), trials)

    best, hint = min((us(256, 4, hint), hint) for hint in range(3))
    return min(best, *(us(*shape, hint) for shape in ((256, 2), (512, 4), (1024, 1))))


def timed_types(direction: int, kind: int, dtype: str) -> dict[str, str]:
    """The tensors of a work: RMSNorm has no bias, as everywhere."""
    types = types_of(direction, kind, dtype)
    return {r: t for r, t in types.items() if kind == LAYER or r not in ("bias", "dbias")}


class Work:
    """One shape in one direction: buffer sets, and what runs over them."""

    def __init__(self, direction: int, kind: int, rows: int, cols: int, dtype: str) -> None:
        self.direction, self.kind, self.rows, self.cols, self.dtype = (
            direction,
            kind,
            rows,
            cols,
            dtype,
        )
        big = 2 if direction == FORWARD else 3
        self.bytes = big * rows * cols * TORCH[dtype].itemsize
        self.sets = max(1, min(64, -(-ROTATE_BYTES // self.bytes)))
        t = TORCH[dtype]
        new = functools.partial(torch.randn, rows, cols, dtype=t, device="cuda")
        self.x = [new() for _ in range(self.sets)]
        self.y = [torch.empty_like(x) for x in self.x]
        self.dy = [new() for _ in range(self.sets)] if direction == BACKWARD else self.x
        self.weight, self.bias = (torch.randn(cols, dtype=t, device="cuda") for _ in range(2))
        self.mean = torch.zeros(rows, 1, device="cuda")
        self.rstd = torch.ones(rows, 1, device="cuda")
        self.dweight, self.dbias = (torch.empty(cols, dtype=t, device="cuda") for _ in range(2))

    def name(self) -> str:
        return (
            f"{'layer' if self.kind == LAYER else 'rms'} "
            f"{'fwd' if self.direction == FORWARD else 'bwd'} {self.rows}x{self.cols} {self.dtype}"
        )

    def ceiling(self) -> float:
        return ceiling_us(self.x, self.dy if self.direction == BACKWARD else [], self.y)

    def types(self) -> dict[str, str]:
        return timed_types(self.direction, self.kind, self.dtype)

    def pointers(self, i: int) -> dict[str, int]:
        p = {
            "x": self.x[i],
            "weight": self.weight,
            "bias": self.bias,
            "y": self.y[i],
            "mean": self.mean,
            "rstd": self.rstd,
            "dy": self.dy[i],
            "dx": self.y[i],
            "dweight": self.dweight,
            "dbias": self.dbias,
        }
        return {r: t.data_ptr() for r, t in p.items() if r in self.types()}

    def plan(self, arch: int = 0, **constants: int) -> Plan:
        return Plan(
            self.direction, self.kind, self.rows, self.cols, self.types(), arch=arch, **constants
        )

    def ours(self, **constants: int) -> float:
        plan = self.plan(**constants)
        work = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
        arrays = []
        for i in range(self.sets):
            p = self.pointers(i)
            arrays.append((ctypes.c_void_p * len(ROLES))(*(p.get(r) or None for r in ROLES)))

        def run(i: int) -> None:
            plan.run_array(arrays[i], torch.cuda.current_stream().cuda_stream, work.data_ptr())

        return graph_us(run, self.sets)

    def eager(self, i: int) -> object:
        n = [self.cols]
        if self.direction == FORWARD:
            if self.kind == RMS:
                return torch.nn.functional.rms_norm(self.x[i], n, self.weight, 1e-5)
            return torch.nn.functional.layer_norm(self.x[i], n, self.weight, self.bias, 1e-5)
        if self.kind == RMS:
            return torch.ops.aten._fused_rms_norm_backward(
                self.dy[i], self.x[i], n, self.rstd, self.weight, [True, True]
            )
        return torch.ops.aten.native_layer_norm_backward(
            self.dy[i], self.x[i], n, self.mean, self.rstd, self.weight, self.bias, [True] * 3
        )

    def compiled(self) -> float:
        torch._dynamo.reset()
        n, kind = [self.cols], self.kind

        def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if kind == RMS:
                return torch.nn.functional.rms_norm(x, n, w, 1e-5)
            return torch.nn.functional.layer_norm(x, n, w, b, 1e-5)

        f = torch.compile(forward)
        if self.direction == FORWARD:
            f(self.x[0], self.weight, self.bias)
            return graph_us(lambda i: f(self.x[i], self.weight, self.bias), self.sets)
        w, b = (t.detach().requires_grad_() for t in (self.weight, self.bias))
        xs = [x.detach().requires_grad_() for x in self.x]
        needs = [w, b] if kind == LAYER else [w]
        ys = [f(x, w, b) for x in xs]

        def back(i: int) -> object:
            return torch.autograd.grad(ys[i], [xs[i], *needs], self.dy[i], retain_graph=True)

        return graph_us(back, self.sets)


FORWARD_TABLE = [(4096, n, "f16") for n in range(1024, 15873, 512)]
FORWARD_SMALL = [(401408, n, "f16") for n in (24, 40, 64, 96, 128, 200, 256, 368, 512)]
FORWARD_NARROW = [(401408, n, "f16") for n in (8, 12, 16, 20, 24, 32, 33, 40, 48, 50, 56, 63, 64)]
FORWARD_NARROW += [(401408, n, "bf16") for n in (24, 33, 40, 56)]
ODD = (65, 100, 130, 147, 201, 267, 300, 385, 500, 511, 513, 650, 769, 900, 1001)
FORWARD_ODD = [((26 << 20) // n, n, "f16") for n in ODD]
FORWARD_ODD += [(8192, 769, "bf16"), (100352, 267, "bf16")]
FORWARD_LARGE = [
    (2048, 32768, "bf16"),
    (512, 131072, "bf16"),
    (256, 262144, "bf16"),
    (64, 802816, "f32"),
]
FORWARD_OTHER = [(16384, 4096, "bf16"), (8192, 769, "bf16"), (16384, 2880, "f32")]
# Rows of a few thousand tokens: blocks that all run at once.
FORWARD_TOKENS = [
    (rows, n, "f16")
    for rows in (1024, 2048, 4096, 8192)
    for n in (256, 512, 768, 1024, 1536, 2048, 4096)
]
FORWARD_TOKENS += [(16384, 128, "bf16"), (16384, 256, "bf16"), (4096, 768, "bf16")]
FORWARD_TOKENS += [(4096, 256, "f32"), (2048, 1024, "f32")]
FORWARD_TWO_BLOCKS = [(2048, 32768, "bf16"), (2340, 28672, "bf16"), (2520, 26624, "bf16")]
FORWARD_TWO_BLOCKS += [(rows, 32768, "bf16") for rows in (1, 16, 128)]
FORWARD_DECODE = [(1, 4096, "bf16"), (16, 8192, "bf16"), (128, 4096, "bf16")]
BACKWARD_ALL = [(4096, n, "f16") for n in (1024, 3072, 4096, 8192, 15872)]
BACKWARD_ALL += [(401408, n, "f16") for n in (24, 96, 128, 200, 512)]
BACKWARD_ALL += [
    (16384, 4096, "bf16"),
    (100352, 1000, "f16"),
    (2048, 32768, "bf16"),
    (1024, 65536, "bf16"),
    (512, 131072, "bf16"),
    (64, 802816, "f32"),
    (8192, 769, "bf16"),
    (16384, 2880, "f32"),
]
BACKWARD_ODD = [(401408, 33, "f16"), (401408, 50, "f16"), *FORWARD_ODD]
FORWARD_PICK = [(4096, n, "f16") for n in (1024, 1536, 3072, 4096, 6656, 8192, 12288, 15872)]


KEY = [
    (4096, 1024, "f16"),
    (4096, 8192, "f16"),
    (4096, 15872, "f16"),
    (401408, 24, "f16"),
    (401408, 128, "f16"),
    (401408, 512, "f16"),
    (16384, 4096, "bf16"),
    (2048, 32768, "bf16"),
]


def sweep(name: str) -> Iterator[tuple[int, int, int, int, str]]:
    """(direction, kind, rows, cols, dtype) of a named sweep."""
    lists = {
        "table": [(FORWARD, s) for s in FORWARD_TABLE],
        "forward": [
            (FORWARD, s)
            for s in FORWARD_PICK + FORWARD_SMALL + FORWARD_LARGE + FORWARD_OTHER + FORWARD_DECODE
        ],
        "narrow": [(FORWARD, s) for s in FORWARD_NARROW],
        "odd": [(FORWARD, s) for s in FORWARD_ODD],
        "short": [(FORWARD, s) for s in FORWARD_SMALL + FORWARD_TABLE[:4]],
        "tokens": [(FORWARD, s) for s in FORWARD_TOKENS],
        "two-blocks": [(FORWARD, s) for s in FORWARD_TWO_BLOCKS],
        "backward": [(BACKWARD, s) for s in BACKWARD_ALL],
        "backward-odd": [(BACKWARD, s) for s in BACKWARD_ODD],
        "backward-table": [(BACKWARD, s) for s in FORWARD_TABLE],
        "key": [(d, s) for d in (FORWARD, BACKWARD) for s in KEY],
    }
    for direction, (rows, cols, dtype) in lists[name]:
        yield direction, LAYER, rows, cols, dtype


Variants = Callable[[int, int, int, str], list[dict[str, int]]]


def no_variants(direction: int, rows: int, cols: int, dtype: str) -> list[dict[str, int]]:
    """Only the plan's own geometry."""
    return []


def prepare(job: tuple[int, int, int, int, str, dict[str, int]]) -> str:
    """Compiles one geometry to the disk cache; needs no GPU, so many run in parallel."""
    direction, kind, rows, cols, dtype, constants = job
    types = timed_types(direction, kind, dtype)
    try:
        Plan(direction, kind, rows, cols, types, arch=90, **constants).prepare(
            dict.fromkeys(types, 4096)
        )
    except ShimError as e:
        return f"{rows}x{cols} {constants}: {e}"
    return ""


def write_csv(path: str | None, lines: list[list[str]]) -> None:
    """What was timed so far, where a file is wanted."""
    if path:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["work", "provider", "us", "share"])
            writer.writerows(lines)


def main() -> None:
    """Prints one line per shape and provider."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", nargs="+")
    parser.add_argument("--kind", choices=("layer", "rms"), default="layer")
    parser.add_argument("--csv")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument(
        "--variants", help="a Python file that defines variants(direction, rows, cols, dtype)"
    )
    parser.add_argument("--processes", type=int, default=0, help="compile ahead in parallel")
    parser.add_argument("--only", default="", help="shapes whose name has this in it")
    arguments = parser.parse_args()
    variants: Variants = no_variants
    if arguments.variants:
        space: dict[str, object] = {}
        exec(pathlib.Path(arguments.variants).read_text(), space)
        variants = space["variants"]  # type: ignore[assignment]
    if arguments.processes:
        kind = RMS if arguments.kind == "rms" else LAYER
        jobs = [
            (d, kind, r, c, t, v)
            for name in arguments.sweeps
            for d, _, r, c, t in sweep(name)
            for v in [{}, *variants(d, r, c, t)]
        ]
        with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
            for error in filter(None, pool.map(prepare, jobs, chunksize=2)):
                print(f"not prepared: {error[:200]}")
    out = []
    for name in arguments.sweeps:
        for direction, _, rows, cols, dtype in sweep(name):
            kind = RMS if arguments.kind == "rms" else LAYER
            work = Work(direction, kind, rows, cols, dtype)
            if arguments.only not in work.name():
                continue
            ceiling = work.ceiling()
            line = [("ceiling", ceiling)]
            providers: list[tuple[str, Callable[[], float]]] = [("planish", work.ours)]
            for v in variants(direction, rows, cols, dtype):
                label = " ".join(f"{k}={n}" for k, n in v.items())
                providers.append((label, functools.partial(work.ours, **v)))
            if arguments.eager:
                providers.append(("eager", lambda w=work: graph_us(w.eager, w.sets)))
            if arguments.compiled:
                providers.append(("compiled", work.compiled))
            for label, call in providers:
                try:
                    line.append((label, call()))
                except (ShimError, RuntimeError) as e:
                    print(f"{work.name()} {label}: {str(e)[:200]}", flush=True)
            text = " | ".join(f"{label} {us:.2f} us {ceiling / us:.3f}" for label, us in line[1:])
            rate = work.bytes / ceiling * 1e-6
            print(f"{work.name()}: ceiling {ceiling:.2f} us {rate:.2f} TB/s | {text}", flush=True)
            for label, us in line:
                out.append([work.name(), label, f"{us:.3f}", f"{ceiling / us:.4f}"])
            del work
            torch.cuda.empty_cache()
            write_csv(arguments.csv, out)


if __name__ == "__main__":
    main()
