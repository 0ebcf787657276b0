"""The gradients of RMS norm on the CPU are laid out as torch's: as the gradient that comes in, in
whatever layout that and the input are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.nn.functional as F
from support import RMS, RMS_BACKWARD, description, on_planish

import torch
from torch import Tensor, nn

SHAPES = [(4, 2, 2, 5), (1, 3, 4, 5), (4, 3, 1, 1), (2, 3, 4), (2, 3, 2, 5, 4), (3, 5), (1, 3, 5)]


def layouts(t: Tensor) -> Iterator[Tensor]:
    """The same values laid out in other ways."""
    yield t
    if t.dim() in (4, 5):
        last = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
        yield t.contiguous(memory_format=last)
    backwards = list(range(t.dim()))[::-1]
    yield t.permute(backwards).contiguous().permute(backwards)
    yield t.transpose(0, 1).contiguous().transpose(0, 1)
    yield t.repeat_interleave(2, -1)[..., ::2]
    yield F.pad(t, (0, 3))[..., : t.shape[-1]]
    yield t[:1].expand(t.shape)
    yield t.flatten()[0].expand(t.shape)


def gradients(x: Tensor, dy: Tensor, count: int, weighted: bool) -> list[Tensor]:
    shape = x.shape[-count:]
    leaves = [x.detach().requires_grad_()]
    if weighted:
        leaves.append(torch.linspace(-1, 2, shape.numel(), dtype=x.dtype).reshape(shape))
        leaves[1].requires_grad_()
    y = F.rms_norm(leaves[0], shape, *leaves[1:])
    return list(torch.autograd.grad(y, leaves, dy))


@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "bare"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_not_laid_out_as_torchs(
    shape: tuple[int, ...], dtype: torch.dtype, count: int, weighted: bool
) -> None:
    x, dy = torch.randn(2, *shape).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 4e-2
    # One thing is left open: a gradient of stride 0, where x has the shape of the weight.
    open_too = count < x.dim()
    pairs = [
        (one, other)
        for one in layouts(x)
        for other in layouts(dy)
        if open_too or all(other.stride())
    ]
    native = [gradients(*pair, count, weighted) for pair in pairs]
    with on_planish(RMS, RMS_BACKWARD):
        ours = [gradients(*pair, count, weighted) for pair in pairs]
    for one, other in zip(ours, native, strict=True):
        assert description(one) == description(other)
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_a_module_keeps_no_memory_format() -> None:
    """What torch asks of RMSNorm in its own tests."""
    module = nn.RMSNorm(5)
    x = torch.randn(4, 2, 2, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    with on_planish(RMS, RMS_BACKWARD):
        y = module(x)
        y.backward(torch.randn(y.shape).contiguous(memory_format=torch.channels_last))
    assert x.grad is not None
    for t in (y, x.grad):
        assert t.is_contiguous(memory_format=torch.channels_last)
