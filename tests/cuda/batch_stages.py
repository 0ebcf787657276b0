"""Batch norms with statistics that are kept or given, and with an addend behind them, as cases.

Each runs on a library (c_api.Library): planish's on a GPU, or the emulation of one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from c_api import IDENTITY, LAYER, RELU, SILU, Library, axes, norm

import torch

FORWARD, BACKWARD, APPLY = 0, 1, 4
WORDS = {FORWARD: "forward", BACKWARD: "backward", APPLY: "apply"}
TYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
REDUCED = (0, 2)
EPS, MOMENTUM = 1e-5, 0.1
Tensors = dict[str, torch.Tensor]


def copied(t: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """The same strides, also where there are gaps."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t)


def ulp(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place at this magnitude."""
    exponent = torch.frexp(size.abs().double().clamp_min(2.0**-24))[1] - BITS[dtype]
    return torch.ldexp(torch.ones_like(size, dtype=torch.float64), exponent)


@dataclasses.dataclass
class BatchCase:
    """A pass over (images, channels, pixels). `has`: roles beside those of the norm alone; with "y"
    a backward's mask is the forward's y, with "running" the moments are those that are kept."""

    passed: int
    sizes: tuple[int, int, int]
    last: bool
    dtype: str
    activation: int = IDENTITY
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    arch: int = 90
    multiprocessors: int = 4
    kernel: str = "cuda batch"
    gap: int = 0  #: elements between images, channels first

    def name(self) -> str:
        layout = "last" if self.last else "first"
        return (
            f"batch {WORDS[self.passed]} {self.sizes} channels {layout} {self.dtype} "
            f"f{self.activation} has {','.join(self.has)} lacks {','.join(self.lacks)} "
            f"sm_{self.arch}" + f" gap {self.gap}" * (self.gap > 0)
        )

    def op(self) -> object:
        return norm(
            kind=LAYER,
            reduce_axes=axes(REDUCED),
            affine_axes=axes((1,)),
            eps=EPS,
            activation=self.activation,
            momentum=MOMENTUM,
        )

    def full(self, g: torch.Generator, at: float = 0.3, dtype: str = "") -> torch.Tensor:
        n, c, hw = self.sizes
        shape = (n, hw, c) if self.last else (n, c, hw)
        t = (torch.randn(shape, generator=g, dtype=torch.float64) + at).to(
            TYPES[dtype or self.dtype]
        )
        return t.transpose(1, 2) if self.last else self.apart(t)

    def apart(self, t: torch.Tensor) -> torch.Tensor:
        n, c, hw = self.sizes
        return t.new_empty(n, c * hw + self.gap)[:, : c * hw].view(n, c, hw).copy_(t)

    def inputs(self) -> Tensors:
        """Every tensor that the pass reads, and what running statistics were."""
        g = torch.Generator().manual_seed(7)
        c = self.sizes[1]
        wide = TYPES["f64" if self.dtype == "f64" else "f32"]

        def channels(at: float, spread: float = 0.25) -> torch.Tensor:
            return (torch.randn(c, generator=g, dtype=torch.float64) * spread + at).to(wide)

        d = {"x": self.full(g), "weight": channels(1, 0.5), "bias": channels(0.2)}
        d |= {"dy": self.full(g), "addend": self.full(g, 0)}
        d |= {"running_mean": channels(0.1), "running_var": channels(1).abs() + 0.1}
        x = d["x"].double()
        d["mean"] = x.mean(REDUCED)
        d["rstd"] = (x.var(REDUCED, correction=0) + EPS).rsqrt()
        d |= {"c1": channels(0), "c2": channels(0)}
        return d

    def moments(self, d: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.passed != FORWARD and "running" in self.has:
            return d["running_mean"].double(), (d["running_var"].double() + EPS).rsqrt()
        return d["mean"].double(), d["rstd"].double()

    def reference(self, d: Tensors) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Of each output its value and the magnitude that its last place is of."""

        def spread(t: torch.Tensor) -> torch.Tensor:
            return t.view(-1, 1) if t.dim() == 1 else t

        def largest(t: torch.Tensor) -> torch.Tensor:
            return t.abs().amax(REDUCED, keepdim=True)

        x = d["x"].double()
        mean, rstd = (spread(t) for t in self.moments(d))
        w = (
            spread(d["weight"].double())
            if "weight" not in self.lacks
            else torch.ones(1, 1).double()
        )
        b = spread(d["bias"].double()) if "bias" not in self.lacks else torch.zeros(1, 1).double()
        xhat = (x - mean) * rstd
        a = xhat * w + b
        if "addend" in self.has:
            a = a + d["addend"].double()
        act = {IDENTITY: lambda t: t, RELU: torch.relu, SILU: torch.nn.functional.silu}
        y = act[self.activation](a)
        if self.passed != BACKWARD:
            size = torch.maximum(largest(a), torch.maximum(largest(xhat * w), b.abs()))
            found = {"y": (y, size)}
            if "running" in self.has and self.passed == FORWARD:
                n = x.numel() / x.shape[1]
                for role, new in (("mean", d["mean"]), ("var", x.var(REDUCED, correction=1))):
                    before = d[f"running_{role}"].double()
                    value = (1 - MOMENTUM) * before + MOMENTUM * new.double()
                    found[f"running_{role}"] = (value, before.abs().maximum(new.abs()) + 1 / n)
            return found
        dy = d["dy"].double()
        slope = torch.ones_like(a)
        if self.activation:
            a.requires_grad_()
            slope = torch.autograd.grad(act[self.activation](a).sum(), a)[0]
            a = a.detach()
        g, far = dy * slope, dy.abs() * (1 + (a.abs() if self.activation == SILU else 0))
        # Where a ReLU's slope jumps, either is right of what is nothing beside its terms.
        terms = (
            (xhat * w).abs() + b.abs() + (d["addend"].double().abs() if "addend" in self.has else 0)
        )
        doubt = (a.abs() < terms * 2.0**-19) * 2.0**24 * (self.activation == RELU)
        c1, c2 = (t.mean(REDUCED, keepdim=True) * w for t in (g, g * xhat))
        if "c2" in self.has:
            c1, c2 = spread(d["c1"].double()), spread(d["c2"].double())
        elif "running" in self.has:
            c1 = c2 = torch.zeros(1, 1).double()
        size = (far * w.abs() + c1.abs() + (xhat * c2).abs()) * rstd
        found = {
            "dx": (rstd * (g * w - c1 - xhat * c2), largest(size) * (1 + doubt)),
            "dweight": (
                (g * xhat).sum(REDUCED),
                (far * (1 + doubt) * (xhat.abs() + 1)).sum(REDUCED),
            ),
            "dbias": (g.sum(REDUCED), (far * (1 + doubt)).sum(REDUCED)),
        }
        if "daddend" in self.has:
            found["daddend"] = (g, largest(far) * (1 + doubt))
        return found

    def place(self, device: str) -> tuple[Tensors, Tensors]:
        """The tensors of the pass on a device, outputs poisoned, and the inputs on the CPU."""
        d = self.inputs()
        if "y" in self.has:
            forward = dataclasses.replace(self, passed=FORWARD)
            d["y"] = forward.reference(d)["y"][0].to(TYPES[self.dtype])
            d["y"] = (
                d["y"].transpose(1, 2).contiguous().transpose(1, 2)
                if self.last
                else self.apart(d["y"])
            )
        roles = {"x"} | ({"weight", "bias"} - set(self.lacks))
        outputs: Tensors = {}
        poison = copied(d["x"]).fill_(torch.nan)
        if self.passed == BACKWARD:
            roles |= {"dy"} | ({"addend", "y", "c1", "c2"} & set(self.has))
            if not self.activation or "y" in self.has:
                roles -= {"bias", "addend"}
            outputs["dx"] = copied(poison)
            for role in ("dweight", "dbias"):
                outputs[role] = torch.full_like(d["weight"], torch.nan)
            if "daddend" in self.has:
                outputs["daddend"] = copied(poison)
        else:
            roles |= {"addend"} & set(self.has)
            outputs["y"] = copied(poison)
        kept = {"running_mean", "running_var"}
        if "running" in self.has:
            roles |= kept
        elif self.passed != FORWARD:
            roles |= {"mean", "rstd"}
        tensors = {r: d[r] for r in roles}
        tensors |= {r: t for r, t in outputs.items() if r not in self.lacks}
        return {r: copied(t, device) for r, t in tensors.items()}, d

    def write(self, library: Library) -> None:
        """Runs it and looks at nothing."""
        library.run(self.op(), self.passed, self.place(library.device)[0])

    def check(self, library: Library) -> list[str]:
        """What is wrong with it on this library."""
        tensors, d = self.place(library.device)
        before = {r: copied(t, library.device) for r, t in tensors.items()}
        library.run(self.op(), self.passed, tensors)
        wrong = []
        for role, (value, size) in self.reference(d).items():
            if role not in tensors:
                continue
            got = tensors[role].cpu()
            step = ulp(size.expand_as(value), got.dtype).maximum(
                ulp(size.expand_as(value), TYPES["f32"])
            )
            off = float(((got.double() - value).abs() / step).max())
            if not off <= (64 if got.dtype == torch.float64 else 4):
                wrong.append(f"{role}: {off:.2f} ULP")
        places: tuple[tuple[str, str], ...] = (("y", "x"),)
        if self.passed == BACKWARD:
            places = ("dx", "x"), ("dx", "dy"), ("dx", "y")
        shared = [p for p in places if set(p) <= set(before)]
        for place in (None, *shared):
            again = {r: copied(t, library.device) for r, t in before.items()}
            if place:
                again[place[0]] = again[place[1]]
            library.run(self.op(), self.passed, again)
            for role in set(again) - set(place[1:] if place else ()):
                bits = (v[role].contiguous().view(torch.uint8) for v in (again, tensors))
                if not torch.equal(*bits):
                    wrong.append(f"{role}: other bits when repeated, {place} in one place")
        return wrong


def batch_stage_cases(large: bool = False) -> list[BatchCase]:
    """Every role, in both layouts and every dtype; `large`: of sizes for a GPU."""
    small = [(5, 16, 48), (3, 9, 49), (4, 40, 600)]
    sizes = [(8, 32, 1024), (7, 33, 225), (16, 128, 49), (2, 3, 20000)] if large else small
    ways: list[tuple[int, int, tuple[str, ...], tuple[str, ...]]] = [
        (FORWARD, IDENTITY, ("running",), ()),
        (FORWARD, RELU, ("running", "addend"), ()),
        (FORWARD, SILU, ("addend",), ("bias",)),
        (APPLY, RELU, ("running", "addend"), ()),
        (APPLY, SILU, ("running",), ("weight",)),
        (APPLY, IDENTITY, ("addend",), ()),
        (BACKWARD, RELU, ("addend", "daddend"), ()),
        (BACKWARD, RELU, ("addend", "daddend", "y"), ()),
        (BACKWARD, RELU, ("y",), ()),
        (BACKWARD, SILU, ("addend", "daddend"), ("dx",)),
        (BACKWARD, RELU, ("addend", "daddend", "y"), ("dx",)),
        (BACKWARD, IDENTITY, ("addend", "daddend"), ()),
        (BACKWARD, IDENTITY, ("running",), ()),
        (BACKWARD, RELU, ("running",), ("dweight", "dbias")),
        (BACKWARD, SILU, ("running", "addend", "daddend"), ()),
        (BACKWARD, IDENTITY, ("c1", "c2"), ()),
        (BACKWARD, RELU, ("c1", "c2"), ("dweight", "dbias")),
    ]
    out = []
    for i, ((passed, f, has, lacks), last) in enumerate(itertools.product(ways, (False, True))):
        for j, dtype in enumerate(TYPES if large else [list(TYPES)[(i + i // 4) % 4]]):
            arch = 80 if i % 3 == 2 and not large else 90
            of = sizes[(i // 2 + j) % len(sizes)]
            out.append(BatchCase(passed, of, last, dtype, f, has, lacks, arch))
    # Images of few pixels, whose channels are read together; images that lie apart.
    few = [(40, 16, 49), (12, 40, 9), (9, 24, 25), (21, 20, 49), (5, 6, 196)]
    few = [(64, 256, 49), (33, 96, 25), (128, 72, 9), (16, 160, 196), (7, 36, 49)] if large else few
    for i, (passed, f, has, lacks) in enumerate(ways):
        for j, dtype in enumerate(TYPES if large else [list(TYPES)[(i + i // 4) % 4]]):
            gap = 8 if i % 4 == 1 else 3 if i % 4 == 3 else 0
            arch = 80 if i % 5 == 4 and not large else 90
            of = few[(i + j) % len(few)]
            out.append(BatchCase(passed, of, False, dtype, f, has, lacks, arch, gap=gap))
    return out
