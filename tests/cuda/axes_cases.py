"""Norms over any axes on a GPU, channels and groups of images first, as cases against double."""

from __future__ import annotations

from device_buffers import BITS, TORCH, Placed, Strided, foreign, ulp
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

    #: Whether the statistics that backward is given are not x's own (device_buffers.foreign).
    given = False

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
            + " given" * self.given
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
            self.plan(self.shape, 90).prepare(
                {r: 4096 + self.skew * TORCH[t].itemsize for r, t in self.types.items()}
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
        if self.given:
            mean, rstd = foreign(mean, rstd)
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
            if layer and (self.direction == APPLY or (self.direction == BACKWARD and self.given)):
                mean = d["mean"].double()
            xhat = (x - mean) * given
            if self.direction in (FORWARD, APPLY, STATISTICS):
                b = d["bias"].double() if "bias" in d else torch.zeros_like(xhat)
                # As docs/guide/reproducibility.md has it, magnitudes are those of z and its terms.
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
            by_f32 = self.activation or self.direction == STATISTICS
            if by_f32 and r in ("mean", "rstd", "m2") and self.types["x"] != "f64":
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
        ([37, 200], 2, 2, None, 1),  # rows, for the passes that row_cases.py has not
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
