"""aten::_weight_norm_interface and its backward on planish, on the CPU: values, dtypes,
layouts, derivatives, and what is left to torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from group_norm_support import raised_by
from support import FLOATS, Calls, description, on_planish, row_error, wide

import planish
import torch
from torch import Tensor, nn

WEIGHT, BACKWARD = "_weight_norm_interface", "_weight_norm_interface_backward"
#: v's shape and the axis of the slices, of sizes of which planish is not slower.
CASES: list[tuple[tuple[int, ...], int]] = [
    *(((3, 3, 1000), 0), ((700, 4099), 0)),
    *(((40, 5, 7), 2), ((300, 33), 1), ((5, 2, 2, 9), 3)),
]
#: Less than this torch does in less time.
SMALL = (4, 3, 2)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def given(shape: tuple[int, ...], axis: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """v, g and the gradient of w."""
    make = torch.Generator().manual_seed(sum(shape) + axis)
    along = [size if i == axis else 1 for i, size in enumerate(shape)]
    v, dw = (torch.randn(shape, generator=make).to(dtype) for _ in range(2))
    return v, (torch.rand(along, generator=make) + 0.5).to(dtype), dw


def everything(v: Tensor, g: Tensor, dw: Tensor, axis: int) -> list[Tensor]:
    """w, the norms, and the gradients by way of torch's autograd."""
    leaves = [t.detach().requires_grad_() for t in (v, g)]
    w, norms = torch._weight_norm_interface(*leaves, axis)
    return [w.detach(), norms.detach(), *torch.autograd.grad(w, leaves, dw)]


def exact(v: Tensor, g: Tensor, dw: Tensor, axis: int) -> list[Any]:
    """The same in long double."""
    values, scale, gradient = wide(v), wide(g), wide(dw)
    rest = tuple(i for i in range(v.dim()) if i != axis)
    norms = np.sqrt((values * values).sum(rest, keepdims=True))
    dg = (gradient * values).sum(rest, keepdims=True) / norms
    dv = scale / norms * (gradient - values / norms * dg)
    return [values * scale / norms, norms, dv, dg]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_results_are_torchs_and_no_further_from_exact_ones(
    shape: tuple[int, ...], axis: int, dtype: torch.dtype
) -> None:
    tensors = given(shape, axis, dtype)
    native = everything(*tensors, axis)
    with on_planish(WEIGHT, BACKWARD):
        ours = everything(*tensors, axis)
    assert description(ours) == description(native)
    for one, other, number in zip(ours, native, exact(*tensors, axis), strict=True):
        found, torchs = (row_error(t, number, None) for t in (one, other))
        assert found <= max(torchs * 1.5, 2.0), (found, torchs)


@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_a_pass_has_the_same_bits_again(shape: tuple[int, ...], axis: int) -> None:
    tensors = given(shape, axis, torch.float32)
    with on_planish(WEIGHT, BACKWARD):
        runs = [everything(*tensors, axis) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e18])
def test_slices_of_zeros_and_of_extreme_numbers(scale: float) -> None:
    v, g, dw = given((40, 5, 7), 2, torch.float32)
    v = v * scale
    native = everything(v.double(), g.double(), dw.double(), 2)
    with on_planish(WEIGHT, BACKWARD):
        ours = everything(v, g, dw, 2)
    for one, other in zip(ours, native, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=0, equal_nan=True)


def test_g_of_another_shape_or_with_odd_strides_lays_the_norms_out() -> None:
    v, _, dw = given((40, 5, 7), 2, torch.float32)
    base = torch.rand(7)
    for g in (base, base.view(1, 1, 7), base.as_strided((1, 1, 7), (3, 99, 1))):
        native = torch._weight_norm_interface(v, g, 2)
        backward = torch.ops.aten._weight_norm_interface_backward
        theirs = [*native, *backward(dw, v, g, native[1], 2)]
        with on_planish(WEIGHT, BACKWARD):
            ours = torch._weight_norm_interface(v, g, 2)
            mine = [*ours, *backward(dw, v, g, ours[1], 2)]
        assert description(mine) == description(theirs)
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other)


def test_modules_of_torchs_run_on_planish() -> None:
    torch.manual_seed(3)
    made = {
        "parametrized": nn.utils.parametrizations.weight_norm(nn.Conv1d(300, 6, 11)),
        "hooked": nn.utils.weight_norm(nn.ConvTranspose1d(6, 300, 11)),  # type: ignore[no-untyped-call]
        "last axis": nn.utils.parametrizations.weight_norm(nn.Linear(33, 300), dim=1),
    }
    inputs = {"parametrized": (2, 300, 20), "hooked": (2, 6, 20), "last axis": (4, 33)}
    for name, module in made.items():
        x = torch.randn(inputs[name])
        results = []
        for context in (planish.enabled("layer_norm"), on_planish(WEIGHT, BACKWARD)):
            with context:
                y = module(x)
                results.append([y, *torch.autograd.grad(y.square().sum(), [*module.parameters()])])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "axis"), [((5, 3, 20), 2), ((2, 3, 1025), 0)])
def test_a_derivative_is_right_and_a_second_one_torchs(shape: tuple[int, ...], axis: int) -> None:
    """torch's second derivative takes the norms for constants, which its own gradgradcheck finds;
    it is made of torch's operators."""
    v, g, dw = given(shape, axis, torch.float64)
    rest, small, g = v[..., 3:], v[..., :3].clone().requires_grad_(), g.requires_grad_()

    def run(part: Tensor, g: Tensor) -> Tensor:  # a weight that is large enough for planish
        return torch._weight_norm(torch.cat([part, rest], -1), g, axis)

    def second() -> tuple[Tensor, ...]:
        first = torch.autograd.grad(run(small, g), (small, g), dw, create_graph=True)
        return torch.autograd.grad([d.square().sum() for d in first], (small, g))

    native = second()
    with planish.enabled():
        assert torch.autograd.gradcheck(lambda *all: run(*all)[..., :4], (small, g))
    with on_planish(WEIGHT):
        ours = second()
    for one, other in zip(ours, native, strict=True):
        torch.testing.assert_close(one, other)


def test_a_backward_after_disable_or_of_a_forward_before_enable() -> None:
    v, g, dw = given((40, 5, 7), 2, torch.float32)
    leaves = [v.requires_grad_(), g.requires_grad_()]
    native = torch._weight_norm(*leaves, 2)
    wanted = torch.autograd.grad(native, leaves, dw, retain_graph=True)
    with planish.enabled():
        w = torch._weight_norm(*leaves, 2)
    with on_planish(BACKWARD):
        found = torch.autograd.grad(native, leaves, dw)
    for gradients in (found, torch.autograd.grad(w, leaves, dw)):
        for one, other in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    v, g, _ = given((40, 5, 7), 2, dtype)
    with torch.autocast("cpu"):
        native = torch._weight_norm(v, g, 2)
        with on_planish(WEIGHT):
            ours = torch._weight_norm(v, g, 2)
    assert description([ours]) == description([native])
    torch.testing.assert_close(ours, native)


# ---- What is left to torch -----------------------------------------------------------------------

SHAPE, LAYOUT, SPEED = (
    "shapes that do not fit",
    "a layout that torch refuses",
    "a norm of which torch's own kernel is faster",
)
V = torch.randn(40, 5, 7)
HANDED_ON: dict[str, tuple[tuple[Any, ...], str]] = {
    "the axis between": ((V, torch.rand(1, 5, 1), 1), SHAPE),
    "an axis from behind": ((V, torch.rand(1, 1, 7), -1), SHAPE),
    "one axis": ((torch.randn(2100), torch.rand(2100), 0), SHAPE),
    "not contiguous": ((V.transpose(0, 1), torch.rand(1, 1, 7), 2), LAYOUT),
    "integers": ((V.int(), torch.rand(1, 1, 7).int(), 2), "a dtype other than f16, bf16, f32, f64"),
    "two dtypes": ((V, torch.rand(1, 1, 7).double(), 2), "a mix of dtypes that torch refuses"),
    "few elements": ((torch.randn(SMALL), torch.rand(4, 1, 1), 0), SPEED),
    "short slices": ((torch.randn(512, 64), torch.rand(512, 1), 0), SPEED),
    "wide": ((torch.randn(512, 512), torch.rand(1, 512), 1), SPEED),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), [((0, 3), 0), ((3, 0), 1), ((0, 0, 2), 0)])
def test_a_weight_without_slices_ends_the_process(
    shape: tuple[int, ...], axis: int, dtype: torch.dtype
) -> None:
    """torch's own kernels divide by their number."""
    with on_planish(WEIGHT, BACKWARD):
        v, g, dw = given(shape, axis, dtype)
        w, norms, dv, dg = everything(v, g, dw, axis)
        everything(v, g, dw.new_zeros(()).expand(shape), axis)
    assert w.shape == dv.shape == v.shape and norms.shape == dg.shape == g.shape
    assert w.dtype == dv.dtype == dtype
    assert norms.dtype == (torch.float32 if dtype.itemsize == 2 else dtype)


@pytest.mark.parametrize("case", HANDED_ON)
def test_a_call_that_is_torchs_is_torchs(case: str) -> None:
    arguments, why = HANDED_ON[case]
    native = raised_by(lambda: torch._weight_norm_interface(*arguments))
    calls = Calls()
    with planish.enabled():
        assert raised_by(lambda: torch._weight_norm_interface(*arguments)) == native
        if native is None:
            ours = torch._weight_norm_interface(*arguments)
    assert set(calls.on_torch(WEIGHT)) == {why}
    assert not calls.on_planish(WEIGHT)
    if native is None:
        for one, other in zip(ours, torch._weight_norm_interface(*arguments), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "forward", "backward"),
    [
        ((512, 80, 7), 0, torch.float32, True, False),
        ((512, 512, 3), 0, torch.float32, False, False),
        ((512, 512, 3), 0, torch.bfloat16, True, True),
        ((64, 4096), 0, torch.float32, True, True),
        ((1000, 2048), 0, torch.float32, False, False),
        ((1024, 1024), 1, torch.float32, False, False),
        ((1024, 1024), 1, torch.bfloat16, True, True),
        ((4096, 1024), 1, torch.float16, False, False),
        ((128, 64, 4), 2, torch.float32, True, True),
        ((256, 64), 0, torch.bfloat16, False, False),
        ((512, 256, 16), 0, torch.float32, False, True),
        ((1024, 512, 4), 2, torch.bfloat16, False, True),
        ((768, 48, 128), 2, torch.bfloat16, True, False),
    ],
)
def test_sizes_of_which_torch_is_faster_are_torchs(
    shape: tuple[int, ...], axis: int, dtype: torch.dtype, forward: bool, backward: bool
) -> None:
    tensors, calls = given(shape, axis, dtype), Calls()
    with planish.enabled():
        everything(*tensors, axis)
    assert calls.on_planish(WEIGHT) == forward
    assert calls.on_planish(BACKWARD) == backward
    for name, ran in ((WEIGHT, forward), (BACKWARD, backward)):
        assert calls.on_torch(name) == ({} if ran else {SPEED: 1})


def test_slices_side_by_side_are_torchs_where_it_has_many_threads() -> None:
    cases: list[tuple[torch.dtype, int, bool, bool]] = [
        (torch.float32, 2, True, False),
        (torch.float32, 4, False, False),
        (torch.bfloat16, 2, False, False),
    ]
    for dtype, threads, forward, backward in cases:
        tensors, calls = given((128, 64, 4), 2, dtype), Calls()
        torch.set_num_threads(threads)
        with planish.enabled():
            everything(*tensors, 2)
        assert calls.on_planish(WEIGHT) == forward
        assert calls.on_planish(BACKWARD) == backward


def test_a_backward_with_what_torch_refuses_is_torchs() -> None:
    v, g, dw = given((40, 5, 7), 2, torch.float32)
    norms = torch._weight_norm_interface(v, g, 2)[1]
    turned = v.transpose(0, 1).contiguous().transpose(0, 1)
    backward = torch.ops.aten._weight_norm_interface_backward
    for arguments in (
        (dw, turned, g, norms, 2),
        (dw, v, g, torch.rand(1, 1, 14)[..., ::2], 2),
        (dw.double(), v, g, norms, 2),
    ):
        native, calls = raised_by(lambda: backward(*arguments)), Calls()  # noqa: B023
        with planish.enabled():
            assert raised_by(lambda: backward(*arguments)) == native  # noqa: B023
        assert calls.on_torch(BACKWARD), arguments


@pytest.mark.parametrize(("ops", "runs"), [("weight_norm", 1), ("layer_norm", 0)])
def test_the_group_is_enabled_by_its_name(ops: str, runs: int) -> None:
    v, g, _ = given((40, 5, 7), 2, torch.float32)
    calls = Calls()
    with planish.enabled(ops):
        torch._weight_norm(v, g, 2)
    assert calls.on_planish(WEIGHT) == runs
