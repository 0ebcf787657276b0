"""Times two builds of the library by turns on one GPU, in one process: before and after a change
that was not meant to change speed.

    python tests/cuda/turns.py BEFORE.so AFTER.so [--out FILE.csv]

Each case is a plan of each build over the same tensors; their kernels are compiled beforehand, in
threads. A turn is a batch of launches between two events; the builds take turns, and each one's
time is the median of its turns.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import statistics
import sys
from collections.abc import Callable

from c_api import Library, norm

import torch

ELEMENTS = 1 << 25
TURNS, LAUNCHES = 7, 8


class Case:
    """A pass over tensors of its own, made when it is timed."""

    def __init__(self, name: str, kind: int, shape: tuple[int, ...], axes: tuple[int, int],
                 dtype: torch.dtype, backward: bool, last: bool) -> None:  # fmt: skip
        self.name, self.kind, self.shape, self.axes = name, kind, shape, axes
        self.dtype, self.backward, self.last = dtype, backward, last

    def tensors(self) -> dict[str, torch.Tensor]:
        reduce, affine = self.axes
        full = torch.randn(self.shape, device="cuda").to(self.dtype)
        if self.last:  # (N, groups, channels, pixels), stored with the pixels before the channels
            full = full.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        kept = [size for i, size in enumerate(self.shape) if not reduce >> i & 1]
        weight = [size for i, size in enumerate(self.shape) if affine >> i & 1]
        made = {"x": full, "weight": torch.ones(weight, device="cuda", dtype=self.dtype)}
        if self.kind == 0:
            made["mean"] = torch.zeros(kept, device="cuda")
        made["rstd"] = torch.ones(kept, device="cuda")
        if self.backward:
            made["dy"], made["dx"] = full.clone(), torch.empty_like(full)
            made["dweight"] = torch.empty_like(made["weight"])
            if self.kind == 0:
                made["dbias"] = torch.empty_like(made["weight"])
        else:
            made["y"] = torch.empty_like(full)
            if self.kind == 0:
                made["bias"] = torch.zeros_like(made["weight"])
        return made


def runner(build: Library, case: Case, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
    """What runs the case once on torch's stream."""
    reduce, affine = case.axes
    op = norm(kind=case.kind, reduce_axes=reduce, affine_axes=affine, eps=1e-5)
    return build.plan(op, int(case.backward), tensors).run


def cases() -> list[Case]:
    made = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        short = str(dtype).removeprefix("torch.")
        for backward in (False, True):
            where = "backward" if backward else "forward"
            for kind in (0, 1):
                norm = "rms" if kind else "layer"
                for cols in (64, 96, 200, 256, 768, 1000, 1024, 4096, 5120, 8192, 16384, 65536):
                    if (kind, dtype) == (1, torch.float16):
                        continue
                    rows = ELEMENTS // cols
                    made.append(Case(f"{norm} {where} {short} {rows}x{cols}", kind, (rows, cols),
                                     (2, 2), dtype, backward, False))  # fmt: skip
            for channels, side in ((96, 56), (256, 28), (768, 14)):
                shape = (ELEMENTS // (channels * side * side), channels, side * side)
                made.append(Case(f"channels {where} {short} {'x'.join(map(str, shape))}", 0, shape,
                                 (2, 2), dtype, backward, False))  # fmt: skip
            for last in (False, True):
                for channels, side in ((64, 56), (320, 64), (640, 32), (1280, 8)):
                    batch = max(1, ELEMENTS // (channels * side * side))
                    shape4 = (batch, 32, channels // 32, side * side)
                    order = "nhwc" if last else "nchw"
                    name = f"groups {order} {where} {short} {batch}x{channels}x{side}x{side}"
                    made.append(Case(name, 0, shape4, (12, 6), dtype, backward, last))
    return made


def measure(before: Callable[[], None], after: Callable[[], None]) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * TURNS):
        once = (before, after)[turn % 2]
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()  # type: ignore[no-untyped-call]
        for _ in range(LAUNCHES):
            once()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()  # type: ignore[no-untyped-call]
        times[turn % 2].append(start.elapsed_time(end) / LAUNCHES * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--out")
    given = parser.parse_args()
    builds = Library(given.before), Library(given.after)

    def compile_one(case: Case) -> None:
        torch.cuda.set_device(0)
        small = Case(
            case.name, case.kind, case.shape, case.axes, case.dtype, case.backward, case.last
        )
        tensors = small.tensors()
        for build in builds:
            runner(build, small, tensors)()

    every = cases()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(compile_one, every))
    torch.cuda.synchronize()
    rows: list[tuple[str, float, float]] = []
    for case in every:
        tensors = case.tensors()
        before, after = (runner(build, case, tensors) for build in builds)
        for once in (before, after):
            once()
        rows.append((case.name, *measure(before, after)))
    ratios = sorted(after / before for _, before, after in rows)
    for name, us_before, us_after in sorted(rows, key=lambda row: row[1] / row[2])[:12]:
        print(f"{name:48} {us_before:9.1f} {us_after:9.1f} us, {us_after / us_before:.3f}")
    print(f"{torch.cuda.get_device_name()}: {len(rows)} cases, time after / before: median "
          f"{statistics.median(ratios):.4f}, {ratios[0]:.3f} to {ratios[-1]:.3f}")  # fmt: skip
    if given.out:
        with open(given.out, "w", newline="") as file:
            csv.writer(file).writerows([("case", "before_us", "after_us"), *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
