"""Buffers on a GPU between guard elements, a plan placed on them, and units of the last place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpu_shim import Plan

import torch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
BITS = {"f32": 24, "f16": 11, "bf16": 8, "f64": 53}
LOWEST = {"f32": -149, "f16": -24, "bf16": -133, "f64": -1074}
GUARD = 64
INT = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Strided:
    """A tensor of any order of its axes in memory, inside guards."""

    def __init__(
        self, shape: list[int], order: list[int], dtype: str, step: int, skew: int = 0
    ) -> None:
        strides, length = [0] * len(shape), step
        for axis in reversed(order):
            strides[axis] = length
            length *= shape[axis]
        self._allocate(shape, strides, length, dtype, skew)

    def _allocate(
        self, shape: list[int], strides: list[int], length: int, dtype: str, skew: int
    ) -> None:
        self.start = GUARD + skew
        self.whole = torch.full(
            (self.start + length + GUARD,), math.nan, dtype=TORCH[dtype], device="cuda"
        )
        self.view = self.whole.as_strided(shape, strides, self.start)
        self.pattern = self.bits()[0].item()

    def pointer(self) -> int:
        return self.whole.data_ptr() + self.start * self.whole.element_size()

    def bits(self) -> torch.Tensor:
        return self.whole.view(INT[self.whole.element_size()])

    def outside_untouched(self) -> bool:
        bits = self.bits().clone()
        bits.as_strided(self.view.shape, self.view.stride(), self.start).fill_(self.pattern)
        return bool((bits == self.pattern).all())


class Buffer(Strided):
    """Rows `stride` elements apart inside guards."""

    def __init__(self, rows: int, cols: int, stride: int, dtype: str, skew: int = 0) -> None:
        length = max(rows - 1, 0) * stride + cols
        self._allocate([rows, cols], [stride, 1], length, dtype, skew)


class Placed:
    """A plan with its buffers and workspace: what can be queued again and again."""

    def __init__(self, plan: Plan, buffers: Mapping[str, Strided], outputs: Sequence[str]) -> None:
        self.plan, self.buffers, self.outputs = plan, buffers, outputs
        words = plan.workspace_bytes // 8 + 1
        self.work = torch.full((words,), math.nan, dtype=torch.float64, device="cuda")
        self.pointers = {r: b.pointer() for r, b in buffers.items()}

    def queue(self) -> None:
        """Queues the plan on torch's current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        self.plan.run(self.pointers, stream, self.work.data_ptr())

    def run(self) -> Mapping[str, Strided]:
        """Runs the plan to its end; its buffers, the inputs among them."""
        self.queue()
        torch.cuda.synchronize()
        return self.buffers


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """One unit in the last place of `dtype` at |value|."""
    exponent = torch.frexp(value.abs().double().clamp_min(2.0**-1040))[1] - BITS[dtype]
    return torch.ldexp(
        torch.ones_like(value, dtype=torch.float64), exponent.clamp_min(LOWEST[dtype])
    )


def values(rows: int, cols: int, dtype: str, ratio: float, scale: float, seed: int) -> torch.Tensor:
    g = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(rows, cols, generator=g, device="cuda", dtype=torch.float64)
    return ((x + ratio) * scale).to(TORCH[dtype])


def foreign(mean: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Statistics that are not a row's own: the mean most of a standard deviation away."""
    return mean + 0.7 / rstd, 1.25 * rstd
