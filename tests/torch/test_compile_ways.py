"""Graphs of planish's backend in the ways that torch has of its own: compiled autograd, freezing,
regions, policies of checkpoints, DistributedDataParallel, fully_shard. Each runs planish's
operators, with eager calls' results. PLANISH_TEST_DEVICE=cuda has them on a GPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch._dynamo.config
import torch.distributed as dist
from support import DEVICE
from torch._inductor.utils import fresh_cache
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

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
    """One process."""
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
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
    model = Model().to(DEVICE)
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
        check_step(lambda model: model, torch.randn(8, 16, device=DEVICE))


def test_data_parallel_goes_another_way(group: None) -> None:
    check_step(nn.parallel.DistributedDataParallel, torch.randn(8, 16, device=DEVICE))


def test_sharded_parameters_go_another_way(group: None) -> None:
    mesh = dist.device_mesh.init_device_mesh(DEVICE, (1,))
    check_step(lambda model: fully_shard(model, mesh=mesh), torch.randn(8, 16, device=DEVICE))


def test_freezing_goes_another_way() -> None:
    model, x = Model().to(DEVICE).eval(), torch.randn(8, 16, device=DEVICE)
    run = torch.compile(model, backend="planish", options={**ALWAYS, "freezing": True})
    with torch.no_grad(), chosen("forward", "forward"):
        found = run(x)
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_regions_go_another_way() -> None:
    """Each block is compiled on its own, and the same graph serves all of them."""
    blocks, x = (
        nn.Sequential(*(Model().to(DEVICE) for _ in range(3))),
        torch.randn(8, 16, device=DEVICE),
    )
    x.requires_grad_()  # as that of the later blocks, else the first one's graph is another
    with planish.enabled():
        wanted = gradients(blocks, list(blocks.parameters()), x)
    blocks.zero_grad()
    for block in blocks:
        block.compile(backend="planish", options=ALWAYS)
    with chosen("forward", "forward", "backward", "backward"):
        found = gradients(blocks, list(blocks.parameters()), x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("saved", ["products", "everything", "nothing"])
def test_policies_of_checkpoints_go_another_way(saved: str) -> None:
    """What a policy has computed again is computed again by planish."""

    def policy(context: Any, operator: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        is_product = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        if saved == "everything" or (saved == "products" and is_product):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    model, x = Model().to(DEVICE), torch.randn(8, 16, device=DEVICE)
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def part(x: Tensor) -> Any:
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts).sin()

    with planish.enabled():
        wanted = gradients(lambda x: model(x).sin(), list(model.parameters()), x)
    model.zero_grad()
    run = torch.compile(part, backend="planish", options=ALWAYS, fullgraph=True)
    before = len(planish.compile.report())
    found = gradients(run, list(model.parameters()), x)
    assert {entry.chosen for entry in planish.compile.report()[before:]} == {"planish"}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
