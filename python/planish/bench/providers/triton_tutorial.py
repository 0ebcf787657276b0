"""The layer norm of Triton's tutorial, written from its published method.

Forward: a program for each row, three sweeps over it (mean, variance, output). Backward: a program
for each row that holds the whole row, adds its share of dweight and dbias to one of a few buffers
under a lock; a second kernel sums the buffers. Imports Triton: only imported where there is one.
"""

from __future__ import annotations

import triton
import triton.language as tl

import torch

from ..case import Case, Data
from .base import Provider, Run, UnsupportedError, run_of

MOST_BYTES = 65536  # of a row


@triton.jit
def forward_kernel(
    x, y, weight, bias, mean_out, rstd_out, stride, cols,
    eps, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0)
    x += row * stride
    y += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / cols
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < cols, other=0.0).to(tl.float32)
        centred = tl.where(at < cols, value - mean, 0.0)
        squares += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    for first in range(0, cols, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < cols
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=inside)
        b = tl.load(bias + at, mask=inside)
        tl.store(y + at, (value - mean) * rstd * w + b, mask=inside)


@triton.jit
def backward_kernel(
    dx, dy, part_weight, part_bias, x, weight, mean_in,
    rstd_in, locks, stride, cols, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: dx, and its share of dweight and dbias."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    part = row % PARTS
    lock = locks + part
    used = lock + PARTS
    value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=inside).to(tl.float32)
    rstd = tl.load(rstd_in + row)
    xhat = tl.where(inside, (value - tl.load(mean_in + row)) * rstd, 0.0)
    scaled = tl.where(inside, w * g, 0.0)
    c2 = tl.sum(xhat * scaled, axis=0) / cols
    c1 = tl.sum(scaled, axis=0) / cols
    tl.store(dx + row * stride + at, (scaled - (xhat * c2 + c1)) * rstd, mask=inside)
    own_weight = (g * xhat).to(w.dtype)
    own_bias = g.to(w.dtype)
    to = part * cols + at
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(used) == 0:
        tl.atomic_xchg(used, 1)
    else:
        own_weight += tl.load(part_weight + to, mask=inside)
        own_bias += tl.load(part_bias + to, mask=inside)
    tl.store(part_weight + to, own_weight, mask=inside)
    tl.store(part_bias + to, own_bias, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sum_kernel(
    part_weight, part_bias, dweight, dbias, parts, cols,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns: the sums of all buffers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total_weight = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    total_bias = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for first in range(0, parts, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row[:, None] < parts) & (at[None, :] < cols)
        of = row[:, None] * cols + at[None, :]
        total_weight += tl.load(part_weight + of, mask=inside, other=0.0)
        total_bias += tl.load(part_bias + of, mask=inside, other=0.0)
    tl.store(dweight + at, tl.sum(total_weight, axis=0), mask=at < cols)
    tl.store(dbias + at, tl.sum(total_bias, axis=0), mask=at < cols)


def parts_of(cols: int) -> int:
    """Buffers for the shares of dweight and dbias: fewer for longer rows."""
    return 64 if cols > 8192 else 96 if cols > 4096 else 128 if cols > 1024 else 256


class TritonTutorial(Provider):
    """The kernel that most people start from."""

    name = "triton"
    what = "the layer norm of Triton's tutorial, written from its published method"

    def version(self) -> str | None:
        """Triton's version."""
        return str(triton.__version__)

    def prepare(self, case: Case, data: Data) -> Run:
        """LayerNorm whose row fits in a block."""
        x, bias, dy = data.x, data.bias, data.dy
        if case.kind != "layer" or bias is None:
            raise UnsupportedError("the tutorial has LayerNorm only")
        block = triton.next_power_of_2(case.cols)
        if block * x.element_size() > MOST_BYTES:
            raise UnsupportedError("the tutorial takes rows of up to 64 KiB")
        warps = min(max(block // 256, 1), 8)
        y = dx = data.result
        mean = torch.empty(case.rows, device=x.device)
        rstd = torch.empty_like(mean)

        def forward() -> torch.Tensor:
            forward_kernel[(case.rows,)](
                x, y, data.weight, bias, mean, rstd, case.cols, case.cols, case.eps,
                BLOCK=block, num_warps=warps,
            )  # fmt: skip
            return y

        if case.direction == "forward":
            return run_of(forward, lambda: {"y": forward()})
        forward()
        parts = parts_of(case.cols)
        locks = torch.zeros(2 * parts, dtype=torch.int32, device=x.device)
        part_weight = torch.zeros(parts, case.cols, dtype=x.dtype, device=x.device)
        part_bias = torch.zeros_like(part_weight)
        dweight, dbias = torch.empty_like(data.weight), torch.empty_like(bias)

        def backward() -> None:
            locks.zero_()
            backward_kernel[(case.rows,)](
                dx, dy, part_weight, part_bias, x, data.weight, mean, rstd, locks, case.cols,
                case.cols, PARTS=parts, BLOCK=block, num_warps=warps,
            )  # fmt: skip
            sum_kernel[(triton.cdiv(case.cols, 128),)](
                part_weight, part_bias, dweight, dbias, min(parts, case.rows), case.cols,
                ROWS=32, BLOCK=128,
            )  # fmt: skip

        def outputs() -> dict[str, torch.Tensor]:
            backward()
            return {"dx": dx, "dweight": dweight, "dbias": dbias}

        return run_of(backward, outputs)
