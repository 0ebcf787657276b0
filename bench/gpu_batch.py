"""Times batch norms beside a copy, an add and torch, on one GPU.

As gpu_rows.py: medians of CUDA graphs over a rotation of buffers beyond the L2, ceilings first. A
work is a pass ("fwd" in training, "bwd", or "eval": the forward by given moments), a layout, images
x channels x pixels, a dtype and what is behind the norm. torch's kernels are those of
F.batch_norm: cuDNN's of f16 with f32 weights, its own of bf16; "eager" has what is behind the norm
behind them. "add-relu" is a residual and a ReLU behind the norm; planish's backward has its
mask by y and writes the residual's gradient, and the ceiling is an add both ways.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import functools
import itertools
import math
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "cuda"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from axes_cases import AFFINE, FULL
from c_api import axes, described, norm, structs
from device_buffers import TORCH
from gpu_shim import APPLY, BACKWARD, FORWARD, LAYER, RELU, ROLES, SILU, AnyPlan, ShimError, lib
from torch.nn import functional

import torch
from gpu_rows import ROTATE_BYTES, ceiling_us, graph_us, write_csv

PASSES = {"fwd": FORWARD, "bwd": BACKWARD, "eval": APPLY}
BEHIND = {"": 0, "relu": RELU, "silu": SILU, "add-relu": RELU}
aten = torch.ops.aten
ceilings: dict[tuple[int, bool], float] = {}


class Shape(NamedTuple):
    """What is timed."""

    direction: str
    layout: str
    images: int
    channels: int
    pixels: int
    dtype: str
    behind: str = ""

    def name(self) -> str:
        return (
            f"batch {self.direction} {self.layout} {self.images}x{self.channels}x{self.pixels} "
            f"{self.dtype} {self.behind}".strip()
        )

    def types(self) -> dict[str, str]:
        """bf16 with weights of its own, all else with f32 ones."""
        weights = "bf16" if self.dtype == "bf16" else "f32"
        back = self.direction == "bwd"
        out = ["dy", "dx"] if back else ["y"]
        affine = ["weight", "dweight", "dbias"] + ["bias"] * bool(self.behind)
        types = dict.fromkeys(["x", *out], self.dtype)
        types |= dict.fromkeys(affine if back else ["weight", "bias"], weights)
        return types | dict.fromkeys(("mean", "rstd"), "f64" if self.behind and back else "f32")

    def plan(self, arch: int = 0, **constants: int) -> AnyPlan:
        n, c, hw = self.images, self.channels, self.pixels
        full = [c * hw, 1, c] if self.layout == "nhwc" else [c * hw, hw, 1]
        strides = dict.fromkeys(FULL, full)
        strides |= {r: [0, 1, 0] for r in (*AFFINE, "mean", "rstd")}
        return AnyPlan(
            PASSES[self.direction],
            LAYER,
            [n, c, hw],
            5,
            2,
            self.types(),
            strides,
            activation=BEHIND[self.behind],
            arch=arch,
            **constants,
        )


class Work:
    """Buffer sets of a shape, and what runs over them."""

    def __init__(self, shape: Shape) -> None:
        self.shape = s = shape
        count = s.images * s.channels * s.pixels
        back = s.direction == "bwd"
        two = back or s.behind == "add-relu"
        self.bytes = (3 if two else 2) * count * TORCH[s.dtype].itemsize
        self.sets = max(1, min(64, -(-ROTATE_BYTES // self.bytes)))
        self.x = [self.new() for _ in range(self.sets)]
        self.dy = [self.new() for _ in range(self.sets)] if two else []
        self.y = [torch.empty_like(x) for x in self.x]
        weights = TORCH[s.types()["weight"]]
        self.weight, self.bias = (
            torch.rand(s.channels, dtype=weights, device="cuda") for _ in range(2)
        )
        self.dweight, self.dbias = (torch.empty_like(self.weight) for _ in range(2))
        x = self.x[0].double()
        statistics = TORCH[s.types()["mean"]]
        self.mean = x.mean((0, 2, 3)).to(statistics)
        self.rstd = (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt().to(statistics)
        self.running = [
            torch.zeros(s.channels, device="cuda"),
            torch.ones(s.channels, device="cuda"),
        ]

    def new(self) -> torch.Tensor:
        s = self.shape
        side = math.isqrt(s.pixels)
        sizes = (side, side) if side**2 == s.pixels else (1, s.pixels)
        t = torch.randn(s.images, s.channels, *sizes, dtype=TORCH[s.dtype], device="cuda")
        return t.to(memory_format=torch.channels_last) if s.layout == "nhwc" else t

    def ceiling(self) -> float:
        """That of as many bytes, however they lie."""
        key = self.bytes, bool(self.dy)
        if key not in ceilings:
            ceilings[key] = ceiling_us(self.x, self.dy, self.y, 5)
        return ceilings[key]

    def added(self) -> float:
        """planish's time with an addend, which the plans of gpu_shim do not have."""
        s, call = self.shape, lib()
        structs.name_fields(call)
        back = s.direction == "bwd"
        op = norm(kind=LAYER, reduce_axes=axes((0, 2, 3)), affine_axes=2, eps=1e-5, activation=RELU)
        masks = [torch.relu(x) for x in self.x] if back else []
        gradient = torch.empty_like(self.x[0])
        arrays, plan = [], ctypes.c_void_p()
        names = [name for name, _ in structs.Tensors._fields_[1:]]
        for i in range(self.sets):
            t = {"x": self.x[i], "weight": self.weight, "mean": self.mean, "rstd": self.rstd}
            if back:
                t |= {"dy": self.dy[i], "y": masks[i], "dx": self.y[i], "daddend": gradient}
                t |= {"dweight": self.dweight, "dbias": self.dbias}
            else:
                t |= {"bias": self.bias, "addend": self.dy[i], "y": self.y[i]}
            if i == 0:
                given, kept = described(t)
                text = ctypes.create_string_buffer(600)
                status = call.shim_make(
                    *(ctypes.byref(plan), ctypes.byref(op), PASSES[s.direction]),
                    *(ctypes.byref(given), 0, text, len(text)),
                )
                del kept
                if status:
                    raise ShimError(status, text.value.decode())
            addresses = (t[n].data_ptr() if n in t else None for n in names)
            arrays.append((ctypes.c_void_p * len(names))(*addresses))
        size = call.shim_workspace(plan)
        work = torch.empty(size + 256, dtype=torch.uint8, device="cuda")

        def run(i: int) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            status = call.shim_run(plan, arrays[i], stream, work.data_ptr(), None, 0)
            assert not status, status

        us = graph_us(run, self.sets, 5)
        call.shim_free(plan)
        return us

    def ours(self, **constants: int) -> float:
        if self.shape.behind == "add-relu":
            return self.added()
        plan = self.shape.plan(**constants)
        work = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
        types = self.shape.types()
        arrays = []
        for i in range(self.sets):
            p = {"x": self.x[i], "weight": self.weight, "bias": self.bias, "y": self.y[i]}
            p |= {"mean": self.mean, "rstd": self.rstd, "dx": self.y[i]}
            p |= {"dweight": self.dweight, "dbias": self.dbias}
            if self.dy:
                p["dy"] = self.dy[i]
            addresses = (p[r].data_ptr() if r in types else None for r in ROLES)
            arrays.append((ctypes.c_void_p * len(ROLES))(*addresses))

        def run(i: int) -> None:
            plan.run_array(arrays[i], torch.cuda.current_stream().cuda_stream, work.data_ptr())

        return graph_us(run, self.sets, 5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        training = self.shape.direction != "eval"
        y = functional.batch_norm(x, *self.running, self.weight, self.bias, training, 0.1, 1e-5)
        if residual is not None:
            y = y + residual
        if self.shape.behind == "silu":
            return functional.silu(y)
        return functional.relu(y) if self.shape.behind else y

    def given(self, i: int) -> tuple[torch.Tensor, ...]:
        """What the forward takes of set i."""
        return (self.x[i], self.dy[i]) if self.shape.behind == "add-relu" else (self.x[i],)

    def eager_us(self) -> float:
        s, w, b = self.shape, self.weight, self.bias
        if s.direction != "bwd":
            with torch.no_grad():
                return graph_us(lambda i: self.forward(*self.given(i)), self.sets, 3)
        by_cudnn = s.dtype != "bf16"
        if by_cudnn:
            made = [aten.cudnn_batch_norm(x, w, b, *self.running, True, 0.1, 1e-5) for x in self.x]
        else:
            made = [aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5) for x in self.x]

        def back(i: int) -> object:
            x, m = self.x[i], made[i]
            dy = self.dy[i]
            if s.behind.endswith("relu"):
                dy = aten.threshold_backward(dy, m[0], 0)
            elif s.behind == "silu":
                dy = aten.silu_backward(dy, m[0])
            if by_cudnn:
                return aten.cudnn_batch_norm_backward(
                    x, dy, w, *self.running, m[1], m[2], 1e-5, m[3]
                )
            return aten.native_batch_norm_backward(
                dy, x, w, None, None, m[1], m[2], True, 1e-5, [True] * 3
            )

        return graph_us(back, self.sets, 3)

    def compiled_us(self) -> float:
        torch._dynamo.reset()
        f = torch.compile(self.forward)
        if self.shape.direction != "bwd":
            with torch.no_grad():
                f(*self.given(0))
                return graph_us(lambda i: f(*self.given(i)), self.sets, 3)
        xs = [x.detach().requires_grad_() for x in self.x]
        self.weight.requires_grad_(), self.bias.requires_grad_()
        ys = [f(x, *self.given(i)[1:]) for i, x in enumerate(xs)]
        ends = [self.weight, self.bias]

        def back(i: int) -> object:
            return torch.autograd.grad(ys[i], [xs[i], *ends], self.dy[i], retain_graph=True)

        return graph_us(back, self.sets, 3)


SIZES = [(64, 64, 12544), (64, 256, 3136), (64, 512, 784), (64, 1024, 196), (64, 2048, 49)]
SIZES += [(64, 128, 784), (8, 96, 4096), (64, 512, 49), (32, 512, 49), (64, 512, 9)]


def shapes_of(arguments: argparse.Namespace) -> list[Shape]:
    """The table's: every size in every way that was asked for."""
    ways = itertools.product(
        arguments.passes.split(","),
        arguments.layouts.split(","),
        arguments.dtype.split(","),
        ["" if b == "none" else b for b in arguments.behind.split(",")],
    )
    found = [Shape(p, lay, *size, t, b) for p, lay, t, b in ways for size in SIZES]
    return [s for s in found if arguments.only in s.name()]


def prepare(job: tuple[Shape, dict[str, int]]) -> str:
    """Compiles one geometry to the disk cache; needs no GPU, so many run in parallel."""
    shape, constants = job
    if shape.behind == "add-relu":
        return ""  # compiled as it is timed
    try:
        shape.plan(90, **constants).prepare(dict.fromkeys(shape.types(), 4096))
    except ShimError as e:
        return f"{shape.name()} {constants}: {e}"
    return ""


def no_variants(shape: Shape) -> list[dict[str, int]]:
    """Only the plan's own geometry."""
    return []


def main() -> None:
    """Prints one line per shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", default="fwd,bwd,eval", help="with commas between them")
    parser.add_argument("--layouts", default="nhwc,nchw")
    parser.add_argument("--dtype", default="f16,bf16")
    parser.add_argument("--behind", default="none,relu,add-relu", help="none, relu, silu, add-relu")
    parser.add_argument("--csv")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--variants", help="a Python file that defines variants(shape)")
    parser.add_argument("--processes", type=int, default=0, help="compile ahead in parallel")
    parser.add_argument("--only", default="", help="shapes whose name has this in it")
    arguments = parser.parse_args()
    variants = no_variants
    if arguments.variants:
        space: dict[str, Callable[[Shape], list[dict[str, int]]]] = {}
        exec(pathlib.Path(arguments.variants).read_text(), space)
        variants = space["variants"]
    shapes = shapes_of(arguments)
    if arguments.processes:
        jobs = [(s, v) for s in shapes for v in [{}, *variants(s)]]
        with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
            for error in filter(None, pool.map(prepare, jobs, chunksize=2)):
                print(f"not prepared: {error[:300]}")
    out = []
    for shape in shapes:
        work = Work(shape)
        ceiling = work.ceiling()
        providers: list[tuple[str, Callable[[], float]]] = [("planish", work.ours)]
        for v in variants(shape):
            label = " ".join(f"{k}={n}" for k, n in v.items())
            providers.append((label, functools.partial(work.ours, **v)))
        if arguments.eager:
            providers.append(("eager", work.eager_us))
        if arguments.compiled:
            providers.append(("compiled", work.compiled_us))
        line = [("ceiling", ceiling)]
        for label, call in providers:
            try:
                line.append((label, call()))
            except (ShimError, RuntimeError) as e:
                print(f"{shape.name()} {label}: {str(e)[:200]}", flush=True)
        text = " | ".join(f"{label} {us:.2f} {ceiling / us:.3f}" for label, us in line[1:])
        print(f"{shape.name()}: ceiling {ceiling:.2f} us | {text}", flush=True)
        out += [[shape.name(), label, f"{us:.3f}", f"{ceiling / us:.4f}"] for label, us in line]
        del work
        torch.cuda.empty_cache()
        write_csv(arguments.csv, out)


if __name__ == "__main__":
    main()
