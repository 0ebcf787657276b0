"""Backwards with stages around the norm as cases against double: values, bits, guards.

The formulas are those of planish.h. A case runs on whatever library it is handed: that of a GPU or
its emulation. stage_backward_cases.py has the list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from c_api import BACKWARD, IDENTITY, LAYER, SILU, Library, axes, norm, structs
from stage_reference import (
    BENT,
    STEEPEST,
    TORCH,
    UNITS,
    Guarded,
    activated,
    between,
    differing,
    kept,
    silu_slope_terms,
    silu_terms,
)

import torch

FULL = ("x", "dy", "dx", "gate", "dsum", "branch", "dresidual", "dgate")
OUTPUTS = ("dx", "dresidual", "dweight", "dbias", "dcolumn_scale", "dscale", "dshift", "dgate")
#: Units of its terms that an output may be off: a norm's 4 ULP, and as much for an activation and
#: for a gate: their estimates are off by 3 (e^-g) and 2 (a reciprocal), with 3 roundings between.
ROUNDINGS = 8


@dataclasses.dataclass
class BackwardCase:
    """One backward with stages; `has`: its tensors beside dy, x, mean and rstd."""

    shape: tuple[int, ...]
    has: tuple[str, ...]
    reduce: tuple[int, ...] = (-1,)
    affine: tuple[int, ...] | None = None
    modulation: tuple[int, ...] = ()
    column: tuple[int, ...] | None = None
    kind: int = LAYER
    activation: int = IDENTITY
    gate_before: bool = False
    p: float = 0.0
    offset: int = 0
    dtype: str = "f32"
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    order: tuple[int, ...] | None = None  # of the full tensors' axes in memory
    pad: int = 0  # elements between the last axis' rows
    skew: int = 0  # elements that tensors begin behind an aligned address
    alias: Mapping[str, str] = dataclasses.field(default_factory=dict)  # output: input
    seed: int = 1
    arch: int = 90  # of the emulated device
    multiprocessors: int = 2
    kernel: ClassVar[str] = ""  # any
    passed: ClassVar[int] = BACKWARD

    def name(self) -> str:
        """What tells it from others."""
        fields = dataclasses.asdict(self)
        default = {f.name: f.default for f in dataclasses.fields(self)}
        more = " ".join(
            f"{k}={v}"
            for k, v in fields.items()
            if k not in ("shape", "has", "seed") and v != default.get(k) and v not in ({}, None)
        )
        return f"backward {'x'.join(map(str, self.shape))} {'+'.join(self.has)} {more}".strip()

    def op(self) -> structs.Norm:
        """The operator."""
        n = len(self.shape)

        def mask(of: tuple[int, ...]) -> int:
            return axes(tuple(a % n for a in of))

        return norm(
            kind=self.kind,
            weight_offset=self.offset,
            reduce_axes=mask(self.reduce),
            affine_axes=mask(self.reduce if self.affine is None else self.affine),
            eps=1e-5,
            activation=self.activation,
            modulation_axes=mask(self.modulation),
            column_axes=0 if self.column is None else mask(self.column),
            gate=int(self.gate_before),
            dropout_p=self.p,
        )

    def axes_of(self, role: str) -> tuple[int, ...]:
        """The axes that a tensor has."""
        n = len(self.shape)
        affine = self.reduce if self.affine is None else self.affine
        of: tuple[int, ...] = tuple(range(n))
        if role in ("weight", "bias", "dweight", "dbias"):
            of = affine
        elif role in ("mean", "rstd", "row_scale"):
            return tuple(a for a in range(n) if a not in {r % n for r in self.reduce})
        elif role in ("column_scale", "dcolumn_scale"):
            of = affine if self.column is None else self.column
        elif role in ("scale", "shift", "dscale", "dshift"):
            of = self.modulation
        return tuple(sorted(a % n for a in of))

    def type_of(self, role: str) -> str:
        """A tensor's dtype."""
        if role in ("mean", "rstd"):
            return self.types.get(role, "f64" if self.dtype == "f64" else "f32")
        return self.types.get(role, self.dtype)

    def traits(self) -> set[str]:
        """What a case is there for."""
        fields = ("reduce", "affine", "modulation", "column", "kind", "activation", "gate_before")
        more = ("offset", "dtype", "order", "pad", "skew", "arch")
        found = {f"{name} {getattr(self, name)}" for name in (*fields, *more)}
        found |= {f"{output} in the place of {place}" for output, place in self.alias.items()}
        modulated = {"scale", "shift", "dscale", "dshift"} & set(self.has)
        if modulated and not {"weight", "bias", "gate", "dsum", "rng", "branch"} & set(self.has):
            found.add(f"modulation alone of {self.shape[-1]} columns, {len(self.has)} tensors")
        return found | set(self.has) | {f"{self.shape[-1]} columns"}

    def wide(self) -> str:
        """The compute type."""
        apart = ("mean", "rstd", "row_scale", "rng")
        roles = ("x", "dy", *self.has)
        return "f64" if "f64" in {self.type_of(r) for r in roles if r not in apart} else "f32"

    def buffer(self, role: str, device: str) -> Guarded:
        """Memory of a tensor."""
        sizes = tuple(self.shape[a] for a in self.axes_of(role))
        full = role in FULL
        order = self.order or () if full else ()
        pad = self.pad if full else 0
        return Guarded(sizes, TORCH[self.type_of(role)], device, self.skew, pad, order)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Every input, with numbers in it."""
        g = torch.Generator().manual_seed(self.seed)
        roles = ["dy", "x", *(r for r in self.has if r not in OUTPUTS and r != "rng")]
        found = {}
        for role in roles:
            sizes = [self.shape[a] for a in self.axes_of(role)]
            center = 1.0 if role in ("weight", "row_scale", "column_scale") else 0.3
            spread = 0.3 if role in ("weight", "bias", "scale", "shift", "row_scale") else 1.0
            v = torch.randn(sizes, generator=g, dtype=torch.float64) * spread + center
            found[role] = v.to(TORCH[self.type_of(role)])
        if self.p:
            found["rng"] = torch.tensor([0x123456789ABC, 5 + 2**33])
        s = self.facts(found)["s"]
        dims = [a % len(self.shape) for a in self.reduce]
        mean = s.mean(dims, keepdim=True) * (self.kind == LAYER)
        rstd = ((s - mean).square().mean(dims, keepdim=True) + 1e-5).rsqrt()
        for role, v in (("mean", mean), ("rstd", rstd)):
            if role == "rstd" or self.kind == LAYER:
                sizes = [self.shape[a] for a in self.axes_of(role)]
                found[role] = v.reshape(sizes).to(TORCH[self.type_of(role)])
        return found

    def place(
        self, device: str, given: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[dict[str, torch.Tensor], dict[str, Guarded]]:
        """Every tensor on the device, and the buffers of all."""
        given = self.inputs() if given is None else given
        buffers = {}
        for role, v in given.items():
            if role == "rng":
                buffers[role] = Guarded(tuple(v.shape), v.dtype, device)
            else:
                buffers[role] = self.buffer(role, device)
            buffers[role].view.copy_(v)
        for role in (r for r in self.has if r in OUTPUTS):
            other = self.alias.get(role)
            buffers[role] = buffers[other] if other else self.buffer(role, device)
        return {role: b.view for role, b in buffers.items()}, buffers

    # ---- The formulas ---------------------------------------------------------------------------

    def facts(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inputs in double, broadcast to x's shape, and what x is multiplied by."""
        n = len(self.shape)
        d = {}
        for role, t in given.items():
            if role == "rng":
                continue
            of = self.axes_of(role)
            d[role] = t.double().reshape([self.shape[a] if a in of else 1 for a in range(n)])
        one = torch.ones(self.shape, dtype=torch.float64)
        keep = 1 / (1 - self.p)
        keep = keep if self.wide() == "f64" else float(np.float32(keep))
        keeps = kept(self.shape, given.get("rng"), self.p).double()
        d["plain"] = keeps * keep * d.get("row_scale", one)
        d["factors"] = d["plain"] * d.get("column_scale", one)
        before = self.gate_before and "gate" in d
        d["s"] = d["x"] * activated(d["gate"], SILU)[0] * d["factors"] if before else d["x"]
        return d

    def summed(self, role: str, v: torch.Tensor) -> torch.Tensor:
        """v summed to the axes that a tensor has."""
        of = self.axes_of(role)
        over = [a for a in range(len(self.shape)) if a not in of]
        v = v.expand(self.shape)
        return v.sum(over, keepdim=True) if over else v

    def reference(self, given: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
        """Each output, and the magnitudes of its terms, which its error is counted in.

        `_t` is that of the name before it: a product's are its factors' multiplied, a sum's added,
        and a function's are its argument's along its steepest slope and what itself is made of.
        """
        d = self.facts(given)
        dims = [a % len(self.shape) for a in self.reduce]
        one = torch.ones(self.shape, dtype=torch.float64)
        zero = torch.zeros_like(one)
        before = self.gate_before and "gate" in d
        after = "gate" in d and not before
        gate, gate_t, slope_of_gate, slope_of_gate_t = one, one, zero, zero
        if "gate" in d:
            gate, slope_of_gate = activated(d["gate"], SILU)
            gate_t, slope_of_gate_t = silu_terms(d["gate"]), silu_slope_terms(d["gate"])
        rstd, layer = d["rstd"], self.kind == LAYER
        mean = d["s"].mean(dims, keepdim=True) * layer
        xhat = (d["s"] - mean) * rstd
        s_t = (d["x"] * d["factors"]).abs() * gate_t if before else d["s"].abs()
        xhat_t = (s_t + mean.abs()) * rstd
        w = d["weight"] + self.offset if "weight" in d else one
        b, up, shift = d.get("bias", zero), 1 + d.get("scale", zero), d.get("shift", zero)
        z, z_t = xhat * w + b, xhat_t * w.abs() + b.abs()
        m, m_t = z * up + shift, z_t * up.abs() + shift.abs()
        v, slope = activated(m, self.activation)
        v_t, slope_t = m_t * STEEPEST[self.activation], one
        if self.activation != IDENTITY:
            slope_t = slope.abs() + BENT[self.activation] * m_t
        dm, dm_t = d["dy"] * slope, d["dy"].abs() * slope_t
        if after:
            dm, dm_t = dm * gate, dm_t * gate_t
        dz, dz_t = dm * up, dm_t * up.abs()
        g, g_t = dz * w, dz_t * w.abs()
        c1 = g.mean(dims, keepdim=True) * layer
        c2 = (g * xhat).mean(dims, keepdim=True)
        ds = rstd * (g - c1 - xhat * c2) + d.get("dsum", zero)
        c2_t = (g_t * xhat_t).mean(dims, keepdim=True)
        ds_t = rstd * (g_t + g_t.mean(dims, keepdim=True) * layer + xhat_t * c2_t)
        # As for a norm alone: of a row's largest.
        ds_t = ds_t.amax(dims, keepdim=True) + d.get("dsum", zero).abs()
        through, through_t = (gate, gate_t) if before else (one, one)
        found = {
            "dx": (ds * d["factors"] * through, ds_t * d["factors"].abs() * through_t),
            "dresidual": (ds, ds_t),
            "dweight": (dz * xhat, dz_t * xhat_t),
            "dbias": (dz, dz_t),
            "dscale": (dm * z, dm_t * z_t),
            "dshift": (dm, dm_t),
        }
        if "branch" in d:
            more = d["branch"] * d["plain"]
            found["dcolumn_scale"] = (ds * more * through, ds_t * more.abs() * through_t)
        if before:
            more = d["x"] * d["factors"]
            found["dgate"] = (ds * more * slope_of_gate, ds_t * more.abs() * slope_of_gate_t)
        elif after:
            found["dgate"] = (d["dy"] * v * slope_of_gate, d["dy"].abs() * v_t * slope_of_gate_t)
        return {r: tuple(self.summed(r, t) for t in both) for r, both in found.items()}

    # ---- Runs and what is wrong with them -------------------------------------------------------

    def write(self, library: Library) -> None:
        """All that check runs, for a library that only writes down what it would run."""
        library.run(self.op(), BACKWARD, self.place(library.device)[0])

    def check(self, library: Library) -> list[str]:
        """Runs it twice and says what is wrong."""
        given = self.inputs()
        placed, buffers = self.place(library.device, given)
        library.run(self.op(), BACKWARD, placed)
        wrong = [f"{r}: wrote outside" for r, b in buffers.items() if not b.outside_untouched()]
        got = {role: t.cpu() for role, t in placed.items()}
        free = (r for r in given if r not in self.alias.values())
        wrong += [f"{r}: an input was changed" for r in free if differing(given[r], got[r])]
        exact = self.reference(given)
        outputs = [r for r in self.has if r in OUTPUTS]
        functions = (self.activation != IDENTITY) + ("gate" in self.has)
        units = ROUNDINGS * (1 + functions) * UNITS[self.wide()]
        for role in outputs:
            value, terms = exact[role]
            room = units * terms
            told = between(got[role].reshape(value.shape), value, room, got[role].dtype)
            wrong += [f"{role}: {w}" for w in told]
        again, _ = self.place(library.device, given)
        library.run(self.op(), BACKWARD, again)
        twice = (r for r in outputs if differing(got[r], again[r].cpu()))
        return wrong + [f"{role}: other bits in a second run" for role in twice]
