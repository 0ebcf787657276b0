"""planish.apex: signatures, attributes and values of Apex's normalization layers."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from support import FLOATS, Calls, exact_norm, row_error, wide

import planish
import torch
from planish.apex import (
    FastLayerNorm,
    FusedLayerNorm,
    FusedRMSNorm,
    GroupNorm,
    MixedFusedLayerNorm,
    MixedFusedRMSNorm,
)
from planish.apex.contrib.layer_norm import layer_norm as fast
from planish.apex.normalization import fused_layer_norm as fused
from torch import nn

EMPTY = inspect.Parameter.empty
FORWARD = "planish::norm_forward"
AFFINE = [FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm, FastLayerNorm]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def signature(function: Callable[..., Any]) -> list[tuple[str, object]]:
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


_FAST = ["x", "weight", "bias", "epsilon", "memory_efficient"]
SIGNATURES = [
    (cls, [("normalized_shape", EMPTY), ("eps", 1e-5), *more])
    for cls, more in [
        (FusedLayerNorm, [("elementwise_affine", True), ("memory_efficient", False)]),
        (FusedRMSNorm, [("elementwise_affine", True), ("memory_efficient", False)]),
        (MixedFusedLayerNorm, [("memory_efficient", False), ("kwargs", EMPTY)]),
        (MixedFusedRMSNorm, [("memory_efficient", False), ("kwargs", EMPTY)]),
    ]
]
SIGNATURES += [
    (FastLayerNorm, [("hidden_size", EMPTY), ("eps", 1e-5), ("memory_efficient", False)]),
    (fast._fast_layer_norm, [(n, EMPTY) for n in _FAST]),
    (
        GroupNorm,
        [
            ("num_groups", EMPTY),
            ("num_channels", EMPTY),
            ("eps", 1e-5),
            ("affine", True),
            ("device", None),
            ("dtype", None),
            ("act", None),
        ],
    ),
]
for _name, _given in {
    "fused_layer_norm_affine": "input weight bias normalized_shape",
    "mixed_dtype_fused_layer_norm_affine": "input weight bias normalized_shape",
    "fused_layer_norm": "input normalized_shape",
    "fused_rms_norm_affine": "input weight normalized_shape",
    "mixed_dtype_fused_rms_norm_affine": "input weight normalized_shape",
    "fused_rms_norm": "input normalized_shape",
}.items():
    _rest = [("eps", 1e-6), ("memory_efficient", False)]
    _wanted = [(part, EMPTY) for part in _given.split()]
    SIGNATURES.append((getattr(fused, _name), [*_wanted, *_rest]))
FUNCTIONS = {
    fused.FusedLayerNormAffineFunction: "ctx input weight bias normalized_shape eps",
    fused.FusedLayerNormAffineMixedDtypesFunction: "ctx input weight bias normalized_shape eps",
    fused.FusedLayerNormFunction: "ctx input normalized_shape eps",
    fused.FusedRMSNormAffineFunction: "ctx input weight normalized_shape eps",
    fused.FusedRMSNormAffineMixedDtypesFunction: "ctx input weight normalized_shape eps",
    fused.FusedRMSNormFunction: "ctx input normalized_shape eps",
    fast.FastLayerNormFN: "ctx x gamma beta epsilon",
}


@pytest.mark.parametrize(("made", "wanted"), SIGNATURES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_signature_differs_from_apexs(made: Any, wanted: list[tuple[str, object]]) -> None:
    assert signature(made) == wanted


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_megatron_does_not_find_memory_efficient(function: Any) -> None:
    given = inspect.getfullargspec(function.forward)
    assert given.args == [*FUNCTIONS[function].split(), "memory_efficient"]
    assert given.defaults == (False,)


@pytest.mark.parametrize("cls", AFFINE[:4])
@pytest.mark.parametrize("affine", [True, False])
def test_a_module_has_other_attributes_than_apexs(cls: type[nn.Module], affine: bool) -> None:
    if not affine and cls in (MixedFusedLayerNorm, MixedFusedRMSNorm):
        with (
            pytest.warns(UserWarning, match="takes no elementwise_affine"),
            pytest.raises(RuntimeError, match="does not support elementwise_affine=False"),
        ):
            cls(8, elementwise_affine=False)
        return
    module = cls([4, 8], elementwise_affine=affine) if cls in AFFINE[:2] else cls([4, 8])
    rms = issubclass(cls, FusedRMSNorm)
    assert type(module.normalized_shape) is torch.Size
    assert (module.eps, module.elementwise_affine) == (1e-5, affine)
    assert module.memory_efficient is False
    assert hasattr(module, "bias") is not rms
    names = ["weight"] if rms else ["weight", "bias"]
    assert list(module._parameters) == names
    assert list(module.state_dict()) == (names if affine else [])
    assert module.extra_repr() == f"torch.Size([4, 8]), eps=1e-05, elementwise_affine={affine}"
    assert not isinstance(module, nn.LayerNorm | nn.RMSNorm)
    assert cls.__name__ in {"FusedLayerNorm", "FusedRMSNorm"} | {
        "MixedFusedLayerNorm",
        "MixedFusedRMSNorm",
    }


def test_the_contrib_modules_have_other_attributes_than_apexs() -> None:
    module = FastLayerNorm(8, 1e-4)
    assert module.epsilon == 1e-4 and not hasattr(module, "eps")
    assert list(module.state_dict()) == ["weight", "bias"]
    group = GroupNorm(16, 128, act="SiLU")
    assert group.act == "silu" and group.extra_repr() == "16, 128, eps=1e-05, affine=True, act=silu"
    assert list(group.state_dict()) == ["weight", "bias"]
    assert list(GroupNorm(16, 128, affine=False).parameters()) == []
    assert len(group.SUPPORTED_CHANNELS) == 24 and set(group.SUPPORTED_GROUPS) == {16, 32}
    assert len(group.SUPPORTED_DTYPES) == 9 and len(group.GN_V2_SUPPORTED_CHANNELS) == 14
    x = torch.randn(2, 128, 4, 4)
    assert not group._check_legality(x) and not group._check_v2_legality(x)
    assert group._check_legality(x.to(memory_format=torch.channels_last))
    with pytest.raises(ValueError, match="num_channels must be divisible by num_groups"):
        GroupNorm(3, 8)
    with pytest.raises(ValueError, match="act is 'relu'"):
        GroupNorm(2, 8, act="relu")


def filled(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    return module.to(dtype)


@pytest.mark.parametrize("cls", AFFINE)
@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("on", [False, True], ids=["", "enabled"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_value_or_a_gradient_is_wrong(
    cls: type[nn.Module], memory_efficient: bool, dtype: torch.dtype, on: bool, device: str
) -> None:
    rms = issubclass(cls, FusedRMSNorm)
    module = filled(cls(96, memory_efficient=memory_efficient), dtype).to(device)
    x = torch.randn(12, 96, dtype=dtype, device=device, requires_grad=True)
    dy = torch.randn(12, 96, dtype=dtype, device=device)
    bias = None if rms else module.bias
    exact = exact_norm(x, module.weight, bias, dy, rms=rms)
    if on:
        planish.enable()
    y = module(x)
    leaves = [x, *module.parameters()]
    results = [y, *torch.autograd.grad(y, leaves, dy)]
    assert [r.dtype for r in results] == [dtype] * len(results)
    # y brings xhat back with the rounding of y itself
    digits = torch.finfo(dtype).eps * (4 if memory_efficient else 1)
    assert row_error(y, exact[0], -1) <= (4 if dtype in (torch.float32, torch.float64) else 1)
    for result, value in zip(results[1:], exact[1:], strict=False):
        scale = abs(value).max()
        rounds = 8 if dtype in (torch.float32, torch.float64) else 2
        assert abs(wide(result) - value).max() <= rounds * digits * scale


@pytest.mark.parametrize("cls", AFFINE)
@pytest.mark.parametrize(("x_dtype", "dtype"), list(itertools.permutations(FLOATS[:3], 2)), ids=str)
@pytest.mark.parametrize("memory_efficient", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_of_x_and_parameters_do_not_mix(
    cls: type[nn.Module],
    x_dtype: torch.dtype,
    dtype: torch.dtype,
    memory_efficient: bool,
    device: str,
) -> None:
    rms = issubclass(cls, FusedRMSNorm)
    module = filled(cls(64, memory_efficient=memory_efficient), dtype).to(device)
    x = torch.randn(5, 64, dtype=x_dtype, device=device, requires_grad=True)
    y = module(x)
    result = dtype if cls not in AFFINE[:2] else x_dtype
    assert y.dtype == result
    dy = torch.randn(5, 64, dtype=result, device=device)
    exact = exact_norm(x, module.weight, None if rms else module.bias, dy, rms=rms)
    gradients = torch.autograd.grad(y, [x, *module.parameters()], dy)
    assert [g.dtype for g in gradients] == [x_dtype] + [dtype] * (1 if rms else 2)
    coarse = max(torch.finfo(x_dtype).eps, torch.finfo(dtype).eps)
    for mine, value in zip([y, *gradients], exact, strict=False):
        assert abs(wide(mine) - value).max() <= 6 * coarse * abs(value).max()


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_a_parameter_that_is_none_is_refused(rms: bool) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    weight = torch.rand(8, requires_grad=True)
    if rms:
        y = fused.fused_rms_norm_affine(x, None, (8,))
        torch.testing.assert_close(y, F.rms_norm(x, (8,), eps=1e-6))
        function: Any = fused.FusedRMSNormAffineFunction
        torch.testing.assert_close(function.apply(x, None, (8,), 1e-6), y)
        return
    for w, b in [(None, None), (weight, None), (None, weight)]:
        for efficient in (False, True):
            y = fused.fused_layer_norm_affine(x, w, b, (8,), memory_efficient=efficient)
            expected = F.layer_norm(x, (8,), w, b, 1e-6)
            torch.testing.assert_close(y, expected)
            leaves = [x, *(p for p in (w, b) if p is not None)]
            for mine, theirs in zip(
                torch.autograd.grad(y.square().sum(), leaves),
                torch.autograd.grad(expected.square().sum(), leaves),
                strict=True,
            ):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_shapes_that_do_not_fit_are_taken() -> None:
    for on in (False, True):
        if on:
            planish.enable()
        for cls in AFFINE:
            with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[8\], expected input"):
                cls(8)(torch.randn(3, 5))
            with pytest.raises(RuntimeError, match=r"Given normalized_shape=\[8\]"):
                cls(8, memory_efficient=True)(torch.randn(3, 5))
    with pytest.raises(RuntimeError, match="at least 1-dimensional"):
        fused.fused_layer_norm(torch.randn(3, 5), ())
    with pytest.raises(RuntimeError, match="weight"):
        fused.fused_rms_norm_affine(torch.randn(3, 5), torch.randn(4), (5,))


def test_input_that_is_not_contiguous_or_empty_is_wrong() -> None:
    x = torch.randn(24, 6, 10)[::3, ::2, ::5].requires_grad_()
    for efficient in (False, True):
        y = FusedLayerNorm((3, 2), memory_efficient=efficient)(x)
        assert y.is_contiguous()
        torch.testing.assert_close(y, F.layer_norm(x, (3, 2)))
    for cls in AFFINE:
        assert cls(8, memory_efficient=True)(torch.randn(0, 8, requires_grad=True)).shape == (0, 8)
        assert cls(8).to("meta")(torch.empty(2, 8, device="meta")).device.type == "meta"


def test_manual_rms_norm_rounds_otherwise_than_t5() -> None:
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    weight = torch.rand(64, dtype=torch.bfloat16)
    wide_x = x.float()
    scaled = wide_x * torch.rsqrt(wide_x.square().mean(-1, keepdim=True) + 1e-6)
    expected = weight * scaled.to(torch.bfloat16)
    mine = fused.manual_rms_norm(x, (64,), weight, 1e-6)
    assert mine.dtype == torch.bfloat16
    assert (mine != expected).float().mean() < 0.02  # where float32 is rounded to another side
    assert fused.manual_rms_norm(x, (64,), None, 1e-6).dtype == torch.float32
    assert fused.supports_custom_op()


@pytest.mark.parametrize("act", [None, "", "silu", "Swish"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_group_norm_is_wrong(act: str | None, dtype: torch.dtype, layout: Any, device: str) -> None:
    from planish.apex.contrib.group_norm import group_norm

    module = filled(GroupNorm(4, 32, act=act)).to(device)
    x = torch.randn(2, 32, 6, 6, dtype=dtype, device=device).to(memory_format=layout)
    x.requires_grad_()
    calls = Calls()
    y = module(x)
    assert calls.on_planish(FORWARD) == 1
    assert y.dtype == dtype and y.is_contiguous(memory_format=layout)
    expected = F.group_norm(x.double(), 4, module.weight.double(), module.bias.double())
    expected = F.silu(expected) if act else expected
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(y, expected.to(dtype), **tolerance)
    leaves = [x, module.weight, module.bias]
    theirs = torch.autograd.grad(expected.square().sum(), leaves)
    for one in (
        y,
        group_norm.cuda_group_norm_nhwc_one_pass(x, 4, module.weight, module.bias, 1e-5, act),
        group_norm.cuda_group_norm_nhwc_two_pass(x, 4, module.weight, module.bias, 1e-5, act),
        group_norm.cuda_group_norm_v2_nhwc(x, 4, module.weight, module.bias, 1e-5, act),
        group_norm.group_norm_nhwc_fprop(x, 4, module.weight, module.bias, 1e-5, act)[0],
    ):
        assert torch.equal(one, y)
        for mine, right in zip(
            torch.autograd.grad(one.float().square().sum(), leaves), theirs, strict=True
        ):
            torch.testing.assert_close(mine, right, rtol=3e-2 if tolerance else 1e-3, atol=3e-2)
    torchs = group_norm.torch_group_norm(
        x, 4, module.weight, module.bias, 1e-5, (act or "").lower()
    )
    torch.testing.assert_close(torchs, y, **tolerance)


def test_group_norm_under_autocast_has_another_dtype() -> None:
    x = torch.randn(2, 32, 6, 6, dtype=torch.bfloat16)
    for on in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            if on:
                planish.enable()
            assert GroupNorm(4, 32, act="silu")(x).dtype == torch.bfloat16


@pytest.mark.parametrize("cls", [*AFFINE, GroupNorm])
def test_a_model_is_not_copied_pickled_or_moved(cls: type[nn.Module]) -> None:
    module = filled(cls(4, 32) if cls is GroupNorm else cls(32))
    x = torch.randn(2, 32, 3, 3) if cls is GroupNorm else torch.randn(2, 32)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(module), again):
        assert type(other) is cls and torch.equal(other(x), module(x))
    assert module.half()(x.half()).dtype == torch.float16
