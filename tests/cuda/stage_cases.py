"""Backward passes with stages around the norm, as cases against double: on a GPU and emulated."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
from planish_c import BACKWARD, LAYER, RMS, Library, Norm, axes

import torch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
NAMES = {t: n for n, t in TORCH.items()}
BITS = {"f32": 24, "f16": 11, "bf16": 8, "f64": 53}
LOWEST = {"f32": -149, "f16": -24, "bf16": -133, "f64": -1074}
FULL = ("x", "dy", "dx", "gate", "dsum", "branch", "dresidual", "dgate")
OUTPUTS = (*("dx", "dresidual", "dweight", "dbias", "dcolumn_scale", "dscale", "dshift", "dgate"),)
IDENTITY, SILU, RELU, GELU, GELU_TANH = range(5)
GUARD = 16


def philox_keep(seed: int, offset: int, count: int, p: float) -> torch.Tensor:
    """keep of elements 0 to count, as planish.h says."""
    blocks = (count + 3) // 4
    i = np.arange(blocks, dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    c = [i & low, i >> np.uint64(32)]
    c += [np.full(blocks, v, np.uint64) for v in (offset & 0xFFFFFFFF, offset >> 32)]
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ k[0],
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ k[1],
            a & low,
        ]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    words = np.stack(c, 1).reshape(-1)[:count]
    return torch.from_numpy((words >= np.uint64(math.ceil(p * 2**32))).astype(np.float64))


def activated(m: torch.Tensor, which: int) -> tuple[torch.Tensor, torch.Tensor]:
    """f(m) and f'(m)."""
    if which == SILU:
        s = torch.sigmoid(m)
        return m * s, s * (1 + m * (1 - s))
    if which == RELU:
        return m.clamp_min(0), (m > 0).double()
    if which == GELU:
        cdf = 0.5 * torch.special.erfc(-m / math.sqrt(2))
        return m * cdf, cdf + m * torch.exp(-m * m / 2) / math.sqrt(2 * math.pi)
    if which == GELU_TANH:
        a = math.sqrt(2 / math.pi)
        t = torch.tanh(a * (m + 0.044715 * m**3))
        return 0.5 * m * (1 + t), 0.5 * (1 + t) + 0.5 * m * (1 - t * t) * a * (
            1 + 3 * 0.044715 * m * m
        )
    return m, torch.ones_like(m)


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """One unit in the last place of `dtype` at |value|."""
    exponent = torch.frexp(value.abs().clamp_min(2.0**-1040))[1] - BITS[dtype]
    return torch.ldexp(torch.ones_like(value), exponent.clamp_min(LOWEST[dtype]))


@dataclasses.dataclass
class StageCase:
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

    def name(self) -> str:
        """What tells it from others."""
        fields = dataclasses.asdict(self)
        default = {f.name: f.default for f in dataclasses.fields(self)}
        more = " ".join(
            f"{k}={v}"
            for k, v in fields.items()
            if k not in ("shape", "has", "seed") and v != default.get(k) and v not in ({}, None)
        )
        return f"{'x'.join(map(str, self.shape))} {'+'.join(self.has)} {more}"

    def norm(self) -> Norm:
        """The operator."""
        n = len(self.shape)

        def mask(of: tuple[int, ...]) -> int:
            return axes([a % n for a in of])

        return Norm(
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

    def is_double(self, roles: Mapping[str, torch.Tensor]) -> bool:
        """Whether the arithmetic is f64."""
        apart = ("mean", "rstd", "row_scale", "rng")
        return "f64" in {self.type_of(r) for r in (*roles, *self.has) if r not in apart}

    def tensor(self, role: str, device: str) -> torch.Tensor:
        """Memory of a tensor, all of it NaN."""
        sizes = [self.shape[a] for a in self.axes_of(role)]
        order = list(range(len(sizes)))
        if role in FULL and self.order:
            order = list(self.order)
        strides, step = [0] * len(sizes), 1
        pad = self.pad if role in FULL else 0
        for k, a in enumerate(reversed(order)):
            strides[a] = step
            step = step * sizes[a] + (pad if k == 0 else 0)
        dtype = TORCH[self.type_of(role)]
        whole = torch.full((step + 2 * GUARD + self.skew,), math.nan, dtype=dtype, device=device)
        return whole.as_strided(sizes, strides, GUARD + self.skew)

    def inputs(self, device: str) -> dict[str, torch.Tensor]:
        """Every input, with numbers in it."""
        g = torch.Generator().manual_seed(self.seed)
        roles = ["dy", "x", *(r for r in self.has if r not in OUTPUTS and r != "rng")]
        found = {}
        for role in roles:
            t = self.tensor(role, device)
            center = 1.0 if role in ("weight", "row_scale", "column_scale") else 0.3
            spread = 0.3 if role in ("weight", "bias", "scale", "shift", "row_scale") else 1.0
            t.copy_(torch.randn(t.shape, generator=g, dtype=torch.float64) * spread + center)
            found[role] = t
        if self.p:
            found["rng"] = torch.tensor([0x123456789ABC, 5 + 2**33], device=device)
        s = self.facts(found)["s"]
        dims = [a % len(self.shape) for a in self.reduce]
        mean = s.mean(dims, keepdim=True) * (self.kind == LAYER)
        rstd = ((s - mean).square().mean(dims, keepdim=True) + 1e-5).rsqrt()
        for role, v in (("mean", mean), ("rstd", rstd)):
            if role == "rstd" or self.kind == LAYER:
                found[role] = self.tensor(role, device)
                found[role].copy_(v.reshape(found[role].shape))
        return found

    def facts(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The inputs in double, broadcast to x's shape, and what x is multiplied by."""
        n = len(self.shape)
        d = {}
        for role, t in given.items():
            if role == "rng":
                continue
            of = self.axes_of(role)
            d[role] = t.double().cpu().reshape([self.shape[a] if a in of else 1 for a in range(n)])
        one = torch.ones(self.shape, dtype=torch.float64)
        d["keep"] = one
        if self.p:
            seed, offset = (int(v) for v in given["rng"])
            keep = philox_keep(seed, offset, one.numel(), self.p).reshape(self.shape)
            kept = 1 / (1 - self.p)
            d["keep"] = keep * (kept if self.is_double(given) else float(np.float32(kept)))
        d["plain"] = d.get("row_scale", one) * d["keep"]
        d["factors"] = d["plain"] * d.get("column_scale", one)
        d["silu"], d["silu_slope"] = one, one
        if "gate" in d:
            d["silu"], d["silu_slope"] = activated(d["gate"], SILU)
        d["s"] = d["x"]
        if self.gate_before and "gate" in d:
            d["s"] = d["x"] * d["silu"] * d["factors"]
        return d

    def reference(self, given: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
        """Each output, and the magnitude that its error is measured against."""
        n = len(self.shape)
        d = self.facts(given)
        one = torch.ones(self.shape, dtype=torch.float64)
        dims = [a % n for a in self.reduce]
        w = d["weight"] + self.offset if "weight" in d else one
        b = d.get("bias", 0 * one)
        layer = self.kind == LAYER
        mean = d["s"].mean(dims, keepdim=True) * layer
        xhat = (d["s"] - mean) * d["rstd"]
        z = xhat * w + b
        up = 1 + d.get("scale", 0 * one)
        m = z * up + d.get("shift", 0 * one)
        v, slope = activated(m, self.activation)
        before = self.gate_before and "gate" in d
        after = "gate" in d and not before
        dm = d["dy"] * slope * (d["silu"] if after else 1)
        dz = dm * up
        g = dz * w
        c1 = g.mean(dims, keepdim=True) * layer
        c2 = (g * xhat).mean(dims, keepdim=True)
        ds = d["rstd"] * (g - c1 - xhat * c2) + d.get("dsum", 0)
        size_g = d["rstd"] * (g.abs() + g.abs().mean(dims, keepdim=True) * (1 + xhat.abs()))
        size_g = size_g.amax(dims, keepdim=True) + d.get("dsum", 0 * one).abs()
        through = d["silu"] if before else 1

        def summed(role: str, v: torch.Tensor) -> torch.Tensor:
            of = self.axes_of(role)
            over = [a for a in range(n) if a not in of]
            return v.sum(over, keepdim=True) if over else v

        found = {
            "dx": (ds * d["factors"] * through, (size_g * d["factors"] * through).abs()),
            "dresidual": (ds, size_g),
        }
        for role, value, size in (
            ("dweight", dz * xhat, (dm.abs() + d["dy"].abs()) * (1 + up.abs()) * (1 + xhat.abs())),
            ("dbias", dz, (dm.abs() + d["dy"].abs()) * (1 + up.abs())),
            ("dscale", dm * z, (dm.abs() + d["dy"].abs()) * (1 + xhat.abs() * w.abs() + b.abs())),
            ("dshift", dm, dm.abs() + d["dy"].abs()),
        ):
            found[role] = (summed(role, value), summed(role, size * one))
        if "branch" in d:
            more = d["branch"] * d["plain"] * through
            value, size = ds * more, (size_g * more).abs()
            found["dcolumn_scale"] = (summed("dcolumn_scale", value), summed("dcolumn_scale", size))
        if before:
            more = d["x"] * d["silu_slope"] * d["factors"]
            size = size_g * d["x"].abs() * d["factors"].abs() * (0.3 + d["silu_slope"].abs())
            found["dgate"] = (ds * more, size)  # its slope is a difference
        elif after:
            found["dgate"] = (
                d["dy"] * v * d["silu_slope"],
                d["dy"].abs() * (1 + v.abs()) * (1 + m.abs()),
            )
        return found

    def place(self, device: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Inputs and all tensors of a run."""
        given = self.inputs(device)
        placed = dict(given)
        for role in self.has:
            if role in OUTPUTS:
                other = self.alias.get(role)
                placed[role] = given[other].clone() if other else self.tensor(role, device)
                if other:
                    copy = self.tensor(other, device)
                    copy.copy_(given[other])
                    placed[role] = placed[other] = copy
        return given, placed

    def check(self, library: Library, device: str = "cpu") -> list[str]:
        """Runs it twice and says what is wrong."""
        given, placed = self.place(device)
        library.run(self.norm(), BACKWARD, placed)
        wrong = []
        exact = self.reference(given)
        double = self.is_double(placed)
        for role in (r for r in self.has if r in OUTPUTS):
            value, size = exact[role]
            got = placed[role].double().cpu().reshape(value.shape)
            dtype = self.type_of(role)
            eps = 2.0**-52 if double and dtype == "f64" else 2.0**-24
            bound = 0.502 * ulp(value, dtype) + 24 * eps * size
            off = ((got - value).abs() / bound).nan_to_num(nan=math.inf)
            if off.max() > 1:
                worst = int(off.argmax())
                wrong.append(
                    f"{role} off by {off.max():.3g} bounds in {int((off > 1).sum())} of "
                    f"{off.numel()}: {got.flatten()[worst]:.6g}, "
                    f"wanted {value.flatten()[worst]:.6g}"
                )
            base = placed[role]._base
            if base is not None and role not in self.alias:
                left = base.clone()
                left.as_strided(
                    base_shape(placed[role]), placed[role].stride(), placed[role].storage_offset()
                ).fill_(math.nan)
                if not bool(left.isnan().all()):
                    wrong.append(f"{role}: written beside it")
        again = self.place(device)[1]
        library.run(self.norm(), BACKWARD, again)
        for role in (r for r in self.has if r in OUTPUTS):
            if not torch.equal(placed[role], again[role]):
                wrong.append(f"{role}: other bits in a second run")
        return wrong


def base_shape(t: torch.Tensor) -> tuple[int, ...]:
    """Its shape, as as_strided takes it."""
    return tuple(t.shape)


NORM = ("weight", "dx", "dweight", "dbias")
RMSN = ("weight", "dx", "dweight")


def residual_cases() -> Iterator[StageCase]:
    """dx + dsum by the kernels of dense rows."""
    for i, cols in enumerate((24, 40, 96, 100, 200, 512, 769, 1024, 1536, 2048, 4096, 5632, 8192)):
        for j, dtype in enumerate(("f16", "bf16", "f32")):
            if (i + j) % 3 and cols not in (512, 4096):
                continue
            kind = RMS if (i + j) % 2 else LAYER
            rows = 301 if cols < 60 else 43 if cols < 1000 else 11
            has = (*(RMSN if kind == RMS else NORM), "dsum")
            yield StageCase(
                (rows, cols), has, kind=kind, dtype=dtype, multiprocessors=16 if cols > 5000 else 2
            )
    yield StageCase((29, 200), ("weight", "dresidual", "dweight", "dsum"), dtype="f16")
    yield StageCase((29, 200), ("weight", "dresidual"), dtype="f16")
    yield StageCase((29, 200), ("dx", "dsum"), dtype="bf16", types={"dsum": "f32", "dx": "f32"})
    yield StageCase((29, 1024), (*NORM, "dsum"), dtype="bf16", types={"dsum": "f32"}, pad=8)
    yield StageCase((29, 1024), (*NORM, "dsum"), dtype="f16", types={"weight": "f32"}, skew=1)
    yield StageCase((29, 1024), (*NORM, "dsum"), dtype="f32", types={"dsum": "bf16"}, skew=1)
    yield StageCase((9, 1000), (*NORM, "dsum"), dtype="f64")
    yield StageCase((29, 1024), (*NORM, "dsum"), dtype="f16", alias={"dx": "dsum"})
    yield StageCase((29, 256), (*NORM, "bias", "dsum"), dtype="f16", activation=SILU)
    yield StageCase((29, 3072), (*NORM, "bias", "dsum"), dtype="f32", activation=SILU)
    yield StageCase((9, 8200), (*NORM, "dsum"), dtype="bf16", multiprocessors=16)
    yield StageCase((12, 18440), (*NORM, "dsum"), dtype="bf16", multiprocessors=16)
    yield StageCase((10, 28680), (*RMSN, "dsum"), dtype="f16", kind=RMS, multiprocessors=16)
    yield StageCase((5, 18440), (*NORM, "dsum"), dtype="f16", skew=1, multiprocessors=16)
    yield StageCase(
        (9, 18440), (*NORM, "dsum"), dtype="f16", types={"dsum": "f32"}, multiprocessors=16
    )
    yield StageCase((5, 20000), (*NORM, "dsum"), dtype="f16", arch=80)
    yield StageCase((4, 8195), (*RMSN, "dsum"), dtype="f32", kind=RMS, arch=80)
    yield StageCase((5, 40960), (*NORM, "dsum"), dtype="f32", arch=80)


# What each stage brings: tensors, and the operator's fields.
STAGES: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "dsum": (("dsum", "dresidual"), {}),
    "dropout": (("rng",), {"p": 0.3}),
    "row_scale": (("row_scale",), {}),
    "column_scale": (("column_scale", "branch", "dcolumn_scale"), {}),
    "modulation": (("scale", "shift", "dscale", "dshift"), {}),
    "activation": (("bias",), {"activation": SILU}),
    "gate": (("gate", "dgate"), {}),
}


def with_stages(names: tuple[str, ...], case: StageCase, **more: object) -> StageCase:
    """The case with stages, some of which have fields of their own."""
    has, fields = list(case.has), {}
    for name in names:
        roles, own = STAGES[name]
        has += [r for r in roles if r not in has]
        fields |= own
    return dataclasses.replace(case, has=tuple(has), **(fields | more))


def norm_of(kind: int) -> tuple[str, ...]:
    return RMSN if kind == RMS else NORM


def stage_cases() -> Iterator[StageCase]:
    """Dense rows: each stage alone, pairs and triples; dtypes, odd lengths, few and many rows."""
    names = [n for k in (1, 2, 3) for n in itertools.combinations(STAGES, k)]
    names.append(tuple(STAGES))
    shapes = ((3, 7, 40), (2, 9, 33), (4, 3, 256), (2, 21, 24), (3, 5, 100), (2, 3, 1024))
    dtypes = ("f32", "bf16", "f16", "f32", "bf16", "f64")
    modulations = ((0, 2), (2,), (0, 1, 2), (1, 2))
    for i, chosen in enumerate(names):
        kind = RMS if i % 3 == 2 else LAYER
        shape, dtype = shapes[i % 6], dtypes[i * 5 // 3 % 6]
        types: dict[str, str] = {}
        if i % 4 == 1 and dtype != "f64":
            types = dict.fromkeys(
                ("weight", "bias", "dweight", "dbias", "dsum", "dresidual"), "f32"
            )
        if i % 4 == 2:
            types = {"dscale": "f32", "dshift": "f32", "row_scale": "f32", "column_scale": "f32"}
        c = StageCase(shape, norm_of(kind), kind=kind, dtype=dtype, types=types)
        yield with_stages(chosen, c, modulation=modulations[i % 4], offset=int(i % 5 == 0))
    for i, more in enumerate(
        (
            ("gate",),
            ("gate", "dropout"),
            ("gate", "modulation"),
            ("gate", "column_scale", "dsum"),
            ("gate", "activation"),
            tuple(STAGES),
        )
    ):
        kind = RMS if i % 2 else LAYER
        c = StageCase(shapes[i % 6], norm_of(kind), kind=kind, dtype=dtypes[i % 3])
        yield with_stages(more, c, gate_before=True, modulation=(0, 2))
    for i, rows in enumerate((1, 2, 300)):
        c = StageCase((rows, 128), NORM, dtype=("f16", "f32", "bf16")[i])
        yield with_stages(("dropout", "dsum"), c)
        yield with_stages(("modulation", "gate"), c, modulation=(1,))
        yield with_stages(("modulation",), c, modulation=(0, 1))
    for i, cols in enumerate((1, 2, 3000, 5000, 8192, 12000)):
        c = StageCase((5, 3, cols), NORM, dtype=("f16", "f32", "bf16")[i % 3], multiprocessors=4)
        yield with_stages(("dropout", "dsum", "modulation"), c, modulation=(0, 2))
        yield with_stages(("gate", "column_scale"), c)
    c = StageCase((2, 5, 64), NORM, dtype="bf16")
    yield with_stages(("dropout", "dsum"), c, pad=8)
    yield with_stages(("gate", "modulation"), c, skew=1, modulation=(0, 2))
    yield with_stages(("gate", "modulation", "dsum"), c, order=(1, 0, 2), modulation=(0, 2))
    yield with_stages(("gate", "dsum"), c, alias={"dgate": "dy", "dresidual": "dsum", "dx": "x"})
    yield with_stages(("column_scale", "dsum"), c, alias={"dx": "branch", "dresidual": "dsum"})
    for names_of in (
        ("dx",),
        ("dresidual",),
        ("dweight",),
        ("dcolumn_scale", "branch"),
        ("dgate",),
        ("dscale",),
        ("dshift",),
    ):
        yield dataclasses.replace(
            c,
            modulation=(0, 2),
            p=0.25,
            has=("weight", "scale", "gate", "row_scale", "column_scale", "rng", "dsum", *names_of),
        )


def any_cases() -> Iterator[StageCase]:
    """Any axes and strides, by the general kernels."""
    names = [n for k in (1, 2) for n in itertools.combinations(STAGES, k)]
    names.append(tuple(STAGES))
    for i, chosen in enumerate(names):
        kind = RMS if i % 3 == 2 else LAYER
        c = StageCase((2, 6, 3, 5), norm_of(kind), kind=kind, dtype=("f32", "bf16", "f64")[i % 3])
        which = i % 4
        if which == 0:  # channels of images
            c = with_stages(chosen, c, reduce=(1,), modulation=(0, 1))
        elif which == 1:  # images stored by pixel
            c = with_stages(chosen, c, reduce=(1,), modulation=(0, 1), order=(0, 2, 3, 1))
        elif which == 2:  # instance norm, weights of channels
            c = with_stages(chosen, c, reduce=(2, 3), affine=(1,), modulation=(0, 1), column=(1,))
        else:  # weights of heads
            c = with_stages(chosen, c, reduce=(3,), affine=(1, 3), modulation=(0,), pad=3)
        yield dataclasses.replace(c, gate_before="gate" in chosen and i % 2 == 1)


def all_cases(table: str = "") -> list[StageCase]:
    """Those of a table, or all."""
    tables = {"residual": residual_cases, "stages": stage_cases, "any": any_cases}
    chosen = [tables[table]] if table else list(tables.values())
    found = list(itertools.chain.from_iterable(t() for t in chosen))
    for i, c in enumerate(found):
        c.seed = i + 1
    return found
