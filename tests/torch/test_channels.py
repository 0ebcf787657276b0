"""planish's modules and functions over channels: LayerNorm2d, RMSNorm2d, GroupNorm, InstanceNorm,
EvoNorm2dS0, group_norm and weight_standardize."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from support import GROUP, LAYER, RMS, Calls, Watched
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from torch import Tensor, nn

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"
STATISTICS = "planish::norm_statistics"
LAST = torch.channels_last

Make = Callable[[], nn.Module]


def layouts(x: Tensor) -> dict[str, Tensor]:
    return {
        "dense": x,
        "channels last": x.contiguous(memory_format=LAST),
        "sliced": torch.cat([x, x], -1)[..., : x.shape[-1]],
        "samples last": x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "expanded": x[:1].expand(x.shape),
        "one pixel": x[:, :, :1, :1].contiguous(memory_format=LAST),
    }


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


def is_laid_out_as(y: Tensor, x: Tensor) -> bool:
    """In strides of axes that have more than one element."""
    model = torch.empty_like(x).stride()
    return all(
        size == 1 or one == other
        for size, one, other in zip(x.shape, y.stride(), model, strict=True)
    )


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


# ---- Against torch's modules ------------------------------------------------------------------


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


class TimmLike(nn.LayerNorm):
    """What timm's LayerNorm2d is, under its name."""

    __module__, __qualname__ = "timm.layers.norm", "LayerNorm2d"

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TimmGroup(nn.GroupNorm):
    """What timm's GroupNorm is, under its name."""

    __module__, __qualname__ = "timm.layers.norm", "GroupNorm"


class TimmGroupAct(nn.GroupNorm):
    """What timm's GroupNormAct is, under its name."""

    __module__, __qualname__ = "timm.layers.norm_act", "GroupNormAct"

    def __init__(self, channels: int, groups: int, act: nn.Module, drop: nn.Module) -> None:
        super().__init__(groups, channels)
        self.drop, self.act = drop, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3),
            nn.GroupNorm(2, 6),
            nn.InstanceNorm2d(6, affine=True),
            TimmLike(6, eps=1e-6),
            nn.Conv2d(6, 4, 1),
            TimmGroup(2, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_replace_changes_results_or_parameters() -> None:
    model, x = Net(), torch.randn(2, 3, 8, 8)
    native = model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    calls = Calls()
    assert planish.replace(model) is model
    kinds = [type(module) for module in model.body]
    assert kinds[1:4] == [planish.GroupNorm, planish.InstanceNorm2d, planish.LayerNorm2d]
    assert kinds[5] is planish.GroupNorm
    assert model.body[3].channels_last  # as theirs is; on a GPU, tests/torch/test_cuda.py
    after = dict(model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in parameters)
    torch.testing.assert_close(model(x), native, rtol=1e-4, atol=1e-4)
    assert calls.on_planish(FORWARD) == 4
    model.load_state_dict(state)
    assert "activation" not in repr(model)
    planish.replace(model)
    assert [type(module) for module in model.body] == kinds
    planish.restore(model)
    assert type(model.body[3]) is TimmLike and "channels_last" not in vars(model.body[3])


def test_a_subclass_or_a_namesake_is_replaced() -> None:
    class LayerNorm2d(nn.LayerNorm):
        pass

    class Own(nn.GroupNorm):
        pass

    model = nn.Sequential(LayerNorm2d(6), Own(2, 6))
    kinds = [type(module) for module in model]
    planish.replace(model)
    assert [type(module) for module in model] == kinds


def test_a_group_norm_with_its_activation_is_not_replaced_or_another_is() -> None:
    x, same = torch.randn(2, 6, 5, 4), nn.Identity()
    for act, drop, name in (
        (nn.ReLU(inplace=True), same, "relu"),
        (nn.SiLU(), same, "silu"),
        (nn.Identity(), same, None),
        (nn.GELU(), same, ...),
        (nn.ReLU(), nn.Dropout(0.0), ...),
    ):
        model = nn.Sequential(TimmGroupAct(6, 3, act, drop))
        native, state = model(x), list(model.state_dict())
        planish.replace(model)
        assert list(model.state_dict()) == state
        torch.testing.assert_close(model(x), native, rtol=1e-5, atol=1e-6)
        assert type(model[0]) is (TimmGroupAct if name is ... else planish.GroupNorm)
        assert getattr(model[0], "activation", ...) is name
    alone = planish.replace(TimmGroupAct(6, 3, nn.SiLU(), same))
    assert (type(alone), alone.activation) == (planish.GroupNorm, "silu")


def test_replace_fuses_activations_unasked_or_where_it_must_not() -> None:
    shared, hooked = nn.GroupNorm(3, 6), nn.SiLU()
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(
        *(nn.GroupNorm(3, 6), nn.SiLU()),
        *(nn.GroupNorm(2, 6), nn.ReLU(), nn.ReLU()),
        *(nn.GroupNorm(2, 6), nn.GELU()),
        *(nn.GroupNorm(2, 6), hooked),
        *(shared, nn.SiLU(), shared),
    )
    x = torch.randn(2, 6, 5, 4)
    native = model(x)
    planish.replace(model)
    assert [getattr(module, "activation", None) for module in model] == [None] * len(model)
    planish.replace(model, activations=True)
    assert [getattr(module, "activation", None) for module in model[:4]] == [
        *("silu", None),
        *("relu", None),
    ]
    assert not any(getattr(module, "activation", None) for module in model[4:])
    identities = [i for i, module in enumerate(model) if type(module) is nn.Identity]
    assert identities == [1, 3]
    torch.testing.assert_close(model(x), native, rtol=1e-5, atol=1e-6)


# ---- Functions --------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [False, True])
def test_group_norm_differs_from_torchs(enabled: bool) -> None:
    weight, bias = torch.randn(6), torch.randn(6)
    inputs = [torch.randn(2, 6), torch.randn(3, 6, 5), torch.randn(2, 6, 2, 3, 2)]
    inputs += list(layouts(torch.randn(2, 6, 4, 5)).values())
    for x in inputs:
        for groups in (1, 2, 6):
            for parameters in ((weight, bias), (weight, None), (None, None)):
                native = F.group_norm(x, groups, *parameters)
                calls = Calls()
                if enabled:
                    planish.enable()
                ours = planish.group_norm(x, groups, *parameters)
                planish.disable()
                torch.testing.assert_close(ours, native, rtol=1e-4, atol=1e-4)
                assert is_laid_out_as(ours, x)
                assert calls.on_planish(FORWARD) + calls.on_planish(GROUP) == 1
                assert enabled or calls.on_planish(FORWARD) == 1


@pytest.mark.parametrize("enabled", [False, True], ids=["bare", "enabled"])
@pytest.mark.parametrize("name", ["silu", "relu"])
def test_an_activation_is_not_applied_or_not_fused(name: str, enabled: bool) -> None:
    activation = getattr(F, name)
    with planish.enabled() if enabled else contextlib.nullcontext():
        for shape, fused in (
            ((2, 6, 4, 5), not enabled),
            ((2, 6, 7), not enabled),
            ((2, 6, 1, 3), False),
            ((2, 6, 75, 75), True),
        ):
            x = torch.randn(shape)
            with Watched() as mode:
                y = planish.group_norm(x, 3, activation=name)
            wanted = activation(F.group_norm(x.double(), 3)).float()
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-6)
            assert (f"aten.{name}.default" not in mode.seen) == fused


@pytest.mark.parametrize("format", [torch.contiguous_format, LAST], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["silu", "relu"])
def test_a_large_mean_costs_an_activations_gradient_its_digits(
    name: str, format: torch.memory_format
) -> None:
    x = (torch.randn(2, 6, 9, 7) + 1e4).contiguous(memory_format=format)
    dy = torch.randn_like(x)
    leaves = [t.requires_grad_() for t in (x, torch.randn(6), torch.randn(6))]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    y = planish.group_norm(leaves[0], 2, *leaves[1:], activation=name)
    exact = getattr(F, name)(F.group_norm(wide[0], 2, *wide[1:]))
    found = [y, *torch.autograd.grad(y, leaves, dy)]
    wanted = [exact, *torch.autograd.grad(exact, wide, dy.double())]
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-6 * other.abs().max()


def test_an_unknown_activation_is_taken() -> None:
    x = torch.randn(2, 6, 4, 5)
    with pytest.raises(ValueError, match="mish"):
        planish.group_norm(x, 3, activation="mish")
    with pytest.raises(ValueError, match="mish"):
        planish.GroupNorm(3, 6, activation="mish")


X = torch.randn(2, 6, 4)


@pytest.mark.parametrize(
    ("kind", "words", "call"),
    [
        (RuntimeError, "divisible by num_groups", lambda: planish.group_norm(X, 4)),
        (RuntimeError, "divisible by num_groups", lambda: planish.group_norm(X, 0)),
        (RuntimeError, "at least 2 dimensions", lambda: planish.group_norm(X[0, 0], 1)),
        (RuntimeError, "weight to", lambda: planish.group_norm(X, 3, torch.ones(5))),
        (RuntimeError, "weight to", lambda: planish.group_norm(X, 3, torch.ones(6, 1))),
        (RuntimeError, "bias to", lambda: planish.group_norm(X, 3, None, torch.ones(1))),
        (NotImplementedError, "int32", lambda: planish.group_norm(X.int(), 3)),
        (RuntimeError, "2 dimensions or more", lambda: planish.weight_standardize(X[0, 0])),
        (NotImplementedError, "int32", lambda: planish.weight_standardize(X.int())),
        (ValueError, "divisor of 6", lambda: planish.EvoNorm2dS0(6, 4)),
    ],
)
def test_a_mistake_passes(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_standardized_weights_are_wrong(channels_last: bool, enabled: bool) -> None:
    w = torch.randn(8, 3, 5, 5) * 0.1 + 3
    if channels_last:
        w = w.contiguous(memory_format=LAST)
    calls = Calls()
    if enabled:
        planish.enable()
    leaf = w.requires_grad_()
    found = planish.weight_standardize(leaf, 1e-6)
    (gradient,) = torch.autograd.grad(found.pow(3).sum(), leaf)
    planish.disable()
    assert calls.on_planish(FORWARD) + calls.on_planish(LAYER) == 1
    wide = w.detach().double().requires_grad_()
    variance, mean = torch.var_mean(wide, (1, 2, 3), unbiased=False, keepdim=True)
    wanted = (wide - mean) * (variance + 1e-6).rsqrt()
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-4)
    right = torch.autograd.grad(wanted.pow(3).sum(), wide)[0].float()
    torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-3)
    assert is_laid_out_as(found, w)


def test_second_gradients_of_standardized_weights_are_wrong() -> None:
    w = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(planish.weight_standardize, [w])
    assert gradgradcheck(planish.weight_standardize, [w])


@pytest.mark.parametrize("reduce", [[0], [1], [1, 2], [0, 2]], ids=str)
def test_statistics_or_their_derivatives_are_wrong(reduce: list[int]) -> None:
    def run(x: Tensor) -> list[Tensor]:
        return list(torch.ops.planish.norm_statistics(x, reduce))

    planish.layer_norm(X, 0)  # defines the operators
    for x in (X, X.permute(2, 0, 1), X.to(torch.bfloat16)):
        mean, squares = run(x)
        wide = x.double()
        torch.testing.assert_close(mean.double(), wide.mean(reduce, keepdim=True))
        exact = wide.var(reduce, unbiased=False, keepdim=True)
        exact = exact * (x.numel() / exact.numel())
        torch.testing.assert_close(squares.double(), exact, rtol=1e-5, atol=1e-6)
    leaf = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(run, [leaf])
    assert gradgradcheck(run, [leaf])
    torch.library.opcheck(
        torch.ops.planish.norm_statistics,
        (X, reduce),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


STRIDES = [
    (2, 6, 4, 5),
    (2, 1, 4, 1),
    (1, 6, 1, 5),
    (2, 6, 0, 5),
]


@pytest.mark.parametrize("shape", STRIDES, ids=str)
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_results_are_laid_out_other_than_the_fake_ones(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    planish.layer_norm(X, 0)  # defines the operators
    dense = torch.randn([shape[axis] for axis in order])
    inverse = [order.index(axis) for axis in range(4)]
    wide = torch.randn([2 * shape[axis] for axis in order])
    for x in (
        dense.permute(inverse),
        wide.permute(inverse)[: shape[0], : shape[1], : shape[2], : shape[3]],
        dense.permute(inverse)[:1].expand(shape),
    ):
        y, mean, rstd = torch.ops.planish.norm_forward(x, None, None, [1], [1], 1e-5, False, True)
        given = (x, mean, rstd, None, [1], [1], False, [True, False, False])
        dx = torch.ops.planish.norm_backward(x, *given)[0]
        with FakeTensorMode() as mode:
            fake_x, *fakes = (mode.from_tensor(t) for t in (x, mean, rstd))
            fake = torch.ops.planish.norm_forward(fake_x, None, None, [1], [1], 1e-5, False, True)[
                0
            ]
            fake_dx = torch.ops.planish.norm_backward(fake_x, fake_x, *fakes, *given[3:])[0]
        assert y.stride() == dx.stride() == torch.empty_like(x).stride()
        if x.numel():  # torch's own fake tensors differ where a stride is never stepped
            assert is_laid_out_as(fake, y)
            assert is_laid_out_as(fake_dx, y)
