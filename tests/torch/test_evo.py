"""EvoNorm2dS0 of plain tensors is one function under autograd: to the bit what its composition
makes, each gradient by itself included."""

from __future__ import annotations

import itertools

import pytest
from batch_norm_support import LAST

import planish
import torch
from planish.operators import evo
from planish.operators.ways import Way
from torch import Tensor, nn

SHAPES = [((2, 8, 5, 7), 2), ((3, 12, 4, 4), 12), ((1, 4, 1, 5), 4), ((2, 6, 3, 3), 1)]
LAYOUTS = ("dense", "channels last", "transposed", "sliced", "samples between channels")
DTYPES = [
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.float32, torch.float64),
]


def made(groups: int, channels: int, dtype: torch.dtype = torch.float32) -> planish.EvoNorm2dS0:
    norm = planish.EvoNorm2dS0(channels, groups).to(dtype)
    torch.manual_seed(channels)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def laid(layout: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    batch, channels, height, width = shape
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    if layout == "channels last":
        return x.contiguous(memory_format=LAST)
    if layout == "transposed":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "sliced":
        return torch.empty(batch, channels, height, 2 * width, dtype=dtype)[..., ::2].copy_(x)
    return x.transpose(0, 1).contiguous().transpose(0, 1) if "samples" in layout else x


def composed(norm: planish.EvoNorm2dS0, x: Tensor) -> Tensor:
    numbers = evo._Numbers(norm.groups, norm.eps)
    return evo._composed(Way.PLAIN, x, norm.v, norm.weight, norm.bias, numbers)


def assert_same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one, other)


@pytest.mark.parametrize(("dtype", "others"), DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_or_gradient_has_other_bits_than_the_composition(
    layout: str, dtype: torch.dtype, others: torch.dtype
) -> None:
    for shape, groups in SHAPES:
        norm = made(groups, shape[1], others)
        x = laid(layout, shape, dtype).requires_grad_()
        tensors = [x, norm.v, norm.weight, norm.bias]
        dy = torch.linspace(-1, 2, x.numel()).view(shape).to(dtype)
        for wanted in itertools.product([True, False], repeat=4):
            for tensor, wants in zip(tensors, wanted, strict=True):
                tensor.requires_grad_(wants)
            leaves = [tensor for tensor, wants in zip(tensors, wanted, strict=True) if wants]
            y, right = norm(x), composed(norm, x)
            assert_same((y.detach(),), (right.detach(),))
            for given in (dy, dy.contiguous(memory_format=LAST), dy[:1, :1, :1, :1].expand(shape)):
                if leaves:
                    both = (torch.autograd.grad(one, leaves, given, True) for one in (y, right))
                    assert_same(*both)


def test_it_is_composed_where_it_need_not_be() -> None:
    norm, x = made(2, 8), torch.randn(2, 8, 5, 7)
    assert norm(x).grad_fn.name() == "_EvoBackward"
    with torch.inference_mode():
        inside = x.clone()
    y = norm(inside)
    assert torch.equal(y, norm(x)) and y.grad_fn.name() == "_EvoBackward"
    torch.autograd.grad(y.sum(), norm.v)


def test_further_derivatives_are_not_those_of_the_composition() -> None:
    norm = made(2, 8, torch.float64)
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for y in (norm(x), composed(norm, x)):
        leaves = [x, norm.v, norm.weight, norm.bias]
        for _ in range(3):
            gradients = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
            y = torch.cat([gradient.flatten() for gradient in gradients])
        found.append(gradients)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-8, atol=1e-8 * other.detach().abs().max().item()
        )


def test_many_gradients_at_once_differ_from_each() -> None:
    norm, x = made(2, 8), torch.randn(2, 8, 5, 7, requires_grad=True)
    y = norm(x)
    leaves, dys = [x, norm.v, norm.weight, norm.bias], torch.randn(3, *y.shape)
    all_of = torch.autograd.grad(y, leaves, dys, True, is_grads_batched=True)
    each = [torch.autograd.grad(y, leaves, dy, True) for dy in dys]
    for i, one in enumerate(all_of):
        torch.testing.assert_close(one, torch.stack([gradients[i] for gradients in each]))
