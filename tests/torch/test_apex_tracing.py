"""planish.apex in graphs and transforms; its operators and its extension modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F

import torch
from planish.apex import (
    FastLayerNorm,
    FusedLayerNorm,
    FusedRMSNorm,
    GroupNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
    _custom_ops,
    fast_layer_norm,
    fused_layer_norm_cuda,
)
from planish.apex.normalization import fused_layer_norm as fused
from torch import Tensor, nn

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
MODULES = [FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm]


@pytest.mark.parametrize("cls", [*MODULES, FastLayerNorm])
@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("mode", ["compile", "export", "trace", "script"])
def test_a_graph_is_broken_or_wrong(
    cls: type[nn.Module], memory_efficient: bool, mode: str
) -> None:
    if mode == "script" and cls is FastLayerNorm:
        pytest.skip("Apex's FastLayerNorm cannot be scripted either")
    module = cls(16, memory_efficient=memory_efficient)
    x = torch.randn(3, 16, requires_grad=True)
    if mode == "compile":
        graph: Any = torch.compile(module, backend="aot_eager", fullgraph=True)
    elif mode == "export":
        graph = torch.export.export(module, (x,)).module()
    elif mode == "trace":
        graph = torch.jit.trace(module, x.detach())
    else:
        graph = torch.jit.script(module)
    y, expected = graph(x), module(x)
    torch.testing.assert_close(y, expected)
    mine, right = (torch.autograd.grad(one.square().sum(), x) for one in (y, expected))
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


def test_group_norm_breaks_a_graph() -> None:
    module = nn.Sequential(GroupNorm(4, 32, act="silu"), nn.Conv2d(32, 32, 1))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 32, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    y = compiled(x)
    torch.testing.assert_close(y, module(x))
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_a_function_or_a_function_of_autograd_breaks_a_graph(memory_efficient: bool) -> None:
    module = FusedLayerNorm(16)
    x = torch.randn(3, 16, requires_grad=True)
    leaves = [x, *module.parameters()]

    def applied(*tensors: Tensor) -> Tensor:
        function: Any = fused.FusedLayerNormAffineFunction
        return function.apply(*tensors, (16,), 1e-5, memory_efficient)

    def called(*tensors: Tensor) -> Tensor:
        return fused.fused_layer_norm_affine(*tensors, (16,), 1e-5, memory_efficient)

    for function in (applied, called):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        y, expected = compiled(*leaves), module(x)
        torch.testing.assert_close(y, expected)
        mine, right = (torch.autograd.grad(r.square().sum(), leaves) for r in (y, expected))
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            assert compiled(*leaves).dtype == function(*leaves).dtype


@pytest.mark.parametrize("memory_efficient", [False, True])
def test_transforms_are_wrong(memory_efficient: bool) -> None:
    weight, bias, x = torch.rand(8), torch.randn(8), torch.randn(3, 8)

    def loss(w: Tensor, b: Tensor, row: Tensor) -> Tensor:
        return fused.fused_layer_norm_affine(row, w, b, (8,), 1e-5, memory_efficient).square().sum()

    def torchs(w: Tensor, b: Tensor, row: Tensor) -> Tensor:
        return F.layer_norm(row, (8,), w, b).square().sum()

    mine, right = (torch.func.grad(f, (0, 1))(weight, bias, x) for f in (loss, torchs))
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


def arguments(name: str) -> tuple[list[Any], list[Tensor]]:
    """Of an apex::..._fwd, and its tensors."""
    rms, affine = _custom_ops._KINDS[name.removesuffix("_fwd")]
    tensors = [torch.randn(5, 8, requires_grad=True)]
    tensors += [torch.rand(8).add(0.5).requires_grad_() for _ in range(affine * (1 if rms else 2))]
    return [*tensors, [8], 1e-5], tensors


@pytest.mark.parametrize("name", [name for name in _custom_ops.NORMS if name.endswith("_fwd")])
@pytest.mark.parametrize("memory_efficient", [False, True])
def test_an_operator_of_torch_ops_apex_is_wrong(name: str, memory_efficient: bool) -> None:
    given, tensors = arguments(name)
    getattr(fused, name)  # which defines it
    operator = getattr(torch.ops.apex, name)
    results = operator(*given, memory_efficient)
    assert len(results) == (2 if "rms" in name else 3)
    assert all(statistic.shape == (5,) for statistic in results[1:])
    expected = F.rms_norm if "rms" in name else F.layer_norm
    y = expected(tensors[0], (8,), *tensors[1:], eps=1e-5)
    torch.testing.assert_close(results[0], y)
    for mine, right in zip(
        torch.autograd.grad(results[0].square().sum(), tensors),
        torch.autograd.grad(y.square().sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operator.default, (*given, memory_efficient), test_utils=checks)


def test_an_operator_of_group_norm_has_a_wrong_fake() -> None:
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    operator = _custom_ops.operator("group_norm_nhwc_fprop")
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    for act in (None, "silu"):
        given = (x, 2, torch.rand(8), torch.randn(8), 1e-5, act)
        torch.library.opcheck(operator._opoverload, given, test_utils=checks)
        _, sums = operator(*given)
        assert sums.shape == (2 * 2 * 2,)
        back = (torch.randn_like(x), sums, *given)
        backward = _custom_ops.operator("group_norm_nhwc_bprop")
        torch.library.opcheck(backward._opoverload, back, test_utils=checks)
    with pytest.raises(ValueError, match="act is 'relu'"):
        operator(x, 2, torch.rand(8), torch.randn(8), 1e-5, "relu")
    with pytest.raises(RuntimeError, match="channels that G divides"):
        operator(x, 3, torch.rand(8), torch.randn(8), 1e-5)


@pytest.mark.parametrize("from_y", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_the_extension_modules_are_wrong(from_y: bool, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(6, 32, device=device).to(dtype)
    weight = torch.rand(32, device=device).add(0.5).to(dtype)
    bias, dy = (torch.randn(*size, device=device).to(dtype) for size in ((32,), (6, 32)))
    shape, eps = [32], 1e-5
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    layer = F.layer_norm(leaves[0], shape, leaves[1], leaves[2], eps)
    bare = F.layer_norm(leaves[0], shape, eps=eps)
    rms = F.rms_norm(leaves[0], shape, leaves[1], eps)
    bare_rms = F.rms_norm(leaves[0], shape, eps=eps)
    ext = fused_layer_norm_cuda
    tolerance = (
        {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.float16 else {"rtol": 1e-4, "atol": 1e-5}
    )

    def same(mine: Any, y: Tensor, wanted: list[Tensor]) -> None:
        right = torch.autograd.grad(y, wanted, dy.double(), retain_graph=True)
        mine = [mine] if isinstance(mine, Tensor) else mine
        assert len(mine) == len(right)
        for one, other in zip(mine, right, strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one, other.to(dtype), **tolerance)

    y, mean, rstd = ext.forward_affine(x, shape, weight, bias, eps)
    torch.testing.assert_close(y, layer.to(dtype), **tolerance)
    torch.testing.assert_close(mean, x.double().mean(-1).float())
    kept, mean_or_none = (y, None) if from_y else (x, mean)
    assert torch.equal(ext.forward_affine_mixed_dtypes(x, shape, weight, bias, eps)[0], y)
    same(
        ext.backward_affine(dy, mean_or_none, rstd, kept, shape, weight, bias, eps, from_y),
        layer,
        leaves,
    )
    y, mean, rstd = ext.forward(x, shape, eps)
    same(ext.backward(dy, mean, rstd, y if from_y else x, shape, eps, from_y), bare, leaves[:1])
    y, rstd = ext.rms_forward_affine(x, shape, weight, eps)
    torch.testing.assert_close(y, rms.to(dtype), **tolerance)
    assert torch.equal(ext.rms_forward_affine_mixed_dtypes(x, shape, weight, eps)[0], y)
    kept = y if from_y else x
    same(ext.rms_backward_affine(dy, rstd, kept, shape, weight, eps, from_y), rms, leaves[:2])
    y, rstd = ext.rms_forward(x, shape, eps)
    same(ext.rms_backward(dy, rstd, y if from_y else x, shape, eps, from_y), bare_rms, leaves[:1])

    y, mean, rstd = fast_layer_norm.ln_fwd(x, weight, bias, eps)
    found = fast_layer_norm.ln_bwd(dy, y if from_y else x, mean, rstd, weight, bias, from_y)
    same(found[:3], layer, leaves)
    assert [part.shape for part in found[3:]] == [(1, 32)] * 2
    with pytest.raises(RuntimeError, match="ln_fwd: Expected x of two axes with 32 columns"):
        fast_layer_norm.ln_fwd(x[None], weight, bias, eps)


def test_a_weight_of_0_gives_nan_from_y() -> None:
    x, weight, bias = torch.randn(6, 32), torch.rand(32), torch.randn(32)
    weight[4] = 0
    y, _, rstd = fused_layer_norm_cuda.forward_affine(x, [32], weight, bias, 1e-5)
    found = fused_layer_norm_cuda.backward_affine(
        torch.randn(6, 32), None, rstd, y, [32], weight, bias, 1e-5, True
    )
    assert all(gradient.isfinite().all() for gradient in found)
