"""Bare batch norms that planish's own functions and modules make of torch's operator, marked as
their own: bits, running statistics, derivatives, and whose a call is. PLANISH_TEST_DEVICE=cuda has
them on a GPU."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch.nn.functional as F
from batch_norm_support import LAST, NATIVE, NATIVE_BACKWARD, aten
from support import DEVICE, FLOATS, Calls, Watched, description

import planish
import torch
from planish.library.loaded import library
from torch import Tensor, nn

BATCH, APPLY, BACKWARD = (
    "planish::batch_norm",
    "planish::norm_apply",
    "planish::norm_backward_apply",
)
torch.manual_seed(0)
X = torch.randn(3, 6, 4, 5).to(DEVICE)
W, B, MEAN, VAR = (torch.rand(6).to(DEVICE) + 0.5 for _ in range(4))
LAYOUTS = {
    "dense": X,
    "channels last": X.contiguous(memory_format=LAST),
    "one pixel, channels last": X[:, :, :1, :1].contiguous(memory_format=LAST),
    "samples between channels": X.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": torch.cat((X, X), -1)[..., ::2],
    "rows": X[:, :, 0, 0],
}
MIXES = [*((d, d) for d in FLOATS), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)]

by_training = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def is_torchs(y: Tensor) -> bool:
    """Whether its derivative is torch's own, in C++."""
    return y.grad_fn is not None and y.grad_fn.name() == "NativeBatchNormBackward0"


def leaf(x: Tensor = X, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=DEVICE)
    return made.copy_(x).requires_grad_()


def batch_norm(training: bool = True) -> planish.BatchNorm2d:
    return planish.BatchNorm2d(6).to(DEVICE).train(training)


def kept() -> contextlib.AbstractContextManager[None]:
    """Hooks take what is saved, so that a call goes the long way, by planish's own operator."""
    hooks: contextlib.AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t
    )
    return hooks


@by_training
@pytest.mark.parametrize("module", [False, True], ids=["function", "module"])
def test_a_call_has_no_derivative_in_cpp_or_is_not_counted(training: bool, module: bool) -> None:
    norm = batch_norm(training)
    x, calls = leaf(), Calls()
    y = norm(x) if module else planish.batch_norm(x, MEAN.clone(), VAR.clone(), training=training)
    assert is_torchs(y)
    torch.autograd.grad(y.sum(), x)
    forward, other = (BATCH, APPLY) if training else (APPLY, BATCH)
    assert [calls.on_planish(name) for name in (forward, other, BACKWARD)] == [1, 0, 1]
    calls = Calls()
    with torch.no_grad():
        norm(x)
    assert calls.on_planish(forward) == 1
    calls = Calls()
    y = F.batch_norm(x, MEAN.clone(), VAR.clone(), training=training)
    torch.autograd.grad(y.sum(), x)
    names = BATCH, APPLY, BACKWARD, NATIVE, NATIVE_BACKWARD
    assert [calls.on_planish(name) for name in names] == [0] * 5
    assert not calls.on_torch(NATIVE), "it is no call of which planish has a part"


def step(
    x: Tensor, dtype: torch.dtype, training: bool, given: tuple[bool, ...]
) -> list[Tensor | None]:
    """All that a call returns and writes."""
    w, b, mean, var = (
        t.to(dtype, copy=True) if there else None
        for t, there in zip((W, B, MEAN, VAR), (*given, given[-1]), strict=True)
    )
    for parameter in (w, b):
        if parameter is not None:
            parameter.requires_grad_()
    y = planish.batch_norm(x, mean, var, w, b, training, 0.3)
    dy = torch.linspace(-1, 1, y.numel(), device=DEVICE).reshape(y.shape).to(y.dtype)
    wanted = [t for t in (x, w, b) if t is not None]
    return [y.detach(), mean, var, *torch.autograd.grad(y, wanted, dy)]


@by_training
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "others"), MIXES, ids=str)
def test_the_way_or_the_switch_changes_bits(
    dtype: torch.dtype, others: torch.dtype, layout: str, training: bool
) -> None:
    for given in itertools.product([True, False], repeat=3):
        if not (training or given[-1]):
            continue
        x = leaf(LAYOUTS[layout], dtype)
        found = [step(x, others, training, given)]
        with kept():
            found.append(step(x, others, training, given))
        with planish.enabled():
            found.append(step(x, others, training, given))
        for other in found[1:]:
            assert description(found[0]) == description(other)
            for one, two in zip(found[0], other, strict=True):
                assert one is None or torch.equal(one, two)


@by_training
def test_inference_has_other_bits_or_leaves_the_statistics(training: bool) -> None:
    norms = [batch_norm(training) for _ in range(2)]
    for dtype in (torch.float32, torch.bfloat16):
        x = X.to(dtype)
        with torch.no_grad():
            y = norms[0](x)
        assert torch.equal(y, norms[1](x.clone().requires_grad_()).detach())
        for one, other in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
            assert torch.equal(one, other)


@by_training
def test_a_graph_forgets_whose_it_is(training: bool) -> None:
    """Where the switch was thrown meanwhile, and on a thread of its own."""

    def made() -> tuple[list[Tensor], Tensor]:
        leaves = [leaf(dtype=torch.bfloat16), *(t.bfloat16().requires_grad_() for t in (W, B))]
        running = MEAN.bfloat16(), VAR.bfloat16()
        return leaves, planish.batch_norm(leaves[0], *running, *leaves[1:], training)

    leaves, y = made()
    wanted = torch.autograd.grad(y.square().sum(), leaves)
    for on_then, on_later in itertools.product([False, True], repeat=2):
        with planish.enabled() if on_then else contextlib.nullcontext():
            leaves, y = made()
        found: list[Tensor] = []

        gradients = functools.partial(torch.autograd.grad, y.square().sum(), leaves)
        thread = threading.Thread(target=lambda f=found, g=gradients: f.extend(g()))  # type: ignore
        with planish.enabled() if on_later else contextlib.nullcontext():
            calls = Calls()
            thread.start()
            thread.join()
        assert calls.on_planish(BACKWARD, NATIVE_BACKWARD) == 1
        assert calls.on_planish(BACKWARD) == (not on_later)
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


@by_training
def test_statistics_of_torchs_have_the_mark(training: bool) -> None:
    """Not by being in one memory, nor by being vectors, nor by having no elements."""
    planish.batch_norm(X, MEAN.clone(), VAR.clone())  # planish stays under torch's operator
    size = 6 if training else 0
    mean, rstd = torch.rand(size).to(DEVICE), torch.rand(size).to(DEVICE) + 1
    both = torch.stack((mean, rstd))
    apart, tight = (torch.zeros(count, device=DEVICE) for count in (2 * 16 + 7, 2 * 16))
    interleaved = torch.stack((mean, rstd), -1)
    pairs = [(mean, rstd), (both[0], both[1]), (interleaved[:, 0], interleaved[:, 1])]
    pairs += [(apart[:size], apart[17 : 17 + size]), (apart[:size], apart[:size])]
    pairs += [(tight[:size], tight[16 : 16 + size])]
    for pair in pairs:
        pair[0].copy_(mean), pair[1].copy_(rstd)
        calls = Calls()
        arguments = X.cos(), X, W, MEAN, VAR, *pair, training, 1e-5, [True] * 3
        aten.native_batch_norm_backward(*arguments)
        assert calls.on_planish(BACKWARD) == 0


def test_saved_statistics_are_no_vectors() -> None:
    """What torch's formulas and users of the graph read."""
    for channels in (1, 6, 16, 33):
        x = torch.randn(4, channels, 3).to(DEVICE).requires_grad_()
        node = planish.batch_norm(x, None, None, training=True).grad_fn
        assert node is not None
        mean, rstd = node._saved_result1, node._saved_result2  # type: ignore[attr-defined]
        assert mean.shape == rstd.shape == (channels,) and mean.is_contiguous()
        torch.testing.assert_close(mean, x.detach().mean((0, 2)))
        var = x.detach().var((0, 2), unbiased=False)
        torch.testing.assert_close(rstd, (var + 1e-5).rsqrt())


def test_running_statistics_written_later_end_the_backward() -> None:
    """In training it does not read them: models broadcast their buffers in between."""
    norm = batch_norm()
    x, version = leaf(), norm.running_mean._version
    y = norm(x)
    assert norm.running_mean._version == version, "they are written without a trace, as torch's"
    norm.running_mean.zero_()
    (found,) = torch.autograd.grad(y.square().sum(), x)
    (wanted,) = torch.autograd.grad(norm(x).square().sum(), x)
    assert torch.equal(found, wanted)


def test_running_statistics_that_want_a_gradient_are_refused() -> None:
    mean = MEAN.clone().requires_grad_()
    for training in (True, False):
        y = planish.batch_norm(leaf(), mean, VAR.clone(), training=training)
        assert y.requires_grad and not is_torchs(y)


def test_a_call_that_failed_marks_the_next() -> None:
    norm = batch_norm()
    for bad in (
        lambda: planish.batch_norm(leaf(), MEAN, VAR, W[:5]),
        lambda: planish.batch_norm(leaf(), MEAN[:3], VAR),
        lambda: planish.batch_norm(leaf(), None, None),
        lambda: planish.batch_norm(leaf(), MEAN, VAR, training=True, eps=-1.0),
        lambda: norm(leaf(X[:1, :, :1, :1])),
    ):
        for _ in range(2):
            with pytest.raises((RuntimeError, ValueError)):
                bad()
        calls = Calls()
        y = F.batch_norm(leaf(), None, None, training=True)
        assert calls.on_planish(BATCH) == calls.on_planish(NATIVE) == 0
        torch.autograd.grad(y.sum(), y.grad_fn.next_functions[0][0].variable)  # type: ignore
        assert calls.on_planish(BACKWARD) == 0


@contextlib.contextmanager
def another_kernel() -> Iterator[None]:
    """Another library's batch norm."""
    other = torch.library.Library("aten", "IMPL")
    with library().quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = lambda x, *_: (x.clone(), x.mean((0, 2, 3)), x.mean((0, 2, 3)))  # noqa: E731
        other.impl(NATIVE, made, DEVICE.upper())
    yield
    other._destroy()


def test_another_librarys_kernel_takes_a_call_of_planishs_own() -> None:
    one, other = batch_norm(), batch_norm()
    x = leaf()
    wanted = one(x)
    with another_kernel():
        assert torch.equal(aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0], x)
        y = other(x)
        assert torch.equal(y, wanted)
        torch.autograd.grad(y.sum(), x)
        with torch.no_grad():
            assert torch.equal(other(x), one(x))
    for mine, right in zip(other.buffers(), one.buffers(), strict=True):
        assert torch.equal(mine, right), "and its running statistics are written once"


def test_what_sees_calls_sees_another() -> None:
    with Watched() as mode:
        planish.batch_norm(X, MEAN.clone(), VAR.clone(), training=True)
    assert "planish.batch_norm.default" in mode.seen
    with torch.autocast(DEVICE, torch.bfloat16):
        assert planish.batch_norm(X, MEAN, VAR).dtype == torch.float32
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        planish.batch_norm(X, MEAN, VAR)
    assert f"aten::{NATIVE}" in {event.name for event in profile.events()}
    with torch.inference_mode():
        made = X.clone()
    weight = W.clone().requires_grad_()
    y = planish.batch_norm(made, None, None, weight, training=True)
    torch.autograd.grad(y.sum(), weight)


@by_training
def test_gradients_by_the_batch_differ(training: bool) -> None:
    norm = batch_norm(training)
    x = leaf()
    y = norm(x)
    dys = torch.randn(3, *y.shape).to(DEVICE)
    wanted = [x, *norm.parameters()]
    found = torch.autograd.grad(y, wanted, dys, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, wanted, dy, retain_graph=True) for dy in dys]
    for i, one in enumerate(found):
        torch.testing.assert_close(one, torch.stack([gradients[i] for gradients in each]))


@by_training
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "bare"])
def test_higher_derivatives_are_not_those_of_the_formula(training: bool, affine: bool) -> None:
    """To the third order, and with a weight or without, which torch's formula stumbles over."""

    def formula(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        wide = x if training else MEAN.double().view(1, -1, 1, 1).expand(1, 6, 1, 1)
        centred = x - (wide.mean((0, 2, 3), keepdim=True))
        var = centred.square().mean((0, 2, 3), keepdim=True) if training else VAR.double()
        y = centred * (var.view(1, -1, 1, 1) + 1e-5).rsqrt()
        return y * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1) if affine else y

    def own(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        running = MEAN.double(), VAR.double()
        y = planish.batch_norm(x, *running, *((w, b) if affine else ()), training=training)
        assert is_torchs(y)
        return y

    def derivatives(norm: Callable[..., Tensor]) -> list[Tensor | None]:
        leaves = [t.double().requires_grad_() for t in (X, W, B)]
        found: list[Tensor | None] = []
        value = norm(*leaves).pow(3).sum()
        for order in range(3):
            gradients = torch.autograd.grad(
                value, leaves, create_graph=order < 2, allow_unused=True
            )
            found += gradients
            value = sum(g.square().sum() for g in gradients if g is not None)  # type: ignore
        return found

    for mine, right in zip(derivatives(own), derivatives(formula), strict=True):
        if right is None or mine is None:
            assert mine is None or not mine.any()
            continue
        scale = right.abs().max().item()
        torch.testing.assert_close(mine, right, rtol=1e-7, atol=1e-9 * scale + 1e-9)


def test_replaced_models_have_planishs_operator_in_python() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)).to(DEVICE)
    planish.replace(model)
    assert is_torchs(model(torch.randn(2, 3, 5, 5).to(DEVICE)))
