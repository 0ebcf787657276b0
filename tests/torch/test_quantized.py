"""planish.quantized_rms_norm and quantized_layer_norm: scales, rounding, layouts, no gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import FLOATS

import planish
import torch
from planish.functions.quantizing import LARGEST, power_of_two_above, quantize
from torch import Tensor

TYPES = list(LARGEST)
E4M3 = torch.float8_e4m3fn


def exact_y(layer: bool, s: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    s = s.double()
    if layer:
        s = s - s.mean(-1, keepdim=True)
    y = s * (s.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    return y if bias is None else y + bias.double()


def values(dtype: torch.dtype) -> Tensor:
    """All finite values of the type, rising; a value's place in it is its count of steps."""
    if dtype == torch.int8:
        return torch.arange(-127, 128).double()
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    return every[every.isfinite()].unique()


def nearest(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest value; of two as near the one whose place from 0 is even. By search."""
    table = values(dtype)
    above = torch.searchsorted(table, exact).clamp(1, len(table) - 1)
    low, high = table[above - 1], table[above]
    even = (above - 1 - len(table) // 2) % 2 == 0
    down = (exact - low < high - exact) | ((exact - low == high - exact) & even)
    return torch.where(exact >= table[-1], table[-1], torch.where(down, low, high))


def norm(layer: bool) -> Callable[..., Any]:
    return planish.quantized_layer_norm if layer else planish.quantized_rms_norm


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rounding_is_not_to_nearest_even(dtype: torch.dtype, wide: torch.dtype) -> None:
    table = values(dtype)
    middles = (table[1:] + table[:-1]) / 2
    step = 1e-9 if wide == torch.float64 else 1e-6
    cases = torch.cat([table, middles, middles * (1 + step), middles * (1 - step), table * 2])
    exact = cases.to(wide)
    ours = quantize(exact, torch.ones(()), dtype).double()
    assert torch.equal(ours, nearest(exact.double(), dtype))
    special = quantize(
        torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=wide), torch.ones(()), dtype
    ).double()
    assert special[0].isnan() if dtype != torch.int8 else special[0] == 0
    assert special[1:].tolist() == [LARGEST[dtype], -LARGEST[dtype]]


@pytest.mark.parametrize("per", ["row", "tensor", 128, 64, 32])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layer", [True, False])
def test_scales_are_not_the_largest_magnitudes(
    layer: bool, dtype: torch.dtype, per: str | int
) -> None:
    x, weight = torch.randn(3, 5, 160).bfloat16(), torch.randn(160)
    q, scale = norm(layer)(x, weight, dtype=dtype, per=per)
    y = exact_y(layer, x, weight)
    if per == "row":
        amax = y.abs().amax(-1, keepdim=True)
        spread = scale
    elif per == "tensor":
        amax = y.abs().amax()
        spread = scale
    else:
        amax = torch.stack([part.abs().amax(-1) for part in y.split(int(per), -1)], -1)
        spread = scale.repeat_interleave(int(per), -1)[..., :160]
    assert (scale.dtype, q.dtype, q.shape) == (torch.float32, dtype, x.shape)
    assert q.is_contiguous() and scale.shape == amax.shape
    torch.testing.assert_close(scale, (amax / LARGEST[dtype]).float(), rtol=1e-6, atol=0)
    exact = y / spread.double()
    off = (q.double() - exact).abs() - (nearest(exact, dtype) - exact).abs()
    assert (off <= 1e-5 * exact.abs() + 1e-6).all()  # ties aside, the nearest value


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layer", [True, False])
def test_a_static_scale_or_a_residual_is_not_used(layer: bool, dtype: torch.dtype) -> None:
    x, residual = torch.randn(4, 96, dtype=dtype), torch.randn(4, 96)
    weight, scale = torch.randn(96), torch.tensor([0.002])
    q, same, total = norm(layer)(x, weight, scale=scale, residual=residual)
    assert same is scale
    assert torch.equal(total, (x.double() + residual.double()).float())
    exact = (exact_y(layer, total, weight) / 0.002).clamp(-448, 448)
    off = (q.double() - exact).abs() - (nearest(exact, E4M3) - exact).abs()
    assert (off <= 1e-5 * exact.abs() + 1e-6).all()
    assert q.double().abs().max() == 448  # it saturates
    _, _, wide = norm(layer)(x, residual=residual, sum_dtype=torch.float64)
    assert wide.dtype == torch.float64


def test_y_is_rounded_before_it_is_quantised() -> None:
    x = torch.randn(64, 256).bfloat16()
    q, scale = planish.quantized_rms_norm(x)
    y = planish.rms_norm(x.float(), -1)
    assert torch.equal(q.float(), (y / scale).clamp(-448, 448).to(E4M3).float())
    once = planish.rms_norm(x, -1).float()
    assert not torch.equal(q.float(), (once / scale).clamp(-448, 448).to(E4M3).float())


def test_powers_of_two_are_not_the_next_above() -> None:
    scale = torch.tensor([1.0, 1.0000001, 0.75, 0.5, 3e-39, 2.0**-126, 3e38, 2.0**127])
    wanted = [1.0, 2.0, 1.0, 0.5, 2.0**-126, 2.0**-126, 2.0**127, 2.0**127]
    assert power_of_two_above(scale).tolist() == wanted


@pytest.mark.parametrize("block", [128, 64, 32])
def test_scale_formats_differ_in_value(block: int) -> None:
    x = torch.randn(5, 256) * torch.logspace(-3, 3, 256)
    arguments: dict[str, Any] = {"per": block}
    _, plain = planish.quantized_rms_norm(x, **arguments)
    q, floats = planish.quantized_rms_norm(x, scale_format="ue8m0", **arguments)
    same, octets = planish.quantized_rms_norm(x, scale_format="e8m0", **arguments)
    assert torch.equal(floats, plain.log2().ceil().exp2())
    assert octets.dtype == torch.float8_e8m0fnu and torch.equal(octets.float(), floats)
    assert torch.equal(octets.view(torch.uint8).int() - 127, floats.log2().int())
    assert torch.equal(q.float(), same.float())


@pytest.mark.parametrize("rows", [(5,), (2, 3), (8,)], ids=str)
@pytest.mark.parametrize(("scale_format", "step"), [("f32", 4), ("e8m0", 16)])
def test_transposed_scales_are_not_padded_columns(
    rows: tuple[int, ...], scale_format: str, step: int
) -> None:
    x = torch.randn(*rows, 128)
    given: dict[str, Any] = {"per": 32, "scale_format": scale_format}
    _, scale = planish.quantized_rms_norm(x, **given)
    _, columns = planish.quantized_rms_norm(x, transposed_scales=True, **given)
    assert columns.shape == (*rows, 4) and torch.equal(columns.float(), scale.float())
    count = torch.Size(rows).numel()
    assert columns.stride(-1) == -(-count // step) * step and columns.stride(-2) == 1


def test_floors_and_bounds_do_not_hold() -> None:
    x = torch.stack([torch.zeros(64), torch.randn(64), torch.randn(64) * 1e-3])
    q, scale = planish.quantized_rms_norm(x, amax_floor=4.48)
    torch.testing.assert_close(scale[[0, 2]], torch.full((2, 1), 0.01), rtol=1e-6, atol=0)
    assert not q[0].float().any()
    _, scale = planish.quantized_rms_norm(x)
    assert scale[0].item() == pytest.approx(1e-10 / 448) and scale.isfinite().all()
    q, scale = planish.quantized_rms_norm(x, scale_bound=1e-3)
    assert scale.max().item() == pytest.approx(1e-3) and q.float().abs().max() == 448


def test_one_rows_nan_reaches_another() -> None:
    x = torch.randn(4, 64)
    x[1, 3] = float("nan")
    for per in ("row", "tensor", 32):
        q, scale = planish.quantized_rms_norm(x, per=per)
        others, _ = planish.quantized_rms_norm(x[[0, 2, 3]], per=per)
        assert q[1].float().isnan().all() and scale.isfinite().all()
        assert torch.equal(q[[0, 2, 3]].float(), others.float())
    q, _ = planish.quantized_rms_norm(x, dtype=torch.int8)
    assert not q[1].any()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_backward_goes_through_a_quantised_result(compiled: bool) -> None:
    def run(x: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        return planish.quantized_layer_norm(x, residual=residual)

    used = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    x, residual = (torch.randn(3, 32, requires_grad=True) for _ in range(2))
    q, scale, total = used(x, residual)
    total.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(3, 32))
    for result in (0, 1):
        with pytest.raises(RuntimeError, match="quantized_layer_norm: it is forward only"):
            used(x, residual)[result].float().sum().backward()
    with torch.no_grad():
        assert not used(x, residual)[0].requires_grad
    q, scale = planish.quantized_rms_norm(x, dtype=torch.int8)
    assert not q.requires_grad and scale.requires_grad


X = torch.randn(4, 64)
WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("a type without scales", {"dtype": torch.float16}, TypeError, "dtype is torch.float16"),
    ("another block", {"per": 16}, ValueError, "per is 16; known are 'row', 'tensor' and blocks"),
    ("another format", {"per": 32, "scale_format": "f16"}, ValueError, "scale_format is 'f16'"),
    ("a format per row", {"scale_format": "e8m0"}, ValueError, "per block, but per is 'row'"),
    ("columns per row", {"transposed_scales": True}, ValueError, "transposed_scales is for scales"),
    ("a scale of 0", {"scale": torch.zeros(1)}, ValueError, "scale is 0.0; wanted a positive"),
    ("a negative scale", {"scale": -torch.ones(())}, ValueError, "scale is -1.0"),
    ("a scale of nan", {"scale": torch.tensor(float("nan"))}, ValueError, "scale is nan"),
    ("a number as scale", {"scale": 0.5}, TypeError, "Expected scale to be a tensor"),
    ("many scales", {"scale": torch.ones(4)}, RuntimeError, "to be one float32 on cpu, but got 4"),
    ("a half scale", {"scale": torch.ones(1).half()}, RuntimeError, "1 of torch.float16"),
    ("a static block", {"scale": torch.ones(1), "per": 32}, ValueError, "a static scale is one"),
    ("a floor of 0", {"amax_floor": 0.0}, ValueError, "amax_floor is 0.0"),
    ("a bound of 0", {"scale_bound": 0.0}, ValueError, "scale_bound is 0.0"),
    ("a bound per tensor", {"scale_bound": 1.0, "per": "tensor"}, ValueError, "scales per row"),
    ("a sum of nothing", {"sum_dtype": torch.float32}, ValueError, "without a residual"),
    ("a residual that does not fit", {"residual": X[:1]}, RuntimeError, "residual to have x's"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=[case[0] for case in WRONG])
def test_what_does_not_fit_has_no_sentence(case: Any) -> None:
    _, given, kind, sentence = case
    with pytest.raises(kind, match=sentence):
        planish.quantized_rms_norm(X, **given)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)], ids=str)
def test_empty_tensors_are_not_taken(shape: tuple[int, ...]) -> None:
    for per in ("row", "tensor", 32):
        q, scale = planish.quantized_rms_norm(torch.randn(shape), per=per)
        assert q.shape == shape and scale.dtype == torch.float32


@pytest.mark.parametrize("given", [{}, {"amax_floor": 0.25}, {"scale_bound": 0.5}], ids=str)
def test_a_graph_of_any_sizes_raises_or_has_other_scales(given: dict[str, float]) -> None:
    """Numbers among its arguments are inputs of the graph there."""
    torch._dynamo.reset()
    compiled = torch.compile(planish.quantized_rms_norm, backend="aot_eager", dynamic=True)
    weight = torch.randn(64)
    for rows in (3, 5):
        x = torch.randn(rows, 64)
        found, wanted = compiled(x, weight, **given), planish.quantized_rms_norm(x, weight, **given)
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one.float(), other.float())
