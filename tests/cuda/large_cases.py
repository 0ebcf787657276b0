"""More than 2^31 rows and 2^32 elements on a GPU."""

from __future__ import annotations

import math

from axes_cases import AnyCase
from device_buffers import TORCH
from gpu_shim import BACKWARD, FORWARD, LAYER, RMS, STATISTICS, Plan, ShimError

import torch


def large_slices(rows: int, cols: int, kind: int, direction: int) -> list[str]:
    """Dense f16 rows past 2^31 or 2^32 elements: the bits of slices at the start, at the powers of
    two and at the end against those of the slices run by themselves."""
    wrong = []
    roles = {"x": 1, "y": 1} if direction == FORWARD else {"x": 1, "dy": 1, "dx": 1}
    types = dict.fromkeys(roles, "f16") | ({"rstd": "f32"} if direction == BACKWARD else {})
    if direction == BACKWARD and kind == LAYER:
        types["mean"] = "f32"
    full = {
        r: torch.empty(rows, 1 if r in ("mean", "rstd") else cols, dtype=TORCH[t], device="cuda")
        for r, t in types.items()
    }
    outputs = [r for r in ("y", "dx") if r in full]
    for r, t in full.items():
        t.fill_(math.nan) if r in outputs else t.normal_()

    def run(first: int, count: int, out: dict[str, torch.Tensor]) -> None:
        plan = Plan(direction, kind, count, cols, types)
        plan.run(
            {
                r: out[r].data_ptr()
                if r in out
                else full[r].data_ptr() + first * full[r].shape[1] * TORCH[t].itemsize
                for r, t in types.items()
            },
            torch.cuda.current_stream().cuda_stream,
        )

    run(0, rows, {r: full[r] for r in outputs})
    marks = [0, *(m // cols for m in (1 << 31, 1 << 32) if m // cols < rows), rows - 8]
    for mark in marks:
        first = max(0, min(mark - 4, rows - 8))
        part = {
            r: torch.full((8, cols), math.nan, dtype=torch.float16, device="cuda") for r in outputs
        }
        run(first, 8, part)
        torch.cuda.synchronize()
        for r in outputs:
            if not torch.equal(part[r], full[r][first : first + 8]):
                wrong.append(f"{r}: other bits in rows {first} to {first + 8}")
            if not torch.isfinite(full[r][first : first + 8]).all():
                wrong.append(f"{r}: not finite in rows {first} to {first + 8}")
    return wrong


def large_any(shape: list[int], order: list[int], kind: int) -> list[str]:
    """Statistics of f16 past 2^32 elements in any order, against sums by torch."""
    case = AnyCase(STATISTICS, kind, shape, 2, 0, {"x": "f16"}, order)
    x = case.make("x", shape)
    x.view.fill_(1.0)
    # Few distinct rows: what a place beyond 32 bits reads must be what lies there.
    ramp = (torch.arange(shape[0], device="cuda") % 7).to(torch.float16).unsqueeze(1)
    x.view.add_(ramp)
    x.view[:, -1] += 0.5
    buffers = {r: case.make(r, shape) for r in case.types if r != "x"} | {"x": x}
    case.plan(shape).run(
        {r: b.pointer() for r, b in buffers.items()},
        torch.cuda.current_stream().cuda_stream,
    )
    torch.cuda.synchronize()
    n, first = shape[1], 1 + ramp.double()
    if kind == RMS:
        want = {"m2": (n - 1) * first**2 + (first + 0.5) ** 2}
    else:
        want = {"mean": first + 0.5 / n, "m2": torch.full_like(first, 0.25 * (n - 1) / n)}
    return [
        f"{r}: off by {float(((buffers[r].view - w) / w).abs().max()):.2e} of itself"
        for r, w in want.items()
        if not bool((((buffers[r].view - w) / w).abs() < 1e-12).all())
    ]


def large() -> list[tuple[str, list[str]]]:
    """Everything past 2^31 rows and 2^32 elements: (name, what is wrong)."""
    out = []
    for name, call in (
        ("rows past 2^32 elements", lambda: large_slices((1 << 22) + 3, 1032, LAYER, FORWARD)),
        ("the same, backward", lambda: large_slices((1 << 22) + 3, 1032, LAYER, BACKWARD)),
        ("more than 2^31 rows", lambda: large_slices((1 << 31) + 11, 2, LAYER, FORWARD)),
        ("more than 2^31 rows, backward", lambda: large_slices((1 << 31) + 11, 2, RMS, BACKWARD)),
        ("columns past 2^32", lambda: large_any([(1 << 22) + 3, 1032], [1, 0], LAYER)),
        ("a row of more than 2^31", lambda: large_any([1, (1 << 31) + 9], [0, 1], RMS)),
    ):
        try:
            out.append((name, call()))
        except (ShimError, torch.OutOfMemoryError) as e:
            out.append((name, [str(e)]))
        torch.cuda.empty_cache()
    return out
