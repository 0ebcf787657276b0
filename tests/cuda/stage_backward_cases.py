"""The list of backwards with stages around the norm; the large ones are for a GPU alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from c_api import LAYER, RMS, SILU
from stage_backward import BackwardCase
from stage_joined_cases import joined_cases

NORM = ("weight", "dx", "dweight", "dbias")
RMSN = ("weight", "dx", "dweight")


def residual_cases() -> Iterator[BackwardCase]:
    """dx + dsum by the kernels of dense rows."""
    for i, cols in enumerate((24, 40, 96, 100, 200, 512, 769, 1024, 1536, 2048, 4096, 5632, 8192)):
        for j, dtype in enumerate(("f16", "bf16", "f32")):
            if (i + j) % 3 and cols not in (512, 4096):
                continue
            kind = RMS if (i + j) % 2 else LAYER
            rows = 301 if cols < 60 else 43 if cols < 1000 else 11
            has = (*(RMSN if kind == RMS else NORM), "dsum")
            yield BackwardCase(
                (rows, cols), has, kind=kind, dtype=dtype, multiprocessors=16 if cols > 5000 else 2
            )
    yield BackwardCase((29, 200), ("weight", "dresidual", "dweight", "dsum"), dtype="f16")
    yield BackwardCase((29, 200), ("weight", "dresidual"), dtype="f16")
    yield BackwardCase((29, 200), ("dx", "dsum"), dtype="bf16", types={"dsum": "f32", "dx": "f32"})
    yield BackwardCase((29, 1024), (*NORM, "dsum"), dtype="bf16", types={"dsum": "f32"}, pad=8)
    yield BackwardCase((29, 1024), (*NORM, "dsum"), dtype="f16", types={"weight": "f32"}, skew=1)
    yield BackwardCase((29, 1024), (*NORM, "dsum"), dtype="f32", types={"dsum": "bf16"}, skew=1)
    yield BackwardCase((9, 1000), (*NORM, "dsum"), dtype="f64")
    yield BackwardCase((29, 1024), (*NORM, "dsum"), dtype="f16", alias={"dx": "dsum"})
    yield BackwardCase((29, 256), (*NORM, "bias", "dsum"), dtype="f16", activation=SILU)
    yield BackwardCase((29, 3072), (*NORM, "bias", "dsum"), dtype="f32", activation=SILU)
    yield BackwardCase((9, 8200), (*NORM, "dsum"), dtype="bf16", multiprocessors=16)
    yield BackwardCase((12, 18440), (*NORM, "dsum"), dtype="bf16", multiprocessors=16)
    yield BackwardCase((10, 28680), (*RMSN, "dsum"), dtype="f16", kind=RMS, multiprocessors=16)
    yield BackwardCase((5, 18440), (*NORM, "dsum"), dtype="f16", skew=1, multiprocessors=16)
    yield BackwardCase(
        (9, 18440), (*NORM, "dsum"), dtype="f16", types={"dsum": "f32"}, multiprocessors=16
    )
    yield BackwardCase((5, 20000), (*NORM, "dsum"), dtype="f16", arch=80)
    yield BackwardCase((4, 8195), (*RMSN, "dsum"), dtype="f32", kind=RMS, arch=80)
    yield BackwardCase((5, 40960), (*NORM, "dsum"), dtype="f32", arch=80)


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


def with_stages(names: tuple[str, ...], case: BackwardCase, **more: object) -> BackwardCase:
    """The case with stages, some of which have fields of their own."""
    has, fields = list(case.has), dict[str, Any]()
    for name in names:
        roles, own = STAGES[name]
        has += [r for r in roles if r not in has]
        fields |= own
    return dataclasses.replace(case, has=tuple(has), **(fields | more))


def norm_of(kind: int) -> tuple[str, ...]:
    return RMSN if kind == RMS else NORM


def stage_cases() -> Iterator[BackwardCase]:
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
        c = BackwardCase(shape, norm_of(kind), kind=kind, dtype=dtype, types=types)
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
        c = BackwardCase(shapes[i % 6], norm_of(kind), kind=kind, dtype=dtypes[i % 3])
        yield with_stages(more, c, gate_before=True, modulation=(0, 2))
    for i, rows in enumerate((1, 2, 300)):
        c = BackwardCase((rows, 128), NORM, dtype=("f16", "f32", "bf16")[i])
        yield with_stages(("dropout", "dsum"), c)
        yield with_stages(("modulation", "gate"), c, modulation=(1,))
        yield with_stages(("modulation",), c, modulation=(0, 1))
    for i, cols in enumerate((1, 2, 3000, 5000, 8192, 12000)):
        c = BackwardCase((5, 3, cols), NORM, dtype=("f16", "f32", "bf16")[i % 3], multiprocessors=4)
        yield with_stages(("dropout", "dsum", "modulation"), c, modulation=(0, 2))
        yield with_stages(("gate", "column_scale"), c)
    c = BackwardCase((2, 5, 64), NORM, dtype="bf16")
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


def modulated_cases() -> Iterator[BackwardCase]:
    """A modulation alone: rows of every geometry, few and many samples, either axis theirs."""
    gradients = ("scale", "dx", "dscale", "dshift")
    for i, cols in enumerate(
        (24, 40, 96, 100, 201, 512, 769, 1024, 1536, 2048, 4096, 5632, 8192, 15872)
    ):
        dtype = ("bf16", "f16", "f32")[i % 3]
        rows = 170 if cols < 60 else 41 if cols < 1000 else 13
        shape, modulation = ((3, rows, cols), (0, 2)) if i % 4 else ((rows, 3, cols), (1, 2))
        c = BackwardCase(shape, gradients, kind=RMS if i % 3 == 1 else LAYER, dtype=dtype)
        c = dataclasses.replace(c, multiprocessors=16 if cols > 5000 else (2, 12)[i % 2])
        types = {"dscale": "f32", "dshift": "f32"} if i % 5 == 3 else {}
        yield dataclasses.replace(c, modulation=modulation, types=types, pad=8 * (i % 6 == 5))
    c = BackwardCase((3, 9, 200), gradients, dtype="bf16", modulation=(0, 2))
    yield dataclasses.replace(c, activation=SILU, has=(*gradients, "shift"), types={"mean": "f64"})
    yield dataclasses.replace(
        c, activation=SILU, has=(*gradients, "shift"), types={"dshift": "f32"}
    )
    for has in (("scale", "dx"), ("scale", "dscale"), ("shift", "dx", "dshift")):
        yield dataclasses.replace(c, has=has)
    yield dataclasses.replace(c, modulation=(2,))  # one sample of all rows
    yield dataclasses.replace(c, modulation=(0, 1, 2))  # each row has its own
    yield dataclasses.replace(c, shape=(150, 2, 512))
    yield dataclasses.replace(c, skew=1)
    yield dataclasses.replace(c, shape=(3, 9, 300), dtype="f64")
    yield dataclasses.replace(c, alias={"dx": "dy"})


def any_cases() -> Iterator[BackwardCase]:
    """Any axes and strides, by the general kernels."""
    names = [n for k in (1, 2) for n in itertools.combinations(STAGES, k)]
    names.append(tuple(STAGES))
    for i, chosen in enumerate(names):
        kind = RMS if i % 3 == 2 else LAYER
        c = BackwardCase(
            (2, 6, 3, 5), norm_of(kind), kind=kind, dtype=("f32", "bf16", "f64")[i % 3]
        )
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


def image_cases() -> Iterator[BackwardCase]:
    """dsum behind the kernels of groups, instances and channels of images."""
    groups: dict[str, Any] = {"reduce": (2, 3), "affine": (1, 2)}
    instances: dict[str, Any] = {"reduce": (2,), "affine": (1,)}
    for i, dtype in enumerate(("bf16", "f32", "f16")):
        has = (*NORM, "dsum")
        for order in (None, (0, 3, 1, 2)):
            yield BackwardCase((2, 4, 6, 64), has, **groups, order=order, dtype=dtype)
            yield BackwardCase(
                (3, 2, 8, 32), (*has, "bias"), **groups, order=order, dtype=dtype, activation=SILU,
                types={"mean": "f64", "rstd": "f64"},
            )  # fmt: skip
        yield BackwardCase((4, 16, 64), has, **instances, dtype=dtype)
        yield BackwardCase((3, 24, 40), has, reduce=(1,), dtype=dtype, kind=RMS if i else LAYER)
    yield BackwardCase((2, 4, 6, 64), ("dx", "dsum"), **groups, dtype="bf16", skew=1)
    yield BackwardCase((2, 4, 6, 64), ("dx", "dsum"), **groups, dtype="f16", alias={"dx": "dsum"})
    yield BackwardCase((3, 24, 40), ("dx", "dsum"), reduce=(1,), dtype="f32", alias={"dx": "x"})
    yield BackwardCase((2, 4, 6, 64), (*NORM, "dsum"), **groups, types={"dsum": "bf16"})


def large_cases() -> Iterator[BackwardCase]:
    """More rows than a device has blocks, in every way to share a row."""
    for i, cols in enumerate((96, 512, 769, 1024, 2048, 4096, 5632, 8192, 15872, 16384, 32768)):
        for j, dtype in enumerate(("bf16", "f16", "f32")):
            rows = max(700, (1 << 22) // cols // (1 + j))
            kind = RMS if (i + j) % 2 else 0
            has = (*(RMSN if kind == RMS else NORM), "dsum")
            yield BackwardCase((rows, cols), has, kind=kind, dtype=dtype)
            if j == i % 3:
                c = BackwardCase((4, rows // 4, cols), has[:-1], kind=kind, dtype=dtype)
                yield with_stages(("dropout", "dsum"), c)
                yield with_stages(("modulation",), c, modulation=(0, 2))
                yield with_stages(("gate",), c)
                yield with_stages(("column_scale", "dsum", "gate"), c)
    yield BackwardCase((600, 65536), (*NORM, "dsum"), dtype="bf16")
    yield BackwardCase((300, 131072), (*NORM, "dsum"), dtype="bf16")
    yield BackwardCase((300, 131072), (*RMSN, "dsum"), dtype="f32", kind=RMS)
    yield BackwardCase((20, 300000), (*NORM, "dsum"), dtype="f16")


TABLES = {
    "residual": residual_cases,
    "stages": stage_cases,
    "modulated": modulated_cases,
    "any": any_cases,
    "image": image_cases,
    "joined": joined_cases,
    "large": large_cases,
}


def backward_cases(*tables: str) -> list[BackwardCase]:
    """Those of these tables; of none: of all but the large ones."""
    chosen = tables or ("residual", "stages", "modulated", "any", "image", "joined")
    every = itertools.chain.from_iterable(TABLES[t]() for t in chosen)
    found = list({case.name(): case for case in every}.values())  # some are in two tables
    for i, c in enumerate(found):
        c.seed = i + 1
    return found
