"""planish's operators called by their kernels at once (src/python/own_calls.c), and bare norms
without the dispatcher (short_calls.c): what comes back and what is counted is as by the dispatcher.
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest
from support import Calls

import planish
import torch
from planish.library import quick
from planish.operators.call import make_call
from torch import Tensor, nn

X, GATE, W, B = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64), torch.randn(64)
CALL = make_call([1], [1], rms=False, eps=1e-5, save=True)
FORWARD = torch.ops.planish.norm_forward.default


def _arguments(x: Any, gate: Any = None, weight: Any = None) -> tuple[Any, ...]:
    none = None
    return x, none, none, none, none, weight, B, none, none, gate, *CALL


def _same(found: Any, wanted: Any) -> bool:
    return len(found) == len(wanted) and all(
        (one is None and other is None) or torch.equal(one, other)
        for one, other in zip(found, wanted, strict=True)
    )


def test_every_operator_has_its_call() -> None:
    for name in quick.own:
        assert hasattr(torch.ops.planish, name)
    assert {"norm_forward", "norm_backward", "quantized_norm", "norm_pair"} <= set(quick.own)


def test_results_and_counts_are_those_of_the_dispatcher() -> None:
    for arguments in (_arguments(X), _arguments(X, GATE, W), _arguments(X.double(), None, W)):
        found = quick.own["norm_forward"](*arguments)
        assert type(found) is tuple and _same(found, FORWARD(*arguments))
        assert found[1] is None and all(type(t) is Tensor for t in found if t is not None)
    calls = Calls()
    quick.own["norm_forward"](*_arguments(X))
    assert calls.on_planish("planish::norm_forward") == 1
    mean, m2 = quick.own["norm_statistics"](X, 2)
    assert _same((mean, m2), torch.ops.planish.norm_statistics.default(X, 2))


def test_operators_of_one_result_and_of_none() -> None:
    spread = torch.ones(4, 1)
    one = X, spread, None, None, W, B, CALL.axes, 1, 1e-5
    found = quick.own["norm_apply"](*one)
    assert type(found) is Tensor and torch.equal(found, torch.ops.planish.norm_apply.default(*one))
    out, wanted = torch.empty(4, 64), FORWARD(*_arguments(X, None, W))[0]
    assert quick.own["norm_into"](X, None, W, B, None, *CALL[:2], 1e-5, out, None) is None
    assert torch.equal(out, wanted)


@pytest.mark.parametrize(
    "arguments",
    [
        _arguments(None),
        _arguments(X.to("meta")),
        _arguments(torch._efficientzerotensor((4, 64))),
        _arguments(X, torch._neg_view(GATE)),
        _arguments(X)[:-1],
        (*_arguments(X)[:-1], "no number"),
        (*_arguments(X)[:10], 1 << 80, *CALL[1:]),
        _arguments(X, torch.ones(3)),
    ],
)
def test_other_calls_are_left(arguments: tuple[Any, ...]) -> None:
    references = sys.getrefcount(X)
    for _ in range(3):
        assert quick.own["norm_forward"](*arguments) is NotImplemented
    assert sys.getrefcount(X) == references
    assert torch.ones(2).sum() == 2, "and no exception stays"


def test_a_profiler_sees_the_calls() -> None:
    weight = nn.Parameter(W.clone())
    for _ in range(2):
        planish.gated_layer_norm(X, GATE, W, B)
        planish.layer_norm(X, -1, weight.detach())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        planish.gated_layer_norm(X, GATE, W, B)
        planish.layer_norm(X, -1, weight.detach())
    names = {event.name for event in profile.events()}
    assert {"planish::norm_forward", "aten::native_layer_norm"} <= names


def _tensors() -> int:
    gc.collect()
    return sum(type(one) is Tensor for one in gc.get_objects())


def test_nothing_is_left_behind() -> None:
    """Of results, and of what calls keep of their arguments: memory comes and goes."""
    big, running = torch.randn(512, 512), (torch.zeros(512), torch.ones(512))

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def call() -> None:
        planish.gated_rms_norm(big, big)
        planish.layer_norm(big, -1)
        planish.group_norm(big, 4)
        planish.batch_norm(big, None, None, training=True)
        leaf = big.clone().requires_grad_()
        torch.autograd.grad(planish.batch_norm(leaf, *running, training=True), leaf, big)
        for given in (torch.ones(3), torch._neg_view(GATE)):
            assert quick.own["norm_forward"](*_arguments(big.clone(), given)) is NotImplemented

    for _ in range(20):
        call()
    before, count = resident(), _tensors()
    for _ in range(300):
        call()
    assert _tensors() == count and resident() - before < 64 << 20


def test_threads_call_at_once() -> None:
    """The interpreter's lock is free while a kernel runs."""
    x = torch.randn(128, 256)  # more than what keeps the lock
    wanted, found = planish.gated_rms_norm(x, x), []

    def many() -> None:
        for _ in range(200):
            found.append(torch.equal(planish.gated_rms_norm(x, x), wanted))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found) and len(found) == 800


@pytest.mark.parametrize("enabled", [False, True])
def test_bare_norms_have_the_bits_of_recorded_ones(enabled: bool) -> None:
    x, image = X.clone(), torch.randn(2, 8, 5, 5)
    channels = torch.randn(8)

    def both() -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for given, run in (
                (x.to(dtype), lambda t: planish.layer_norm(t, -1, W.to(t.dtype), B.to(t.dtype))),
                (x.to(dtype), lambda t: planish.layer_norm(t, -1)),
                (x.to(dtype), lambda t: planish.rms_norm(t, -1, W.to(t.dtype))),
                (x.to(dtype), lambda t: planish.rms_norm(t, -1, W.to(t.dtype), cast="xhat")),
                (x.to(dtype), planish.RMSNorm(64, eps=None, dtype=dtype)),
                (image.to(dtype), lambda t: planish.group_norm(t, 2, channels.to(t.dtype))),
            ):
                recorded = run(given.clone().requires_grad_())
                assert recorded.requires_grad and torch.equal(recorded, run(given))

    if enabled:
        with planish.enabled():
            both()
    else:
        both()


def test_xhat_of_wide_rows_is_rounded_by_nothing() -> None:
    for x in (X, X.double()):
        weight = W.to(x.dtype)
        y = planish.layer_norm(x, -1, weight, cast="xhat")
        assert torch.equal(y, planish.layer_norm(x, -1, weight))
    assert planish.layer_norm(X, -1, W.double(), cast="xhat").dtype == torch.float64
    assert planish.layer_norm(X.bfloat16(), -1, W, cast="xhat").dtype == torch.float32


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (lambda: planish.group_norm(torch.ones(2, 8, 3), 3), "divisible"),
        (lambda: planish.group_norm(torch.ones(2, 8, 3), 2, torch.ones(4)), r"sizes \[8\]"),
        (lambda: planish.group_norm(torch.ones(2, 8, 3), 2, torch.ones(8, 1)), "vector of size 8"),
        (lambda: planish.layer_norm(X, -1, torch.ones(63)), r"sizes \[64\]"),
    ],
)
def test_errors_are_those_of_the_long_way(run: Any, error: str) -> None:
    with pytest.raises(RuntimeError, match=error):
        run()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_tensors_on_a_gpu_are_read_where_they_lie() -> None:
    x = X.cuda()
    assert quick.key_of((), (x,), ()) is not None
    none = None
    arguments = x, none, none, none, none, W.cuda(), none, none, none, none, *CALL
    assert _same(quick.own["norm_forward"](*arguments), FORWARD(*arguments))
