"""Wrappers that replace() meets: what is inside of them is replaced, before and after, and trains
as torch's; of what has no memory it says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from distributed_models import batch_of, loss_of, model_of
from distributed_support import run

import planish
import torch
from torch import Tensor, nn


def _fsdp1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def _compiled(model: nn.Module) -> nn.Module:
    torch.compiler.reset()
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


WRAPPERS = {"FSDP1": _fsdp1, "torch.compile": _compiled, "DDP": nn.parallel.DistributedDataParallel}


def _losses(wrapper: str, how: str, fuse: bool) -> tuple[list[float], int]:
    model = model_of("llama")
    if how == "before":
        planish.replace(model, fuse=fuse)
    model = WRAPPERS[wrapper](model)
    planish.reset_stats()
    losses: list[float] = []
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.2)
    for step in range(3):
        if how == "after" and step == 1:  # a graph was made, or parameters were flattened
            planish.replace(model, fuse=fuse)
            planish.reset_stats()
        loss = loss_of(model, batch_of(step).chunk(dist.get_world_size())[dist.get_rank()])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, sum(calls["planish"] for calls in planish.stats().values())


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_inside_is_replaced(wrapper: str, how: str, fuse: bool) -> None:
    wanted = run(2, _losses, wrapper, "torch", fuse, limit=300)
    for (losses, calls), (torchs, none) in zip(
        run(2, _losses, wrapper, how, fuse, limit=300), wanted, strict=True
    ):
        assert losses == pytest.approx(torchs, rel=1e-5)
        assert calls > 0
        assert none == 0


class _RMSNorm(nn.Module):
    """Of whose weight the memory is given back, as FSDP1 does between forwards."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(8)
        self.weight.untyped_storage().resize_(0)

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


def test_what_has_no_memory_is_not_proven_and_why() -> None:
    said = str(planish.replaced(planish.replace(nn.Sequential(_RMSNorm()))))
    assert "0 norms on planish" in said
    assert "have no memory now, as FSDP1 leaves those that are sharded" in said, said
