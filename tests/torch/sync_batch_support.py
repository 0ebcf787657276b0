"""What the tests of SyncBatchNorm's operators share, and check_sync_batch.py on a GPU: their
formulas in f64, and what torch has for CUDA alone."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

STATS, ELEMT = "batch_norm_stats", "batch_norm_elemt"
REDUCE, BACKWARD = "batch_norm_backward_reduce", "batch_norm_backward_elemt"
OPERATORS = (STATS, ELEMT, REDUCE, BACKWARD)
EPS = 1e-5


def axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def along(vector: Tensor, x: Tensor) -> Tensor:
    return vector.double().view(-1, *(1,) * (x.dim() - 2))


def statistics(x: Tensor, eps: float = EPS) -> list[Tensor]:
    wide = x.double()
    return [wide.mean(axes(x)), (wide.var(axes(x), unbiased=False) + eps).rsqrt()]


def elemt(x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, rstd: Tensor) -> Tensor:
    y = (x.double() - along(mean, x)) * along(rstd, x)
    y = y if w is None else y * along(w, x)
    return y if b is None else y + along(b, x)


def reduce(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> list[Tensor]:
    """sum_dy, sum_dy_xmu, dweight, dbias"""
    wide = dy.double()
    sum_dy, xmu = wide.sum(axes(x)), (wide * (x.double() - along(mean, x))).sum(axes(x))
    return [sum_dy, xmu, xmu * rstd.double(), sum_dy]


def backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Tensor | None,
    sum_dy: Tensor, sum_dy_xmu: Tensor, count: int,
) -> Tensor:  # fmt: skip
    slope = along(sum_dy_xmu.double() * rstd.double() ** 2 / count, x)
    dx = dy.double() - along(sum_dy.double() / count, x)
    dx = (dx - (x.double() - along(mean, x)) * slope) * along(rstd, x)
    return dx if w is None else dx * along(w, x)


def gather(
    x: Tensor, mean: Tensor, rstd: Tensor, running_mean: Tensor | None,
    running_var: Tensor | None, momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What aten::batch_norm_gather_stats_with_counts computes."""
    n = counts.double().view(-1, 1)
    var = rstd.double().pow(-2) - eps
    total = (mean.double() * n).sum(0) / n.sum()
    m2 = ((var + (mean.double() - total) ** 2) * n).sum(0)
    found = ((running_mean, total), (running_var, m2 / (n.sum() - 1)))
    for running, new in found:
        if running is not None:
            running.copy_((1 - momentum) * running.double() + momentum * new)
    return total.to(mean.dtype), (m2 / n.sum() + eps).rsqrt().to(mean.dtype)


@contextlib.contextmanager
def gathering_on_the_cpu() -> Iterator[None]:
    """torch has that operator for CUDA alone."""
    made = torch.library.Library("aten", "IMPL")
    made.impl("batch_norm_gather_stats_with_counts", gather, "CPU")
    try:
        yield
    finally:
        made._destroy()


def laid(x: Tensor, last: bool) -> Tensor:
    """x, stored by pixel where it has a memory format for that."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if last and x.dim() in formats else x


def normal(*sizes: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def masks() -> list[tuple[bool, ...]]:
    return list(itertools.product((True, False), repeat=3))
