"""planish.distributed: norms of which each rank has a part of every row, against the norm of the
whole row, forward and backward, on 2 and 4 processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from distributed_support import cut, here, run

import planish
import torch
from torch import Tensor

ROWS = 5
EVEN, UNEVEN, EMPTY, FOUR = [48, 48], [1, 95], [96, 0], [10, 0, 85, 1]
CUTS = [EVEN, UNEVEN, EMPTY, FOUR]


def _inputs(columns: int, dtype: torch.dtype, center: float = 3.0) -> list[Tensor]:
    make = torch.Generator().manual_seed(7)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=make, dtype=torch.float64)

    x, weight, bias, dy = draw(ROWS, columns), draw(columns), draw(columns), draw(ROWS, columns)
    return [t.to(dtype) for t in (x + center, weight, bias, dy)]


def _norm_on_ranks(kind: str, sizes: list[int], dtype: torch.dtype, options: Any) -> list[Tensor]:
    x, weight, bias, dy = (cut(t, sizes, t.dim() - 1) for t in _inputs(sum(sizes), dtype))
    tensors = [x, weight, bias] if kind == "layer_norm" else [x, weight]
    for tensor in tensors:
        tensor.requires_grad_()
    y = getattr(planish.distributed, kind)(*tensors, eps=1e-5, **options)
    return [y.detach(), *torch.autograd.grad(y, tensors, dy)]


def _whole(kind: str, columns: int, dtype: torch.dtype, offset: float = 0.0) -> list[Tensor]:
    x, weight, bias, dy = (t.double() for t in _inputs(columns, dtype))
    tensors = [x, weight, bias] if kind == "layer_norm" else [x, weight]
    for tensor in tensors:
        tensor.requires_grad_()
    mean = x.mean(-1, keepdim=True) if kind == "layer_norm" else 0.0
    rstd = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    y = (x - mean) * rstd * (offset + weight)
    y = y + bias if kind == "layer_norm" else y
    return [y.detach(), *torch.autograd.grad(y, tensors, dy)]


def _joined(parts: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(tensors, -1) for tensors in zip(*parts, strict=True)]


def _ulps(dtype: torch.dtype, got: Tensor, wanted: Tensor) -> float:
    """The largest error in ULP of the largest magnitude in a row."""
    scale = wanted.abs().amax(-1, keepdim=True) * torch.finfo(dtype).eps
    return float(((got.double() - wanted) / scale).abs().max())


@pytest.mark.parametrize("sizes", CUTS, ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_parts_make_the_norm_of_the_whole_row(
    kind: str, sizes: list[int], dtype: torch.dtype
) -> None:
    results = run(len(sizes), _norm_on_ranks, kind, sizes, dtype, {})
    for got, wanted in zip(_joined(results), _whole(kind, 96, dtype), strict=True):
        assert got.dtype == dtype
        assert _ulps(dtype, got, wanted) <= 4


def _twice(kind: str, sizes: list[int]) -> bool:
    first, second = (_norm_on_ranks(kind, sizes, torch.float32, {}) for _ in range(2))
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_the_same_bits_again(kind: str) -> None:
    assert all(run(2, _twice, kind, UNEVEN))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_reproducible_shards_are_the_same_bits_on_1_2_and_4_ranks(
    kind: str, dtype: torch.dtype
) -> None:
    found = []
    for ranks in (1, 2, 4):
        sizes = [96 // ranks] * ranks
        options = {"reproducible_shards": 4}
        found.append(_joined(run(ranks, _norm_on_ranks, kind, sizes, dtype, options)))
    for others in zip(*found, strict=True):
        assert all(torch.equal(other, others[0]) for other in others)
    for got, wanted in zip(found[0], _whole(kind, 96, dtype), strict=True):
        assert _ulps(dtype, got, wanted) <= 4


def test_weight_offset() -> None:
    results = run(2, _norm_on_ranks, "rms_norm", EVEN, torch.float32, {"weight_offset": 1.0})
    for got, wanted in zip(
        _joined(results), _whole("rms_norm", 96, torch.float32, 1.0), strict=True
    ):
        assert _ulps(torch.float32, got, wanted) <= 4


def _known() -> bool:
    """A call again with other numbers, dtypes, sizes, groups and options."""
    mesh, rank = dist.init_device_mesh("cpu", (2,)), dist.get_rank()
    alone = [dist.new_group([of]) for of in range(2)][rank]
    norm = planish.distributed.layer_norm
    for dtype, columns, repeat in (
        (torch.float32, 8, 2),
        (torch.bfloat16, 8, 1),
        (torch.float64, 5, 2),
    ):
        for _ in range(repeat):
            parts = [torch.randn(3, columns).to(dtype) for _ in range(2)]
            for part in parts:
                dist.broadcast(part, 0)
            x, wide = parts[rank], torch.cat(parts, 1).double()
            of_all = torch.nn.functional.layer_norm(wide, (2 * columns,)).chunk(2, 1)[rank]
            of_part = torch.nn.functional.layer_norm(x.double(), (columns,))
            weight = torch.full((columns,), 2.0, dtype=dtype)
            for y, wanted in (
                (norm(x), of_all),
                (norm(x, group=mesh), of_all),
                (norm(x, group=alone), of_part),
                (norm(x, weight, weight), of_all * 2 + 2),
                (norm(x, weight, weight_offset=1.0), of_all * 3),
                (norm(x, weight, weight_offset=0.5), of_all * 2.5),
                (norm(x.requires_grad_(), weight).detach(), of_all * 2),
            ):
                assert y.dtype == dtype
                assert _ulps(dtype, y, wanted) <= 4
            for offset in (0.0, 0.5):
                both = planish.distributed.qk_norm(
                    x.detach(), x.detach(), weight, None, 1e-5, kind="layer", weight_offset=offset
                )
                for y, wanted in zip(both, (of_all * (2 + offset), of_all), strict=True):
                    assert _ulps(dtype, y, wanted) <= 4
    return True


def test_a_call_that_is_known_is_no_other_call() -> None:
    assert all(run(2, _known))


# ---- Far from 0, and not a number ----------------------------------------------------------------


def _far(center: float) -> Tensor:
    x = cut(_inputs(96, torch.float32, center)[0], UNEVEN, 1)
    return planish.distributed.layer_norm(x)


def test_a_mean_of_1e4_standard_deviations() -> None:
    x = _inputs(96, torch.float32, 1e4)[0].double()
    wanted = torch.nn.functional.layer_norm(x, (96,))
    assert _ulps(torch.float32, torch.cat(run(2, _far, 1e4), 1), wanted) <= 4


def _with_nan() -> Tensor:
    x = cut(_inputs(96, torch.float32)[0], EVEN, 1)
    if dist.get_rank() == 1:
        x[2, 3] = torch.nan
    return planish.distributed.layer_norm(x)


def test_nan_makes_its_row_nan_on_every_rank_and_no_other() -> None:
    y = torch.cat(run(2, _with_nan), 1)
    assert y[2].isnan().all()
    assert not y[[0, 1, 3, 4]].isnan().any()


# ---- Derivatives ---------------------------------------------------------------------------------


def _gradcheck() -> bool:
    x, weight, bias, _ = (cut(t, [3, 5], t.dim() - 1) for t in _inputs(8, torch.float64))

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return planish.distributed.layer_norm(x, weight, bias)

    # Of each rank's results by its own inputs: c1 and c2 then are of this rank's dy alone, which
    # all ranks make in turn.
    tensors = [t.requires_grad_() for t in (x, weight, bias)]
    for rank in range(dist.get_world_size()):
        y = norm(*tensors)
        dy = torch.randn_like(y) if dist.get_rank() == rank else torch.zeros_like(y)
        analytic = torch.autograd.grad(y, tensors, dy)
        for tensor, gradient in zip(tensors, analytic, strict=True):
            for owner in range(dist.get_world_size()):
                for i in range(_count(tensor, owner)):
                    numeric = _difference(norm, tensors, tensor, owner, i, dy)
                    if dist.get_rank() == owner:
                        assert abs(numeric - float(gradient.flatten()[i])) < 1e-6
    return True


def _count(tensor: Tensor, owner: int) -> int:
    count = torch.tensor(tensor.numel())
    dist.broadcast(count, owner)
    return int(count)


def _difference(
    norm: Any, tensors: list[Tensor], tensor: Tensor, owner: int, i: int, dy: Tensor
) -> float:
    """The derivative of the sum over all ranks of y * dy by one element of one rank's tensor."""
    step, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            changed = tensor.clone()
            if dist.get_rank() == owner:
                changed.view(-1)[i] += sign * step
            value = (norm(*(changed if t is tensor else t for t in tensors)) * dy).sum()
            dist.all_reduce(value)
            values.append(float(value))
    return (values[0] - values[1]) / (2 * step)


def test_gradients_are_those_of_finite_differences() -> None:
    assert all(run(2, _gradcheck))


def _second_derivative() -> str:
    x = torch.randn(3, 8, requires_grad=True)
    y = planish.distributed.rms_norm(x)
    dy = torch.randn(3, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    with pytest.raises(RuntimeError) as error:
        dx.sum().backward()
    return str(error.value)


def test_a_second_derivative_is_refused() -> None:
    assert "once_differentiable" in run(2, _second_derivative)[0]


# ---- The other norms -----------------------------------------------------------------------------


def _qk_on_ranks(heads: list[int], kind: str) -> list[Tensor]:
    make = torch.Generator().manual_seed(3)
    q, k = (torch.randn(2, 7, sum(heads), 16, generator=make) for _ in range(2))
    weights = [torch.rand(sum(heads), 16, generator=make) for _ in range(2)]
    tensors = [cut(t, heads, t.dim() - 2).requires_grad_() for t in (q, k, *weights)]
    both = planish.distributed.qk_norm(*tensors, 1e-6, kind=kind, dims=(-2, -1))
    return [
        *(t.detach() for t in both),
        *torch.autograd.grad(both[0].sum() + (both[1] * 2).sum(), tensors),
    ]


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("heads", [[2, 2], [3, 1], [1, 0, 2, 2]], ids=str)
def test_queries_and_keys_across_heads(kind: str, heads: list[int]) -> None:
    make = torch.Generator().manual_seed(3)
    q, k = (torch.randn(2, 7, sum(heads), 16, generator=make) for _ in range(2))
    weights = [torch.rand(sum(heads), 16, generator=make) for _ in range(2)]
    tensors = [t.double().requires_grad_() for t in (q, k, *weights)]
    wanted = []
    for x, weight in zip(tensors[:2], tensors[2:], strict=True):
        mean = x.mean((-2, -1), keepdim=True) if kind == "layer" else 0
        wanted.append(
            (x - mean) * ((x - mean).square().mean((-2, -1), True) + 1e-6).rsqrt() * weight
        )
    gradients = torch.autograd.grad(wanted[0].sum() + (wanted[1] * 2).sum(), tensors)
    parts = run(len(heads), _qk_on_ranks, heads, kind)
    got = [torch.cat(tensors, -2) for tensors in zip(*parts, strict=True)]
    for one, other in zip(got, [*wanted, *gradients], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def _count_collectives() -> dict[str, int]:
    from torch.distributed.tensor.debug import CommDebugMode

    q, k = torch.randn(4, 32, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    with CommDebugMode() as mode:
        both = planish.distributed.qk_norm(q, k, None, None, 1e-6)
        (both[0].sum() + both[1].sum()).backward()
    return {str(name): count for name, count in mode.get_comm_counts().items()}


def test_queries_and_keys_share_one_exchange_each_way() -> None:
    counts = run(2, _count_collectives)[0]
    assert sum(counts.values()) == 2, counts


def _group_norm_on_ranks(axis: int, sizes: list[int], shards: int | None) -> list[Tensor]:
    make = torch.Generator().manual_seed(3)
    x = torch.randn(2, 12, 8, 6, generator=make) + 2
    weight, bias = torch.rand(12, generator=make), torch.rand(12, generator=make)
    dy = torch.randn(2, 12, 8, 6, generator=make)
    x, dy = (cut(t, sizes, axis).requires_grad_() for t in (x, dy))
    if axis == 1:
        weight, bias = (cut(t, sizes, 0) for t in (weight, bias))
    tensors = [x, here(weight).requires_grad_(), here(bias).requires_grad_()]
    groups = 1 if axis == 1 else 4
    y = planish.distributed.group_norm(
        *tensors[:1], groups, *tensors[1:], reproducible_shards=shards
    )
    gradients = list(torch.autograd.grad(y, tensors, dy.detach()))
    if axis != 1:
        for gradient in gradients[1:]:
            dist.all_reduce(gradient)
    return [y.detach(), *gradients]


@pytest.mark.parametrize(
    ("axis", "sizes", "shards"),
    [
        (2, [4, 4], None),
        (2, [1, 7], None),
        (2, [4, 4], 4),
        (3, [2, 0, 3, 1], None),
        (1, [5, 7], None),
    ],
)
def test_group_norm_of_sharded_pixels_and_channels(
    axis: int, sizes: list[int], shards: int | None
) -> None:
    make = torch.Generator().manual_seed(3)
    x = torch.randn(2, 12, 8, 6, generator=make) + 2
    weight, bias = torch.rand(12, generator=make), torch.rand(12, generator=make)
    dy = torch.randn(2, 12, 8, 6, generator=make)
    tensors = [t.double().requires_grad_() for t in (x, weight, bias)]
    y = torch.nn.functional.group_norm(tensors[0], 1 if axis == 1 else 4, *tensors[1:])
    wanted = [y, *torch.autograd.grad(y, tensors, dy.double())]
    parts = run(len(sizes), _group_norm_on_ranks, axis, sizes, shards)
    for place, (found, other) in enumerate(zip(zip(*parts, strict=True), wanted, strict=True)):
        whole = torch.cat(found, axis if place < 2 else 0) if place < 2 or axis == 1 else found[0]
        torch.testing.assert_close(whole.double(), other, rtol=1e-5, atol=2e-5)


def _add_on_ranks(sizes: list[int]) -> list[Tensor]:
    x, weight, _, residual = _inputs(sum(sizes), torch.bfloat16)
    tensors = [cut(t, sizes, t.dim() - 1).requires_grad_() for t in (x, residual.float(), weight)]
    y, total = planish.distributed.add_rms_norm(*tensors, 1e-6)
    assert y.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    gradients = torch.autograd.grad(y.float().sum() + (3 * total).sum(), tensors)
    return [y.detach(), total.detach(), *gradients]


def test_add_rms_norm() -> None:
    x, weight, _, residual = _inputs(96, torch.bfloat16)
    tensors = [t.requires_grad_() for t in (x, residual.float(), weight)]
    y, total = planish.add_rms_norm(*tensors, 1e-6)
    gradients = torch.autograd.grad(y.float().sum() + (3 * total).sum(), tensors)
    got = _joined(run(2, _add_on_ranks, UNEVEN))
    assert torch.equal(got[1], total.detach())
    for one, other in zip(got, [y, total, *gradients], strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=1e-2, atol=1e-2)
