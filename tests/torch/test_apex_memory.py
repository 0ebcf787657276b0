"""planish.apex, memory_efficient and autocast: what is kept for the backward, and its gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support import HALVES, exact_norm, wide

import planish
import torch
from planish.apex import (
    FastLayerNorm,
    FusedLayerNorm,
    FusedRMSNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
)
from planish.apex.normalization import fused_layer_norm as fused
from torch import Tensor, nn

AFFINE = [FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm, FastLayerNorm]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def filled(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return module.to(dtype)


class Kept:
    """What autograd keeps in the block."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda t: t)

    def _keep(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        return tensor

    def has(self, tensor: Tensor) -> bool:
        return any(t.data_ptr() == tensor.data_ptr() for t in self.tensors)

    def __enter__(self) -> Kept:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


@pytest.mark.parametrize("cls", [*AFFINE, "bare"], ids=lambda c: getattr(c, "__name__", c))
@pytest.mark.parametrize("on", [False, True], ids=["", "enabled"])
def test_memory_efficient_keeps_x(cls: Any, on: bool) -> None:
    if on:
        planish.enable()
    for kind in (FusedLayerNorm, FusedRMSNorm) if cls == "bare" else (cls,):
        options = {"elementwise_affine": False} if cls == "bare" else {}
        for efficient in (False, True):
            module = kind(32, memory_efficient=efficient, **options)
            x = torch.randn(4, 32, requires_grad=True)
            with Kept() as kept:
                y = module(x)
            assert kept.has(y) is efficient and kept.has(x) is not efficient


@pytest.mark.parametrize("device", DEVICES)
def test_memory_efficient_gives_wrong_gradients_where_a_weight_is_small(device: str) -> None:
    module = filled(FusedLayerNorm(32, memory_efficient=True)).to(device)
    x = torch.randn(4, 32, device=device, requires_grad=True)
    dy = torch.randn(4, 32, device=device)
    for value, enough in [(0.0, False), (1e-30, False), (1e-7, False), (1e-3, True)]:
        with torch.no_grad():
            module.weight[3] = value  # written in place: what was found before no longer holds
        with Kept() as kept:
            y = module(x)
        assert kept.has(y) is enough, value
        mine = torch.autograd.grad(y, [x, module.weight, module.bias], dy)
        exact = exact_norm(x, module.weight, module.bias, dy)[1:]
        for gradient, right in zip(mine, exact, strict=True):
            error = abs(wide(gradient) - right).max() / abs(right).max()
            assert error <= (1e-3 if enough else 1e-5), value


def test_memory_efficient_of_half_is_taken_for_exact_beside_a_large_bias() -> None:
    module = FusedLayerNorm(32, memory_efficient=True).to(torch.bfloat16)
    x = torch.randn(4, 32, dtype=torch.bfloat16, requires_grad=True)
    for bias, enough in [(10.0, True), (1000.0, False)]:
        with torch.no_grad():
            module.bias[0] = bias
        with Kept() as kept:
            y = module(x)
        assert kept.has(y) is enough


def test_memory_efficient_has_a_wrong_second_derivative() -> None:
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(8, dtype=torch.float64).add(0.5).requires_grad_()
    bias = torch.randn(8, dtype=torch.float64, requires_grad=True)
    function: Any = fused.FusedLayerNormAffineFunction

    def plain(*tensors: Tensor) -> Tensor:
        return function.apply(*tensors, (8,), 1e-5, False)

    assert torch.autograd.gradcheck(plain, (x, weight, bias))
    assert torch.autograd.gradgradcheck(plain, (x, weight, bias))
    y = function.apply(x, weight, bias, (8,), 1e-5, True)
    with pytest.raises(RuntimeError, match="memory_efficient keeps y alone"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cls", AFFINE)
@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_autocast_is_not_apexs(
    device: str, cls: type[nn.Module], memory_efficient: bool, half: torch.dtype
) -> None:
    module = filled(cls(64, memory_efficient=memory_efficient)).to(device)
    x = torch.randn(4, 64, device=device, requires_grad=True)
    with torch.autocast(device, half), Kept() as kept:
        y = module(x)
    assert y.dtype == half and kept.has(y) is memory_efficient
    rounded = copy.deepcopy(module).to(half)
    torch.testing.assert_close(y, rounded(x.to(half)))
    y.float().sum().backward()
    assert {p.grad.dtype for p in [x, *module.parameters()]} == {torch.float32}
    with torch.autocast(device, half):  # float64 stays, as torch's casts leave it
        assert module.double()(x.double()).dtype == torch.float64
