"""Fused blocks where nothing is computed (meta, fake tensors), and where torch.compile traces them
for many lengths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from fused_blocks import BLOCKS, SIZE, Block
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import planish
import torch
from torch import nn


@contextlib.contextmanager
def default_device(name: str) -> Any:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


MADE: dict[str, Callable[[], Any]] = {
    "as ever": contextlib.nullcontext,
    "under torch.device": lambda: torch.device("meta"),
    "by default": lambda: default_device("meta"),
    "under a fake mode": FakeTensorMode,
}


def fused(cls: type[Block]) -> nn.Module:
    from planish.replacing import places

    places._found.clear()
    block = planish.replace(cls(), fuse=True)
    assert planish.replaced(block).places_fused == 1
    return block


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("cls", BLOCKS)
def test_a_block_on_meta_or_of_fake_tensors_raises_or_is_not_fused(
    cls: type[Block], made: str
) -> None:
    with MADE[made]():
        block = fused(cls)
        if made == "as ever":
            block(torch.randn(2, 5, SIZE))  # a call that fits is remembered
            block.to("meta")
        x = torch.randn(2, 5, SIZE, requires_grad=True)
        if made == "as ever":
            x = torch.empty(2, 5, SIZE, device="meta", requires_grad=True)
        y = block(x)
        assert y.shape == x.shape and y.dtype == x.dtype and y.device == x.device
        assert type(y) is type(x)
        y.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape
    if "fake" in made:
        return
    block.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.rand(parameter.shape))
        x = torch.randn(2, 5, SIZE)
        found = block(x)
        torch.testing.assert_close(found, planish.restore(block)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", BLOCKS)
def test_a_real_block_refuses_fake_tensors(cls: type[Block]) -> None:
    block = fused(cls)
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = block(torch.randn(2, 5, SIZE))
    assert y.shape == (2, 5, SIZE) and y.device.type == "cpu"
    x = torch.randn(2, 5, SIZE)
    torch.testing.assert_close(block(x), planish.restore(block)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled alone", "eager calls between"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("cls", BLOCKS)
def test_a_fused_block_is_compiled_for_each_length(
    cls: type[Block], dynamic: bool | None, eager: bool
) -> None:
    block = cls().requires_grad_(False)
    calls = [torch.randn(2 + n % 3, n, SIZE) for n in (5, 7, 9, 12, 16, 20, 33, 40, 41, 42)]
    counts = []
    for how in ("own", "fused"):
        if how == "fused":
            planish.replace(block, fuse=True)
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        compiled: Any = torch.compile(block, backend=counter, dynamic=dynamic, fullgraph=True)
        for x in calls:
            found = compiled(x)
            if eager:
                torch.testing.assert_close(found, block(x), rtol=1e-5, atol=1e-5)
        counts.append(counter.frame_count)
    assert counts[1] <= counts[0] + bool(dynamic)  # one is begun again, for its floats
