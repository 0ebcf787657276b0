"""Forwards with stages around the norm as cases against double: values, bits, guards.

The formulas are those of planish.h. A case runs on whatever library it is handed: that of a GPU or
its emulation. stage_forward_cases.py has the list.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from c_api import FORWARD, IDENTITY, LAYER, SILU, Library, norm, structs
from stage_quantised import QUANTISED, check_q
from stage_reference import (
    STEEPEST,
    TORCH,
    UNITS,
    Guarded,
    activated,
    between,
    differing,
    either_side,
    kept,
    silu_terms,
)
from torch.nn import functional

import torch

NOWHERE_PADDED = ("rng", "y_scale", "amax")


@dataclasses.dataclass(frozen=True)
class ForwardCase:
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
    affine: int = 0  # likewise, of weight and bias; 0: those that are reduced
    order: tuple[int, ...] = ()  # of the full tensors' axes in memory
    seed: int = 1
    kernel: str = "cuda stages"
    arch: ClassVar[int] = 90  # of the emulated device
    multiprocessors: ClassVar[int] = 4
    passed: ClassVar[int] = FORWARD

    def name(self) -> str:
        """What tells it from others."""
        told = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if f.name not in ("shape", "seed", "kernel") and getattr(self, f.name) != f.default
        ]
        return f"forward {'x'.join(map(str, self.shape))} {' '.join(told)}"

    def traits(self) -> set[str]:
        """What a case is there for."""
        fields = dataclasses.fields(self)
        set_ = [f for f in fields if f.name not in ("shape", "seed")]
        found = {f"{f.name} {getattr(self, f.name)}" for f in set_}
        if self.modulated_alone():
            found.add(f"modulation alone of {self.shape[-1]} columns in {self.modulation_axes}")
        return found | {f"{self.shape[-1]} columns"}

    def modulated_alone(self) -> bool:
        """Whether there is a modulation and no other stage, weight or bias."""
        other = (self.residual, self.sum, self.row_scale, self.column_scale, self.gate, self.q)
        more = (self.dropout, self.mask, self.amax, self.rounding, self.weight, self.bias)
        return bool(self.scale or self.shift) and not any((*other, *more))

    # ---- Tensors --------------------------------------------------------------------------------

    def reduced(self) -> int:
        """The set of axes that a mean is taken over."""
        return self.reduce or 1 << (len(self.shape) - 1)

    def dims(self) -> list[int]:
        """Likewise, as numbers."""
        return [i for i in range(len(self.shape)) if self.reduced() >> i & 1]

    def sizes(self, axes: int) -> tuple[int, ...]:
        """x's shape with 1 for the axes that are not in the set."""
        return tuple(n if axes >> i & 1 else 1 for i, n in enumerate(self.shape))

    def op(self) -> structs.Norm:
        """The operator."""
        return norm(
            kind=self.kind,
            weight_offset=self.offset,
            reduce_axes=self.reduced(),
            affine_axes=self.affine or self.reduced(),
            eps=1e-5,
            activation=self.activation,
            modulation_axes=self.modulation_axes or self.reduced(),
            column_axes=self.column_axes or self.affine or self.reduced(),
            gate=int(self.gate_before),
            rounding=self.rounding,
            dropout_p=self.dropout,
            scale_block=self.block,
            scale_format=int(self.power_of_two or self.e8m0),
            scale_least=self.least,
            scale_most=self.most,
        )

    def y_type(self) -> str:
        """y's dtype."""
        return self.x if self.y == "x" else self.y

    def inputs(self) -> dict[str, torch.Tensor]:
        """Every input, with numbers in it."""
        g = torch.Generator().manual_seed(self.seed)
        full = (1 << len(self.shape)) - 1
        axes = {
            "x": full,
            "residual": full,
            "gate": full,
            "weight": self.affine or self.reduced(),
            "bias": self.affine or self.reduced(),
            "row_scale": full & ~self.reduced(),
            "column_scale": self.column_axes or self.affine or self.reduced(),
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
        """Every output's shape and dtype."""
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
        self, device: str, given: dict[str, torch.Tensor] | None = None
    ) -> tuple[dict[str, torch.Tensor], dict[str, Guarded]]:
        """Every tensor on the device, and the buffers of all; `given`: inputs, if not its own."""
        given = self.inputs() if given is None else given
        buffers = {}
        full = ("x", "residual", "gate", "y", "sum", "mask", "q")
        shapes = {name: (tuple(v.shape), v.dtype) for name, v in given.items()} | self.outputs()
        for name, (shape, dtype) in shapes.items():
            skew = self.skew if name not in NOWHERE_PADDED else 0
            pad = self.pad if name in full else 0
            order = self.order if name in full else ()
            buffers[name] = Guarded(shape, dtype, device, skew, pad, order)
        for name, v in given.items():
            buffers[name].view.copy_(v)
        return {name: b.view for name, b in buffers.items()}, buffers

    # ---- The formulas ---------------------------------------------------------------------------

    def wide(self) -> str:
        """The compute type."""
        types = (self.x, self.residual, self.sum, self.weight, self.bias, self.y_type(), self.gate)
        more = (self.column_scale, self.scale, self.shift)
        return "f64" if "f64" in (*types, *more) else "f32"

    def sum_type(self) -> torch.dtype:
        """What s is rounded to."""
        made = self.residual or self.sum or self.row_scale or self.column_scale or self.dropout
        made = made or self.mask or (self.gate and self.gate_before)
        if not made:
            return TORCH[self.x]
        return TORCH[self.sum or self.residual or self.wide()]

    def summed(
        self, d: dict[str, torch.Tensor], keep: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """s before its rounding, and its room: none, but where silu is in it."""
        wide, unit = TORCH[self.wide()], UNITS[self.wide()]
        u = d["x"].to(wide)
        room = torch.zeros(self.shape, dtype=torch.float64)
        inexact = bool(self.gate) and self.gate_before
        if inexact:
            room = 8 * unit * u.double().abs() * silu_terms(d["gate"].double())
            u = u * functional.silu(d["gate"].double()).to(wide)
        for name in ("column_scale", "row_scale"):
            if name in d:
                u = u * d[name].to(wide)
                room = room * d[name].double().abs() + 2 * unit * inexact * u.double().abs()
        if self.dropout:
            factor = torch.tensor(1 / (1 - self.dropout), dtype=torch.float64).to(wide)
            u = torch.where(keep, u * factor, torch.zeros((), dtype=wide))
            room = (room * float(factor) + 2 * unit * inexact * u.double().abs()) * keep
        if self.residual:
            u = u + d["residual"].to(wide)
            room = room + 2 * unit * inexact * u.double().abs()
        return u, room

    def reference(
        self, d: dict[str, torch.Tensor], s: torch.Tensor, s_room: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """mean, rstd and y of s, and their rooms.

        Those of the norm itself are 4 ULP of a row's largest xhat, which is 8 units; each stage
        takes the room of its input along its slope and adds its roundings of the terms it counts.
        """
        unit = UNITS[self.wide()]
        norm_units = 8 if self.wide() == "f32" else 64  # double is the reference's own type, too
        s, dims = s.double(), self.dims()
        mean = s.mean(dims, keepdim=True) * (self.kind == LAYER)
        rstd = ((s - mean).square().mean(dims, keepdim=True) + 1e-5).rsqrt()
        xhat = (s - mean) * rstd
        turned = (xhat.abs() * s_room).mean(dims, keepdim=True)  # what rstd's error comes from
        mean_room = norm_units * unit * (mean.abs() + 1 / rstd) + s_room.mean(dims, keepdim=True)
        rstd_room = norm_units * unit * rstd + rstd.square() * turned
        room = norm_units * unit * xhat.abs().amax(dims, keepdim=True)
        room = room + rstd * (s_room + s_room.mean(dims, keepdim=True) + xhat.abs() * turned)
        if self.rounding:
            room = either_side(xhat, room, TORCH[self.x])
            xhat = xhat.to(TORCH[self.x]).double()
        w = d["weight"].double() + self.offset if self.weight else torch.ones(())
        b = d["bias"].double() if self.bias else torch.zeros(())
        z, room = xhat * w, room * w.abs()
        if self.rounding and self.weight:
            room = either_side(z, room + 2 * unit * z.abs(), TORCH[self.x])
            z = z.to(TORCH[self.x]).double()
        room = room + 2 * unit * (z.abs() + b.abs())
        z = z + b
        one = 1 + d["scale"].double() if self.scale else torch.ones(())
        shift = d["shift"].double() if self.shift else torch.zeros(())
        room = room * one.abs() + 2 * unit * ((z * one).abs() + shift.abs())
        m = z * one + shift
        y = activated(m, self.activation)[0]
        if self.activation != IDENTITY:  # whose exponent has m's rounding in it
            room = room * STEEPEST[self.activation] + unit * (12 * y.abs() + m.abs())
        if self.gate and not self.gate_before:
            gate = d["gate"].double()
            silu = activated(gate, SILU)[0]
            room = room * silu.abs() + 8 * unit * y.abs() * silu_terms(gate)
            y = y * silu
        return {
            "mean": (mean, mean_room),
            "rstd": (rstd, rstd_room),
            "y": (y, room + unit * y.abs()),
        }

    # ---- Runs and what is wrong with them -------------------------------------------------------

    def unfused(self, library: Library, got: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What planish's own norm makes of the sum; nothing where no such norm is the same."""
        apart = self.kernel == "cuda stages sum"  # by kernels of its own, activations too
        stages = self.scale or self.shift or self.rounding or (self.activation and not apart)
        gated = self.gate and not self.gate_before
        told = apart or self.kernel == "cuda stages"
        if not (self.sum and self.y) or stages or gated or not told:
            return {}
        absent = ("residual", "sum", "row_scale", "column_scale", "gate", "q")
        off: dict[str, Any] = dict.fromkeys(absent, "")
        off |= dict.fromkeys(("mask", "gate_before", "amax", "y_scale"), False)
        plain = dataclasses.replace(self, x=self.sum, y=self.y_type(), dropout=0.0, **off)
        given = {"x": got["sum"].cpu()}
        given |= {n: got[n].cpu() for n in ("weight", "bias") if n in got}
        tensors, _ = plain.place(library.device, given)
        library.run(plain.op(), FORWARD, tensors)
        return tensors

    def by_all_stages(self, library: Library) -> dict[str, torch.Tensor]:
        """What the kernels that know every stage make of a modulation alone: with x as its sum."""
        if not self.modulated_alone() or self.kernel != "cuda stages":
            return {}
        tensors, _ = dataclasses.replace(self, sum=self.x).place(library.device)
        library.run(self.op(), FORWARD, tensors)
        return tensors

    def write(self, library: Library) -> None:
        """All that check runs, for a library that only writes down what it would run."""
        tensors, _ = self.place(library.device)
        library.run(self.op(), FORWARD, tensors)
        self.unfused(library, tensors)
        self.by_all_stages(library)

    def check(self, library: Library) -> list[str]:
        """Runs it and says what is wrong."""
        d = self.inputs()
        tensors, buffers = self.place(library.device)
        library.run(self.op(), FORWARD, tensors)
        got = {name: t.cpu() for name, t in tensors.items()}
        wrong = [f"{n}: wrote outside" for n, b in buffers.items() if not b.outside_untouched()]
        wrong += [f"{n}: an input was changed" for n, v in d.items() if differing(v, got[n])]
        keep = kept(self.shape, d.get("rng"), self.dropout)
        if self.mask and not torch.equal(got["mask"], keep.to(torch.uint8)):
            wrong.append("mask: not the one that is drawn")
        exact, room = self.summed(d, keep)
        s = exact.to(self.sum_type())
        if self.sum and not bool(room.any()):
            if part := differing(s, got["sum"]):
                wrong.append(f"sum: other bits in {part:.1e} of them")
        elif self.sum:
            told = between(got["sum"], exact.double(), room, self.sum_type())
            wrong += [f"sum: {w}" for w in told]
        if self.sum:
            s, room = got["sum"], torch.zeros_like(room)
        elif bool(room.any()) and self.sum_type() != TORCH[self.wide()]:
            room = either_side(exact.double(), room, self.sum_type())
        want = self.reference(d, s, room)
        for name in ("mean", "rstd", "y"):
            if name in got:
                wrong += [f"{name}: {w}" for w in between(got[name], *want[name], got[name].dtype)]
        y, room = want["y"]
        if self.q:
            wrong += check_q(self, got, y, room)
        if self.amax:
            either = ((y.abs() + side * room).max() for side in (-1, 1))
            low, high = (float(bound.float()) for bound in either)  # as amax is stored
            if not low <= float(got["amax"]) <= high:
                wrong.append(f"amax: {float(got['amax'])}; wanted from {low} to {high}")
        for name, t in self.unfused(library, tensors).items():
            if name in ("y", "mean", "rstd") and (part := differing(t, tensors[name])):
                wrong.append(f"{name}: other bits than the unfused norm's in {part:.1e} of them")
        for name, t in self.by_all_stages(library).items():
            if name in ("y", "mean", "rstd") and (part := differing(t, tensors[name])):
                wrong.append(f"{name}: other bits than by all stages in {part:.1e} of them")
        return wrong
