"""Graphs of planish's backend in the ways that torch has of its own: compiled autograd, freezing,
DistributedDataParallel, fully_shard. Each runs planish's operators, with eager calls' results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch._dynamo.config
import torch.distributed as dist
from torch._inductor.utils import fresh_cache
from torch.distributed.fsdp import fully_shard

import planish
import planish.compile
import torch
from torch import Tensor, nn

ALWAYS = {"planish": "always"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.product, self.last = nn.LayerNorm(16), nn.Linear(16, 16), nn.RMSNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.product(self.first(x)))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()


@pytest.fixture
def group() -> Iterator[None]:
    """One process, by gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def gradients(run: Any, parameters: Any, x: Tensor) -> list[Tensor]:
    run(x).square().sum().backward()
    found = [parameter.grad for parameter in parameters]
    return [getattr(each, "full_tensor", lambda each=each: each)() for each in found]


@contextlib.contextmanager
def chosen(*passes: str) -> Iterator[None]:
    """These passes of norms were taken inside, and no norm was left."""
    before = len(planish.compile.report())
    yield
    entries = planish.compile.report()[before:]
    assert [(entry.direction, entry.chosen) for entry in entries] == [
        (direction, "planish") for direction in passes
    ]


def check_step(wrap: Any, x: Tensor) -> None:
    """``wrap`` makes of a model what is compiled."""
    model = Model()
    with planish.enabled():
        wanted = gradients(model, list(model.parameters()), x)
    model.zero_grad()
    wrapped = wrap(model)
    run = torch.compile(wrapped, backend="planish", options=ALWAYS)
    with chosen("forward", "forward", "backward", "backward"):
        found = gradients(run, list(model.parameters()), x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_compiled_autograd_goes_another_way() -> None:
    with torch._dynamo.config.patch(compiled_autograd=True):
        check_step(lambda model: model, torch.randn(8, 16))


def test_data_parallel_goes_another_way(group: None) -> None:
    check_step(nn.parallel.DistributedDataParallel, torch.randn(8, 16))


def test_sharded_parameters_go_another_way(group: None) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    check_step(lambda model: fully_shard(model, mesh=mesh), torch.randn(8, 16))


def test_freezing_goes_another_way() -> None:
    model, x = Model().eval(), torch.randn(8, 16)
    run = torch.compile(model, backend="planish", options={**ALWAYS, "freezing": True})
    with torch.no_grad(), chosen("forward", "forward"):
        found = run(x)
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
