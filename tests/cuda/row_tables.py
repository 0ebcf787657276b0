"""The table of cases of norms over the last axis on a GPU."""

from __future__ import annotations

import itertools

from gpu_shim import BACKWARD, FORWARD, LAYER, RMS
from row_cases import Case, types_of


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
