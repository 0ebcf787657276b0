"""Global response norm: the function, the module, and those of models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import planish
import torch
from torch import Tensor, nn

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
SHAPES = [((2, 5, 3, 8), -1), ((3, 8, 4, 7), 1), ((2, 31, 24), 2), ((1, 6, 2, 3, 4), 1)]


def composed(x: Tensor, weight: Tensor, bias: Tensor, axis: int) -> Tensor:
    """As ConvNeXt V2 has it."""
    axis %= x.dim()
    pixels = [i for i in range(1, x.dim()) if i != axis]
    sizes = [-1 if i == axis else 1 for i in range(x.dim())]
    length = x.norm(p=2, dim=pixels, keepdim=True)
    share = length / (length.mean(axis, keepdim=True) + 1e-6)
    return x + weight.view(sizes) * (x * share) + bias.view(sizes)


def arguments(shape: tuple[int, ...], axis: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(20261128)
    made = [torch.randn(shape), torch.randn(shape[axis]), torch.randn(shape[axis])]
    return [t.to(dtype).requires_grad_() for t in made]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_result_and_gradients(
    shape: tuple[int, ...], axis: int, dtype: torch.dtype, device: str
) -> None:
    layouts = [torch.contiguous_format] + [torch.channels_last] * (len(shape) == 4)
    for layout in layouts:
        given = arguments(shape, axis, dtype)
        given = [t.detach().to(device).requires_grad_() for t in given]
        given[0] = given[0].detach().contiguous(memory_format=layout).requires_grad_()
        exact = [t.detach().double().requires_grad_() for t in given]
        y = planish.global_response_norm(*given, channel_axis=axis)
        wanted = composed(*exact, axis)  # type: ignore[call-arg, misc]
        assert y.dtype == dtype and y.stride() == given[0].stride()
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(y.double(), wanted, rtol=limit, atol=limit)
        dy = torch.randn(shape).to(device, dtype)
        got = torch.autograd.grad(y, given, dy)
        for one, other in zip(got, torch.autograd.grad(wanted, exact, dy.double()), strict=True):
            scale = float(other.abs().max())
            assert one.dtype == dtype
            assert float((one.double() - other).abs().max()) <= 2 * limit * max(scale, 1)


def test_derivatives() -> None:
    given = arguments((2, 3, 4, 5), -1, torch.float64)
    assert torch.autograd.gradcheck(planish.global_response_norm, given)
    assert torch.autograd.gradgradcheck(planish.global_response_norm, given)
    plain = [given[0].detach(), *given[1:]]
    assert torch.autograd.gradcheck(planish.global_response_norm, plain)


def test_without_parameters_and_where_a_factor_is_nothing() -> None:
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    one, zero = torch.ones(5), torch.zeros(5)
    y = planish.global_response_norm(x)
    torch.testing.assert_close(y, composed(x, one, zero, -1))
    even = torch.ones(1, 2, 2, 4, requires_grad=True)  # every share is 1: 1 + weight is 0
    weight, bias = torch.full((4,), -(1 + 1e-6 / 2)), torch.zeros(4)
    dy = torch.randn(1, 2, 2, 4)
    got = torch.autograd.grad(planish.global_response_norm(even, weight, bias), even, dy)
    wide = even.detach().double().requires_grad_()
    want = torch.autograd.grad(composed(wide, weight, bias, -1), wide, dy.double())
    torch.testing.assert_close(got[0].double(), want[0], rtol=1e-5, atol=1e-5)
    nothing = torch.zeros(1, 2, 2, 4, requires_grad=True)
    y = planish.global_response_norm(nothing, weight, bias)
    assert torch.equal(y, nothing) and torch.autograd.grad(y.sum(), nothing)[0].isfinite().all()


def test_far_numbers() -> None:
    """Squares may leave the range of f32."""
    for scale in (1e-30, 1e30):
        x = torch.randn(2, 3, 3, 8) * scale
        weight, bias = torch.randn(8), torch.zeros(8)
        eps = 1e-6 * scale
        wanted = planish.global_response_norm(x.double(), weight.double(), bias.double(), eps)
        y = planish.global_response_norm(x, weight, bias, eps)
        torch.testing.assert_close(y.double() / scale, wanted / scale, rtol=1e-5, atol=1e-6)


def test_transforms_and_compiled() -> None:
    given = arguments((2, 3, 4, 5), -1, torch.float32)
    wanted = composed(*given, -1)  # type: ignore[call-arg, misc]
    x, *parameters = given
    each = torch.vmap(lambda one: planish.global_response_norm(one[None], *parameters)[0])(x)
    torch.testing.assert_close(each, wanted)
    run = torch.compile(planish.global_response_norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(*given), wanted)


def test_module() -> None:
    for last in (True, False):
        module = planish.GlobalResponseNorm(6, channels_last=last)
        assert set(module.state_dict()) == {"weight", "bias"}
        x = torch.randn((2, 5, 3, 6) if last else (2, 6, 5, 3))
        assert torch.equal(module(x), x)
        nn.init.normal_(module.weight)
        wanted = composed(x, module.weight, module.bias, -1 if last else 1)
        torch.testing.assert_close(module(x), wanted)
        torch.testing.assert_close(torch.jit.script(module)(x), wanted)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: planish.global_response_norm(None), TypeError),
        (lambda x: planish.global_response_norm(x[0, 0]), RuntimeError),
        (lambda x: planish.global_response_norm(x, torch.ones(4)), RuntimeError),
        (lambda x: planish.global_response_norm(x, channel_axis=0), ValueError),
        (lambda x: planish.global_response_norm(x, channel_axis=4), IndexError),
        (lambda x: planish.global_response_norm(x, eps="small"), TypeError),
    ],
)
def test_bad_arguments(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="global_response_norm"):
        call(torch.randn(2, 3, 4, 5))


def _timm(last: bool) -> nn.Module:
    grn: Any = pytest.importorskip("timm.layers.grn", reason="timm is not installed")
    return grn.GlobalResponseNorm(8, channels_last=last)  # type: ignore[no-any-return]


def _transformers() -> nn.Module:
    convnext: Any = pytest.importorskip(
        "transformers.models.convnextv2.modeling_convnextv2", reason="no transformers"
    )
    return convnext.ConvNextV2GRN(8)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "make",
    [lambda: _timm(True), lambda: _timm(False), _transformers],
    ids=["timm", "timm, channels first", "transformers"],
)
def test_norms_of_models_are_replaced(make: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(make())
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    other = copy.deepcopy(model)
    planish.replace(model)
    assert "1 norms on planish, 0 left" in str(planish.replaced(model))
    first = getattr(model[0], "channel_dim", -1) == 1
    x = torch.randn((2, 8, 5, 4) if first else (2, 5, 4, 8), requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16):
        y, wanted = model(x.to(dtype)), other(x.to(dtype))
        assert y.dtype == wanted.dtype
        torch.testing.assert_close(y, wanted, rtol=2e-2 if dtype != x.dtype else 1e-5, atol=2e-2)
    planish.restore(model)
    assert "GlobalResponse" in type(model[0]).__name__ or "GRN" in type(model[0]).__name__


@pytest.mark.parametrize("name", ["FilterResponseNormTlu2d", "FilterResponseNormAct2d"])
def test_filter_response_norms_are_replaced(name: str) -> None:
    layers: Any = pytest.importorskip(
        "timm.layers.filter_response_norm", reason="timm is not installed"
    )
    model = nn.Sequential(getattr(layers, name)(8))
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    other = copy.deepcopy(model)
    planish.replace(model)
    assert "filter response norm" in str(planish.replaced(model))
    x = torch.randn(2, 8, 5, 4, requires_grad=True)
    wanted = other(x)
    torch.testing.assert_close(model(x), wanted)
    dy = torch.randn_like(wanted)
    got = torch.autograd.grad(model(x), [x, *model.parameters()], dy)
    want = torch.autograd.grad(wanted, [x, *other.parameters()], dy)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", ["a", None, 1.5, True])
def test_an_axis_that_is_no_whole_number_is_named(axis: object) -> None:
    with pytest.raises(TypeError, match="channel_axis to be a whole number"):
        planish.global_response_norm(torch.randn(2, 3, 4), channel_axis=axis)  # type: ignore[arg-type]
