"""aten's batch norms and their backwards on planish: layouts, dtypes, running statistics, values,
and what is left to torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from batch_norm_support import (
    LAST,
    LAST_3D,
    LEGIT,
    NATIVE,
    NATIVE_BACKWARD,
    NO_STATS,
    UPDATE,
    UPDATE_BACKWARD,
    aten,
    exact_batch_norm,
)
from group_norm_support import raised_by
from support import FLOATS, Calls, description, on_planish, row_error, wide

import planish
import torch
from torch import Tensor, nn

torch.manual_seed(0)


def strange(x: Tensor) -> Tensor:
    """Channels last, but an axis of one element has a stride that no layout would give it."""
    last = x.contiguous(memory_format=LAST)
    strides = [7777 if size == 1 else s for size, s in zip(x.shape, last.stride(), strict=True)]
    return last.as_strided(x.shape, strides)


LAYOUTS: dict[str, Tensor] = {
    "dense": torch.randn(3, 6, 4, 5),
    "channels last": torch.randn(3, 6, 4, 5).contiguous(memory_format=LAST),
    "channels last 3d": torch.randn(2, 6, 2, 3, 4).contiguous(memory_format=LAST_3D),
    "channels last, one sample, strange strides": strange(torch.randn(1, 6, 4, 5)),
    "one axis of pixels": torch.randn(3, 6, 7),
    "one axis of pixels, channels last": torch.randn(3, 7, 6).transpose(1, 2),
    "no pixels' axis": torch.randn(4, 6),
    "no pixels' axis, transposed": torch.randn(6, 4).t(),
    "one pixel": torch.randn(3, 6, 1, 1),
    "one sample": torch.randn(1, 6, 3, 3),
    "five axes": torch.randn(2, 6, 2, 3, 2),
    "seven axes": torch.randn(2, 6, 2, 1, 3, 1, 2),
    "sliced": torch.randn(2, 6, 4, 10)[..., ::2],
    "sliced channels": torch.randn(2, 4, 5, 12).permute(0, 3, 1, 2)[:, ::2],
    "expanded": torch.randn(2, 6, 1, 5).expand(2, 6, 4, 5),
    "samples between channels": torch.randn(6, 3, 4, 5).transpose(0, 1),
    "pixels transposed": torch.randn(2, 6, 5, 4).transpose(2, 3),
    "offset by one": torch.randn(2 * 6 * 3 * 3 + 1)[1:].view(2, 6, 3, 3),
    "one value a channel": torch.randn(1, 6, 1, 1),
    "one channel": torch.randn(5, 1, 3),
}


def running(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, 6).to(dtype), torch.linspace(0.5, 2, 6).to(dtype)


def everything(x: Tensor, training: bool, affine: bool = True, track: bool = True) -> list[Any]:
    """All that both operators return and write, by way of torch's autograd."""
    channels = x.shape[1]
    weight = torch.linspace(1, 2, channels, dtype=x.dtype) if affine else None
    bias = torch.linspace(-1, 1, channels, dtype=x.dtype) if affine else None
    mean, var = (t[:channels].to(x.dtype) for t in running()) if track else (None, None)
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    given = [*leaves, *(None,) * (3 - len(leaves))]
    results = aten.native_batch_norm(*given, mean, var, training, 0.3, 1e-5)
    dy = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    return [*results, *torch.autograd.grad(results[0], leaves, dy), mean, var]


def assert_close(ours: list[Any], theirs: list[Any]) -> None:
    assert description(ours) == description(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_differs_from_torch(layout: str, training: bool) -> None:
    x = LAYOUTS[layout]
    native = everything(x, training)
    with on_planish(NATIVE, NATIVE_BACKWARD):
        ours = everything(x, training)
    assert_close(ours, native)


@pytest.mark.parametrize(("affine", "track"), [(False, True), (True, False), (False, False)])
def test_absent_parameters_or_statistics_differ_from_torch(affine: bool, track: bool) -> None:
    for layout in ("dense", "channels last", "no pixels' axis"):
        native = everything(LAYOUTS[layout], True, affine, track)
        with on_planish(NATIVE, NATIVE_BACKWARD):
            ours = everything(LAYOUTS[layout], True, affine, track)
        assert_close(ours, native)


#: dtype of x, of parameters; None: none.
MIXES = [*((d, d) for d in FLOATS), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)]


@pytest.mark.parametrize(("dtype", "others"), MIXES, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels last"])
def test_dtypes_differ_from_torch(
    dtype: torch.dtype, others: torch.dtype, training: bool, last: bool
) -> None:
    x = torch.randn(4, 6, 5, 3).to(dtype)
    x = x.contiguous(memory_format=LAST) if last else x
    dy = torch.randn(4, 6, 5, 3).to(dtype)
    weight, bias = torch.linspace(1, 2, 6).to(others), torch.linspace(-1, 1, 6).to(others)

    def call(affine: bool) -> list[Any]:
        mean, var = running(others)
        w, b = (weight, bias) if affine else (None, None)
        y, *saved = aten.native_batch_norm(x, w, b, mean, var, training, 0.3, 1e-5)
        arguments = dy, x, w, mean.clone(), var.clone(), *saved, training, 1e-5
        return [y, *saved, *aten.native_batch_norm_backward(*arguments, [True] * 3), mean, var]

    for affine in (True, False):
        native = call(affine)
        with on_planish(NATIVE, NATIVE_BACKWARD):
            ours = call(affine)
        assert description(ours) == description(native)
        w, b = (weight, bias) if affine else (None, None)
        exact = exact_batch_norm(x, w, b, dy, None if training else running(others))
        y, mean, var, dx, dweight, dbias = exact
        if training:
            count = x.numel() // 6
            old_mean, old_var = (wide(t) for t in running(others))
            unbiased = var * count / (count - 1)
            ends = [0.7 * old_mean + 0.3 * mean, 0.7 * old_var + 0.3 * unbiased]
            for mine, right in zip(ours[-2:], ends, strict=True):
                assert row_error(mine, right, None) <= 1
        assert row_error(ours[0], y, None) <= 4
        # torch saves what it saves: narrow statistics make the gradients narrow
        rights, theirs = (dx, dweight, dbias), native[3:6]
        for mine, their, right in zip(ours[3:6], theirs, rights, strict=True):
            assert row_error(mine, right, None) <= max(row_error(their, right, None), 16)


@pytest.mark.parametrize("wanted", list(itertools.product([True, False], repeat=3)), ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_gradient_that_is_not_wanted_is_made(wanted: tuple[bool, ...], training: bool) -> None:
    x, dy, weight = torch.randn(4, 6, 5), torch.randn(4, 6, 5), torch.randn(6)
    mean, var = running()

    def call() -> list[Any]:
        _, *saved = aten.native_batch_norm(x, weight, None, mean, var, training, 0.0, 1e-5)
        return list(
            aten.native_batch_norm_backward(
                dy, x, weight, mean, var, *saved, training, 1e-5, list(wanted)
            )
        )

    native = call()
    with on_planish(NATIVE_BACKWARD):
        ours = call()
    assert [t is not None for t in ours] == [t is not None for t in native]
    assert_close(ours, native)


def test_other_operators_differ_from_torch() -> None:
    x = torch.randn(4, 6, 5, 3)
    weight, bias = torch.randn(6), torch.randn(6)

    def legit(training: bool) -> list[Any]:
        mean, var = running()
        made = aten._native_batch_norm_legit(x, weight, bias, mean, var, training, 0.3, 1e-5)
        return [*made, mean, var]

    def functional() -> list[Any]:
        arguments = x, weight, bias, *running(), True, 0.3, 1e-5
        return list(aten._native_batch_norm_legit_functional(*arguments))

    def no_training() -> list[Any]:
        arguments = x, weight, bias, *running(), 0.3, 1e-5
        return list(aten._native_batch_norm_legit_no_training(*arguments))

    def no_stats() -> list[Any]:
        return list(aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.3, 1e-5))

    def with_update() -> list[Any]:
        mean, var = running()
        made = aten._batch_norm_with_update(x, weight, bias, mean, var, 0.3, 1e-5)
        saved, reserve = made[1:3], made[3]
        arguments = x.cos(), x, weight, mean, var, *saved, True, 1e-5, [True] * 3, reserve
        return [*made, mean, var, *aten.batch_norm_backward(*arguments)]

    for call, operators in (
        (lambda: legit(True), [LEGIT]),
        (lambda: legit(False), [LEGIT]),
        (functional, [LEGIT]),
        (no_training, [LEGIT]),
        (no_stats, [NO_STATS]),
        (with_update, [UPDATE, UPDATE_BACKWARD]),
    ):
        native = call()
        with on_planish(*operators):
            ours = call()
        assert_close(ours, native)


WRONG = "shapes that do not fit"
DTYPE, MIXED = "a dtype other than f16, bf16, f32, f64", "a mix of dtypes that torch refuses"
X, V = torch.randn(2, 6, 4), torch.ones(6)


def native(*arguments: Any) -> Callable[[], Any]:
    return lambda: aten.native_batch_norm(*arguments)


def function(*arguments: Any, **more: Any) -> Callable[[], Any]:
    return lambda: F.batch_norm(*arguments, **more)


#: What is raised, and why torch got the call; None: torch's Python or composite raised before.
BAD: dict[str, tuple[Callable[[], Any], str | None]] = {
    "long": (native(X.long(), None, None, None, None, True, 0.1, 1e-5), DTYPE),
    "double weights": (native(X, V.double(), V.double(), V, V, True, 0.1, 1e-5), MIXED),
    "half weights": (native(X, V.half(), V.half(), None, None, True, 0.1, 1e-5), MIXED),
    "mixed statistics": (native(X.half(), V, V, V.half(), V.half(), True, 0.1, 1e-5), MIXED),
    "another number of channels": (function(X, V[:5], V[:5]), None),
    "another number of weights": (function(X, V, V, V[:3]), None),
    "function, eval without statistics": (function(X, None, None), None),
    "one value a channel": (function(X[:1, :, :1], V, V, training=True), None),
    "eps of 0 in training": (function(X, V, V, training=True, eps=0.0), None),
    "negative eps": (function(X, V, V, eps=-1.0), None),
    "long, function": (function(X.long(), None, None, training=True), DTYPE),
    "1 axis": (function(torch.randn(6), V, V), None),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_something_else(case: str) -> None:
    call, why = BAD[case]
    expected = raised_by(call)
    calls = Calls()
    with planish.enabled():
        assert raised_by(call) == expected
    assert expected is not None
    assert calls.on_torch(NATIVE) == ({why: 1} if why else {})


def test_what_ends_the_process_in_torch_ends_it() -> None:
    """torch's kernel reads statistics that are not there."""
    with planish.enabled():
        for mean, var in ((None, None), (V, None)):
            call = native(X, V, V, mean, var, False, 0.1, 1e-5)
            name = "running_var" if var is None and mean is not None else "running_mean"
            expected = (RuntimeError, f"{name} must be defined in evaluation mode")
            assert raised_by(call) == expected


def test_an_empty_batch_changes_the_statistics() -> None:
    for module in (nn.BatchNorm2d(6), nn.BatchNorm2d(6).eval()):
        x = torch.randn(0, 6, 3, 3, requires_grad=True)
        native = raised_by(lambda m=module, x=x: m(x).sum().backward())
        with planish.enabled():
            ours = raised_by(lambda m=module, x=x: m(x).sum().backward())
        assert ours == native
        assert module.running_mean.eq(0).all()
        assert module.running_var.eq(1).all()


def test_a_version_counts_the_running_statistics() -> None:
    """torch's kernels write them without a trace, and models rely on it."""
    norm = nn.BatchNorm2d(6)
    before = [t._version for t in (norm.running_mean, norm.running_var)]
    with on_planish(NATIVE):
        norm(torch.randn(2, 6, 3, 3))
    assert [t._version for t in (norm.running_mean, norm.running_var)] == before
    assert not norm.running_mean.eq(0).all()


def test_momentum_none_is_no_cumulative_average() -> None:
    batches = [torch.randn(4, 6, 3) for _ in range(3)]
    norm, torchs = nn.BatchNorm1d(6, momentum=None), nn.BatchNorm1d(6, momentum=None)
    for x in batches:
        torchs(x)
    with on_planish(NATIVE):
        for x in batches:
            norm(x)
    for mine, other in zip(norm.buffers(), torchs.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_switching_between_forward_and_backward_fails(training: bool) -> None:
    norm = nn.BatchNorm2d(6).train(training)
    x = torch.randn(3, 6, 4, 4)

    def step(forward_on: bool, backward_on: bool) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        if forward_on:
            planish.enable()
        y = norm(leaf)
        planish.disable()
        if backward_on:
            planish.enable()
        found = torch.autograd.grad(y.pow(3).sum(), [leaf, *norm.parameters()])
        planish.disable()
        return [y.detach(), *found]

    expected = step(False, False)
    for forward_on, backward_on in ((True, False), (False, True), (True, True)):
        torch.testing.assert_close(step(forward_on, backward_on), expected)


#: Mean / standard deviation, standard deviation, and how many values a channel has.
HARD = {
    "mean 1e4": (1e4, 1.0, 4 * 63),
    "tiny": (0.0, 1e-30, 4 * 63),
    "huge": (3.0, 1e20, 4 * 63),
    "constant": (3.0, 0.0, 4 * 63),
    "many": (100.0, 1.0, 4 * 50000),
}


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "channels last"])
@pytest.mark.parametrize("case", HARD)
def test_hard_values_are_inexact(case: str, last: bool) -> None:
    ratio, deviation, count = HARD[case]
    x = (torch.randn(4, 3, count // 4, 1) + ratio) * (deviation if deviation else 0) + (
        0 if deviation else ratio
    )
    x = x.contiguous(memory_format=LAST) if last else x
    dy = torch.randn_like(x)
    eps = 1e-5 if deviation >= 1 or not deviation else 1e-62
    norm_mean, norm_var = torch.zeros(3), torch.zeros(3)
    with on_planish(NATIVE, NATIVE_BACKWARD):
        y, *saved = aten.native_batch_norm(x, None, None, norm_mean, norm_var, True, 1.0, eps)
        arguments = dy, x, None, None, None, *saved, True, eps, [True, True, True]
        gradients = aten.native_batch_norm_backward(*arguments)
    exact_y, mean, var, dx, _, dbias = exact_batch_norm(x, None, None, dy, eps=eps)
    assert row_error(y, exact_y, None) <= 4
    assert row_error(norm_mean, mean, None) <= 1
    if deviation == 1:
        assert row_error(norm_var, var * count / (count - 1), None) <= 4
    assert row_error(gradients[2], dbias, None, abs(wide(dy)).sum((0, 2, 3))) <= 4
    if case != "constant":
        assert row_error(gradients[0], dx, None) <= 16


def test_threads_change_bits() -> None:
    x = torch.randn(16, 12, 20, 20)
    for tensor in (x, x.contiguous(memory_format=LAST)):
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            mean, var = torch.zeros(12), torch.ones(12)
            with on_planish(NATIVE, NATIVE_BACKWARD):
                y, *saved = aten.native_batch_norm(tensor, None, None, mean, var, True, 0.1, 1e-5)
                arguments = x, tensor, None, mean, var, *saved, True, 1e-5, [True] * 3
                gradients = aten.native_batch_norm_backward(*arguments)
            found.append([y, *saved, mean, var, *gradients])
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_running_statistics_in_strided_memory_are_missed() -> None:
    x = torch.randn(4, 6, 5)
    mean, var = torch.zeros(12)[::2], torch.ones(6, 2)[:, 0]
    expected = [torch.zeros(6), torch.ones(6)]
    aten.native_batch_norm(x, None, None, *expected, True, 0.3, 1e-5)
    with on_planish(NATIVE):
        aten.native_batch_norm(x, None, None, mean, var, True, 0.3, 1e-5)
    torch.testing.assert_close([mean, var], expected)


def test_instance_norm_differs_from_torch() -> None:
    x = torch.randn(3, 6, 5, 4)
    weight = torch.randn(6, requires_grad=True)

    def call(**more: Any) -> list[Any]:
        leaf = x.clone().requires_grad_()
        mean, var = running()
        y = F.instance_norm(leaf, mean, var, weight, **more)
        return [y, *torch.autograd.grad(y.pow(3).sum(), [leaf, weight]), mean, var]

    for more in ({}, {"use_input_stats": False}):
        expected = call(**more)
        with on_planish(NATIVE, NATIVE_BACKWARD):
            ours = call(**more)
        assert_close(ours, expected)
