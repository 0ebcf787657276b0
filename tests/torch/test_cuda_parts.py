"""The passes over parts of rows on CUDA: two parts of a norm's rows, merged as planish.h says, have
the results of whole rows, and are planned as their dtype and layout are. It needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_support import random

import torch
from planish.operators import call
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

EPS = 1e-5
#: rows, columns of each part: within a warp, a block and a cluster, whole chunks and odd lengths
SHAPES = [(1, 8), (301, 24), (2000, 96), (70, 512), (43, 1000), (5, 4097), (300, 4096), (9, 8200)]
SHAPES += [(4, 40008), (3, 300000)]
#: Of the largest number of a result, or of 1.
DIGITS = {torch.float64: 2**-44, torch.float32: 2**-20}
DIGITS |= {torch.bfloat16: 2**-8 * 1.01, torch.float16: 2**-11 * 1.01}


def assert_near(found: Tensor, wanted: Tensor, dtype: torch.dtype, many: int = 1) -> None:
    """`many`: numbers that were summed."""
    assert found.isfinite().all()
    least = DIGITS[dtype] if dtype.itemsize > 2 else DIGITS[torch.float32]
    bound = least * many**0.5 * max(1.0, float(wanted.abs().max()))
    error = (found.double() - wanted).abs() - wanted.abs() * DIGITS[dtype]
    assert float(error.max()) <= bound, float(error.max()) / bound


def assert_as_on_the_cpu(found: Any, operator: Any, *arguments: Any) -> None:
    """With the same bits."""
    given = [one.cpu() if isinstance(one, Tensor) else one for one in arguments]
    for one, other in zip(found, operator(*given), strict=True):
        assert (one is None and other is None) or torch.equal(one.cpu(), other)


def placed(t: Tensor, layout: str) -> Tensor:
    """The same numbers: dense, begun an element behind an aligned address, or with rows apart."""
    rows, cols = t.shape
    if layout == "dense":
        return t.contiguous()
    gap = 1 if layout == "shifted" else 24
    room = t.new_empty(rows * (cols + gap) + 1)
    view = room[1:] if layout == "shifted" else room[: rows * (cols + gap)]
    made = view.as_strided((rows, cols), (cols + (gap if layout == "apart" else 0), 1))
    return made.copy_(t)


@pytest.mark.parametrize("layout", ["dense", "shifted", "apart"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_parts_are_as_whole_rows(
    shape: tuple[int, int], dtype: torch.dtype, rms: bool, layout: str
) -> None:
    rows, cols = shape
    ops, axes = torch.ops.planish, call.pack_axes([1], [1])
    offset = rows % 2
    options = call.pack_options(rms=rms, weight_offset=offset)
    wanted = call.pack_options(rms=rms, weight_offset=offset, wanted=12)
    of_weight = torch.float32 if rows % 3 == 0 and dtype.itemsize == 2 else dtype
    x = random(rows, 2 * cols, dtype=dtype) + 50
    dy = random(rows, 2 * cols, dtype=dtype, seed=1)
    weight, bias = (random(2 * cols, dtype=of_weight, seed=s) for s in (2, 3))

    xs, dys = ([placed(p, layout) for p in t.chunk(2, 1)] for t in (x, dy))
    ws, bs = (t.chunk(2) for t in (weight, bias))
    sent = torch.cat([ops.norm_part_message(p, axes, options, 0)[0] for p in xs])
    b = [None, None] if rms else bs
    made = [
        ops.norm_part_apply(p, sent, w, o, axes, options, EPS)
        for p, w, o in zip(xs, ws, b, strict=True)
    ]
    ys, known = [m[0] for m in made], made[0][1:]
    assert all(n is None or torch.equal(n, o) for n, o in zip(known, made[1][1:], strict=True))
    mean, rstd, shares = known
    given = xs[0], sent, ws[0], b[0], axes, options, EPS
    assert_as_on_the_cpu(known, lambda *all: ops.norm_part_apply(*all)[1:], *given)
    made = [
        ops.norm_backward_statistics(g, p, rstd, mean, w, axes, wanted, 2, EPS)
        for g, p, w in zip(dys, xs, ws, strict=True)
    ]
    again = ops.norm_backward_statistics(dys[0], xs[0], rstd, mean, ws[0], axes, wanted, 0, EPS)
    assert made[0][1].shape == (2, made[0][0].shape[1])
    assert again[1] is None
    for a, o in zip(again[:1] + again[2:], made[0][:1] + made[0][2:], strict=True):
        assert a is None or torch.equal(a, o)
    sums = torch.cat([m[0] for m in made])
    dxs = [
        ops.norm_part_backward_apply(g, p, sums, shares, rstd, mean, w, axes, options)
        for g, p, w in zip(dys, xs, ws, strict=True)
    ]

    whole, g = x.double(), dy.double() * (offset + weight.double())
    center = whole.mean(1, keepdim=True) * (not rms)
    squares = (whole - center).square().mean(1, keepdim=True)
    xhat = (whole - center) * (squares + EPS).rsqrt()
    digits = dtype if dtype == torch.float64 else torch.float32
    assert_near(rstd.square() * (squares + EPS), torch.ones_like(squares), digits)
    y = xhat * (offset + weight.double()) + (0 if rms else bias.double())
    assert_near(torch.cat(ys, 1), y, dtype)
    means_of_g = [g.mean(1, keepdim=True) * (not rms), (g * xhat).mean(1, keepdim=True)]
    dx = (squares + EPS).rsqrt() * (g - means_of_g[0] - xhat * means_of_g[1])
    assert_near(torch.cat(dxs, 1), dx, dtype)
    for found, right in ((2, dy.double() * xhat), (3, dy.double())):
        of_both = torch.cat([m[found] for m in made])
        assert_near(of_both, right.sum(0), of_weight, rows)
