"""memory_efficient with weights of every size, written in ways that torch does not count: through
``.data``, as Megatron and DeepSpeed write them. The reference is float64 arithmetic on the numbers
that the forward had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import NARROW

import torch
from planish.apex import (
    FastLayerNorm,
    FusedLayerNorm,
    FusedRMSNorm,
    MixedFusedLayerNorm,
    _custom_ops,
    _recovery,
)
from planish.apex.normalization import fused_layer_norm as functions
from torch import Tensor, nn

CLASSES = [FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, FastLayerNorm]
COLUMNS = 64
#: What the weights are, and whether y is enough beside biases of up to 1: "half" is for 16 bits.
SIZES: dict[str, float | str] = {
    "1": 1.0,
    "1e-2": 1e-2,
    "1e-4": 1e-4,
    "1e-8": 1e-8,
    "0": 0.0,
    "mixed": "mixed",
    "negative": -1.0,
    "one of them": "one",
}


def weights_of(size: float | str, dtype: torch.dtype) -> Tensor:
    weight = torch.linspace(0.75, 1.25, COLUMNS)
    if size == "mixed":
        weight = weight * torch.tensor([1.0, 1e-2, 1e-4, 1e-8, 0.0, -1.0, 1e-3, -1e-5]).repeat(8)
    elif size == "one":
        weight[5] = 1e-6
    else:
        weight = weight * size
    return weight.to(dtype)


def exact(x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor, rms: bool) -> list[Tensor]:
    tensors = [t.detach().double().requires_grad_() for t in (x, weight, bias) if t is not None]
    x, weight, *rest = tensors
    centred = x if rms else x - x.mean(-1, keepdim=True)
    y = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    y = y + rest[0] if rest else y
    return list(torch.autograd.grad(y, tensors, dy.double()))


def compare(found: list[Tensor], right: list[Tensor], dtype: torch.dtype) -> None:
    # y's own rounding is in xhat; _recovery.py gives four bits more of a half, eleven of a float.
    digits = torch.finfo(dtype).eps * (8 if dtype != torch.float32 else 1024)
    least = torch.finfo(dtype).tiny  # f16 has gradients that are no normal numbers
    for one, other in zip(found, right, strict=True):
        error = (one.double() - other).abs().max()
        assert error <= digits * other.abs().max() + least, (error, other.abs().max())


def made(cls: Any, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    module = cls(COLUMNS, memory_efficient=True).to(dtype)
    if getattr(module, "bias", None) is not None:
        module.bias.data.copy_(torch.rand(COLUMNS, generator=generator) * 2 - 1)
    x = torch.randn(16, COLUMNS, generator=generator).to(dtype).requires_grad_()
    return module, x, torch.randn(16, COLUMNS, generator=generator).to(dtype)


def right_of(module: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    bias = getattr(module, "bias", None)
    return exact(x, module.weight, bias, dy, isinstance(module, FusedRMSNorm))


def step(module: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(module(x), [x, *module.parameters()], dy))


@pytest.fixture(params=["looked at", "waited for"], autouse=True)
def _device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second: the CPU is taken for a device that the host would have to wait for."""
    if request.param == "waited for":
        monkeypatch.setattr(_recovery, "_has_to_be_waited_for", lambda weight: True)


def is_waited_for() -> bool:
    return _recovery._has_to_be_waited_for(torch.ones(1))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_weight_written_in_secret_after_a_step_gives_wrong_gradients(
    cls: Any, dtype: torch.dtype, size: str
) -> None:
    module, x, dy = made(cls, dtype)
    step(module, x, dy)
    module.weight.data.copy_(weights_of(SIZES[size], dtype))
    for _ in range(2):
        compare(step(module, x, dy), right_of(module, x, dy), dtype)


@pytest.mark.parametrize("way", ["mixed", "autocast"])
@pytest.mark.parametrize("half", NARROW[1:], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_float_weights_of_a_half_result_are_taken_for_exact(
    way: str, half: torch.dtype, size: str
) -> None:
    module, x, _ = made(FusedLayerNorm, torch.float32)
    dy = torch.randn(16, COLUMNS, generator=torch.Generator().manual_seed(1)).to(half)
    if way == "mixed":
        x = x.detach().to(half).requires_grad_()
    for write in (1.0, SIZES[size]):
        module.weight.data.copy_(weights_of(write, torch.float32))
        with torch.autocast("cpu", half, enabled=way == "autocast"):
            y = module(x)
        assert y.dtype == half
        tensors = [x, module.weight, module.bias]
        # What autocast makes of them is what is computed with.
        seen = tensors if way == "mixed" else [t.detach().to(half) for t in tensors]
        found = list(torch.autograd.grad(y, tensors, dy))
        compare(found, exact(*seen, dy, False), half)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("write", ["secret", "counted"])
def test_a_weight_written_before_the_backward_is_that_of_the_forward_no_more(
    cls: Any, dtype: torch.dtype, write: str
) -> None:
    module, x, dy = made(cls, dtype)
    right = right_of(module, x, dy)
    y = module(x)
    for parameter in module.parameters():
        with torch.no_grad():
            (parameter.data if write == "secret" else parameter).mul_(1e-3).add_(0.5)
    compare(list(torch.autograd.grad(y, [x, *module.parameters()], dy)), right, dtype)


@pytest.mark.parametrize("name", ["FusedLayerNormAffineFunction", "operator"])
@pytest.mark.parametrize("size", SIZES)
def test_functions_and_operators_divide_by_weights_that_are_too_small(name: str, size: str) -> None:
    module, x, dy = made(FusedLayerNorm, torch.float32)
    weight, bias = module.weight, module.bias

    def run() -> Tensor:
        if name == "operator":
            operator = _custom_ops.operator("fused_layer_norm_affine_fwd")
            y: Tensor = operator(x, weight, bias, (COLUMNS,), 1e-5, True)[0]
            return y
        function: Any = getattr(functions, name)
        return function.apply(x, weight, bias, (COLUMNS,), 1e-5, True)  # type: ignore[no-any-return]

    for write in (1.0, SIZES[size]):
        weight.data.copy_(weights_of(write, torch.float32))
        right = right_of(module, x, dy)
        y = run()
        bias.data.add_(1)
        compare(list(torch.autograd.grad(y, [x, weight, bias], dy)), right, torch.float32)
        bias.data.sub_(1)


def test_two_forwards_without_a_backward_between_hide_a_write() -> None:
    module, x, dy = made(FusedLayerNorm, torch.float32)
    module(x)
    module.weight.data[3] = 0
    y, right = module(x), right_of(module, x, dy)
    found = list(torch.autograd.grad(y, [x, *module.parameters()], dy))
    if is_waited_for():  # no wrong number: none at all
        assert found[0].isnan().all() and found[1].isnan().all()
        found = step(module, x, dy)  # a backward was between
    compare(found, right, torch.float32)


def test_a_device_is_waited_for_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_waited_for():
        pytest.skip("nothing is waited for on the CPU")
    looks = []
    look_again: Callable[..., bool] = _recovery._look_again
    monkeypatch.setattr(
        _recovery, "_look_again", lambda *given: (looks.append(given), look_again(*given))[1]
    )
    norms = nn.Sequential(*(FusedLayerNorm(COLUMNS, memory_efficient=True) for _ in range(4)))
    _, x, _ = made(FusedLayerNorm, torch.float32)
    for wanted in (4, 1, 1):  # at first none is known
        looks.clear()
        norms(x).sum().backward()
        assert len(looks) == wanted
    looks.clear()
    norms(x)
    norms(x).sum().backward()
    assert len(looks) == 1


@pytest.mark.parametrize("dtype", [*NARROW, torch.float64], ids=str)
def test_the_rule_in_the_guide_is_another(dtype: torch.dtype) -> None:
    times = 16 if dtype in (torch.float16, torch.bfloat16) else 2048
    bias = torch.full((4,), 1.0, dtype=dtype)
    for factor, enough in [(0.9, True), (1.2, False)]:
        weight = torch.full((4,), 1 / (times * factor), dtype=dtype)
        assert _recovery.y_is_enough(dtype, weight, bias) is enough
        assert _recovery.y_is_enough(dtype, -weight, -bias) is enough
    assert not _recovery.y_is_enough(dtype, torch.tensor([1.0, 0.0], dtype=dtype), None)
    assert _recovery.y_is_enough(dtype, torch.tensor([1.0, 1e-3], dtype=dtype), None)
    nan = torch.tensor([1.0, torch.nan], dtype=dtype)
    assert not _recovery.y_is_enough(dtype, nan, None)
