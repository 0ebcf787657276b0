"""GroupNorm and InstanceNorm on the CPU beside torch:
groups.py OUT.csv [--threads N] [--activation silu|relu].

Times F.group_norm with planish under it and without, in turns, forward and backward (dx, dweight,
dbias), of images stored by channel and by pixel, and checks every result against torch in double.
Results are new tensors each time, as in a model. A ratio above 1: planish is faster. With an
activation torch's own follows either, and planish.group_norm, which has it fused, is timed beside
them; the ratio is then that of torch to the fused one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import ctypes
import functools
import statistics
import sys
import time
from collections.abc import Callable

import planish
import torch

# Batch, channels, height and width alike, groups: of ResNets and a diffusion UNet; one group, and
# a group for each channel; groups of a few channels of small images.
SHAPES = [
    (4, 256, 56, 32),
    (4, 64, 112, 32),
    (2, 320, 64, 32),
    (2, 1280, 32, 32),
    (4, 2048, 7, 32),
    (8, 512, 14, 32),
    (4, 256, 56, 1),
    (4, 256, 56, 256),
    (8, 128, 24, 32),
    (32, 128, 7, 64),
]
FORMATS = {"NCHW": torch.contiguous_format, "channels last": torch.channels_last}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
#: Largest errors that count as right, relative to the largest value.
BOUND = {"f32": 1e-5, "bf16": 2e-2}
ROUNDS = 15
CALLS = 9
ALIVE = 4
MOST_SECONDS = 0.05


def keep_memory() -> None:
    """Results come from memory that the process has touched, and freed memory stays with it: the
    first touch of new pages takes as long as the norm."""
    m_trim_threshold, m_mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    libc.mallopt(m_trim_threshold, 2**31 - 1)
    libc.mallopt(m_mmap_max, 0)
    torch.ones(2**30, dtype=torch.uint8)


def seconds(name: str, call: Callable[[], object]) -> float:
    """A call's time, the median of a few in a row; with planish under torch if that is its name.
    Results live on for some calls, as in a model: each is written where none was just before."""
    times: list[float] = []
    kept: collections.deque[object] = collections.deque(maxlen=ALIVE)
    with planish.enabled() if name == "planish" else contextlib.nullcontext():
        for _ in range(ALIVE + 1):
            kept.append(call())
        while len(times) < CALLS and sum(times) < MOST_SECONDS:
            begin = time.perf_counter()
            kept.append(call())
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median of each call's times, taken in turns."""
    for name, call in calls.items():
        seconds(name, call)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(name, call))
    return {name: statistics.median(found) for name, found in times.items()}


def error_of(found: torch.Tensor, right: torch.Tensor) -> float:
    """The largest error, relative to the largest value."""
    return float((found.double() - right).abs().max() / right.abs().max())


def rows_of(
    shape: tuple[int, int, int, int], layout: str, dtype: str, activation: str | None
) -> list[dict[str, object]]:
    """One row for forward and one for backward."""
    n, c, side, groups = shape
    torch.manual_seed(0)
    make = DTYPES[dtype]
    x = torch.randn(n, c, side, side).to(make).contiguous(memory_format=FORMATS[layout])
    dy = torch.randn(n, c, side, side).to(make).contiguous(memory_format=FORMATS[layout])
    weight, bias = (torch.randn(c).to(make) for _ in range(2))
    follow = getattr(torch.nn.functional, activation) if activation else lambda y: y

    def composed(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = follow(torch.nn.functional.group_norm(x, groups, *parameters))
        return result

    def fused(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return planish.group_norm(x, groups, *parameters, activation=activation)

    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    right_y = composed(*exact)
    right = [right_y, *torch.autograd.grad(right_y, exact, dy.double())]
    inputs = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    norms = {"torch": composed, "planish": composed}
    if activation:
        norms["fused"] = fused
    graphs = {name: norm(*inputs) for name, norm in norms.items()}
    forward = {name: functools.partial(norm, *inputs) for name, norm in norms.items()}
    backward = {
        name: functools.partial(torch.autograd.grad, y, inputs, dy, retain_graph=True)
        for name, y in graphs.items()
    }
    errors = {}
    for name in norms:
        with planish.enabled() if name == "planish" else contextlib.nullcontext():
            found = [forward[name]().detach(), *backward[name]()]
        errors[name] = [error_of(f, r.detach()) for f, r in zip(found, right, strict=True)]
    allowed = max(BOUND[dtype], *errors["torch"])
    if any(max(found) > allowed for name, found in errors.items() if name != "torch"):
        sys.exit(f"wrong: {shape} {layout} {dtype}: {errors}")
    mine = list(norms)[-1]
    rows: list[dict[str, object]] = []
    for direction, calls, tensors in (("forward", forward, 2), ("backward", backward, 3)):
        found_times = in_turns(calls)
        moved = tensors * x.numel() * x.element_size()
        rows.append(
            {
                "shape": f"{n} x {c} x {side} x {side}",
                "groups": groups,
                "layout": layout,
                "dtype": dtype,
                "direction": direction,
                **{f"{k} us": round(v * 1e6, 1) for k, v in found_times.items()},
                f"{mine} GB/s": round(moved / found_times[mine] / 1e9, 2),
                "ratio": round(found_times["torch"] / found_times[mine], 2),
            }
        )
    return rows


def main() -> None:
    """Measures all and writes the CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--activation", choices=("silu", "relu"))
    given = parser.parse_args()
    keep_memory()
    torch.set_num_threads(given.threads)
    with open(given.out, "w", newline="") as file:
        writer = None
        for dtype in DTYPES:
            for layout in FORMATS:
                for shape in SHAPES:
                    for row in rows_of(shape, layout, dtype, given.activation):
                        writer = writer or csv.DictWriter(file, row.keys())
                        if file.tell() == 0:
                            writer.writeheader()
                        writer.writerow(row)
                        file.flush()
                        print(*row.values(), sep="  ", flush=True)


if __name__ == "__main__":
    main()
