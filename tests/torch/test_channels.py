"""planish's modules over channels: LayerNorm2d, RMSNorm2d, GroupNorm, InstanceNorm, EvoNorm2dS0."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from channels_support import LAST, is_laid_out_as, layouts
from support import GROUP, LAYER, RMS, Calls
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from torch import Tensor, nn

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"

STATISTICS = "planish::norm_statistics"
Make = Callable[[], nn.Module]
LAYOUTS = list(layouts(torch.zeros(1, 1, 1, 1)))


def channel_formula(norm: nn.Module, x: Tensor) -> Tensor:
    """LayerNorm2d or RMSNorm2d by torch's norm of the last axis."""
    last = x.permute(0, 2, 3, 1).contiguous()
    shape = (x.shape[1],)
    if isinstance(norm, nn.LayerNorm):
        y = F.layer_norm(last, shape, norm.weight, norm.bias, norm.eps)
    else:
        assert isinstance(norm, nn.RMSNorm)
        eps = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps
        y = F.rms_norm(last, shape, norm.weight, eps)
    return y.permute(0, 3, 1, 2)


def evo_formula(norm: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(norm, planish.EvoNorm2dS0)
    v, weight, bias = (t.view(1, -1, 1, 1) for t in (norm.v, norm.weight, norm.bias))
    groups = x.reshape(x.shape[0], norm.groups, -1)
    std = (groups.var(2, unbiased=False, keepdim=True) + norm.eps).sqrt()
    std = std.expand(groups.shape).reshape(x.shape)
    return x * (v * x).sigmoid() / std * weight + bias


def like(cls: type[nn.Module], *arguments: object, **given: object) -> Callable[..., Tensor]:
    """torch's module of the same state."""

    def run(norm: nn.Module, x: Tensor) -> Tensor:
        module = cls(*arguments, **given, dtype=x.dtype)
        module.load_state_dict(norm.state_dict())
        parameters = dict(norm.named_parameters())
        return torch.func.functional_call(module, parameters, (x.contiguous(),))

    return run


def then(activation: Callable[[Tensor], Tensor], run: Callable[..., Tensor]) -> Any:
    return lambda norm, x: activation(run(norm, x))


#: How to make it, what it is, and the operator that runs.
MODULES: dict[str, tuple[Make, Callable[..., Tensor], str]] = {
    "LayerNorm2d": (lambda: planish.LayerNorm2d(6), channel_formula, FORWARD),
    "LayerNorm2d, bare": (
        lambda: planish.LayerNorm2d(6, eps=1e-3, elementwise_affine=False),
        channel_formula,
        FORWARD,
    ),
    "LayerNorm2d, no bias": (lambda: planish.LayerNorm2d(6, bias=False), channel_formula, FORWARD),
    "RMSNorm2d": (lambda: planish.RMSNorm2d(6), channel_formula, FORWARD),
    "RMSNorm2d, bare": (
        lambda: planish.RMSNorm2d(6, 1e-3, elementwise_affine=False),
        channel_formula,
        FORWARD,
    ),
    "GroupNorm": (lambda: planish.GroupNorm(3, 6), like(nn.GroupNorm, 3, 6), FORWARD),
    "GroupNorm, one group, bare": (
        lambda: planish.GroupNorm(1, 6, 1e-3, affine=False),
        like(nn.GroupNorm, 1, 6, 1e-3, False),
        FORWARD,
    ),
    "GroupNorm, silu": (
        lambda: planish.GroupNorm(2, 6, activation="silu"),
        then(F.silu, like(nn.GroupNorm, 2, 6)),
        FORWARD,
    ),
    "GroupNorm, relu, one group, bare": (
        lambda: planish.GroupNorm(1, 6, affine=False, activation="relu"),
        then(F.relu, like(nn.GroupNorm, 1, 6, affine=False)),
        FORWARD,
    ),
    "InstanceNorm2d": (
        lambda: planish.InstanceNorm2d(6, affine=True),
        like(nn.InstanceNorm2d, 6, affine=True),
        FORWARD,
    ),
    "InstanceNorm2d, bare": (
        lambda: planish.InstanceNorm2d(6),
        like(nn.InstanceNorm2d, 6),
        FORWARD,
    ),
    "EvoNorm2dS0": (lambda: planish.EvoNorm2dS0(6, 2), evo_formula, STATISTICS),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = MODULES[name][0]().to(dtype)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("enabled", [False, True], ids=["bare", "enabled"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_other_values_gradients_or_layout(
    name: str, layout: str, enabled: bool
) -> None:
    module, (_, right, operator) = made(name), MODULES[name]
    x = layouts(torch.randn(3, 6, 4, 5))[layout]
    if "Instance" in name and layout == "one pixel":
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            module(x)
        return
    leaves = [x.detach().requires_grad_(), *module.parameters()]
    dy = torch.randn(x.shape)
    calls = Calls()
    if enabled:
        planish.enable()
    y = module(leaves[0])
    found = [y, *torch.autograd.grad(y, leaves, dy)]
    if enabled:
        planish.disable()
    ran = sum(calls.on_planish(name) for name in (FORWARD, STATISTICS, LAYER, GROUP, RMS))
    assert ran == 1
    assert enabled or calls.on_planish(operator) == 1
    assert is_laid_out_as(y, x)
    double = copy.deepcopy(module).double()
    wide = [x.detach().double().requires_grad_(), *double.parameters()]
    exact = right(double, wide[0])
    wanted = [exact, *torch.autograd.grad(exact, wide, dy.double())]
    for mine, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, value.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_half_input_gives_another_dtype_or_loses_digits(name: str, dtype: torch.dtype) -> None:
    module = made(name, dtype)
    x = torch.randn(2, 6, 8, 8).to(dtype)
    y = module(x)
    wanted = MODULES[name][1](copy.deepcopy(module).double(), x.double())
    assert y.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)
    floats = made(name)
    if list(floats.parameters()) and "Evo" not in name:
        y = floats(x)
        assert y.dtype == dtype
        wanted = MODULES[name][1](copy.deepcopy(floats).double(), x.double())
        torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_either_order_are_wrong(
    name: str, channels_last: bool, check: Callable[..., bool]
) -> None:
    module = made(name, torch.float64)
    x = torch.randn(2, 6, 2, 2, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=LAST)
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(module, given, (x,))

    values = [p.detach().requires_grad_() for p in module.parameters()]
    assert check(run, [x.requires_grad_(), *values])


@pytest.mark.parametrize("name", MODULES)
def test_a_module_cannot_be_copied_pickled_compiled_or_put_on_meta(name: str) -> None:
    module, x = made(name), torch.randn(2, 6, 4, 5)
    for given in (x, x.contiguous(memory_format=LAST)):
        native = module(given)
        torch.testing.assert_close(copy.deepcopy(module)(given), native)
        torch.testing.assert_close(pickle.loads(pickle.dumps(module))(given), native)
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        leaf = given.detach().requires_grad_()
        y = compiled(leaf)
        torch.testing.assert_close(y, native)
        assert y.stride() == native.stride()
        plain = torch.autograd.grad(module(leaf).pow(2).sum(), leaf)
        torch.testing.assert_close(torch.autograd.grad(y.pow(2).sum(), leaf), plain)
        meta = module.to("meta")(given.to("meta"))
        assert (meta.shape, meta.stride()) == (native.shape, native.stride())
        module = made(name)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("ndim", "batched"), list(itertools.product((1, 2, 3), (True, False))))
def test_instance_norm_differs_from_torchs(
    ndim: int, batched: bool, affine: bool, track: bool, training: bool
) -> None:
    classes = (
        getattr(nn, f"InstanceNorm{ndim}d"),
        getattr(planish, f"InstanceNorm{ndim}d"),
    )
    modules = [
        cls(4, momentum=0.3, affine=affine, track_running_stats=track).train(training)
        for cls in classes
    ]
    for parameter in modules[0].parameters():
        nn.init.normal_(parameter)
    assert list(modules[0].state_dict()) == list(modules[1].state_dict())
    modules[1].load_state_dict(modules[0].state_dict())
    assert modules[0].extra_repr() == modules[1].extra_repr()
    x = torch.randn([2, 4, 5, 3, 2][1 - batched : 2 + ndim])
    calls = Calls()
    for _ in range(3):
        ys = [module(x + 2) for module in modules]
        torch.testing.assert_close(ys[1], ys[0], rtol=1e-4, atol=1e-4)
    on_planish = training or not track
    assert calls.on_planish(FORWARD) == (3 if on_planish else 0)
    for (name, one), other in zip(
        modules[0].state_dict().items(), modules[1].state_dict().values(), strict=True
    ):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("mine", "torchs", "x"),
    [
        (planish.InstanceNorm2d(3, affine=True), nn.InstanceNorm2d, torch.randn(2, 4, 5, 5)),
        (planish.InstanceNorm2d(3), nn.InstanceNorm2d, torch.randn(2, 3)),
        (planish.InstanceNorm1d(3), nn.InstanceNorm1d, torch.randn(3)),
        (planish.InstanceNorm2d(3), nn.InstanceNorm2d, torch.randn(2, 3, 1, 1)),
        (planish.GroupNorm(3, 6), nn.GroupNorm, torch.randn(2, 7, 4)),
        (planish.GroupNorm(3, 6), nn.GroupNorm, torch.randn(6)),
        (planish.GroupNorm(3, 6), nn.GroupNorm, torch.ones(2, 6, 4, dtype=torch.int32)),
    ],
)
def test_a_mistake_raises_something_else_than_torchs_module(
    mine: nn.Module, torchs: type[nn.Module], x: Tensor
) -> None:
    native = torchs.__new__(torchs)
    native.__dict__ = mine.__dict__
    with pytest.raises(Exception) as wanted:
        native(x)
    with pytest.raises(wanted.type) as found:
        mine(x)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("cls", [planish.LayerNorm2d, planish.RMSNorm2d])
def test_images_of_another_shape_are_taken(cls: type[nn.Module]) -> None:
    with pytest.raises(RuntimeError, match="Expected 4D input"):
        cls(6)(torch.randn(2, 6, 4))
    with pytest.raises(RuntimeError, match="Expected 6 channels"):
        cls(6)(torch.randn(2, 4, 6, 6))
    with pytest.raises(NotImplementedError):
        cls(6, elementwise_affine=False)(torch.ones(2, 6, 4, 4, dtype=torch.int32))


def test_empty_batches_fail() -> None:
    for name in MODULES:
        if "Instance" not in name:
            for x in (torch.randn(0, 6, 4, 5), torch.randn(0, 6, 4, 5).to(memory_format=LAST)):
                assert made(name)(x).shape == x.shape


@pytest.mark.parametrize("format", [torch.contiguous_format, LAST])
@pytest.mark.parametrize("name", ["LayerNorm2d", "RMSNorm2d", "GroupNorm", "InstanceNorm2d"])
def test_activations_in_place_copy_gradients(name: str, format: torch.memory_format) -> None:
    """As they would where the result were a view."""
    module = made(name)
    x = torch.randn(2, 6, 4, 5).to(memory_format=format).requires_grad_()
    y = module(x)
    assert not y._is_view()
    dy = torch.randn_like(y)
    wanted = torch.autograd.grad(torch.relu(module(x)), x, dy)[0]
    assert torch.equal(torch.autograd.grad(torch.relu_(y), x, dy)[0], wanted)


def test_pixels_between_the_channels_of_a_group_go_wrong() -> None:
    """Then the result's channels are no view of groups of them."""
    x = torch.randn(400).as_strided((2, 8, 2), (160, 10, 15))
    torch.testing.assert_close(planish.group_norm(x, 2), torch.group_norm(x.contiguous(), 2))
