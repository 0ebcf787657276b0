"""The list of forwards with stages around the norm, for a GPU and, `quick`, for its emulation."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from c_api import GELU, GELU_TANH, HARDSWISH, LAYER, RELU, RELU6, RMS, SILU
from stage_forward import ForwardCase


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
        "silu": {"activation": SILU, "gate": "bf16"},
        "relu": {"activation": RELU, "sum": "bf16", "residual": "bf16"},
        "gelu": {"activation": GELU, "shift": "f32"},
        "gelu tanh": {"activation": GELU_TANH, "scale": "bf16"},
        "relu6": {"activation": RELU6, "scale": "bf16"},
        "hardswish": {"activation": HARDSWISH, "scale": "bf16"},
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
        {
            "residual": "bf16", "sum": "bf16", "column_scale": "bf16", "scale": "bf16",
            "shift": "bf16",
        },
        {"residual": "bf16", "sum": "bf16", "q": "e4m3", "weight": "bf16", "amax": True},
        {"residual": "f16", "sum": "f32", "gate": "f32", "activation": SILU, "bias": "f32"},
        {"residual": "bf16", "sum": "f16", "weight": "bf16", "bias": "f32", "offset": 1},
        {"gate": "bf16", "gate_before": True, "weight": "bf16", "dropout": 0.2, "mask": True},
        {"rounding": 1, "weight": "bf16", "residual": "bf16", "sum": "bf16", "q": "i8"},
        {
            "residual": "bf16", "sum": "f32", "row_scale": "bf16", "column_scale": "f32",
            "dropout": 0.4, "mask": True, "weight": "f16", "bias": "bf16", "scale": "f16",
            "shift": "f32", "activation": GELU, "gate": "f16", "q": "e5m2", "amax": True,
        },
    ]  # fmt: skip


def image_cases(quick: bool) -> list[ForwardCase]:
    """A sum, and then the kernels that are fast at the norm: groups, instances and channels of
    images, stored by channel and by pixel."""
    groups: dict[str, Any] = {"reduce": 0b1100, "affine": 0b0110, "kernel": "cuda stages sum"}
    instances: dict[str, Any] = {"reduce": 0b100, "affine": 0b010, "kernel": "cuda stages sum"}
    channels: dict[str, Any] = {"reduce": 0b010, "kernel": "cuda stages sum"}
    add: dict[str, Any] = {"residual": "bf16", "sum": "bf16", "weight": "bf16", "bias": "bf16"}
    floats: dict[str, Any] = {"x": "f32", "residual": "f32", "sum": "f32", "weight": "f32"}
    last: dict[str, Any] = {"order": (0, 3, 1, 2)}
    out = [
        ForwardCase((2, 4, 6, 64), **groups, **add, activation=SILU),
        ForwardCase((2, 4, 6, 64), **groups, **add, **last, activation=SILU),
        ForwardCase((3, 2, 8, 30), **groups, **floats, activation=RELU),
        ForwardCase((3, 2, 8, 30), **groups, **floats, **last),
        ForwardCase((2, 4, 6, 64), **groups, residual="bf16", weight="bf16", activation=GELU),
        ForwardCase((2, 4, 6, 64), **groups, residual="f32", weight="f32", **last),
        ForwardCase((2, 4, 6, 64), **groups, **add, column_scale="bf16", row_scale="f32"),
        ForwardCase((2, 4, 6, 64), **groups, **add, **last, column_scale="f32"),
        ForwardCase((2, 4, 6, 64), **groups, **add, dropout=0.3, mask=True),
        ForwardCase((2, 4, 6, 64), **groups, **add, **last, dropout=0.3, mask=True),
        ForwardCase((1, 3, 5, 35), **groups, **add, skew=1),
        ForwardCase((4, 16, 64), **instances, **add, activation=SILU),
        ForwardCase((4, 16, 64), **instances, **add, order=(0, 2, 1)),
        ForwardCase((3, 24, 40), **channels, **add, dropout=0.3, mask=True),
        ForwardCase((3, 24, 40), **channels, **floats, kind=RMS, activation=GELU_TANH),
        ForwardCase((2, 96, 64), **channels, **add, column_scale="f32", row_scale="bf16"),
    ]
    if not quick:
        for n, c, hw in ((2, 320, 4096), (2, 640, 1024), (2, 1280, 256), (8, 64, 3136)):
            for which in (add, floats):
                for more in ({}, last):
                    shape = (n, 32, c // 32, hw)
                    out.append(ForwardCase(shape, **groups, **which, **more, activation=SILU))
                out.append(ForwardCase((n, c, hw), **channels, **which))
    return out


def forward_cases(quick: bool) -> list[ForwardCase]:
    """Every stage on rows of every geometry, and some of them together."""
    out: list[ForwardCase] = []
    cols = (96, 33, 100, 769, 1024, 4096) if quick else (
        1, 2, 24, 33, 64, 96, 100, 128, 200, 512, 600, 769, 1000, 1001, 1024, 2112, 2304, 4096,
        4097, 8192, 12288, 15872,
    )  # fmt: skip
    for (i, (_, stage)), (j, n) in itertools.product(enumerate(stages().items()), enumerate(cols)):
        if quick and (i + j) % 6 and n != 4096:
            continue
        rows = 37 if n < 2000 else 5 if quick else 9
        if not quick:
            rows *= 7
        kind = RMS if (i + j) % 3 == 0 else LAYER
        uneven = "block" in stage and n % 32 and n > stage["block"]
        out.append(
            ForwardCase((rows, n), kind=kind, **stage, kernel="" if uneven else "cuda stages")
        )
    for i, more in enumerate(together()):
        for j, n in enumerate((4096, 96, 1001) if quick else (96, 1001, 4096, 15872)):
            if quick and (i + j) % 3 and n != 4096:
                continue
            for x in ("bf16",) if quick else ("bf16", "f16", "f32", "f64"):
                if more.get("rounding") and x in ("f32", "f64"):
                    continue
                out.append(ForwardCase((11, n), x=x, kind=i % 2, **more))
    add: dict[str, Any] = {"residual": "bf16", "sum": "bf16", "weight": "bf16"}
    for n in (12288, 40000) if quick else (16384, 32768, 40000, 50001, 131072):
        out.append(ForwardCase((3, n), kind=RMS, **add))
        out.append(ForwardCase((3, n), q="e4m3", residual="bf16"))
        out.append(ForwardCase((3, n), x="f32", gate="f32", residual="f32", dropout=0.25))
        # Rows of several blocks behind the kernel that clears the maximum, which is one block.
        out.append(ForwardCase((3, n), q="e4m3", y_scale=True, amax=True, weight="bf16", y=""))
        out.append(ForwardCase((3, n), kind=RMS, q="i8", amax=True, residual="bf16"))
    if not quick:
        for n in (262144, 802817):
            out.append(ForwardCase((3, n), **add))
            out.append(ForwardCase((3, n), dropout=0.5, mask=True, q="e4m3"))
    # Places: misaligned, rows apart, two axes of rows, modulation of samples, heads.
    for skew, pad in ((1, 0), (0, 3), (2, 4), (4, 8)):
        for n in (96, 769, 1024) if quick else (96, 100, 769, 1024, 4096, 12288):
            out.append(ForwardCase((19, n), skew=skew, pad=pad, **add, q="e4m3", mask=True))
    modulated: dict[str, Any] = {"scale": "bf16", "shift": "bf16", "modulation_axes": 5}
    for n in (96, 1024, 4096):
        out.append(ForwardCase((4, 9, n), **modulated))
        out.append(
            ForwardCase(
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
        out.append(ForwardCase((4, 9, n), scale="f32", modulation_axes=7, pad=8, gate="bf16"))
        out.append(ForwardCase((4, 9, n), scale="f32", shift="bf16", modulation_axes=1))
    # A modulation alone, by sample: rows of every geometry, either axis that of the samples.
    for i, n in enumerate((24, 96, 100, 369, 512, 769, 1001, 1024, 4096, 8192) if quick else cols):
        x = ("bf16", "f16", "f32")[i % 3]
        more: dict[str, Any] = {"kind": i % 4 == 3, "x": x, "pad": 8 * (i % 5 == 1)}
        more |= {"activation": SILU} if i % 4 == 1 else {}
        more |= {"shift": x} if i % 5 != 2 else {}
        rows = 70 if n < 200 else 19 if n < 2000 else 4
        out.append(ForwardCase((3, rows, n), scale=x, modulation_axes=5, **more))
        if i % 3 == 1 or not quick:
            out.append(ForwardCase((rows, 3, n), scale="f32", modulation_axes=6, **more))
    out.append(ForwardCase((3, 5, 1024), scale="bf16", modulation_axes=5, magnitude=1e25))
    out.append(ForwardCase((3, 40, 96), shift="bf16", modulation_axes=5, skew=1))
    out.append(ForwardCase((3, 5, 300), x="f64", scale="f64", shift="f64", modulation_axes=5))
    # Magnitudes whose squares leave float's range, and everything 0.
    for magnitude in (1e25, 1e-25, 0.0):
        for n in (96, 4096) if quick else (96, 33, 769, 4096, 40000):
            x = "f32" if n == 33 else "bf16"
            out.append(ForwardCase((7, n), x=x, magnitude=magnitude, **add))
            out.append(
                ForwardCase((7, n), magnitude=magnitude, residual="bf16", q="e4m3", least=1e-4)
            )
    # Bounds of scales.
    out.append(ForwardCase((9, 1024), q="e4m3", least=0.01, most=0.02))
    out.append(ForwardCase((9, 1024), q="i8", most=0.01, block=128))
    # What the kernels for rows do not take.
    general: dict[str, Any] = {"kernel": "cuda general"}
    out.append(ForwardCase((5, 24, 9), reduce=2, residual="bf16", q="e4m3", block=8, **general))
    out.append(
        ForwardCase((5, 6, 40), reduce=5, scale="f32", modulation_axes=2, gate="bf16", **general)
    )
    out.append(ForwardCase((9, 1000), q="e4m3", block=100, amax=True, **general))
    out.append(ForwardCase((5, 24, 9), reduce=2, rounding=1, weight="bf16", x="f16", **general))
    out.append(
        ForwardCase((5, 24, 9), reduce=2, gate="f32", gate_before=True, sum="f32", **general)
    )
    out.append(ForwardCase((3, 4, 5, 64), column_scale="f32", column_axes=1 | 4 | 8, **general))
    out += image_cases(quick)
    out.append(ForwardCase((8, 512), x="f64", residual="f64", sum="f64", q="i8", dropout=0.5))
    return [dataclasses.replace(c, seed=1 + i) for i, c in enumerate(out)]
