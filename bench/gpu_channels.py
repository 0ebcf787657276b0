"""Times norms over channels and over groups beside a copy, an add and torch, on one GPU.

As gpu_rows.py: medians of CUDA graphs over a rotation of buffers beyond the L2, ceilings first.
A work is (what, layouts, images, channels, groups, pixels, dtype): what is "channels" or "groups",
layouts "nchw", "nhwc", or for channels "view" (x NCHW, y NHWC: F.layer_norm of a permuted view).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import functools
import math
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "cuda"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from axes_cases import AFFINE, FULL
from device_buffers import TORCH
from gpu_shim import BACKWARD, FORWARD, LAYER, ROLES, SILU, AnyPlan, ShimError
from torch.nn import functional

import torch
from gpu_rows import ROTATE_BYTES, ceiling_us, graph_us, write_csv


class Shape(NamedTuple):
    """What is timed."""

    direction: int
    what: str
    layout: str
    images: int
    channels: int
    groups: int
    pixels: int
    dtype: str
    silu: bool = False  # behind groups

    def name(self) -> str:
        word = "fwd" if self.direction == FORWARD else "bwd"
        groups = f"/{self.groups}" if self.what == "groups" else ""
        silu = " silu" if self.silu else ""
        return (
            f"{self.what} {word} {self.layout} "
            f"{self.images}x{self.channels}{groups}x{self.pixels} {self.dtype}{silu}"
        )

    def types(self) -> dict[str, str]:
        out = ["y", "bias"] if self.direction == FORWARD else ["dy", "dx", "dweight", "dbias"]
        types = dict.fromkeys(["x", "weight", *out] + ["bias"] * self.silu, self.dtype)
        return types | dict.fromkeys(("mean", "rstd"), "f64" if self.silu else "f32")

    def plan(self, arch: int = 0, **constants: int) -> AnyPlan:
        n, c, hw, g = self.images, self.channels, self.pixels, self.groups
        d = c // g
        if self.what == "channels":
            last = {"nchw": (), "view": ("y",), "nhwc": FULL}[self.layout]
            strides = {r: [c * hw, 1, c] if r in last else [c * hw, hw, 1] for r in FULL}
            strides |= {r: [0, 1, 0] for r in AFFINE}
            strides |= {r: [hw, 0, 1] for r in ("mean", "rstd")}
            shape, reduce, affine = [n, c, hw], 2, 2
        else:
            full = [c * hw, d, 1, c] if self.layout == "nhwc" else [c * hw, d * hw, hw, 1]
            strides = dict.fromkeys(FULL, full)
            strides |= {r: [0, d, 1, 0] for r in AFFINE}
            strides |= {r: [g, 1, 0, 0] for r in ("mean", "rstd")}
            shape, reduce, affine = [n, g, d, hw], 12, 6
        return AnyPlan(
            self.direction,
            LAYER,
            shape,
            reduce,
            affine,
            self.types(),
            strides,
            activation=SILU if self.silu else 0,
            arch=arch,
            **constants,
        )


class Work:
    """Buffer sets of a shape, and what runs over them."""

    def __init__(self, shape: Shape) -> None:
        self.shape = s = shape
        count = s.images * s.channels * s.pixels
        self.bytes = (2 if s.direction == FORWARD else 3) * count * TORCH[s.dtype].itemsize
        self.sets = max(1, min(64, -(-ROTATE_BYTES // self.bytes)))
        self.side = math.isqrt(s.pixels)
        t = TORCH[s.dtype]
        self.x, self.dy = [], []
        for _ in range(self.sets):
            self.x.append(self.new(t))
            if s.direction == BACKWARD:
                self.dy.append(self.new(t))
        self.y = [torch.empty_like(x) for x in self.x]
        self.weight, self.bias = (torch.randn(s.channels, dtype=t, device="cuda") for _ in range(2))
        rows = s.images * (s.pixels if s.what == "channels" else s.groups)
        statistics = TORCH[s.types()["mean"]]
        self.mean = torch.zeros(rows, dtype=statistics, device="cuda")
        self.rstd = torch.ones(rows, dtype=statistics, device="cuda")
        self.dweight, self.dbias = (torch.empty_like(self.weight) for _ in range(2))

    def new(self, dtype: torch.dtype) -> torch.Tensor:
        s = self.shape
        width = self.side if self.side**2 == s.pixels else s.pixels
        t = torch.randn(s.images, s.channels, s.pixels // width, width, dtype=dtype, device="cuda")
        return t.to(memory_format=torch.channels_last) if s.layout == "nhwc" else t

    def ceiling(self) -> float:
        return ceiling_us(self.x, self.dy, self.y, 5)

    def ours(self, **constants: int) -> float:
        plan = self.shape.plan(**constants)
        work = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
        arrays = []
        for i in range(self.sets):
            p = {"x": self.x[i], "weight": self.weight, "bias": self.bias, "y": self.y[i]}
            p |= {"mean": self.mean, "rstd": self.rstd, "dx": self.y[i]}
            p |= {"dweight": self.dweight, "dbias": self.dbias}
            if self.dy:
                p["dy"] = self.dy[i]
            types = self.shape.types()
            arrays.append(
                (ctypes.c_void_p * len(ROLES))(
                    *(p[r].data_ptr() if r in types else None for r in ROLES)
                )
            )

        def run(i: int) -> None:
            plan.run_array(arrays[i], torch.cuda.current_stream().cuda_stream, work.data_ptr())

        return graph_us(run, self.sets, 5)

    def forward(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        s = self.shape
        if s.what == "groups":
            y = functional.group_norm(x, s.groups, w, b)
            return functional.silu(y) if s.silu else y
        y = functional.layer_norm(x.permute(0, 2, 3, 1), [s.channels], w, b)
        return y if s.layout == "view" else y.permute(0, 3, 1, 2)

    def torch_us(self, compiled: bool) -> float:
        f = self.forward
        if compiled:
            torch._dynamo.reset()
            f = torch.compile(f)
        if self.shape.direction == FORWARD:
            with torch.no_grad():
                f(self.x[0], self.weight, self.bias)
                return graph_us(lambda i: f(self.x[i], self.weight, self.bias), self.sets, 3)
        if compiled:
            raise RuntimeError("only the forward is timed compiled")
        return graph_us(self.backward, self.sets, 3)

    def backward(self, i: int) -> object:
        """torch's own kernels, without the graph of autograd."""
        s, x, dy = self.shape, self.x[i], self.dy[i]
        if s.what == "groups":
            sizes = (s.images, s.channels, s.pixels, s.groups)
            mean, rstd = (t.view(s.images, s.groups).to(x.dtype) for t in (self.mean, self.rstd))
            if s.silu:
                dy = torch.ops.aten.silu_backward(dy, self.y[i])
            return torch.ops.aten.native_group_norm_backward(
                dy, x, mean, rstd, self.weight, *sizes, [True] * 3
            )
        rows = x.permute(0, 2, 3, 1)
        mean, rstd = (t.view(*rows.shape[:3], 1) for t in (self.mean, self.rstd))
        return torch.ops.aten.native_layer_norm_backward(
            dy.permute(0, 2, 3, 1),
            rows,
            [s.channels],
            mean,
            rstd,
            self.weight,
            self.bias,
            [True] * 3,
        )


CHANNELS = [(64, 128, 3136), (64, 96, 3136), (64, 256, 784), (8, 320, 4096)]
CHANNELS += [(64, 512, 196), (64, 1024, 49), (32, 1200, 196)]
GROUPS = [(64, 256, 3136), (64, 64, 12544), (8, 320, 4096), (2, 1280, 1024)]
# Channels last: small images, and groups of few channels.
SMALL = [(256, 32, 49), (512, 512, 49), (256, 32, 196), (256, 256, 196), (100, 20, 196)]
SMALL += [(256, 32, 784), (256, 256, 784), (96, 32, 784), (96, 96, 3136)]
SMALL += [(64, 32, 3136), (2048, 32, 49), (128, 1, 196)]
# Few large images, and volumes of one group a channel.
LARGE = [(1, 128, 32, 262144), (1, 256, 32, 65536), (2, 320, 32, 16384), (4, 512, 8, 9216)]
LARGE += [(4, 32, 32, 262144), (1, 512, 32, 16384), (1, 512, 32, 65536), (1, 256, 32, 262144)]
SWEEP_PIXELS = (49, 64, 100, 196, 225, 400, 784, 1024, 3025, 3136)
# Channels and groups of odd and of few pixels.
PIXELS_GROUPS = [(256, 32, 49), (1024, 32, 49), (256, 32, 225), (1000, 8, 225), (320, 32, 3025)]
PIXELS_GROUPS += [(512, 32, 196), (256, 256, 49), (256, 256, 196), (256, 256, 784), (64, 64, 3025)]
PIXELS_CHANNELS = [(256, 49), (256, 225), (256, 3025), (96, 3025)]
# Channels in lines of several that one block has all of (backward).
LINES = [(c, 49) for c in (64, 128, 192, 256, 384, 512)]
LINES += [(256, 25), (512, 25), (128, 81), (256, 81), (512, 9), (64, 121), (128, 98), (256, 50)]
LINES += [(64, 225), (32, 225)]
SWEEP_CHANNELS = (24, 33, 96, 100, 257, 512, 1000, 2048, 4096)


def shapes_of(name: str, dtype: str) -> list[Shape]:
    """The shapes of a named list."""
    out = []
    for direction in (FORWARD, BACKWARD):
        if name == "channels":
            layouts = ("nchw", "view") if direction == FORWARD else ("nchw",)
            out += [
                Shape(direction, name, layout, n, c, 1, hw, dtype)
                for layout in layouts
                for n, c, hw in CHANNELS
            ]
        elif name == "last":
            out += [
                Shape(direction, "channels", "nhwc", n, c, 1, hw, dtype) for n, c, hw in CHANNELS
            ]
        elif name in ("groups", "silu"):
            out += [
                Shape(direction, "groups", layout, n, c, 32, hw, dtype, name == "silu")
                for layout in ("nchw", "nhwc")
                for n, c, hw in GROUPS
            ]
        elif name == "large":
            out += [
                Shape(direction, "groups", layout, n, c, g, hw, dtype, silu)
                for layout in ("nchw", "nhwc")
                for n, c, g, hw in LARGE
                for silu in (False, True)
            ]
        elif name == "small":
            out += [
                Shape(direction, "groups", "nhwc", (25 << 20) // (c * hw), c, g, hw, dtype)
                for c, g, hw in SMALL
            ]
        elif name == "pixels":
            works = [("groups", *work) for work in PIXELS_GROUPS]
            works += [("channels", c, 1, hw) for c, hw in PIXELS_CHANNELS]
            out += [
                Shape(direction, what, "nchw", max(1, (25 << 20) // (c * hw)), c, g, hw, dtype)
                for what, c, g, hw in works
            ]
        elif name == "lines" and direction == BACKWARD:
            out += [
                Shape(direction, "channels", "nchw", (25 << 20) // (c * hw), c, 1, hw, dtype)
                for c, hw in LINES
            ]
        elif name == "sweep":
            pairs = [(256, hw) for hw in SWEEP_PIXELS] + [(c, 196) for c in SWEEP_CHANNELS]
            pairs += [(c, 784) for c in SWEEP_CHANNELS]
            pairs += [(512, 3136), (1024, 256), (1024, 1024)]
            out += [
                Shape(
                    direction, "channels", "nchw", max(1, (25 << 20) // (c * hw)), c, 1, hw, dtype
                )
                for c, hw in pairs
            ]
            out += [
                Shape(direction, "groups", layout, max(1, (25 << 20) // (c * hw)), c, g, hw, dtype)
                for layout in ("nchw", "nhwc")
                for c, g, hw in (
                    (256, 32, 49), (256, 256, 196), (256, 1, 784), (320, 32, 3025), (96, 96, 3136),
                    (1000, 8, 225), (64, 64, 65536),
                )
            ]  # fmt: skip
    return out


def no_variants(shape: Shape) -> list[dict[str, int]]:
    """Only the plan's own geometry."""
    return []


def prepare(job: tuple[Shape, dict[str, int]]) -> str:
    """Compiles one geometry to the disk cache; needs no GPU, so many run in parallel."""
    shape, constants = job
    try:
        shape.plan(90, **constants).prepare(dict.fromkeys(shape.types(), 4096))
    except ShimError as e:
        return f"{shape.name()} {constants}: {e}"
    return ""


def main() -> None:
    """Prints one line per shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "lists",
        nargs="+",
        choices=(
            "channels",
            "last",
            "groups",
            "silu",
            "large",
            "small",
            "pixels",
            "lines",
            "sweep",
        ),
    )
    parser.add_argument("--dtype", default="f16", help="with commas between them")
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
    shapes = [
        s
        for t in arguments.dtype.split(",")
        for name in arguments.lists
        for s in shapes_of(name, t)
    ]
    shapes = [s for s in shapes if arguments.only in s.name()]
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
            providers.append(("eager", functools.partial(work.torch_us, False)))
        if arguments.compiled:
            providers.append(("compiled", functools.partial(work.torch_us, True)))
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
