"""Times two builds of the library by turns on one GPU, in one process: before and after a change
that was not meant to change speed.

    python tests/cuda/turns.py BEFORE.so AFTER.so [--out FILE.csv]

Each case is a plan of each build over the same tensors; their kernels are compiled beforehand, in
threads. A turn is a batch of launches between two events; the builds take turns, and each one's
time is the median of its turns. The structs are those of release 0.1, which every later build
takes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import ctypes
import statistics
import sys
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from typing import Any

import torch

ROLES = ("x", "weight", "bias", "y", "mean", "rstd", "m2", "dy", "dx", "dweight", "dbias")
ELEMENTS = 1 << 25
TURNS, LAUNCHES = 7, 8


class Device(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int32))


class Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Norm(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("kind", c_int),
        ("weight_offset", c_int32),
        ("reduce_axes", c_uint64),
        ("affine_axes", c_uint64),
        ("eps", c_double),
        ("activation", c_int),
    )


class Tensors(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), *((role, POINTER(Tensor)) for role in ROLES))


class Buffers(ctypes.Structure):
    _fields_ = (("struct_size", c_size_t), *((role, c_void_p) for role in ROLES))


class Exec(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("parallel_for", c_void_p),
        ("parallel_context", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("message", c_char_p),
        ("message_bytes", c_size_t),
        ("apart", c_int),
    )


def descriptor(t: torch.Tensor) -> Tensor:
    code = 4 if t.dtype == torch.bfloat16 else 2
    sizes, strides = ((c_int64 * t.dim())(*values) for values in (t.shape, t.stride()))
    kind = Dtype(code, 8 * t.element_size(), 1)
    return Tensor(t.data_ptr(), Device(2, 0), t.dim(), kind, sizes, strides, 0)


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


class Build:
    def __init__(self, path: str) -> None:
        self.dll = ctypes.CDLL(path)
        self.dll.planish_plan_workspace_bytes.restype = c_size_t

    def runner(self, case: Case, tensors: dict[str, torch.Tensor]) -> Any:
        """What runs the case once on torch's stream."""
        text = ctypes.create_string_buffer(512)
        op = Norm(ctypes.sizeof(Norm), case.kind, 0, *case.axes, 1e-5, 0)
        views = {role: descriptor(t) for role, t in tensors.items()}
        given = Tensors(ctypes.sizeof(Tensors), **{r: ctypes.pointer(v) for r, v in views.items()})
        plan = c_void_p()
        create = self.dll.planish_plan_create
        status = create(ctypes.byref(op), int(case.backward), ctypes.byref(given),
                        ctypes.byref(plan), text, c_size_t(512))  # fmt: skip
        if status:
            raise RuntimeError(f"{case.name}: {text.value.decode()}")
        size = self.dll.planish_plan_workspace_bytes(plan)
        room = torch.empty(max(size, 1), device="cuda", dtype=torch.uint8)
        pointers = {role: t.data_ptr() for role, t in tensors.items()}
        data = Buffers(ctypes.sizeof(Buffers), **pointers)
        stream = torch.cuda.current_stream().cuda_stream
        how = Exec(ctypes.sizeof(Exec), None, None, stream, room.data_ptr(), size,
                   ctypes.cast(text, c_char_p), 512, 1)  # fmt: skip
        run, arguments = self.dll.planish_plan_run, (plan, ctypes.byref(data), ctypes.byref(how))

        def once(_keep: Any = (room, views, data, how)) -> None:
            if run(*arguments):
                raise RuntimeError(f"{case.name}: {text.value.decode()}")

        return once


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


def measure(before: Any, after: Any) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * TURNS):
        once = (before, after)[turn % 2]
        event: Any = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(LAUNCHES):
            once()
        end.record()
        end.synchronize()
        times[turn % 2].append(start.elapsed_time(end) / LAUNCHES * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--out")
    given = parser.parse_args()
    builds = Build(given.before), Build(given.after)

    def compile_one(case: Case) -> None:
        torch.cuda.set_device(0)
        small = Case(
            case.name, case.kind, case.shape, case.axes, case.dtype, case.backward, case.last
        )
        tensors = small.tensors()
        for build in builds:
            build.runner(small, tensors)()

    every = cases()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(compile_one, every))
    torch.cuda.synchronize()
    rows: list[tuple[str, float, float]] = []
    for case in every:
        tensors = case.tensors()
        before, after = (build.runner(case, tensors) for build in builds)
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
