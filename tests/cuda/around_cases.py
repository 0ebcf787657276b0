"""Forwards with stages around the norm as cases against double: values, bits, neighbours of outputs.

The formulas are those of planish.h, written with torch and numpy alone. A case runs on whatever
backend it is handed (around_backends.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from around_backends import ACTIVATIONS, LAYER, RMS, Library, Norm, norm
from torch.nn import functional

import torch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
BITS = {"f32": 24, "f16": 11, "bf16": 8, "f64": 53}
LOWEST = {"f32": -149, "f16": -24, "bf16": -133, "f64": -1074}
QUANTISED = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i8": torch.int8}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "i8": 127.0}
#: Of a quantised type: digits, the exponent of its least normal number.
DIGITS = {"e4m3": (4, -6), "e5m2": (3, -14)}
GUARD = 64


def philox(index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    """Word index % 4 of block index / 4 of Philox4x32-10."""
    block = index.astype(np.uint64) // np.uint64(4)
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c = [block & low, block >> half]
    c += [np.full_like(block, offset & 0xFFFFFFFF), np.full_like(block, offset >> 32)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (q >> half) ^ c[1] ^ np.uint64(key[0]),
            q & low,
            (p >> half) ^ c[3] ^ np.uint64(key[1]),
            p & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose((index % 4).astype(np.int64), c)


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """One unit in the last place of `dtype` at |value|."""
    exponent = torch.frexp(value.abs().double().clamp_min(2.0**-1040))[1] - BITS[dtype]
    return torch.ldexp(
        torch.ones_like(value, dtype=torch.float64), exponent.clamp_min(LOWEST[dtype])
    )


class Guarded:
    """A tensor with guard elements around it; rows `pad` elements farther apart than they are long."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: str, skew: int = 0, pad: int = 0
    ) -> None:
        strides, length = [1] * len(shape), 1
        for i in reversed(range(len(shape))):
            strides[i] = length
            length *= shape[i]
            if i == len(shape) - 1 and i > 0:
                length += pad
        bytes_of = torch.empty((), dtype=dtype).element_size()
        start = GUARD + skew
        self.whole = torch.full(((start + length + GUARD) * bytes_of,), 0xA5, dtype=torch.uint8)
        self.whole = self.whole.to(device)
        self.view = self.whole.view(dtype).as_strided(shape, strides, start)

    def outside_untouched(self) -> bool:
        kept = self.whole.clone()
        size = self.view.element_size()
        words = kept.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
        inside = words.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
        inside.fill_(int(words[0]))
        return bool((kept == 0xA5).all())


def bits(t: torch.Tensor) -> torch.Tensor:
    size = t.element_size()
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])


@dataclasses.dataclass(frozen=True)
class AroundCase:
    """One problem: x of `shape`, normalized over its last axis."""

    shape: tuple[int, ...]
    x: str = "bf16"
    kind: int = LAYER
    weight: str = ""  # dtypes; empty: absent
    bias: str = ""
    y: str = "x"  # as x; empty: absent
    residual: str = ""
    sum: str = ""
    statistics: str = "f32"
    row_scale: str = ""
    column_scale: str = ""
    column_axes: int = 0
    dropout: float = 0.0
    mask: bool = False
    scale: str = ""
    shift: str = ""
    modulation_axes: int = 0
    activation: int = 0
    gate: str = ""
    gate_before: bool = False
    rounding: int = 0
    offset: int = 0
    q: str = ""
    y_scale: bool = False
    block: int = 0  # columns under a scale; with q and no y_scale: 0 is one for a row
    power_of_two: bool = False
    e8m0: bool = False
    amax: bool = False
    least: float = 0.0
    most: float = 0.0
    skew: int = 0
    pad: int = 0
    magnitude: float = 1.0
    reduce: int = 0  # a set of axes; 0: the last
    seed: int = 1
    kernel: str = "cuda around"

    def name(self) -> str:
        told = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if f.name not in ("shape", "seed", "kernel") and getattr(self, f.name) != f.default
        ]
        return f"around {'x'.join(map(str, self.shape))} {' '.join(told)}"

    # ---- Tensors --------------------------------------------------------------------------------

    def reduced(self) -> int:
        return self.reduce or 1 << (len(self.shape) - 1)

    def dims(self) -> list[int]:
        return [i for i in range(len(self.shape)) if self.reduced() >> i & 1]

    def sizes(self, axes: int) -> tuple[int, ...]:
        return tuple(n if axes >> i & 1 else 1 for i, n in enumerate(self.shape))

    def op(self) -> Norm:
        return norm(
            kind=self.kind,
            weight_offset=self.offset,
            reduce_axes=self.reduced(),
            affine_axes=self.reduced(),
            eps=1e-5,
            activation=self.activation,
            modulation_axes=self.modulation_axes or self.reduced(),
            column_axes=self.column_axes or self.reduced(),
            gate=int(self.gate_before),
            rounding=self.rounding,
            dropout_p=self.dropout,
            scale_block=self.block,
            scale_format=int(self.power_of_two or self.e8m0),
            scale_least=self.least,
            scale_most=self.most,
        )

    def y_type(self) -> str:
        return self.x if self.y == "x" else self.y

    def inputs(self) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(self.seed)
        full = (1 << len(self.shape)) - 1
        axes = {
            "x": full,
            "residual": full,
            "gate": full,
            "weight": self.reduced(),
            "bias": self.reduced(),
            "row_scale": full & ~self.reduced(),
            "column_scale": self.column_axes or self.reduced(),
            "scale": self.modulation_axes or self.reduced(),
            "shift": self.modulation_axes or self.reduced(),
        }
        out = {}
        for name, mask in axes.items():
            if not getattr(self, name):
                continue
            v = torch.randn(self.sizes(mask), generator=g, dtype=torch.float64)
            if name in ("x", "residual"):
                v = (v + 0.2) * self.magnitude
            if name == "weight":
                v = v * 0.5 + 1 - self.offset
            out[name] = v.to(TORCH[getattr(self, name)])
        if self.dropout:
            out["rng"] = torch.tensor([0x1234567890ABCDEF + self.seed, 5 << 33], dtype=torch.int64)
        if self.y_scale:
            out["y_scale"] = torch.tensor([0.0173], dtype=torch.float32)
        return out

    def outputs(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        rows = self.sizes(~self.reduced())
        statistics = TORCH[self.statistics] if self.statistics else None
        cols = math.prod(self.shape[i] for i in self.dims())
        kept = tuple(n for i, n in enumerate(self.shape) if not self.reduced() >> i & 1)
        out: dict[str, Any] = {}
        if self.y:
            out["y"] = self.shape, TORCH[self.y_type()]
        if statistics:
            if self.kind == LAYER:
                out["mean"] = rows, statistics
            out["rstd"] = rows, statistics
        if self.sum:
            out["sum"] = self.shape, TORCH[self.sum]
        if self.mask:
            out["mask"] = self.shape, torch.uint8
        if self.q:
            out["q"] = self.shape, QUANTISED[self.q]
            if not self.y_scale:
                dtype = torch.float8_e8m0fnu if self.e8m0 else torch.float32
                blocks = -(-cols // self.block) if self.block else 0
                out["y_scales"] = ((*kept, blocks) if blocks else rows), dtype
        if self.amax:
            out["amax"] = (), torch.float32
        return out

    def place(
        self, given: dict[str, torch.Tensor], device: str
    ) -> tuple[dict[str, torch.Tensor], dict[str, Guarded]]:
        """Every tensor on the device, and the buffers of all."""
        buffers = {}
        full = ("x", "residual", "gate", "y", "sum", "mask", "q")
        for name, v in given.items():
            skew = self.skew if name not in ("rng", "y_scale") else 0
            buffers[name] = Guarded(
                tuple(v.shape), v.dtype, device, skew, self.pad if name in full else 0
            )
            buffers[name].view.copy_(v)
        for name, (shape, dtype) in self.outputs().items():
            skew = self.skew if name not in ("amax",) else 0
            buffers[name] = Guarded(shape, dtype, device, skew, self.pad if name in full else 0)
        return {name: b.view for name, b in buffers.items()}, buffers

    # ---- The formulas ---------------------------------------------------------------------------

    def wide(self) -> torch.dtype:
        types = (self.x, self.residual, self.sum, self.weight, self.bias, self.y_type(), self.gate)
        more = (self.column_scale, self.scale, self.shift)
        return torch.float64 if "f64" in (*types, *more) else torch.float32

    def sum_type(self) -> torch.dtype:
        made = self.residual or self.sum or self.row_scale or self.column_scale or self.dropout
        made = made or self.mask or (self.gate and self.gate_before)
        if not made:
            return TORCH[self.x]
        return TORCH[self.sum or self.residual] if self.sum or self.residual else self.wide()

    def kept(self, d: dict[str, torch.Tensor]) -> torch.Tensor:
        index = np.arange(math.prod(self.shape), dtype=np.uint64).reshape(self.shape)
        if not self.dropout:
            return torch.ones(self.shape, dtype=torch.bool)
        seed, offset = (int(v) & (1 << 64) - 1 for v in d["rng"].tolist())
        words = philox(index, seed, offset)
        return torch.from_numpy(words >= np.uint64(math.ceil(self.dropout * 2.0**32)))

    def summed(self, d: dict[str, torch.Tensor], keep: torch.Tensor) -> torch.Tensor:
        """s as it is rounded."""
        wide = self.wide()
        u = d["x"].to(wide)
        if self.gate and self.gate_before:
            u = u * functional.silu(d["gate"].double()).to(wide)
        if self.column_scale:
            u = u * d["column_scale"].to(wide)
        if self.row_scale:
            u = u * d["row_scale"].to(wide)
        if self.dropout:
            factor = torch.tensor(1 / (1 - self.dropout), dtype=torch.float64).to(wide)
            u = torch.where(keep, u * factor, torch.zeros((), dtype=wide))
        if self.residual:
            u = u + d["residual"].to(wide)
        return u.to(self.sum_type())

    def activated(self, v: torch.Tensor) -> torch.Tensor:
        name = ACTIVATIONS[self.activation]
        if name == "gelu":
            return v * torch.special.ndtr(v)
        if name == "gelu_tanh":
            return functional.gelu(v, approximate="tanh")
        return {"none": v, "silu": functional.silu(v), "relu": v.relu()}[name]

    def reference(self, d: dict[str, torch.Tensor], s: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of s: mean, rstd, y before its rounding, and the magnitude that its error is measured by."""
        s = s.double()
        mean = s.mean(self.dims(), keepdim=True) * (self.kind == LAYER)
        variance = (s - mean).square().mean(self.dims(), keepdim=True)
        rstd = (variance + 1e-5).rsqrt()
        xhat = (s - mean) * rstd
        if self.rounding:
            xhat = xhat.to(TORCH[self.x]).double()
        w = d["weight"].double() + self.offset if self.weight else torch.ones(())
        z = xhat * w
        if self.rounding and self.weight:
            z = z.to(TORCH[self.x]).double()
        b = d["bias"].double() if self.bias else torch.zeros(())
        size = z.abs() + b.abs()
        z = z + b
        one = 1 + d["scale"].double() if self.scale else torch.ones(())
        shift = d["shift"].double() if self.shift else torch.zeros(())
        size = size * one.abs() + shift.abs()
        v = self.activated(z * one + shift)
        if self.gate and not self.gate_before:
            silu = functional.silu(d["gate"].double())
            v, size = v * silu, size * silu.abs()
        return {"mean": mean, "rstd": rstd, "y": v, "size": size.maximum(v.abs())}

    # ---- Runs and what is wrong with them -------------------------------------------------------

    def check_y(self, got: torch.Tensor, want: dict[str, torch.Tensor]) -> Iterable[str]:
        t, v = self.y_type(), got.double()
        wide = "f64" if self.wide() == torch.float64 else "f32"
        row = want["size"].amax(self.dims(), keepdim=True).expand_as(v)
        room = (64 if wide == "f64" else 4) * ulp(row, wide)
        if self.activation or self.gate:
            room = room * 2
        if self.gate and self.gate_before:
            room = room * 4
        if self.rounding:
            # Another side of a tie is another number of x's type, and that once more.
            room = room + 2.1 * ulp(want["size"], self.x)
        error = (v - want["y"]).abs()
        if t in ("f16", "bf16"):
            steps = (error - room) / ulp(torch.maximum(want["y"].abs(), v.abs()), t)
            if float(steps.max()) > 1.01:
                yield f"y: {float(steps.max()):.2f} steps"
            differ = float((want["y"].to(TORCH[t]) != got).double().mean())
            # Where terms cancel, f32 shows in more of them.
            share = 1e-2 if self.scale or self.shift or (self.gate and self.gate_before) else 2e-3
            if differ > share and v.numel() > 4000 and not self.rounding:
                yield f"y: {differ:.1e} differ"
        elif not bool((error <= room).all()):
            yield f"y: {float((error / ulp(row, wide)).max()):.2f} ULP"

    def check_q(self, got: dict[str, torch.Tensor], want: torch.Tensor) -> Iterable[str]:
        cols = math.prod(self.shape[i] for i in self.dims())
        last = list(range(-len(self.dims()), 0))
        y = want.movedim(self.dims(), last).reshape(-1, cols)
        q = got["q"].float().movedim(self.dims(), last).reshape(-1, cols).double()
        block = self.block or cols
        if self.y_scale:
            scale = got["y_scale"].double().reshape(1, 1)
        else:
            scale = got["y_scales"].float().double().reshape(y.shape[0], -1)
            padded = functional.pad(y, (0, -cols % block)).reshape(y.shape[0], -1, block)
            expected = (padded.abs().amax(-1).float() / LARGEST[self.q]).double()
            if self.least:
                expected = expected.clamp_min(np.float32(self.least))
            if self.power_of_two or self.e8m0:
                near = expected * (1 - 1e-5)
                expected = torch.exp2(torch.ceil(torch.log2(expected)))
                other = torch.exp2(torch.ceil(torch.log2(near)))
                expected = torch.where(scale == other, other, expected)
            if self.most:
                expected = expected.clamp_max(np.float32(self.most))
            worst = float(((scale - expected).abs() / expected).max())
            if worst > 2e-5:
                yield f"y_scales: off by {worst:.1e}"
            scale = scale.repeat_interleave(block, 1)[:, :cols]
        v = (y / scale).clamp(-LARGEST[self.q], LARGEST[self.q])
        if self.q == "i8":
            half = torch.full_like(v, 0.5)
        else:
            digits, least = DIGITS[self.q]
            exponent = (torch.frexp(v)[1] - 1).clamp_min(least)
            half = torch.ldexp(torch.ones_like(v), exponent - digits)
        room = half + 1e-5 * LARGEST[self.q] / 100 + v.abs() * 1e-5
        if self.rounding or self.gate_before:
            room = room + v.abs() * 2.0 ** (2 - BITS[self.x])
        worst = float(((q - v).abs() / room).max())
        if worst > 1:
            yield f"q: {worst:.3f} of what rounding may take"

    def check_unfused(self, backend: Library, got: dict[str, torch.Tensor]) -> Iterable[str]:
        """The same bits as planish's own norm of the sum."""
        if (
            not (self.sum and self.y)
            or self.scale
            or self.shift
            or self.rounding
            or self.activation
        ):
            return
        if (self.gate and not self.gate_before) or self.kernel != "cuda around":
            return
        plain = dataclasses.replace(
            self,
            x=self.sum,
            y=self.y_type(),
            **dict.fromkeys(("residual", "sum", "row_scale", "column_scale", "gate", "q"), ""),
            **dict.fromkeys(("mask", "gate_before", "amax", "y_scale"), False),
            dropout=0.0,
        )
        given = {"x": got["sum"].cpu()}
        given |= {n: got[n].cpu() for n in ("weight", "bias") if n in got}
        tensors, _ = plain.place(given, backend.device)
        backend.run(plain.op(), tensors)
        for name in ("y", "mean", "rstd"):
            if name in tensors and not torch.equal(bits(tensors[name]), bits(got[name])):
                differ = float((bits(tensors[name]) != bits(got[name])).double().mean())
                yield f"{name}: other bits than the unfused norm's in {differ:.1e} of them"

    def unfused_runs(self, backend: Library) -> None:
        """What check_unfused runs, to be written down."""
        tensors, _ = self.place(self.inputs(), backend.device)
        list(self.check_unfused(backend, tensors))

    def check(self, backend: Library) -> list[str]:
        wrong: list[str] = []
        d = self.inputs()
        tensors, buffers = self.place(d, backend.device)
        backend.run(self.op(), tensors)
        got = {name: t.cpu() for name, t in tensors.items()}
        wrong += [
            f"{name}: wrote outside" for name, b in buffers.items() if not b.outside_untouched()
        ]
        wrong += [
            f"{name}: an input was changed"
            for name, v in d.items()
            if not torch.equal(bits(v.contiguous()), bits(got[name].contiguous()))
        ]
        keep = self.kept(d)
        if self.mask and not torch.equal(got["mask"].bool(), keep):
            wrong.append("mask: not the one that is drawn")
        s = self.summed(d, keep)
        if self.sum and not (self.gate and self.gate_before):
            if not torch.equal(bits(s), bits(got["sum"].contiguous())):
                differ = float((bits(s) != bits(got["sum"].contiguous())).double().mean())
                wrong.append(f"sum: other bits in {differ:.1e} of them")
        elif self.sum:
            error = (s.double() - got["sum"].double()).abs()
            # What silu is to an ULP is an input of the rounding.
            steps = 8 if self.sum in ("f32", "f64") else 1.01
            if bool((error > steps * ulp(s.double(), self.sum)).any()):
                wrong.append("sum: more than a unit off")
        if self.sum:
            s = got["sum"]
        want = self.reference(d, s)
        for name in ("mean", "rstd"):
            if name not in got:
                continue
            wide = "f64" if self.statistics == "f64" and self.wide() == torch.float64 else "f32"
            scale = want[name].abs() + (1 / want["rstd"] if name == "mean" else 0)
            error = float(((got[name].double() - want[name]).abs() / ulp(scale, wide)).max())
            if error > (64 if wide == "f64" else 4 + 60 * self.gate_before):
                wrong.append(f"{name}: {error:.2f} ULP")
        if self.y:
            wrong += self.check_y(got["y"], want)
        if self.q:
            wrong += self.check_q(got, want["y"])
        if self.amax:
            most = float(want["y"].abs().max())
            if abs(float(got["amax"]) - most) > 2e-5 * most + 0.02 * most * self.rounding:
                wrong.append(f"amax: {float(got['amax'])}; wanted {most}")
        wrong += self.check_unfused(backend, tensors)
        return wrong


# ---- The list -----------------------------------------------------------------------------------


def stages() -> dict[str, dict[str, Any]]:
    """Each stage by itself."""
    return {
        "residual": {"residual": "bf16", "sum": "bf16"},
        "residual f32": {"residual": "f32", "sum": "f32"},
        "residual unwritten": {"residual": "bf16"},
        "sum": {"sum": "f32"},
        "row scale": {"row_scale": "f32"},
        "column scale": {"column_scale": "bf16"},
        "dropout": {"dropout": 0.3},
        "mask": {"dropout": 0.5, "mask": True},
        "modulation": {"scale": "bf16", "shift": "bf16"},
        "scale": {"scale": "f32"},
        "shift": {"shift": "f32"},
        "silu": {"activation": 1, "gate": "bf16"},
        "relu": {"activation": 2, "sum": "bf16", "residual": "bf16"},
        "gelu": {"activation": 3, "shift": "f32"},
        "gelu tanh": {"activation": 4, "scale": "bf16"},
        "gate": {"gate": "bf16"},
        "gate first": {"gate": "bf16", "gate_before": True},
        "gate first with sum": {"gate": "bf16", "gate_before": True, "sum": "bf16"},
        "rounding": {"rounding": 1, "weight": "bf16"},
        "e4m3 rows": {"q": "e4m3", "y": ""},
        "e5m2 rows": {"q": "e5m2"},
        "i8 rows": {"q": "i8", "y": ""},
        "static": {"q": "e4m3", "y_scale": True, "amax": True},
        "blocks": {"q": "e4m3", "block": 128, "y": ""},
        "mxfp8": {"q": "e4m3", "block": 32, "e8m0": True, "y": ""},
        "powers": {"q": "e5m2", "block": 64, "power_of_two": True, "y": ""},
        "amax": {"amax": True},
    }


def together() -> list[dict[str, Any]]:
    """Some of them together."""
    return [
        {"residual": "f32", "sum": "f32", "dropout": 0.1, "row_scale": "f32", "weight": "f32"},
        {"residual": "bf16", "sum": "bf16", "column_scale": "bf16", "scale": "bf16", "shift": "bf16"},
        {"residual": "bf16", "sum": "bf16", "q": "e4m3", "weight": "bf16", "amax": True},
        {"residual": "f16", "sum": "f32", "gate": "f32", "activation": 1, "bias": "f32"},
        {"residual": "bf16", "sum": "f16", "weight": "bf16", "bias": "f32", "offset": 1},
        {"gate": "bf16", "gate_before": True, "weight": "bf16", "dropout": 0.2, "mask": True},
        {"rounding": 1, "weight": "bf16", "residual": "bf16", "sum": "bf16", "q": "i8"},
        {
            "residual": "bf16", "sum": "f32", "row_scale": "bf16", "column_scale": "f32",
            "dropout": 0.4, "mask": True, "weight": "f16", "bias": "bf16", "scale": "f16",
            "shift": "f32", "activation": 3, "gate": "f16", "q": "e5m2", "amax": True,
        },
    ]  # fmt: skip


def around_cases(quick: bool) -> list[AroundCase]:
    """Every stage on rows of every geometry, and some of them together."""
    out: list[AroundCase] = []
    cols = (96, 33, 100, 769, 1024, 4096) if quick else (
        1, 2, 24, 33, 64, 96, 100, 128, 200, 512, 600, 769, 1000, 1001, 1024, 2112, 2304, 4096, 4097,
        8192, 12288, 15872,
    )  # fmt: skip
    for (i, (_, stage)), (j, n) in itertools.product(enumerate(stages().items()), enumerate(cols)):
        if quick and (i + j) % 6 and n != 4096:
            continue
        rows = 37 if n < 2000 else 5 if quick else 9
        if not quick:
            rows *= 7
        kind = RMS if (i + j) % 3 == 0 else LAYER
        general = "block" in stage and n % 32 and n > stage["block"]
        out.append(
            AroundCase((rows, n), kind=kind, **stage, kernel="" if general else "cuda around")
        )
    for i, more in enumerate(together()):
        for j, n in enumerate((4096, 96, 1001) if quick else (96, 1001, 4096, 15872)):
            if quick and (i + j) % 3 and n != 4096:
                continue
            for x in ("bf16",) if quick else ("bf16", "f16", "f32", "f64"):
                if more.get("rounding") and x in ("f32", "f64"):
                    continue
                out.append(AroundCase((11, n), x=x, kind=i % 2, **more))
    add = {"residual": "bf16", "sum": "bf16", "weight": "bf16"}
    for n in (12288, 40000) if quick else (16384, 32768, 40000, 50001, 131072):
        out.append(AroundCase((3, n), kind=RMS, **add))
        out.append(AroundCase((3, n), q="e4m3", residual="bf16"))
        out.append(AroundCase((3, n), x="f32", gate="f32", residual="f32", dropout=0.25))
    if not quick:
        for n in (262144, 802817):
            out.append(AroundCase((3, n), **add))
            out.append(AroundCase((3, n), dropout=0.5, mask=True, q="e4m3"))
    # Places: misaligned, rows apart, two axes of rows, modulation of samples, heads.
    for skew, pad in ((1, 0), (0, 3), (2, 4), (4, 8)):
        for n in (96, 769, 1024) if quick else (96, 100, 769, 1024, 4096, 12288):
            out.append(AroundCase((19, n), skew=skew, pad=pad, **add, q="e4m3", mask=True))
    modulated = {"scale": "bf16", "shift": "bf16", "modulation_axes": 5}
    for n in (96, 1024, 4096):
        out.append(AroundCase((4, 9, n), **modulated))
        out.append(
            AroundCase(
                (4, 9, n),
                **modulated,
                residual="bf16",
                sum="bf16",
                column_scale="f32",
                column_axes=5,
                dropout=0.2,
                row_scale="f32",
            )
        )
        out.append(AroundCase((4, 9, n), scale="f32", modulation_axes=7, pad=8, gate="bf16"))
        out.append(AroundCase((4, 9, n), scale="f32", shift="bf16", modulation_axes=1))
    # Magnitudes whose squares leave float's range, and everything 0.
    for magnitude in (1e25, 1e-25, 0.0):
        for n in (96, 4096) if quick else (96, 33, 769, 4096, 40000):
            more = {"x": "f32"} if n == 33 else {}
            out.append(AroundCase((7, n), magnitude=magnitude, **add, **more))
            out.append(
                AroundCase((7, n), magnitude=magnitude, residual="bf16", q="e4m3", least=1e-4)
            )
    # Bounds of scales.
    out.append(AroundCase((9, 1024), q="e4m3", least=0.01, most=0.02))
    out.append(AroundCase((9, 1024), q="i8", most=0.01, block=128))
    # What the kernels for rows do not take.
    general = {"kernel": "cuda general"}
    out.append(AroundCase((5, 24, 9), reduce=2, **add, **general, dropout=0.3, mask=True))
    out.append(AroundCase((5, 24, 9), reduce=2, residual="bf16", q="e4m3", block=8, **general))
    out.append(
        AroundCase((5, 6, 40), reduce=5, scale="f32", modulation_axes=2, gate="bf16", **general)
    )
    out.append(AroundCase((9, 1000), q="e4m3", block=100, amax=True, **general))
    out.append(AroundCase((5, 24, 9), reduce=2, rounding=1, weight="bf16", x="f16", **general))
    out.append(AroundCase((5, 24, 9), reduce=2, gate="f32", gate_before=True, sum="f32", **general))
    out.append(AroundCase((3, 4, 5, 64), column_scale="f32", column_axes=1 | 4 | 8, **general))
    out.append(AroundCase((8, 512), x="f64", residual="f64", sum="f64", q="i8", dropout=0.5))
    return [dataclasses.replace(c, seed=1 + i) for i, c in enumerate(out)]
