"""planish.distributed.all_reduce_add_rms_norm on 2 and 4 ranks: an all-reduce, then
planish.add_rms_norm."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from distributed_support import draw, here, run, same_on_all_ranks

import planish
import torch
from torch import Tensor


def _reduced_on_ranks(rows: int, dim: int) -> list[Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    make = torch.Generator().manual_seed(3)
    sizes = (rows, 3, 32) if dim == 0 else (3, rows, 32)
    summands = [torch.randn(sizes, generator=make) for _ in range(ranks)]
    residual, dy = torch.randn(sizes, generator=make), torch.randn(sizes, generator=make)
    weight = torch.rand(32, generator=make)
    each = -(-rows // ranks)
    own = residual.split(each, dim)
    own_rows = own[rank] if rank < len(own) else residual.narrow(dim, 0, 0)
    mine = summands[rank], own_rows, weight
    tensors = [here(t.clone()).requires_grad_() for t in mine]
    y, total = planish.distributed.all_reduce_add_rms_norm(*tensors, 1e-6, dim=dim)
    loss = (y * here(dy)).sum() / ranks + total.sum()  # each rank's share of dy
    return [y.detach(), total.detach(), *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize(("ranks", "rows", "dim"), [(2, 8, 0), (2, 5, 1), (4, 6, 0), (4, 1, 1)])
def test_all_reduce_add_rms_norm(ranks: int, rows: int, dim: int) -> None:
    make = torch.Generator().manual_seed(3)
    sizes = (rows, 3, 32) if dim == 0 else (3, rows, 32)
    summands = [torch.randn(sizes, generator=make) for _ in range(ranks)]
    residual, dy = torch.randn(sizes, generator=make), torch.randn(sizes, generator=make)
    weight = torch.rand(32, generator=make)
    tensors = [t.requires_grad_() for t in (sum(summands), residual, weight)]
    y, total = planish.add_rms_norm(*tensors, 1e-6)
    dx, dresidual, dweight = torch.autograd.grad((y * dy).sum() + total.sum(), tensors)
    results = run(ranks, _reduced_on_ranks, rows, dim)
    ys, totals, dxs, dresiduals, dweights = zip(*results, strict=True)
    close = torch.testing.assert_close
    for one in ys:
        close(one, y.detach(), rtol=1e-5, atol=1e-5)
    close(torch.cat(totals, dim), total.detach(), rtol=1e-5, atol=1e-5)
    for one in dxs:
        close(one, dx, rtol=1e-5, atol=1e-5)
    close(torch.cat(dresiduals, dim), dresidual, rtol=1e-5, atol=1e-5)
    close(dweights[0], dweight, rtol=1e-5, atol=1e-5)
    assert same_on_all_ranks(list(ys))
    assert same_on_all_ranks(list(dweights))


def _differentiated_twice() -> list[str]:
    found = []
    for options in ({}, {"cast": "xhat"}):  # at once, and step by step
        tensors = [here(draw(*sizes)).requires_grad_() for sizes in ((4, 32), (2, 32), (32,))]
        y, _ = planish.distributed.all_reduce_add_rms_norm(*tensors, 1e-6, **options)
        dx, *_ = torch.autograd.grad(y.square().sum(), tensors, create_graph=True)
        try:
            dx.square().sum().backward()
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_a_second_derivative_of_a_reduced_norm_raises() -> None:
    for said in run(2, _differentiated_twice):
        assert len(said) == 2
        assert all("differentiate twice" in one for one in said), said
