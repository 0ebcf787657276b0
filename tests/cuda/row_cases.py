"""Norms over the last axis on a GPU, as cases against double."""

from __future__ import annotations

from collections.abc import Mapping

from device_buffers import TORCH, Buffer, Placed, Strided, foreign, ulp, values
from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, Plan, ShimError

import torch


class Case:
    """One problem: its inputs, a run, and what is wrong with its outputs."""

    #: Whether the statistics that backward is given are not x's own (device_buffers.foreign).
    given = False

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
        more += "".join(f" {k}={v}" for k, v in self.constants.items()) + " given" * self.given
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
            for skew in {self.skew, self.skew + 1}:
                full = {r: 4096 + skew * TORCH[t].itemsize for r, t in self.types.items()}
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
            if self.given:
                mean, rstd = foreign(mean, rstd)
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
        if self.given and self.kind == LAYER:
            mean = d["mean"].double()
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
        "COOPERATING_BLOCKS": group,
        "THREADS_PER_ROW": lanes,
        "CHUNKS_PER_THREAD": -(-cols // (width * lanes * group)),
        "WARPS": lanes // 32,
        "RING_SLOTS": stages,
        "DELAY": delay,
        "MIN_BLOCKS": 2,
    }


def cooperative_cases(quick: bool) -> list[Case]:
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
        # Rows over two blocks, and blocks that all run at once.
        for kind in (LAYER, RMS):
            for dtype in ("f16", "bf16", "f32"):
                types = types_of(FORWARD, kind, dtype)
                for rows, cols in ((301, 28672), (2048, 1024), (4096, 768)):
                    out.append(Case(FORWARD, kind, rows, cols, types))
        out.append(Case(BACKWARD, RMS, 301, 32768, types_of(BACKWARD, RMS, "bf16")))
        # What runs where the device does not hold a group's blocks at once.
        out += [
            Case(direction, LAYER, 5, n, types_of(direction, LAYER, t), COOPERATING_BLOCKS=1)
            for direction in (FORWARD, BACKWARD)
            for n in (131072, 262144, 802816)
            for t in ("f16", "f32")
        ]
    return out


def at_once() -> list[str]:
    """Kernels whose blocks wait for each other, in graphs on several streams at the same time."""
    works: list[tuple[Case, torch.cuda.CUDAGraph, torch.cuda.Stream, Placed]] = []
    expected: list[Mapping[str, Strided]] = []
    cooperative = group_of(16384, 4, 256, 8, 5, 2)
    f16 = {d: types_of(d, LAYER, "f16") for d in (FORWARD, BACKWARD)}
    for case in (
        Case(BACKWARD, LAYER, 333, 1024, f16[BACKWARD]),
        Case(FORWARD, LAYER, 300, 16384, f16[FORWARD], **cooperative),
        Case(BACKWARD, LAYER, 300, 16384, f16[BACKWARD], **cooperative),
        Case(FORWARD, LAYER, 40, 16384, f16[FORWARD], **cooperative),
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
