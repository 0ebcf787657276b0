"""The ceiling on a GPU: an element-wise kernel with streaming stores. Imports Triton."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

import torch
from torch import Tensor

from .triton_ways import fastest
from .way import Prepared
from .works import Data, Work

SHAPES = ((512, 4), (1024, 4), (2048, 4), (4096, 8), (8192, 8))  # elements of a block, warps
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def streams_kernel(
    a, b, c, d, y, z, count, READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y and z are the sum of what is read, a block of elements for each program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    v = tl.load(a + at, mask=inside)
    if READS > 1:
        v += tl.load(b + at, mask=inside)
    if READS > 2:
        v += tl.load(c + at, mask=inside)
    if READS > 3:
        v += tl.load(d + at, mask=inside)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=inside, cache_modifier=".cs")
    if WRITES > 1:
        tl.store(z + at, v.to(z.dtype.element_ty), mask=inside, cache_modifier=".cs")


def prepare(work: Work, sets: Sequence[Data]) -> Prepared:
    """As many sets of buffers as there are of data; the best of a few shapes of block."""
    reads, writes = work.streams

    def buffers(sizes: Sequence[int]) -> list[Tensor]:
        made = []
        for size in sizes:
            limits = torch.iinfo(INTEGERS[size])
            made.append(
                torch.randint(
                    limits.min // 4, limits.max // 4, (work.elements,), dtype=INTEGERS[size],
                    device=work.device,
                )
            )  # fmt: skip
        return made

    own = [{str(i): t for i, t in enumerate(buffers(reads) + buffers(writes))} for _ in sets]

    def queue(shape: tuple[int, int], data: Data) -> Sequence[Tensor]:
        tensors = list(data.values())
        inputs, results = tensors[: len(reads)], tensors[len(reads) :]
        streams_kernel[(triton.cdiv(work.elements, shape[0]),)](
            *inputs, *[None] * (4 - len(reads)), *results, *[None] * (2 - len(writes)),
            work.elements, READS=len(reads), WRITES=len(writes), BLOCK=shape[0],
            num_warps=shape[1],
        )  # fmt: skip
        return results

    best = fastest(SHAPES, queue, own)

    def outputs() -> dict[str, Tensor]:
        total = sum(own[0][str(i)] for i in range(len(reads)))
        assert isinstance(total, Tensor)
        pairs = zip(queue(best, own[0]), writes, strict=True)
        return {str(i): found - total.to(INTEGERS[size]) for i, (found, size) in enumerate(pairs)}

    return Prepared([lambda t=t: queue(best, t) for t in own], outputs)  # type: ignore[misc]
