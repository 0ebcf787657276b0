"""torch's SyncBatchNorm operators on the CPU, where torch has none: each against its formula in
f64, and nn.SyncBatchNorm's own function by gloo on several processes."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import sync_batch_support as exact
import torch.distributed as dist
import torch.nn.functional as F
from distributed_support import here, on_a_gpu, run
from support import FLOATS, Calls, on_planish
from sync_batch_support import BACKWARD, ELEMT, EPS, OPERATORS, REDUCE, STATS, laid, normal
from torch.nn.modules import _functions

import planish
import torch
from torch import Tensor

SHAPES = [(33, 7), (4, 5, 9), (3, 8, 5, 7), (16, 24, 1, 1), (2, 3, 4, 5, 6), (1, 2, 40, 50)]
#: Of a result that is rounded once, and of a sum: shares of the largest value.
ROOM = {
    torch.float32: (4e-7, 3e-6),
    torch.bfloat16: (8e-3, 3e-6),
    torch.float16: (1e-3, 3e-6),
    torch.float64: (1e-14, 1e-13),
}


def near(found: Tensor, wanted: Tensor, room: float) -> None:
    assert float((found.double() - wanted).abs().max()) <= room * float(wanted.abs().max())


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def given(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> list[Tensor]:
    """x, dy, weight, bias, mean and invstd of more values than x has."""
    x, dy = (laid(normal(*shape, dtype=dtype, seed=i), last) for i in range(2))
    vectors = [normal(shape[1], dtype=wide(dtype), seed=i) for i in range(2, 6)]
    return [x, dy, *vectors[:2], vectors[2] / 8, vectors[3].square() + 0.5]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_operator_differs_from_its_formula(
    shape: tuple[int, ...], last: bool, dtype: torch.dtype
) -> None:
    x, dy, w, b, mean, rstd = given(shape, dtype, last)
    rounded, summed = ROOM[dtype]
    # of one process and of several; SyncBatchNorm's own have two axes
    counts = [torch.tensor(n, dtype=torch.int32) for n in ([x.numel()], [5, 90], [[7]], [[5], [9]])]
    with on_planish(*OPERATORS):
        stats = torch.batch_norm_stats(x, EPS)
        ys = [torch.batch_norm_elemt(x, *wb, mean, rstd, EPS) for wb in ((w, b), (None, None))]
        sums = torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, True, True, True)
        dxs = [
            torch.batch_norm_backward_elemt(dy, x, mean, rstd, weight, *sums[:2], count)
            for weight, count in itertools.product((w, None), counts)
        ]
    for found, wanted in zip(stats, exact.statistics(x), strict=True):
        assert found.dtype == wide(dtype)
        near(found, wanted, 2 * summed)
    for y, wb in zip(ys, ((w, b), (None, None)), strict=True):
        near(y, exact.elemt(x, *wb, mean, rstd), rounded)
    for found, wanted in zip(sums, exact.reduce(dy, x, mean, rstd), strict=True):
        assert found.dtype == wide(dtype)
        near(found, wanted, summed)
    for dx, (weight, count) in zip(dxs, itertools.product((w, None), counts), strict=True):
        near(dx, exact.backward(dy, x, mean, rstd, weight, *sums[:2], int(count.sum())), rounded)
    for full in (*ys, *dxs):
        assert (full.dtype, full.stride()) == (dtype, x.stride())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_parameters_have_other_gradients(dtype: torch.dtype) -> None:
    x, dy, w, b, mean, rstd = given((3, 8, 5, 7), dtype, False)
    w, b = w.to(dtype), b.to(dtype)
    with on_planish(ELEMT, REDUCE):
        y = torch.batch_norm_elemt(x, w, b, mean, rstd, EPS)
        sums = torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, True, True, True)
    near(y, exact.elemt(x, w, b, mean, rstd), ROOM[dtype][0])
    assert [t.dtype for t in sums] == [torch.float32] * 2 + [dtype] * 2
    for i, wanted in enumerate(exact.reduce(dy, x, mean, rstd)):
        near(sums[i], wanted, ROOM[dtype][i < 2])


@pytest.mark.parametrize("mask", exact.masks())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_is_made_that_nobody_asked_for(mask: tuple[bool, ...], dtype: torch.dtype) -> None:
    x, dy, w, _, mean, rstd = given((3, 8, 5, 7), torch.bfloat16, True)
    w = w.to(dtype)
    with planish.enabled():
        found = torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, *mask)
    wanted = exact.reduce(dy, x, mean, rstd)
    for i, asked in enumerate((mask[0], *mask)):
        assert (found[i] is not None) == asked
        if asked:
            near(found[i], wanted[i], ROOM[dtype][0])
    there = [t.data_ptr() for t in found if t is not None]
    assert len(set(there)) == len(there)  # torch's sums may be added up in place


def test_without_a_weight_no_sums() -> None:
    x, dy, _, _, mean, rstd = given((3, 8, 5, 7), torch.float32, False)
    with on_planish(REDUCE):
        found = torch.batch_norm_backward_reduce(dy, x, mean, rstd, None, True, False, False)
    for sum_, wanted in zip(found[:2], exact.reduce(dy, x, mean, rstd)[:2], strict=True):
        near(sum_, wanted, 3e-6)
    assert found[2] is None
    assert found[3] is None


@pytest.mark.parametrize("in_place", [False, True])
def test_out_is_not_written(in_place: bool) -> None:
    x, _, w, b, mean, rstd = given((3, 8, 5, 7), torch.bfloat16, True)
    wanted = exact.elemt(x, w, b, mean, rstd)
    out = x if in_place else torch.empty_like(x)
    with on_planish(ELEMT):
        made = torch.batch_norm_elemt(x, w, b, mean, rstd, EPS, out=out)
    assert made is out
    near(out, wanted, 8e-3)


def test_vectors_that_lie_apart_are_read_wrongly() -> None:
    """SyncBatchNorm's sums are parts of the tensor that was sent."""
    x, dy, *vectors = given((3, 8, 5, 7), torch.float32, False)
    w, b, mean, rstd = (torch.stack([v, -v], 1)[:, 0] for v in vectors)
    sums = torch.randn(8, 2).unbind(1)
    count = torch.tensor([105], dtype=torch.int32)
    with on_planish(ELEMT, REDUCE, BACKWARD):
        y = torch.batch_norm_elemt(x, w, b, mean, rstd, EPS)
        dx = torch.batch_norm_backward_elemt(dy, x, mean, rstd, w, *sums, count)
        found = torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, True, False, False)
    near(y, exact.elemt(x, w, b, mean, rstd), 4e-7)
    near(dx, exact.backward(dy, x, mean, rstd, w, *sums, 105), 4e-7)
    near(found[1], exact.reduce(dy, x, mean, rstd)[1], 3e-6)


def test_any_layout_and_layouts_that_differ() -> None:
    x, dy, w, b, mean, rstd = given((3, 8, 5, 7), torch.float32, False)
    x, dy = x.transpose(2, 3), laid(dy, True).transpose(2, 3)
    count = torch.tensor([105], dtype=torch.int32)
    with on_planish(*OPERATORS):
        stats = torch.batch_norm_stats(x, EPS)
        y = torch.batch_norm_elemt(x, w, b, mean, rstd, EPS)
        sums = torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, True, True, True)
        dx = torch.batch_norm_backward_elemt(dy, x, mean, rstd, w, *sums[:2], count)
    for found, wanted in zip(stats, exact.statistics(x), strict=True):
        near(found, wanted, 1e-6)
    near(y, exact.elemt(x, w, b, mean, rstd), 4e-7)
    near(sums[1], exact.reduce(dy, x, mean, rstd)[1], 3e-6)
    near(dx, exact.backward(dy, x, mean, rstd, w, *sums[:2], 105), 4e-7)
    assert y.stride() == dx.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("scale", [1e4, 1e-15, 1e15])
def test_statistics_cancel_or_leave_the_range(scale: float) -> None:
    x = normal(4, 6, 10, 10, dtype=torch.float32) * (1 if scale == 1e4 else scale)
    x = x + 1e4 if scale == 1e4 else x
    with on_planish(STATS):
        found = torch.batch_norm_stats(x, 0.0)
    for one, wanted in zip(found, exact.statistics(x, 0.0), strict=True):
        near(one, wanted, 4e-7)


def refused(*args: Any) -> list[Any]:
    x, dy, w, b, mean, rstd = given((3, 8, 5, 7), torch.bfloat16, False)
    count = torch.tensor([105], dtype=torch.int32)
    sums = mean, rstd
    stats, elemt = torch.batch_norm_stats, torch.batch_norm_elemt
    backward, reduce = torch.batch_norm_backward_elemt, torch.batch_norm_backward_reduce
    return [
        (stats, x[:0], EPS),
        (stats, x.int(), EPS),
        (stats, x[0, 0, 0], EPS),
        (stats, x, float("inf")),
        (elemt, x, w, b.bfloat16(), mean, rstd, EPS),
        (elemt, x, w.double(), b.double(), mean, rstd, EPS),
        (elemt, x, w, b, mean.bfloat16(), rstd, EPS),
        (elemt, x, w, b, mean[1:], rstd, EPS),
        (reduce, dy.float(), x, mean, rstd, w, True, True, True),
        (reduce, dy[1:], x, mean, rstd, w, True, True, True),
        (reduce, dy, x, mean, rstd, None, True, True, False),
        (backward, dy, x, mean, rstd, w.bfloat16(), *sums, count),
        (backward, dy, x, mean, rstd, w, *sums, count.long()),
        (backward, dy, x, mean, rstd, w, *sums, count[:0]),
        (backward, dy, x, mean, rstd, w, mean.double(), rstd, count),
    ]


@pytest.mark.parametrize("case", range(15))
def test_what_torch_refuses_is_computed(case: int) -> None:
    function, *args = refused()[case]
    with planish.enabled(), pytest.raises(RuntimeError, match="planish does not run this call"):
        function(*args)


def test_disabled_planish_stays_on_the_cpu() -> None:
    x, dy, w, b, mean, rstd = given((3, 8, 5, 7), torch.float32, False)
    with planish.enabled():
        torch.batch_norm_stats(x, EPS)
    with pytest.raises(NotImplementedError):
        torch.batch_norm_stats(x, EPS)
    with pytest.raises(NotImplementedError):
        torch.batch_norm_elemt(x, w, b, mean, rstd, EPS)
    with pytest.raises(NotImplementedError):
        torch.batch_norm_backward_reduce(dy, x, mean, rstd, w, True, True, True)


# ---- The function of nn.SyncBatchNorm, which itself refuses tensors of the CPU -----------------


def _pieces(sizes: list[int], last: bool, dtype: torch.dtype) -> list[list[Tensor]]:
    wholes = (normal(sum(sizes), 6, 4, 5, dtype=dtype, seed=i) for i in range(2))
    return [list(laid(whole, last).split(sizes)) for whole in wholes]


def _rank(sizes: list[int], dtype: torch.dtype) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    rank, ranks = dist.get_rank(), len(sizes)
    for last, affine in itertools.product((False, True), repeat=2):
        x, dy = (here(pieces[rank]) for pieces in _pieces(sizes, last, dtype))
        x = x.detach().requires_grad_()
        kind = wide(dtype)
        params = [here(torch.linspace(i, 2, 6, dtype=kind)).requires_grad_() for i in (0.5, -1)]
        running = [here(torch.zeros(6, dtype=kind)), here(torch.ones(6, dtype=kind))]
        given = params if affine else [None, None]
        calls = Calls()
        gathering = contextlib.nullcontext() if on_a_gpu() else exact.gathering_on_the_cpu()
        with gathering, planish.enabled():
            y = _functions.SyncBatchNorm.apply(
                x, *given, *running, EPS, 0.3, dist.group.WORLD, ranks
            )
            y.backward(dy)
        for operator in OPERATORS:
            if not on_a_gpu():  # where torch's own are faster at this size
                assert calls.on_planish(operator) == (sizes[rank] > 0)
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in params]
        for grad in grads:
            dist.all_reduce(grad)
        dx = torch.zeros_like(x) if x.grad is None else x.grad
        found[last, affine] = [y.detach(), dx, *grads, *running]
    return found


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ([3, 3], torch.float32),
        ([1, 4], torch.bfloat16),
        ([2, 5], torch.float16),
        ([2, 3], torch.float64),
        ([2, 0, 3], torch.float32),
    ],
)
def test_several_processes_differ_from_one(sizes: list[int], dtype: torch.dtype) -> None:
    ranks = run(len(sizes), _rank, sizes, dtype)
    room = max(ROOM[dtype][0], 1e-6) * 4
    for last, affine in itertools.product((False, True), repeat=2):
        x, dy = (torch.cat(pieces) for pieces in _pieces(sizes, last, dtype))
        x64 = x.double().requires_grad_()
        params = [torch.linspace(i, 2, 6).double().requires_grad_() for i in (0.5, -1)]
        running = [torch.zeros(6).double(), torch.ones(6).double()]
        given = params if affine else [None, None]
        y = F.batch_norm(x64, *running, *given, True, 0.3, EPS)
        y.backward(dy.double())
        parts = [rank[last, affine] for rank in ranks]
        near(torch.cat([part[0] for part in parts]), y.detach(), room)
        near(torch.cat([part[1] for part in parts]), x64.grad, room)
        for part in parts:
            for i, param in enumerate(params if affine else []):
                near(part[2 + i], param.grad, room)
            for i in range(2):
                near(part[4 + i], running[i], room)
            assert part[0].dtype == part[1].dtype == dtype
            if last and part[0].numel():
                assert part[0].is_contiguous(memory_format=torch.channels_last)
                assert part[1].is_contiguous(memory_format=torch.channels_last)
