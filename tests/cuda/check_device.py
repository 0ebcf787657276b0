"""The GPU kernels against double, on a GPU: values, neighbours of the outputs, and reproducibility.

For every case: outputs are poisoned first and lie between guard elements that must not change;
the run is repeated and must give the same bits; a slice of the rows, at another alignment, must
give the bits those rows had. Prints every failure and ends with their number.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence

from gpu_shim import (
    APPLY,
    BACKWARD,
    FORWARD,
    FROM_Y,
    LAYER,
    RELU,
    RMS,
    SILU,
    STATISTICS,
    AnyPlan,
    Plan,
    ShimError,
)
from torch.nn import functional

import torch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
BITS = {"f32": 24, "f16": 11, "bf16": 8, "f64": 53}
LOWEST = {"f32": -149, "f16": -24, "bf16": -133, "f64": -1074}
GUARD = 64
INT = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Strided:
    """A tensor of any order of its axes in memory, inside guards."""

    def __init__(
        self, shape: list[int], order: list[int], dtype: str, step: int, skew: int = 0
    ) -> None:
        strides, length = [0] * len(shape), step
        for axis in reversed(order):
            strides[axis] = length
            length *= shape[axis]
        self._allocate(shape, strides, length, dtype, skew)

    def _allocate(
        self, shape: list[int], strides: list[int], length: int, dtype: str, skew: int
    ) -> None:
        self.start = GUARD + skew
        self.whole = torch.full(
            (self.start + length + GUARD,), math.nan, dtype=TORCH[dtype], device="cuda"
        )
        self.view = self.whole.as_strided(shape, strides, self.start)
        self.pattern = self.bits()[0].item()

    def pointer(self) -> int:
        return self.whole.data_ptr() + self.start * self.whole.element_size()

    def bits(self) -> torch.Tensor:
        return self.whole.view(INT[self.whole.element_size()])

    def outside_untouched(self) -> bool:
        bits = self.bits().clone()
        bits.as_strided(self.view.shape, self.view.stride(), self.start).fill_(self.pattern)
        return bool((bits == self.pattern).all())


class Buffer(Strided):
    """Rows `stride` elements apart inside guards."""

    def __init__(self, rows: int, cols: int, stride: int, dtype: str, skew: int = 0) -> None:
        length = max(rows - 1, 0) * stride + cols
        self._allocate([rows, cols], [stride, 1], length, dtype, skew)


class Placed:
    """A plan with its buffers and workspace: what can be queued again and again."""

    def __init__(self, plan: Plan, buffers: Mapping[str, Strided], outputs: Sequence[str]) -> None:
        self.plan, self.buffers, self.outputs = plan, buffers, outputs
        words = plan.workspace_bytes // 8 + 1
        self.work = torch.full((words,), math.nan, dtype=torch.float64, device="cuda")
        self.pointers = {r: b.pointer() for r, b in buffers.items()}

    def queue(self) -> None:
        """Queues the plan on torch's current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        self.plan.run(self.pointers, stream, self.work.data_ptr())

    def run(self) -> Mapping[str, Strided]:
        """Runs the plan to its end; its buffers, the inputs among them."""
        self.queue()
        torch.cuda.synchronize()
        return self.buffers


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """One unit in the last place of `dtype` at |value|."""
    exponent = torch.frexp(value.abs().double().clamp_min(2.0**-1040))[1] - BITS[dtype]
    return torch.ldexp(
        torch.ones_like(value, dtype=torch.float64), exponent.clamp_min(LOWEST[dtype])
    )


def values(rows: int, cols: int, dtype: str, ratio: float, scale: float, seed: int) -> torch.Tensor:
    g = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(rows, cols, generator=g, device="cuda", dtype=torch.float64)
    return ((x + ratio) * scale).to(TORCH[dtype])


class Case:
    """One problem: its inputs, a run, and what is wrong with its outputs."""

    def __init__(
        self,
        direction: int,
        kind: int,
        rows: int,
        cols: int,
        types: dict[str, str],
        eps: float = 1e-5,
        ratio: float = 0.0,
        scale: float = 1.0,
        pad: int = 0,
        skew: int = 0,
        offset: int = 0,
        constant: bool = False,
        **constants: int,
    ) -> None:
        self.direction, self.kind, self.rows, self.cols = direction, kind, rows, cols
        self.types, self.eps, self.ratio, self.scale = types, eps, ratio, scale
        self.pad, self.skew, self.offset, self.constant = pad, skew, offset, constant
        self.constants = constants

    def name(self) -> str:
        word = "forward" if self.direction == FORWARD else "backward"
        kind = "layer" if self.kind == LAYER else "rms"
        more = "".join(
            f" {k}={v}"
            for k, v in (
                ("eps", self.eps),
                ("ratio", self.ratio),
                ("scale", self.scale),
                ("pad", self.pad),
                ("skew", self.skew),
                ("offset", self.offset),
            )
            if v and (k, v) != ("eps", 1e-5) and (k, v) != ("scale", 1.0)
        )
        more += "".join(f" {k}={v}" for k, v in self.constants.items())
        kinds = " ".join(f"{r}:{t}" for r, t in self.types.items() if t != self.types["x"])
        return f"{kind} {word} {self.rows}x{self.cols} {self.types['x']} {kinds}{more}"

    def plan(self, rows: int, device_limits: int = 0) -> Plan:
        stride = self.cols + self.pad
        strides = dict.fromkeys(("x", "y", "dy", "dx"), stride)
        return Plan(
            self.direction,
            self.kind,
            rows,
            self.cols,
            self.types,
            strides=strides,
            offset=self.offset,
            eps=self.eps,
            arch=device_limits,
            **self.constants,
        )

    def prepare(self) -> str:
        """Compiles to disk what the runs below need; runs in a process without the GPU."""
        try:
            size = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
            for skew in {self.skew, self.skew + 1}:
                full = {r: 4096 + skew * size[t] for r, t in self.types.items()}
                self.plan(self.rows, 90).prepare(full)
        except ShimError as e:
            return str(e)
        return ""

    def inputs(self) -> dict[str, torch.Tensor]:
        d = {"x": values(self.rows, self.cols, self.types["x"], self.ratio, self.scale, 1)}
        if self.constant:
            d["x"][:] = d["x"][:, :1]
        for i, r in enumerate(("dy", "weight", "bias")):
            if r in self.types:
                rows = self.rows if r == "dy" else 1
                d[r] = values(rows, self.cols, self.types[r], 0.2, 1.0, 10 + i)
        if self.direction == BACKWARD:
            x = d["x"].double()
            mean = x.mean(1, keepdim=True) if self.kind == LAYER else torch.zeros_like(x[:, :1])
            rstd = ((x - mean).square().mean(1, keepdim=True) + self.eps).rsqrt()
            d["mean"], d["rstd"] = (
                mean.to(TORCH[self.types.get("mean", "f32")]),
                rstd.to(TORCH[self.types["rstd"]]),
            )
        return {r: t for r, t in d.items() if r in self.types}

    def place(self, d: dict[str, torch.Tensor], rows: slice, skew: int) -> Placed:
        count = len(range(self.rows)[rows])
        buffers: dict[str, Strided] = {}
        for r, t in self.types.items():
            per_row = r in ("mean", "rstd")
            affine = r in ("weight", "bias", "dweight", "dbias")
            n, cols = (count, 1) if per_row else (1, self.cols) if affine else (count, self.cols)
            stride = 1 if per_row else self.cols + self.pad
            buffers[r] = Buffer(n, cols, stride, t, skew)
            if r in d:
                buffers[r].view.copy_(d[r] if affine else d[r][rows])
        return Placed(self.plan(count), buffers, [r for r in buffers if r not in d])

    def whole(self, d: dict[str, torch.Tensor]) -> Placed:
        return self.place(d, slice(None), self.skew)

    def part(self, d: dict[str, torch.Tensor]) -> tuple[Placed, slice] | None:
        """Some of the rows, at another alignment, and which they are; None where there are few."""
        if self.rows <= 4:
            return None
        rows = slice(self.rows // 3, self.rows // 3 + max(2, self.rows // 2))
        return self.place(d, rows, self.skew + 1), rows

    def reference(self, d: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = d["x"].double()
        w = d["weight"].double() + self.offset if "weight" in d else torch.ones_like(x[:1])
        mean = x.mean(1, keepdim=True) if self.kind == LAYER else torch.zeros_like(x[:, :1])
        mean = mean + (x - mean).mean(1, keepdim=True) * (self.kind == LAYER)
        rstd = ((x - mean).square().mean(1, keepdim=True) + self.eps).rsqrt()
        xhat = (x - mean) * rstd
        if self.direction == FORWARD:
            y = xhat * w + (d["bias"].double() if "bias" in d else 0)
            return {
                "y": y,
                "mean": mean,
                "rstd": rstd,
                "y_terms": xhat.abs().clamp_min(1) * w.abs() + (y - xhat * w).abs(),
            }
        xhat = (x - mean) * d["rstd"].double()
        dy = d["dy"].double()
        g = dy * w
        c1 = g.mean(1, keepdim=True) * (self.kind == LAYER)
        c2 = (g * xhat).mean(1, keepdim=True)
        return {
            "dx": d["rstd"].double() * (g - c1 - xhat * c2),
            "dweight": (dy * xhat).sum(0, True),
            "dbias": dy.sum(0, True),
            "dweight_sum": (dy * xhat).abs().sum(0, True),
            "dbias_sum": dy.abs().sum(0, True),
            "dweight_terms": dy.abs().sum(0, True)
            * 2.0 ** -(22 if self.types["x"] != "f64" else 50),
            "dbias_terms": torch.zeros_like(dy[:1]),
            "dx_row": (d["rstd"].double() * (g.abs() + c1.abs() + (xhat * c2).abs())),
        }

    def check(self) -> tuple[list[str], dict[str, float]]:
        wrong: list[str] = []
        worst: dict[str, float] = {}
        d = self.inputs()
        got = self.whole(d).run()
        want = self.reference(d)
        for r, b in got.items():
            if not b.outside_untouched():
                wrong.append(f"{r}: wrote outside")
        for r in ("y", "mean", "rstd", "dx", "dweight", "dbias"):
            if r not in got or (self.direction == BACKWARD and r in ("mean", "rstd")):
                continue
            t, v, ref = self.types[r], got[r].view.double(), want[r]
            if not torch.isfinite(v).all():
                wrong.append(f"{r}: not finite in {int((~torch.isfinite(v)).sum())} places")
                continue
            error = (v - ref).abs()
            if r in ("dweight", "dbias"):
                # 4 ULP of what is added, and xhat itself, good to 4 ULP of the row's largest.
                bound = 4 * ulp(want[r + "_sum"], t) + 4 * want[r + "_terms"]
                worst[r] = float((error / bound.clamp_min(1e-300)).max())
                if worst[r] > 1:
                    wrong.append(f"{r}: {worst[r]:.2f} of the bound")
                continue
            if r in ("y", "dx") and t in ("f16", "bf16"):
                # Where the terms of y cancel, what is left is 4 ULP of float in them and in xhat.
                one = ulp(torch.maximum(ref.abs(), v.abs()), t)
                steps = error / torch.maximum(one, want.get("y_terms", one) * 2.0**-21)
                rounded = ref.to(TORCH[t])
                if r == "y":
                    share = float((rounded != got[r].view).double().mean())
                    worst["y share"] = share
                    if (share > 1e-3 and ref.numel() > 4000) or float(steps.max()) > 1.01:
                        wrong.append(f"{r}: {share:.2e} differ, {float(steps.max()):.2f} ULP")
                    continue
            largest = ref.abs() if r in ("mean", "rstd") else ref.abs().amax(1, keepdim=True)
            if r == "mean":
                largest = largest + d["x"].double().std(1, keepdim=True, correction=0)
            if r == "dx":
                # Where the terms cancel (few columns) their own rounding is what is left.
                largest = torch.maximum(largest, want["dx_row"].amax(1, keepdim=True))
            if r == "y":
                largest = torch.maximum(largest, want["y_terms"].amax(1, keepdim=True))
            worst[r] = float((error / ulp(largest, t)).max())
            # The reference of f64 is f64 itself: its own error is of the same size.
            if worst[r] > (64 if t == "f64" else 4):
                wrong.append(f"{r}: {worst[r]:.2f} ULP")
        again = self.whole(d).run()
        wrong += [
            f"{r}: other bits when repeated"
            for r in got
            if not torch.equal(got[r].bits(), again[r].bits())
        ]
        if part := self.part(d):
            sliced = part[0].run()
            for r in ("y", "mean", "rstd", "dx"):
                if r in got and not torch.equal(sliced[r].view, got[r].view[part[1]]):
                    wrong.append(f"{r}: other bits in a slice of the rows")
        return wrong, worst


def types_of(
    direction: int, kind: int, dtype: str, weight: str | None = None, statistics: str | None = None
) -> dict[str, str]:
    s = statistics or ("f64" if dtype == "f64" else "f32")
    w = weight or dtype
    t = {"x": dtype, "weight": w, "rstd": s}
    t |= (
        {"y": dtype, "bias": w}
        if direction == FORWARD
        else {"dy": dtype, "dx": dtype, "dweight": w, "dbias": w}
    )
    if kind == LAYER:
        t["mean"] = s
    return t


def group_of(
    cols: int, group: int, lanes: int, width: int, stages: int, delay: int
) -> dict[str, int]:
    """The constants of rows over groups of blocks."""
    return {
        "GROUP": group,
        "LANES": lanes,
        "VECS": -(-cols // (width * lanes * group)),
        "WARPS": lanes // 32,
        "STAGES": stages,
        "DELAY": delay,
        "MIN_BLOCKS": 2,
    }


def wide_cases(quick: bool) -> list[Case]:
    """Rows over groups of blocks at lengths that are quick to check."""
    out: list[Case] = []
    for direction in (FORWARD, BACKWARD):
        f16, bf16, f32 = (types_of(direction, LAYER, t) for t in ("f16", "bf16", "f32"))
        even = group_of(16384, 4, 256, 8, 5, 2)
        ragged = group_of(20000, 8, 192, 8, 3, 1)
        many = group_of(32768, 64, 64, 8, 6, 3)
        single = group_of(12288, 8, 128, 4, 4, 2)
        rows = 67 if quick else 301
        out += [
            Case(direction, LAYER, rows, 16384, f16, **even),
            Case(direction, LAYER, rows, 20000, bf16, **ragged),
            Case(direction, LAYER, rows, 32768, f16, **many),
            Case(direction, LAYER, rows, 12288, f32, **single),
            Case(direction, LAYER, 3, 16384, f16, **even),
            Case(direction, LAYER, 1, 12288, f32, **single),
            Case(direction, LAYER, 40, 16384, f16, skew=1, **even),
            Case(direction, LAYER, 40, 16384, f16, skew=2, pad=8, **even),
            Case(direction, LAYER, 40, 12288, f32, ratio=1e4, **single),
            Case(direction, LAYER, 40, 20000, bf16, scale=1e30, **ragged),
            Case(direction, LAYER, 40, 12288, f32, scale=1e30, eps=0.0, **single),
            Case(direction, LAYER, 40, 12288, f32, scale=1e-30, eps=0.0, **single),
            Case(direction, RMS, 40, 20000, types_of(direction, RMS, "bf16"), offset=1, **ragged),
            Case(direction, LAYER, 40, 20000, types_of(direction, LAYER, "f16", "f32"), **ragged),
        ]
        drops: list[tuple[str, ...]] = [("weight", "bias", "dweight", "dbias"), ("bias", "dbias")]
        drops.append(("mean", "rstd") if direction == FORWARD else ("dx",))
        for drop in drops:
            left = {r: t for r, t in f16.items() if r not in drop}
            out.append(Case(direction, LAYER, 40, 16384, left, **even))
    if not quick:
        # What runs where the device does not hold a group's blocks at once.
        out += [
            Case(direction, LAYER, 5, n, types_of(direction, LAYER, t), GROUP=1)
            for direction in (FORWARD, BACKWARD)
            for n in (131072, 262144, 802816)
            for t in ("f16", "f32")
        ]
    return out


def at_once() -> list[str]:
    """Kernels whose blocks wait for each other, in graphs on several streams at the same time."""
    works: list[tuple[Case, torch.cuda.CUDAGraph, torch.cuda.Stream, Placed]] = []
    expected: list[Mapping[str, Strided]] = []
    wide = group_of(16384, 4, 256, 8, 5, 2)
    f16 = {d: types_of(d, LAYER, "f16") for d in (FORWARD, BACKWARD)}
    for case in (
        Case(BACKWARD, LAYER, 333, 1024, f16[BACKWARD]),
        Case(FORWARD, LAYER, 300, 16384, f16[FORWARD], **wide),
        Case(BACKWARD, LAYER, 300, 16384, f16[BACKWARD], **wide),
        Case(FORWARD, LAYER, 40, 16384, f16[FORWARD], **wide),
    ):
        d = case.inputs()
        expected.append(case.whole(d).run())
        placed = case.whole(d)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(20):
                placed.queue()
        works.append((case, graph, stream, placed))
    for _ in range(20):
        for _, graph, stream, _ in works:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    return [
        f"streams at once: {case.name()}: {r} differs"
        for (case, _, _, placed), want in zip(works, expected, strict=True)
        for r in placed.outputs
        if not torch.equal(placed.buffers[r].bits(), want[r].bits())
    ]


def cases(quick: bool) -> list[Case]:
    out: list[Case] = []
    cols = [
        1,
        2,
        3,
        5,
        7,
        8,
        16,
        24,
        31,
        33,
        40,
        64,
        96,
        100,
        128,
        200,
        256,
        267,
        368,
        512,
        385,
        513,
        650,
        769,
        1001,
        2047,
    ]
    cols += [1000, 1024, 1536, 2880, 3072, 3584, 4096, 6656, 8192, 12288, 12800, 15872, 16385]
    cols += [32768, 131072]
    if quick:
        cols = [1, 3, 24, 40, 100, 200, 513, 1024, 4096]
    for direction, dtype in itertools.product((FORWARD, BACKWARD), ("f16", "bf16", "f32", "f64")):
        for n in cols:
            rows = 1037 if n < 600 else 301 if n < 20000 else 37
            if quick:
                rows = 67
            kinds = (LAYER,) if (dtype in ("bf16", "f64") or quick) else (LAYER, RMS)
            for kind in kinds:
                out.append(Case(direction, kind, rows, n, types_of(direction, kind, dtype)))
    both = (FORWARD, BACKWARD)
    few = (24, 769, 4096) if not quick else (24, 4096)
    for direction, n in itertools.product(both, few):
        f16, f32 = types_of(direction, LAYER, "f16"), types_of(direction, LAYER, "f32")
        bf16 = types_of(direction, LAYER, "bf16")
        out += [
            Case(direction, LAYER, 333, n, f16, skew=1),
            Case(direction, LAYER, 333, n, f16, skew=2),
            Case(direction, LAYER, 333, n, f16, pad=8),
            Case(direction, LAYER, 333, n, f32, pad=3),
            Case(direction, LAYER, 333, n, types_of(direction, LAYER, "f16", "f32")),
            Case(direction, LAYER, 333, n, types_of(direction, LAYER, "bf16", "f32"), offset=1),
            Case(direction, RMS, 333, n, types_of(direction, RMS, "bf16"), offset=1),
            Case(direction, LAYER, 3, n, f16),
            Case(direction, LAYER, 1, n, f32),
            Case(direction, LAYER, 20011, n, f16),
            Case(direction, LAYER, 65, n, f32, ratio=1e4),
            Case(direction, LAYER, 65, n, f32, ratio=100.0),
            Case(direction, LAYER, 65, n, f16, ratio=100.0),
            Case(direction, LAYER, 65, n, bf16, scale=1e30),
            Case(direction, LAYER, 65, n, f32, scale=1e30, eps=0.0),
            Case(direction, LAYER, 65, n, f32, scale=1e-30, eps=0.0),
            Case(direction, LAYER, 65, n, f32, eps=0.3),
            Case(direction, LAYER, 65, n, f32, constant=True, ratio=3.0),
        ]
        mixed = dict(f16)
        mixed["y" if direction == FORWARD else "dx"] = "f32"
        out.append(Case(direction, LAYER, 65, n, mixed))
        for drop in (
            ("weight", "bias", "dweight", "dbias"),
            ("bias", "dbias"),
            ("mean", "rstd") if direction == FORWARD else ("dx",),
        ):
            left = {r: t for r, t in f16.items() if r not in drop}
            if direction == FORWARD or {"dx", "dweight", "dbias"} & set(left):
                out.append(Case(direction, LAYER, 65, n, left))
    if not quick:
        out += [
            Case(FORWARD, LAYER, 5, n, types_of(FORWARD, LAYER, t))
            for n in (262144, 802816)
            for t in ("f16", "f32")
        ]
        out += [
            Case(BACKWARD, LAYER, 5, n, types_of(BACKWARD, LAYER, t))
            for n in (262144, 802817)
            for t in ("f16", "f32")
        ]
    return out


FULL = ("x", "y", "dy", "dx")
AFFINE = ("weight", "bias", "dweight", "dbias")
PASSES = {
    FORWARD: (("x", "weight", "bias"), ("y", "mean", "rstd")),
    BACKWARD: (("x", "dy", "mean", "rstd", "weight"), ("dx", "dweight", "dbias")),
    FROM_Y: (("y", "dy", "rstd", "weight", "bias"), ("dx", "dweight", "dbias")),
    STATISTICS: (("x",), ("mean", "m2")),
    APPLY: (("x", "mean", "rstd", "weight", "bias"), ("y",)),
}


class AnyCase:
    """A problem of any axes. `order` is that of x's axes in memory, `out_order` that of y's and
    dx's, `step` the distance of the innermost elements; the buffers begin `skew` elements after an
    aligned address; the plan's description has `kernel` in it. An `activation` (SILU, RELU) follows
    the norm."""

    def __init__(
        self,
        direction: int,
        kind: int,
        shape: list[int],
        reduce: int,
        affine: int,
        types: dict[str, str],
        order: list[int] | None = None,
        step: int = 1,
        offset: int = 0,
        out_order: list[int] | None = None,
        skew: int = 0,
        kernel: str = "",
        activation: int = 0,
        **constants: int,
    ) -> None:
        self.direction, self.kind, self.shape = direction, kind, shape
        self.activation = activation
        self.reduce, self.affine, self.offset, self.step = reduce, affine, offset, step
        self.order = order or list(range(len(shape)))
        self.out_order = out_order or self.order
        self.skew, self.kernel, self.constants = skew, kernel, constants
        inputs, outputs = PASSES[direction]
        if activation and direction == BACKWARD:
            inputs = (*inputs, "bias")
        self.inputs_there = inputs
        roles = [r for r in (*inputs, *outputs) if r != "mean" or kind == LAYER]
        f64 = types["x"] == "f64" or direction in (STATISTICS, APPLY) or activation
        base = dict.fromkeys(FULL, types["x"]) | dict.fromkeys(AFFINE, types["x"])
        base |= dict.fromkeys(("mean", "rstd", "m2"), "f64" if f64 else "f32")
        self.types = {r: (base | types)[r] for r in roles}
        self.outputs = [r for r in outputs if r in self.types]
        self.eps = 1e-5

    def name(self) -> str:
        word = ("forward", "backward", "from y", "statistics", "apply")[self.direction]
        kind = "layer" if self.kind == LAYER else "rms"
        kinds = " ".join(f"{r}:{t}" for r, t in self.types.items())
        return (
            f"any {kind} {word} {self.shape} over {self.reduce:b} affine {self.affine:b} "
            f"order {self.order} {self.out_order} step {self.step} skew {self.skew} {kinds}"
            f" activation {self.activation}"
            + "".join(f" {k}={v}" for k, v in self.constants.items())
        )

    def axes_of(self, role: str) -> int:
        return -1 if role in FULL else self.affine if role in AFFINE else ~self.reduce

    def make(self, role: str, shape: list[int]) -> Strided:
        axes = self.axes_of(role)
        sizes = [n if axes >> i & 1 else 1 for i, n in enumerate(shape)]
        return Strided(
            sizes,
            self.order_of(role),
            self.types[role],
            self.step if role in FULL else 1,
            self.skew,
        )

    def order_of(self, role: str) -> list[int]:
        if role not in FULL:
            return list(range(len(self.shape)))
        return self.out_order if role in ("y", "dx") else self.order

    def plan(self, shape: list[int], arch: int = 0) -> Plan:
        # Strides need no memory: what a tensor on no device has is the same.
        strides = {}
        for r in self.types:
            axes, length = self.axes_of(r), self.step if r in FULL else 1
            sizes = [n if axes >> i & 1 else 1 for i, n in enumerate(shape)]
            steps = [0] * len(shape)
            for axis in reversed(self.order_of(r)):
                steps[axis] = length
                length *= sizes[axis]
            strides[r] = steps
        return AnyPlan(
            self.direction,
            self.kind,
            shape,
            self.reduce,
            self.affine,
            self.types,
            strides,
            activation=self.activation,
            offset=self.offset,
            eps=self.eps,
            arch=arch,
            **self.constants,
        )

    def prepare(self) -> str:
        try:
            size = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
            self.plan(self.shape, 90).prepare(
                {r: 4096 + self.skew * size[t] for r, t in self.types.items()}
            )
        except ShimError as e:
            return str(e)
        return ""

    def dims(self) -> list[int]:
        return [i for i in range(len(self.shape)) if self.reduce >> i & 1]

    def summed(self, t: torch.Tensor) -> torch.Tensor:
        away = [i for i in range(len(self.shape)) if not self.affine >> i & 1]
        return t.sum(away, keepdim=True) if away else t

    def inputs(self) -> dict[str, torch.Tensor]:
        g = torch.Generator(device="cuda").manual_seed(5)
        d: dict[str, torch.Tensor] = {}
        for r in ("x", "dy", "weight", "bias"):
            axes = self.axes_of(r)
            sizes = [n if axes >> i & 1 else 1 for i, n in enumerate(self.shape)]
            v = torch.randn(sizes, generator=g, device="cuda", dtype=torch.float64)
            v = v + (1 - self.offset if r == "weight" else 0.3)
            d[r] = v.to(TORCH[self.types.get(r, self.types.get("y", "f64"))])
        x = d["x"].double()
        mean = x.mean(self.dims(), keepdim=True) * (self.kind == LAYER)
        rstd = ((x - mean).square().mean(self.dims(), keepdim=True) + self.eps).rsqrt()
        d["mean"] = mean.to(TORCH[self.types.get("mean", "f64")])
        d["rstd"] = rstd.to(TORCH[self.types.get("rstd", "f64")])
        if self.direction == FROM_Y:
            y = (x - mean) * rstd * (d["weight"].double() + self.offset) + d["bias"].double()
            d["y"] = y.to(TORCH[self.types["y"]])
        return {r: d[r] for r in self.inputs_there if r in self.types}

    def activated(self, z: torch.Tensor) -> torch.Tensor:
        return {0: z, SILU: functional.silu(z), RELU: z.relu()}[self.activation]

    def slope_scale(
        self, z: torch.Tensor, xhat: torch.Tensor, w: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        """What an activation's slope at z is known to a few ULP of: 1, and a half of z's terms.
        That of ReLU jumps: where z is nothing beside those of the row, either is right."""
        terms = xhat.abs().clamp_min(float(self.kind == LAYER)) * w.abs() + b.abs()
        if self.activation == SILU:
            return 1 + terms / 2
        digits = 2.0 ** BITS["f64" if self.types["x"] == "f64" else "f32"]
        return torch.where(z.abs() * digits < 8 * terms.amax(self.dims(), True), digits, 1.0)

    def reference(self, d: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        dims, layer = self.dims(), self.kind == LAYER
        w = d["weight"].double() + self.offset if "weight" in d else torch.ones(1, device="cuda")
        if self.direction == FROM_Y:
            # 0 where y holds no digit of xhat (planish.h).
            y, b = d["y"].double(), d["bias"].double()
            lost = w.abs() <= 2.0 ** (1 - BITS[self.types["y"]]) * b.abs()
            xhat = torch.where(lost | (w == 0), torch.zeros_like(y), (y - b) / w)
        else:
            x = d["x"].double()
            mean = x.mean(dims, keepdim=True) * layer
            mean = mean + (x - mean).mean(dims, keepdim=True) * layer
            m2 = (x - mean).square().sum(dims, keepdim=True)
            n = x.numel() / max(m2.numel(), 1)
            rstd = (m2 / n + self.eps).rsqrt()
            given = d["rstd"].double() if "rstd" in d else rstd
            if self.direction == APPLY and layer:
                mean = d["mean"].double()
            xhat = (x - mean) * given
            if self.direction in (FORWARD, APPLY, STATISTICS):
                b = d["bias"].double() if "bias" in d else torch.zeros_like(xhat)
                # As docs/numerics.md has it, magnitudes are those of z and its terms.
                z = xhat * w + b
                most = z.abs().maximum((xhat * w).abs()).maximum(b.abs().expand_as(z))
                most = most.amax(dims, keepdim=True) if most.numel() else most
                y = {"y": self.activated(z), "y_sum": most}
                return y | {"mean": mean, "rstd": rstd, "m2": m2}
        dy, rstd = d["dy"].double(), d["rstd"].double()
        known = dy.abs()
        if self.activation:
            b = d["bias"].double()
            z = (xhat * w + b).requires_grad_()
            known = known * self.slope_scale(z.detach(), xhat, w, b)
            dy = dy * torch.autograd.grad(self.activated(z).sum(), z)[0]
        g = dy * w
        c1 = g.mean(dims, keepdim=True) * layer
        c2 = (g * xhat).mean(dims, keepdim=True)
        size, spread = known * w.abs(), xhat.abs().clamp_min(float(layer))
        terms = size + c1.abs() + (xhat * c2).abs()
        if self.activation:
            # Slopes that are near 0 are not known to their own last digits: means of magnitudes.
            c1_size = size.mean(dims, keepdim=True) * layer
            terms = size + c1_size + spread * (size * spread).mean(dims, keepdim=True)
        terms = terms * rstd
        return {
            "dx": rstd * (g - c1 - xhat * c2),
            # Where the terms cancel (few columns) their own rounding is what is left.
            "dx_sum": terms.amax(dims, keepdim=True) if terms.numel() else terms,
            "dweight": self.summed(dy * xhat),
            "dbias": self.summed(dy),
            # An xhat that cancelled is good to a few ULP of the row's spread, which is 1.
            "dweight_sum": self.summed(known * spread),
            "dbias_sum": self.summed(known),
        }

    def place(self, d: dict[str, torch.Tensor], shape: list[int], rows: slice) -> Placed:
        buffers: dict[str, Strided] = {r: self.make(r, shape) for r in self.types}
        for r, v in d.items():
            whole = v.shape[0] == 1 and self.shape[0] != 1
            buffers[r].view.copy_(v if whole else v[rows])
        return Placed(self.plan(shape), buffers, self.outputs)

    def whole(self, d: dict[str, torch.Tensor]) -> Placed:
        return self.place(d, self.shape, slice(None))

    def part(self, d: dict[str, torch.Tensor]) -> tuple[Placed, slice] | None:
        """Two along the first axis, and which they are; None where they are not by themselves."""
        if self.shape[0] <= 4 or (self.reduce | self.affine) & 1:
            return None
        rows = slice(self.shape[0] // 3, self.shape[0] // 3 + 2)
        return self.place(d, [2, *self.shape[1:]], rows), rows

    def check(self) -> tuple[list[str], dict[str, float]]:
        wrong: list[str] = []
        worst: dict[str, float] = {}
        if self.kernel and self.kernel not in self.plan(self.shape).describe():
            wrong.append(f"planned as {self.plan(self.shape).describe()}")
        d = self.inputs()
        got, want = self.whole(d).run(), self.reference(d)
        for r in self.outputs:
            t, v, ref = self.types[r], got[r].view.double(), want[r]
            if self.activation and r in ("mean", "rstd") and self.types["x"] != "f64":
                t = "f32"  # the arithmetic's
            if not got[r].outside_untouched():
                wrong.append(f"{r}: wrote outside")
            if not torch.isfinite(v).all():
                wrong.append(f"{r}: not finite in {int((~torch.isfinite(v)).sum())} places")
                continue
            if not ref.numel():
                continue
            scale = want.get(r + "_sum")
            if scale is None:
                scale = ref.abs().amax(self.dims(), keepdim=True)
            if r == "mean":
                scale = scale + 1  # the inputs' standard deviation
            worst[r] = float(((v - ref).abs() / ulp(scale.expand_as(ref), t)).max())
            # The reference of f64 is f64 itself.
            if worst[r] > (64 if t == "f64" else 4):
                wrong.append(f"{r}: {worst[r]:.2f} ULP")
            if r == "y" and t in ("f16", "bf16") and self.kernel:
                differ = ref.to(TORCH[t]) != got[r].view
                near = torch.maximum(ulp(torch.maximum(ref.abs(), v.abs()), t), scale * 2.0**-21)
                steps = float(((v - ref).abs() / near).max())
                share = float(differ.double().mean())
                if steps > 1.01 or (share > 1e-3 and ref.numel() > 4000):
                    wrong.append(f"{r}: {share:.2e} differ, {steps:.2f} steps")
        again = self.whole(d).run()
        for r in self.outputs:
            if not torch.equal(got[r].bits(), again[r].bits()):
                wrong.append(f"{r}: other bits when repeated")
        if part := self.part(d):
            sliced = part[0].run()
            for r in self.outputs:
                if r not in AFFINE and not torch.equal(sliced[r].view, got[r].view[part[1]]):
                    wrong.append(f"{r}: other bits in a slice")
        return wrong, worst


def any_cases(quick: bool) -> list[AnyCase]:
    """Problems and passes that are not rows, or have no row kernels."""
    out = []
    shapes: list[tuple[list[int], int, int, list[int] | None, int]] = [
        ([37, 200], 2, 2, None, 1),  # rows, for the passes that have no other kernels
        ([37, 200], 2, 2, None, 2),  # every second element
        ([6, 24, 9, 10], 2, 2, None, 1),  # channels of NCHW
        ([6, 24, 9, 10], 2, 2, [0, 2, 3, 1], 1),  # channels of NHWC
        ([6, 4, 8, 9, 10], 28, 6, None, 1),  # groups
        ([6, 4, 8, 9, 10], 28, 6, [0, 3, 4, 1, 2], 1),
        ([6, 24, 9, 10], 12, 2, None, 1),  # instances
        ([33, 7, 40], 5, 7, [2, 0, 1], 1),
        ([40, 300], 1, 2, None, 1),  # over the first axis
    ]
    if not quick:
        shapes += [
            ([301, 1030], 2, 2, None, 1),
            ([16, 96, 56, 56], 2, 2, None, 1),
            ([16, 8, 8, 28, 28], 28, 6, None, 1),
        ]
    for i, (shape, reduce, affine, order, step) in enumerate(shapes):
        for direction in PASSES:
            for j, dtype in enumerate(("f16", "f32", "bf16", "f64")):
                if quick and (i + direction) % 4 != j:
                    continue
                kind = RMS if (i + j) % 4 == 3 else LAYER
                types = {"x": dtype} if i != 6 else {"x": dtype, "weight": "f32", "dweight": "f64"}
                out.append(
                    AnyCase(direction, kind, shape, reduce, affine, types, order, step, i == 2)
                )
    return out


def image_cases(quick: bool) -> list[AnyCase]:
    """Norms over channels (NCHW; the output NCHW or NHWC) and over groups (NCHW and NHWC)."""
    out = []
    pixels = [1, 2, 49, 64, 196, 225, 400, 784, 3025, 3136, 4096]
    channels = [2, 24, 33, 96, 100, 128, 257, 320, 512, 1000, 1200, 2048, 4096]
    pairs = [(c, hw) for c in channels for hw in pixels if hw > 1 and c * hw < 1400000]
    if quick:
        pairs = [(24, 49), (96, 196), (33, 225), (520, 49), (128, 320), (320, 64), (2, 1025)]
    for i, (c, hw) in enumerate(pairs):
        images = 1 if i % 5 == 4 else 0 if i == 7 else 3 if c * hw > 100000 else 7
        for direction in (FORWARD, BACKWARD):
            dtype = ("f16", "f32", "bf16")[(i + direction) % 3]
            kind = RMS if i % 4 == 3 else LAYER
            w = {"weight": "f32", "bias": "f32", "dweight": "f32", "dbias": "f32"} if i % 2 else {}
            last = [0, 2, 1] if direction == FORWARD and i % 3 < 2 else None
            # What no block holds is for the general kernels; so is what is empty.
            kernel = "cuda channels" if images and c * hw < 300000 else ""
            out.append(
                AnyCase(
                    direction,
                    kind,
                    [images, c, hw],
                    2,
                    2,
                    {"x": dtype} | w,
                    out_order=last,
                    skew=i % 7 if i % 2 else 0,
                    kernel=kernel,
                )
            )
    groups = [
        (7, 32, 8, 196), (5, 1, 24, 49), (3, 24, 1, 3136), (2, 32, 10, 4096), (3, 32, 8, 3136),
        (2, 1, 256, 784), (9, 3, 11, 225), (2, 32, 40, 1024), (3, 2, 33, 1), (1, 32, 64, 64),
        (4, 7, 5, 25), (2, 4, 8, 12544), (1, 1, 4096, 49), (2, 1000, 1, 49), (0, 4, 8, 64),
        (3, 3, 1, 65536), (64, 16, 2, 9), (41, 32, 8, 49), (33, 256, 1, 196), (5, 96, 1, 3136),
        (9, 37, 8, 49), (7, 32, 3, 784), (6, 20, 5, 196), (5, 64, 2, 784), (300, 512, 1, 4),
        (7, 32, 10, 3025), (5, 8, 125, 225), (300, 32, 8, 49), (5, 256, 1, 196), (6, 9, 7, 98),
    ]  # fmt: skip
    for i, (images, g, d, hw) in enumerate(groups[::3] if quick else groups):
        for direction in (FORWARD, BACKWARD):
            for last, activation in itertools.product(
                (False, True), (0, RELU if i % 4 == 1 else SILU)
            ):
                dtype = ("f16", "f32", "bf16")[(i + direction + last) % 3]
                w = {"weight": "f32", "dweight": "f32", "bias": "f32", "dbias": "f32"}
                out.append(
                    AnyCase(
                        direction,
                        RMS if i % 4 == 3 else LAYER,
                        [images, g, d, hw],
                        12,
                        6,
                        {"x": dtype} | (w if i % 2 else {}),
                        [0, 3, 1, 2] if last else None,
                        skew=i % 5 if i % 2 else 0,
                        activation=activation,
                        kernel="cuda groups" if images and g * d * hw < 1 << 20 and hw > 1 else "",
                    )
                )
    return out if quick else out + strip_cases()


def strip(
    pixels: int, tile: int, width: int, blocks: int, wide: bool, warps: int
) -> dict[str, int]:
    """The constants of strips of `tile` channels over blocks of a cluster or anywhere."""
    lanes = tile // width
    return {
        "GROUP": blocks if wide else 1,
        "CLUSTER": 1 if wide else blocks,
        "TILE": tile,
        "LANES": lanes,
        "PLANES": 32 // lanes,
        "PIECE": -(-pixels // blocks),
        "WARPS": warps,
        "MIN_BLOCKS": 1,
    }


def strip_cases() -> list[AnyCase]:
    """Channels-last groups in one read, over blocks of a cluster and over blocks anywhere: whole
    and part chunks of a group, a cut last strip, several strips for each group of blocks. And as
    planned: many images over blocks anywhere, of which a slice is in a cluster."""
    out = []
    for images, g, d, hw in ((33, 32, 2, 12544), (64, 32, 8, 3136), (9, 32, 10, 4096)):
        for direction in (FORWARD, BACKWARD):
            for dtype in ("f16", "f32", "bf16"):
                out.append(
                    AnyCase(
                        direction,
                        LAYER,
                        [images, g, d, hw],
                        12,
                        6,
                        {"x": dtype, "dweight": "f32", "dbias": "f32"},
                        [0, 3, 1, 2],
                        kernel="cuda groups",
                    )
                )
    for images, g, d, hw, tile, blocks in (
        (40, 32, 2, 12544, 64, 16), (3, 32, 2, 12544, 64, 33), (40, 32, 8, 3136, 64, 8),
        (9, 32, 10, 4096, 80, 16), (5, 32, 40, 1024, 80, 4), (70, 6, 8, 901, 32, 3),
        (2, 3, 40, 700, 80, 2),
    ):  # fmt: skip
        for direction in (FORWARD, BACKWARD):
            for wide in (False, True):
                for t, dtype in enumerate(("f16", "f32", "bf16")):
                    if not wide and blocks not in (2, 4, 8, 16):
                        continue
                    # dbias of 40 images, whose dy have a mean of 0.3, is beyond f16.
                    w = {"weight": "f32", "dweight": "f32", "bias": "f32", "dbias": "f32"}
                    width, part = (4, 2) if dtype == "f32" else (8, 1)
                    constants = strip(hw, tile // part, width, blocks, wide, 12)
                    if tile // part % d or tile // part % width:
                        continue
                    out.append(
                        AnyCase(
                            direction,
                            RMS if t == 2 and images == 3 else LAYER,
                            [images, g, d, hw],
                            12,
                            6,
                            {"x": dtype} | (w if t == 0 and (blocks == 8 or images == 40) else {}),
                            [0, 3, 1, 2],
                            kernel="cuda groups",
                            **constants,
                        )
                    )
    return out


def large_slices(rows: int, cols: int, kind: int, direction: int) -> list[str]:
    """Dense f16 rows past 2^31 or 2^32 elements: the bits of slices at the start, at the powers of
    two and at the end against those of the slices run by themselves."""
    wrong = []
    roles = {"x": 1, "y": 1} if direction == FORWARD else {"x": 1, "dy": 1, "dx": 1}
    types = dict.fromkeys(roles, "f16") | ({"rstd": "f32"} if direction == BACKWARD else {})
    if direction == BACKWARD and kind == LAYER:
        types["mean"] = "f32"
    full = {
        r: torch.empty(rows, 1 if r in ("mean", "rstd") else cols, dtype=TORCH[t], device="cuda")
        for r, t in types.items()
    }
    outputs = [r for r in ("y", "dx") if r in full]
    for r, t in full.items():
        t.fill_(math.nan) if r in outputs else t.normal_()

    def run(first: int, count: int, out: dict[str, torch.Tensor]) -> None:
        plan = Plan(direction, kind, count, cols, types)
        size = {"f16": 2, "f32": 4}
        plan.run(
            {
                r: out[r].data_ptr()
                if r in out
                else full[r].data_ptr() + first * full[r].shape[1] * size[t]
                for r, t in types.items()
            },
            torch.cuda.current_stream().cuda_stream,
        )

    run(0, rows, {r: full[r] for r in outputs})
    marks = [0, *(m // cols for m in (1 << 31, 1 << 32) if m // cols < rows), rows - 8]
    for mark in marks:
        first = max(0, min(mark - 4, rows - 8))
        part = {
            r: torch.full((8, cols), math.nan, dtype=torch.float16, device="cuda") for r in outputs
        }
        run(first, 8, part)
        torch.cuda.synchronize()
        for r in outputs:
            if not torch.equal(part[r], full[r][first : first + 8]):
                wrong.append(f"{r}: other bits in rows {first} to {first + 8}")
            if not torch.isfinite(full[r][first : first + 8]).all():
                wrong.append(f"{r}: not finite in rows {first} to {first + 8}")
    return wrong


def large_any(shape: list[int], order: list[int], kind: int) -> list[str]:
    """Statistics of f16 past 2^32 elements in any order, against sums by torch."""
    case = AnyCase(STATISTICS, kind, shape, 2, 0, {"x": "f16"}, order)
    x = case.make("x", shape)
    x.view.fill_(1.0)
    # Few distinct rows: what a place beyond 32 bits reads must be what lies there.
    ramp = (torch.arange(shape[0], device="cuda") % 7).to(torch.float16).unsqueeze(1)
    x.view.add_(ramp)
    x.view[:, -1] += 0.5
    buffers = {r: case.make(r, shape) for r in case.types if r != "x"} | {"x": x}
    case.plan(shape).run(
        {r: b.pointer() for r, b in buffers.items()},
        torch.cuda.current_stream().cuda_stream,
    )
    torch.cuda.synchronize()
    n, first = shape[1], 1 + ramp.double()
    if kind == RMS:
        want = {"m2": (n - 1) * first**2 + (first + 0.5) ** 2}
    else:
        want = {"mean": first + 0.5 / n, "m2": torch.full_like(first, 0.25 * (n - 1) / n)}
    return [
        f"{r}: off by {float(((buffers[r].view - w) / w).abs().max()):.2e} of itself"
        for r, w in want.items()
        if not bool((((buffers[r].view - w) / w).abs() < 1e-12).all())
    ]


def large() -> list[tuple[str, list[str]]]:
    """Everything past 2^31 rows and 2^32 elements: (name, what is wrong)."""
    out = []
    for name, call in (
        ("rows past 2^32 elements", lambda: large_slices((1 << 22) + 3, 1032, LAYER, FORWARD)),
        ("the same, backward", lambda: large_slices((1 << 22) + 3, 1032, LAYER, BACKWARD)),
        ("more than 2^31 rows", lambda: large_slices((1 << 31) + 11, 2, LAYER, FORWARD)),
        ("more than 2^31 rows, backward", lambda: large_slices((1 << 31) + 11, 2, RMS, BACKWARD)),
        ("columns past 2^32", lambda: large_any([(1 << 22) + 3, 1032], [1, 0], LAYER)),
        ("a row of more than 2^31", lambda: large_any([1, (1 << 31) + 9], [0, 1], RMS)),
    ):
        try:
            out.append((name, call()))
        except (ShimError, torch.OutOfMemoryError) as e:
            out.append((name, [str(e)]))
        torch.cuda.empty_cache()
    return out


def small_cases() -> list[Case | AnyCase]:
    """A few of everything, for the sanitizers."""
    out: list[Case | AnyCase] = []
    for direction in (FORWARD, BACKWARD):
        for i, cols in enumerate((3, 24, 200, 769, 2048, 16384, 40008, 300000)):
            for j, dtype in enumerate(("f16", "f32", "bf16")):
                if (i + j) % 3 == 0 or cols in (200, 2048):
                    rows = 333 if cols < 1000 else 9
                    kind = RMS if i % 4 == 3 else LAYER
                    out.append(Case(direction, kind, rows, cols, types_of(direction, kind, dtype)))
        out.append(Case(direction, LAYER, 41, 520, types_of(direction, LAYER, "f16"), skew=1))
        out.append(Case(direction, LAYER, 700, 4096, types_of(direction, LAYER, "f32")))
        out.append(Case(direction, LAYER, 9, 1000, types_of(direction, LAYER, "f64")))
    return out + any_cases(True)[::3] + image_cases(True)


def prepare(case: Case | AnyCase) -> str:
    """What is said where a case's kernels do not compile."""
    return case.prepare()


def prepare_all(todo: list[Case | AnyCase], processes: int) -> None:
    """Compiles in parallel processes, into the disk cache."""
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        for case, error in zip(todo, pool.map(prepare, todo, chunksize=2), strict=True):
            if error:
                print(f"not prepared: {case.name()}: {error}")


def main() -> int:
    """Runs all cases; the exit status is the number of failures, at most 99."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small sizes, as for a sanitizer")
    parser.add_argument("--small", action="store_true", help="a few of everything")
    parser.add_argument("--images", action="store_true", help="only channels and groups")
    parser.add_argument("--large", action="store_true", help="also more than 2^32 elements")
    parser.add_argument("--processes", type=int, default=0, help="compile ahead in parallel")
    parser.add_argument("--names", action="store_true", help="print each case before it runs")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--json", help="where to write every case's worst errors")
    arguments = parser.parse_args()
    found: list[Case | AnyCase] = [*cases(arguments.quick), *any_cases(arguments.quick)]
    found += wide_cases(arguments.quick)
    if arguments.images:
        found = [*image_cases(arguments.small)]
    else:
        found += image_cases(arguments.quick)
    if arguments.small and not arguments.images:
        found = small_cases()
    todo = [c for c in found if arguments.only in c.name()]
    if arguments.processes:
        prepare_all(todo, arguments.processes)
    failures = refused = 0
    results = []
    for case in todo:
        if arguments.names:
            print(case.name(), flush=True)
        try:
            wrong, worst = case.check()
        except ShimError as e:
            print(f"REFUSED {case.name()}: {e}")
            refused += 1
            continue
        results.append({"case": case.name(), "wrong": wrong, "worst": worst})
        if wrong:
            failures += 1
            print(f"WRONG {case.name()}: {'; '.join(wrong)}")
    for problem in [] if arguments.images else at_once():
        failures += 1
        print(f"WRONG {problem}")
    for name, wrong in large() if arguments.large else []:
        failures += bool(wrong)
        print(f"{'WRONG' if wrong else 'large'} {name}: {'; '.join(wrong) or 'right'}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=0)
    tops: dict[str, float] = {}
    for r in results:
        for k, v in r["worst"].items():
            tops[k] = max(tops.get(k, 0.0), v)
    print("worst:", {k: float(f"{v:.3g}") for k, v in tops.items()})
    print(f"{len(todo)} cases, {failures} wrong, {refused} refused")
    return min(failures, 99)


if __name__ == "__main__":
    sys.exit(main())
