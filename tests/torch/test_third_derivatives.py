"""Derivatives of third and fourth order of planish's norms by x, weight and bias, by every way to
them, with planish enabled and not. The reference is the formula in torch's elementary operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from torch.func import grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

import planish
import planish.apex
import torch
from torch import Tensor, nn

Norm = Callable[[Tensor, Tensor, Tensor], Tensor]
EPS = 1e-5
IMAGE = (1, -1, 1, 1)


def normalized(x: Tensor, dims: list[int], rms: bool = False) -> Tensor:
    centred = x if rms else x - x.mean(dims, keepdim=True)
    return centred * (centred.square().mean(dims, keepdim=True) + EPS).rsqrt()


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return normalized(x, [-1]) * w + b


def rms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return normalized(x, [-1], rms=True) * w + 0 * b


def group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    apart = normalized(x.reshape(x.shape[0], 2, -1), [2]).reshape(x.shape)
    return apart * w.view(IMAGE) + b.view(IMAGE)


def channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return normalized(x, [1]) * w.view(IMAGE) + b.view(IMAGE)


def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return normalized(x, [0, 2, 3]) * w.view(IMAGE) + b.view(IMAGE)


def of(module: nn.Module) -> Norm:
    """The module as a function of its parameters, which are the tensors that are given."""

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        given = {"weight": w, "bias": b}
        held = {name: given[name] for name, _ in module.named_parameters()}
        return torch.func.functional_call(module, held, (x,))

    return run


ROWS, IMAGES = (3, 4), (2, 4, 3, 2)
CASES: dict[str, tuple[Norm, Norm, tuple[int, ...]]] = {
    "layer_norm": (lambda x, w, b: planish.layer_norm(x, -1, w, b, EPS), layer, ROWS),
    "rms_norm": (lambda x, w, b: planish.rms_norm(x, -1, w, eps=EPS), rms, ROWS),
    "group_norm": (lambda x, w, b: planish.group_norm(x, 2, w, b, EPS), group, IMAGES),
    "batch_norm": (lambda x, w, b: planish.batch_norm(x, None, None, w, b, True), batch, IMAGES),
    "BatchNorm2d": (of(planish.BatchNorm2d(4, track_running_stats=False)), batch, IMAGES),
    "LayerNorm": (of(planish.LayerNorm(4)), layer, ROWS),
    "RMSNorm": (of(planish.RMSNorm(4, EPS)), rms, ROWS),
    "GroupNorm": (of(planish.GroupNorm(2, 4)), group, IMAGES),
    "LayerNorm2d": (of(planish.LayerNorm2d(4)), channels, IMAGES),
    "apex LayerNorm": (of(planish.apex.FusedLayerNorm(4)), layer, ROWS),
    "apex RMSNorm": (of(planish.apex.FusedRMSNorm(4)), rms, ROWS),
}


@pytest.fixture(params=[False, True], ids=["off", "enabled"], autouse=True)
def _switch(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        with planish.enabled():
            yield
    else:
        yield


def inputs(shape: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.double, generator=generator)
    w = torch.rand(4, dtype=torch.double, generator=generator) + 0.5
    b = torch.randn(4, dtype=torch.double, generator=generator)
    return [x, w, b]


def same(found: Tensor, wanted: Tensor) -> None:
    scale = wanted.detach().abs().max().item()
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-8, atol=1e-9 * scale + 1e-9)


def mixed(gradients: list[Tensor]) -> Tensor:
    """A number whose derivatives are those of all gradients, no two alike."""
    found = torch.zeros((), dtype=torch.double)
    for gradient in gradients:
        factors = torch.linspace(0.5, 1.5, gradient.numel(), dtype=torch.double)
        # The sine of a large number has no digits.
        size = gradient.detach().abs().max().clamp(min=1)
        found = found + (gradient.flatten() / size * factors).sin().sum()
    return found


def derivatives(f: Norm, given: list[Tensor], wanted: list[bool], order: int) -> list[Tensor]:
    tensors = [t.clone().requires_grad_(want) for t, want in zip(given, wanted, strict=True)]
    asked = [t for t in tensors if t.requires_grad]
    found = [f(*tensors).square()]
    last = found
    for _ in range(order):
        raw = torch.autograd.grad(mixed(last), asked, create_graph=True, allow_unused=True)
        last = [torch.zeros_like(t) if g is None else g for g, t in zip(raw, asked, strict=True)]
        found = found + last
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "wanted", [[True] * 3, [True, False, False], [False, True, True]], ids=["all", "x", "wb"]
)
def test_third_derivatives_take_mean_and_rstd_for_constants(name: str, wanted: list[bool]) -> None:
    f, reference, shape = CASES[name]
    given = inputs(shape)
    pairs = zip(
        derivatives(f, given, wanted, 4), derivatives(reference, given, wanted, 4), strict=True
    )
    for found, exact in pairs:
        same(found, exact)


@pytest.mark.parametrize("name", [name for name in CASES if "apex" not in name])
def test_third_derivatives_are_wrong_under_a_checkpoint(name: str) -> None:
    f, reference, shape = CASES[name]
    given = inputs(shape)

    def recomputed(*tensors: Tensor) -> Tensor:
        y: Tensor = checkpoint(f, *tensors, use_reentrant=False)
        return y

    pairs = zip(
        derivatives(recomputed, given, [True] * 3, 3),
        derivatives(reference, given, [True] * 3, 3),
        strict=True,
    )
    for found, exact in pairs:
        same(found, exact)


def _nested(f: Norm, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    one = grad(lambda t: f(t, w, b).pow(3).sum())
    two = grad(lambda t: one(t).pow(2).sum())
    return grad(lambda t: two(t).pow(2).sum())(x)


def _reverse_over_forward(f: Norm, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return grad(lambda t: jvp(lambda u: f(u, w, b), (t,), (x.flip(0),))[1].pow(2).sum())(x)


def _twice_outside(y: Tensor, x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        (y,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
    return y


def _autograd_over_grad(f: Norm, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return _twice_outside(grad(lambda t: f(t, w, b).pow(3).sum())(x), x, 2)


def _autograd_over_vmap(f: Norm, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return _twice_outside(vmap(lambda t: f(t, w, b))(x[None]), x, 3)


def _autograd_over_dual(f: Norm, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x.detach().flip(0))
        tangent = torch.autograd.forward_ad.unpack_dual(f(dual, w, b)).tangent
        assert tangent is not None
        return _twice_outside(tangent, x, 1)


@pytest.mark.parametrize("name", [name for name in CASES if "apex" not in name])
@pytest.mark.parametrize(
    "transform",
    [
        _nested,
        _reverse_over_forward,
        _autograd_over_grad,
        _autograd_over_vmap,
        _autograd_over_dual,
    ],
    ids=lambda function: function.__name__.strip("_"),
)
def test_transforms_differentiate_a_constant_mean(
    name: str, transform: Callable[..., Tensor]
) -> None:
    f, reference, shape = CASES[name]
    same(transform(f, *inputs(shape)), transform(reference, *inputs(shape)))


def test_the_hook_is_missing_where_only_weights_are_learned() -> None:
    x, w, b = inputs(ROWS)
    w.requires_grad_()
    y = planish.layer_norm(x, -1, w, b)
    (dw,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    torch.testing.assert_close(dw, normalized(x, [-1]).sum(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_recorded_gradients_have_another_value_or_dtype(dtype: torch.dtype) -> None:
    module = planish.LayerNorm(16).to(dtype)
    x = torch.randn(4, 16).to(dtype).requires_grad_()
    dy = torch.randn(4, 16).to(dtype)
    asked = [x, module.weight, module.bias]
    recorded = torch.autograd.grad(module(x), asked, dy, create_graph=True)
    wide = [t.detach().double().requires_grad_() for t in asked]
    exact = torch.autograd.grad(layer(*wide), wide, dy.double())
    for found, right, tensor in zip(recorded, exact, asked, strict=True):
        assert found.dtype == tensor.dtype and found.requires_grad
        tolerance = 4 * torch.finfo(dtype).eps * right.abs().max().item()
        torch.testing.assert_close(found.double(), right, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("of", ["input", "weight"])
def test_forward_mode_of_rms_norm_keeps_the_dtype(dtype: torch.dtype, of: str) -> None:
    x, w = torch.randn(4, 8).to(dtype), torch.randn(8).to(dtype)

    def norm(t: Tensor) -> Tensor:
        given = (t, w) if of == "input" else (x, t)
        return torch.nn.functional.rms_norm(given[0], [8], given[1], 1e-5)

    at = x if of == "input" else w
    wanted = jvp(norm, (at,), (torch.ones_like(at),))
    with planish.enabled():
        found = jvp(norm, (at,), (torch.ones_like(at),))
    assert [t.dtype for t in found] == [t.dtype for t in wanted] == [dtype, dtype]
    torch.testing.assert_close(found, wanted)
