"""Backward operators with statistics that are not x's own: torch's formula with just these."""

from __future__ import annotations

import numpy as np
import pytest
from support import FLOATS, GROUP_BACKWARD, LAYER_BACKWARD, Exact, on_planish, row_error, wide

import torch
from torch import Tensor

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
#: The bounds of docs/guide/reproducibility.md.
BOUND = {torch.float32: 4.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}

#: What the statistics are; x has the mean, in standard deviations, that stands behind it.
KINDS = {
    "random": 0.0,
    "frozen": 0.0,
    "shifted 0.001": 0.0,
    "shifted 1": 0.0,
    "shifted 100": 30.0,
    "off by 3 ULP": 100.0,
    "off by 40 ULP": 1000.0,
}
#: rows, columns: short ones, steps of rows, alone, of several segments
ROWS = [(40, 8), (17, 24), (6, 40), (64, 256), (5, 1000), (3, 5000)]
#: images, channels, height, width, groups
IMAGES = [(2, 6, 5, 5, 3), (3, 32, 7, 7, 32), (2, 16, 20, 33, 4), (4, 8, 1, 2, 2), (2, 64, 9, 9, 1)]


def statistics(x: Tensor, kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """mean and rstd of rows (rows, columns), as they are given, in a dtype."""
    exact = x.double()
    mean, rstd = exact.mean(1), (exact.var(1, unbiased=False) + 1e-5).rsqrt()
    what, _, number = kind.partition(" ")
    if what == "random":
        generator = torch.Generator().manual_seed(len(x))
        mean = torch.randn(len(x), generator=generator, dtype=torch.float64)
        rstd = torch.rand(len(x), generator=generator, dtype=torch.float64) + 0.5
    elif what == "frozen":
        mean, rstd = mean[:1].expand_as(mean), rstd[:1].expand_as(rstd)
    elif what == "shifted":
        mean = mean + float(number) / rstd
    else:
        ulp = torch.finfo(dtype).eps * mean.abs().log2().floor().exp2()
        mean = mean.to(dtype).double() + float(number.split()[1]) * ulp
    return mean.to(dtype).contiguous(), rstd.to(dtype).contiguous()


def saved_dtype(dtype: torch.dtype, device: str) -> torch.dtype:
    """What torch saves statistics in: of 16 bits only on the CPU."""
    return torch.promote_types(dtype, torch.float32) if device == "cuda" else dtype


def exact_gradients(
    x: Tensor, dy: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Exact, Exact, Exact, Exact]:
    """dx, the magnitude of its terms, dy * xhat and the magnitudes of these, by the mean that is
    given, or by x's own where the given one is that, rounded."""
    values, m, r = wide(x), wide(mean)[:, None], wide(rstd)[:, None]
    own, info = values.mean(1, keepdims=True), torch.finfo(mean.dtype)
    is_own = np.abs(own - m) <= 4 * info.eps * (np.abs(m) + info.smallest_normal)
    m = np.where(is_own, own, m)
    xhat, d = (values - m) * r, wide(dy)
    g = d * wide(weight)
    size = np.maximum(1, np.abs(xhat))
    if x.dtype == torch.float64:
        size = size + np.abs(m * r)
    c2 = (g * xhat).mean(1, keepdims=True)
    dx = r * (g - g.mean(1, keepdims=True) - xhat * c2)
    terms = r * np.maximum(np.abs(g), size * (np.abs(g) * size).mean(1, keepdims=True))
    return dx, terms, d * xhat, np.abs(d) * size


def sums_agree(result: Tensor, exact: Exact, magnitude: Exact, count: int) -> bool:
    """Whether sums over `count` numbers are within the bound, of the magnitudes added."""
    unit = np.longdouble(torch.finfo(result.dtype).eps) * magnitude
    return bool((np.abs(wide(result) - exact) <= 4 * max(1, count / 8) ** 0.5 * unit).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_layer_norm_takes_statistics_that_it_finds_for_itself(
    shape: tuple[int, int], dtype: torch.dtype, kind: str, device: str
) -> None:
    generator = torch.Generator().manual_seed(shape[1])
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).add(KINDS[kind]).to(dtype)
    dy = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(shape[1], generator=generator, dtype=torch.float64).to(dtype)
    mean, rstd = statistics(x, kind, saved_dtype(dtype, device))
    dx, terms, products, sizes = exact_gradients(x, dy, weight, mean, rstd)
    arguments = [t.to(device) for t in (dy, x, mean[:, None], rstd[:, None], weight)]
    dy_there, x_there, mean_there, rstd_there, weight_there = arguments
    with on_planish(LAYER_BACKWARD):
        results = torch.ops.aten.native_layer_norm_backward(
            dy_there,
            x_there,
            [shape[1]],
            mean_there,
            rstd_there,
            weight_there,
            weight_there,
            [True] * 3,
        )
    assert row_error(results[0], dx, 1, terms) <= BOUND[dtype]
    assert sums_agree(results[1], products.sum(0), sizes.sum(0), shape[0])
    assert sums_agree(results[2], wide(dy).sum(0), np.abs(wide(dy)).sum(0), shape[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [False, True], ids=["NCHW", "channels last"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_group_norm_takes_statistics_that_it_finds_for_itself(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, last: bool, kind: str, device: str
) -> None:
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("on CUDA group norm of f64 is torch's own kernel")
    images, channels, height, width, groups = shape
    pixels = height * width
    generator = torch.Generator().manual_seed(channels * pixels)
    size = (images, channels, height, width)
    x = torch.randn(*size, generator=generator, dtype=torch.float64).add(KINDS[kind]).to(dtype)
    dy = torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(channels, generator=generator, dtype=torch.float64).to(dtype)
    rows = x.reshape(images * groups, -1)
    mean, rstd = statistics(rows, kind, dtype)
    by_element = weight[:, None].expand(channels, pixels).reshape(groups, -1).repeat(images, 1)
    dx, terms, products, sizes = exact_gradients(
        rows, dy.reshape(rows.shape), by_element, mean, rstd
    )
    layout = torch.channels_last if last else torch.contiguous_format
    x_there, dy_there = (t.to(device).contiguous(memory_format=layout) for t in (x, dy))
    mean_there, rstd_there = (t.view(images, groups).to(device) for t in (mean, rstd))
    with on_planish(GROUP_BACKWARD):
        results = torch.ops.aten.native_group_norm_backward(
            dy_there,
            x_there,
            mean_there,
            rstd_there,
            weight.to(device),
            images,
            channels,
            pixels,
            groups,
            [True] * 3,
        )
    assert row_error(results[0].reshape(rows.shape), dx, 1, terms) <= BOUND[dtype]

    def by_channel(numbers: Exact) -> Exact:
        return numbers.reshape(images, channels, pixels).sum((0, 2))

    added = images * pixels
    assert sums_agree(results[1], by_channel(products), by_channel(sizes), added)
    d = wide(dy)
    assert sums_agree(results[2], by_channel(d), by_channel(np.abs(d)), added)
