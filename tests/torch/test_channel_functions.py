"""planish's functions over channels: group_norm, weight_standardize and their kin."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
import torch.nn.functional as F
from channels_support import LAST, is_laid_out_as, layouts
from support import GROUP, LAYER, Calls, Watched
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from planish.operators import call as _call
from planish.operators import ops
from torch import Tensor

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"


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
            ((2, 6, 4, 5), True),
            ((2, 6, 7), True),
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
        return list(torch.ops.planish.norm_statistics(x, _call.pack_axes(reduce)))

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
        (X, _call.pack_axes(reduce)),
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
        axes = [1], [1]
        y, mean, rstd = ops.plain_forward(x, None, None, *axes, 1e-5, False)
        given = (None, *axes, False, [True, False, False])
        dx = ops.plain_backward(x, x, mean, rstd, *given)[0]
        with FakeTensorMode() as mode:
            fake_x, *fakes = (mode.from_tensor(t) for t in (x, mean, rstd))
            fake = ops.plain_forward(fake_x, None, None, *axes, 1e-5, False)[0]
            fake_dx = ops.plain_backward(fake_x, fake_x, *fakes, *given)[0]
        assert y.stride() == dx.stride() == torch.empty_like(x).stride()
        if x.numel():  # torch's own fake tensors differ where a stride is never stepped
            assert is_laid_out_as(fake, y)
            assert is_laid_out_as(fake_dx, y)
