"""Enabling and disabling: at any time, again and again, under running threads, across a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch.nn.functional as F
from support import (
    GROUP,
    LAYER,
    LAYER_BACKWARD,
    REPLACED,
    RMS,
    RMS_BACKWARD,
    Calls,
    another_override,
    dispatch_tables,
    on_planish,
)

import planish
import torch
from planish.library import switch
from planish.library.loaded import library

X = torch.randn(3, 8)


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a new process, which finds planish as this one does."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def test_disable_leaves_something_in_torchs_dispatch_table() -> None:
    planish.enable()  # the backward of RMS norm stays for good: make it part of what was before
    planish.disable()
    before = dispatch_tables()
    kernels = {name: dict(op.py_kernels) for name, op in overloads().items()}
    planish.enable()
    assert dispatch_tables() != before
    assert planish.disable()
    assert dispatch_tables() == before
    assert {name: dict(op.py_kernels) for name, op in overloads().items()} == kernels


def overloads() -> dict[str, torch._ops.OpOverload]:
    return {name: getattr(torch.ops.aten, name).default for name in ("rms_norm", "_fused_rms_norm")}


def test_enabling_twice_is_two_enables() -> None:
    planish.enable()
    once = dispatch_tables()
    planish.enable()
    assert dispatch_tables() == once
    with on_planish(LAYER):
        F.layer_norm(X, (8,))
    assert planish.disable()


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_enabling_one_group_enables_the_other(op: str) -> None:
    calls = Calls()
    with planish.enabled(op):
        F.layer_norm(X, (8,))
        F.rms_norm(X, (8,))
    assert calls.on_planish(LAYER) == (op == "layer_norm")
    assert calls.on_planish(RMS) == (op == "rms_norm")


def test_groups_enabled_one_after_the_other_replace_each_other() -> None:
    planish.enable("layer_norm")
    planish.enable("rms_norm")
    with on_planish(LAYER, RMS):
        F.layer_norm(X, (8,))
        F.rms_norm(X, (8,))


def test_enabled_does_not_restore_what_was() -> None:
    planish.enable("layer_norm")
    before = dispatch_tables()
    with planish.enabled():
        assert switch.is_enabled("rms_norm")
    assert dispatch_tables() == before
    assert switch.is_enabled("layer_norm")
    assert not switch.is_enabled("rms_norm")
    with pytest.raises(KeyError), planish.enabled("rms_norm"):
        raise KeyError
    assert dispatch_tables() == before


@pytest.mark.parametrize(
    "wrong", [{"ops": "spectral_norm"}, {"devices": "tpu"}, {"ops": []}], ids=str
)
def test_an_unknown_name_is_accepted(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"planish\.enable: (ops|devices)"):
        planish.enable(**wrong)  # type: ignore[arg-type]
    assert not switch.is_enabled("layer_norm")


def test_calls_after_disable_run_on_planish() -> None:
    with planish.enabled():
        F.layer_norm(X, (8,))
    calls = Calls()
    F.layer_norm(X, (8,))
    F.rms_norm(X, (8,))
    assert calls.on_planish(LAYER) == calls.on_planish(RMS) == 0


@pytest.mark.parametrize("function", [F.layer_norm, F.rms_norm])
def test_backward_after_disable_fails_or_differs(function: object) -> None:
    assert callable(function)
    x, weight = torch.randn(5, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    with planish.enabled():
        inside = torch.autograd.grad(function(x, (33,), weight).square().sum(), [x, weight])
        y = function(x, (33,), weight)
    after = torch.autograd.grad(y.square().sum(), [x, weight])
    for one, other in zip(inside, after, strict=True):
        torch.testing.assert_close(one, other)


def test_forward_before_enable_then_backward_fails() -> None:
    x, weight = torch.randn(5, 33, requires_grad=True), torch.randn(33, requires_grad=True)
    losses = [f(x, (33,), weight).square().sum() for f in (F.layer_norm, F.rms_norm)]
    native = [torch.autograd.grad(loss, [x, weight], retain_graph=True) for loss in losses]
    with on_planish(LAYER_BACKWARD):
        ours = [torch.autograd.grad(loss, [x, weight]) for loss in losses]
    for one, other in zip(ours, native, strict=True):
        torch.testing.assert_close(one, other)


def test_disable_under_running_threads_crashes_or_spoils_results() -> None:
    """Four threads run norms, forward and backward, while planish comes and goes 60 times."""
    torch.set_num_threads(1)
    x, weight = torch.randn(4, 64), torch.randn(64)
    wanted = [f(x, (64,), weight) for f in (F.layer_norm, F.rms_norm)]
    stop, wrong = threading.Event(), []

    def work() -> None:
        leaf = x.clone().requires_grad_()
        while not stop.is_set():
            for function, right in zip((F.layer_norm, F.rms_norm), wanted, strict=True):
                try:
                    y = function(leaf, (64,), weight)
                    (gradient,) = torch.autograd.grad(y.sum(), leaf)
                    if not torch.allclose(y, right, 1e-4, 1e-5) or gradient.isnan().any():
                        wrong.append("values")
                except BaseException as error:
                    wrong.append(repr(error))

    calls = Calls()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            planish.enable()
            time.sleep(0.005)
            planish.disable()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]
    assert calls.on_planish(LAYER) > 0
    assert calls.on_planish(RMS) > 0
    assert planish.disable()


def test_a_kernel_is_removed_under_a_thread_inside_it() -> None:
    """disable() comes back at once, and what is inside ends well."""
    torch.set_num_threads(1)
    x = torch.randn(6000, 4096)
    right = F.layer_norm(x[:1], (4096,))
    planish.enable("layer_norm")
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(F.layer_norm(x, (4096,))))
    calls = Calls()
    thread.start()
    while not calls.on_planish(LAYER):
        time.sleep(0)
    planish.disable()
    thread.join()
    torch.testing.assert_close(results[0][:1], right)
    assert planish.disable()


FORK = """
import os, sys, threading, torch, planish
import torch.nn.functional as F
torch.set_num_threads(1)
planish.enable()
x = torch.randn(500, 512)
y = F.layer_norm(x, (512,))
big = torch.randn(20000, 4096)
before = planish.stats()["native_layer_norm"]["planish"]
inside = threading.Thread(target=lambda: F.layer_norm(big, (4096,)))
inside.start()
while planish.stats()["native_layer_norm"]["planish"] == before:
    pass
child = os.fork()  # while a thread, which the child does not have, is inside a kernel
if child == 0:
    torch.set_num_threads(1)
    same = torch.equal(F.layer_norm(x, (512,)), y)
    gone = planish.disable()
    after = torch.allclose(F.layer_norm(x, (512,)), y, 1e-4, 1e-5)
    sys.stdout.flush()
    os._exit(0 if same and gone and after else 1)
_, status = os.waitpid(child, 0)
inside.join()
assert torch.equal(F.layer_norm(x, (512,)), y)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_process_cannot_run_or_disable() -> None:
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("first", ["import planish, torch", "import torch, planish"])
@pytest.mark.parametrize("then", ["", "planish.enable()"])
def test_importing_or_enabling_leaves_a_process_that_cannot_fork(first: str, then: str) -> None:
    """A process in which threads of GNU's OpenMP have run hangs in its child's first region."""
    program = f"""
{first}
import os, signal, sys
{then}
child = os.fork()
if child == 0:
    signal.alarm(60)
    torch.set_num_threads(2)
    y = planish.layer_norm(torch.randn(512, 4096), -1) + torch.randn(512, 4096)
    os._exit(0 if torch.isfinite(y).all() and torch.get_num_threads() == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr


def test_exit_while_enabled_crashes_or_enabling_prints() -> None:
    program = """
import torch, planish, torch.nn.functional as F
planish.enable()
F.layer_norm(torch.randn(3, 8, requires_grad=True), (8,)).sum().backward()
planish.disable(); planish.enable()
F.rms_norm(torch.randn(3, 8), (8,))
"""
    done = run_python(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_torchs_warning_about_others_is_lost() -> None:
    """Where torch has one: from 2.14 on it says nothing."""
    program = """
import torch
library = torch.library.Library("aten", "IMPL")
library.impl("native_layer_norm", lambda *a: a, "CPU")
"""
    alone, beside = (
        run_python(program),
        run_python(f"import torch, planish\nplanish.enable(){program}"),
    )
    warning = "Overriding a previously registered kernel"
    assert (alone.returncode, beside.returncode) == (0, 0), beside.stderr
    assert (warning in beside.stderr) == (warning in alone.stderr)


def test_many_enables_keep_memory() -> None:
    planish.enable()
    planish.disable()

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(50):
        planish.enable()
        planish.disable()
    before = resident()
    for _ in range(200):
        planish.enable()
        planish.disable()
    assert resident() - before < 200 * 16384


def test_calls_keep_memory() -> None:
    x = torch.randn(16, 4096, requires_grad=True)
    weight = torch.randn(4096, requires_grad=True)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def work() -> None:
        for _ in range(100):
            for function in (F.layer_norm, F.rms_norm):
                torch.autograd.grad(function(x, (4096,), weight).sum(), [x, weight])

    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        work()
        before = resident()
        work()
        work()
    assert resident() - before < 8 << 20  # 400 leaked results would be 100 MiB


# ---- Calls without the boxed stack -------------------------------------------------------------


#: On a newer torch calls stay boxed (PLANISH_TORCH_NEWEST in src/torch/planish_torch.h).
KNOWN = library().torch_version() <= 214


def unboxed() -> dict[str, int]:
    return {name: counts["unboxed"] for name, counts in planish.stats().items()}


def below_autograd() -> list[torch.Tensor]:
    """The four operators, boxed as Python's torch.ops call them."""
    aten = torch.ops.aten
    x, dy, image = X, torch.ones_like(X), torch.arange(48.0).sin().reshape(2, 6, 2, 2)
    weight, bias = torch.linspace(1, 2, 8), torch.linspace(-1, 1, 8)
    scale, sizes = torch.linspace(1, 2, 6), (2, 6, 4)
    with torch.inference_mode():
        y, mean, rstd = aten.native_layer_norm.default(x, [8], weight, bias, 1e-5)
        found = [y, mean, rstd]
        mask = [True, True, True]
        found += aten.native_layer_norm_backward.default(dy, x, [8], mean, rstd, weight, bias, mask)
        y, mean, rstd = aten.native_group_norm.default(image, scale, None, *sizes, 3, 1e-5)
        found += [y, mean, rstd]
        found += aten.native_group_norm_backward.default(
            image, image, mean, rstd, scale, *sizes, 3, mask
        )
    return found


def as_from_cpp() -> list[torch.Tensor]:
    """The same by way of torch's C++ functions, which autograd calls."""
    x = X.clone().requires_grad_()
    weight, bias = (t.requires_grad_() for t in (torch.linspace(1, 2, 8), torch.linspace(-1, 1, 8)))
    image = torch.arange(48.0).sin().reshape(2, 6, 2, 2).requires_grad_()
    scale = torch.linspace(1, 2, 6).requires_grad_()
    y, mean, rstd = torch.native_layer_norm(x, [8], weight, bias, 1e-5)
    found = [y, mean, rstd, *torch.autograd.grad(y, [x, weight, bias], torch.ones_like(y))]
    y, mean, rstd = torch.native_group_norm(image, scale, None, 2, 6, 4, 3, 1e-5)
    return [*found, y, mean, rstd, *torch.autograd.grad(y, [image, scale], image.detach())]


def test_calls_from_cpp_come_boxed_or_their_results_differ() -> None:
    with on_planish(*REPLACED[:4]):
        before = unboxed()
        boxed = below_autograd()
        assert unboxed() == before, "these calls are boxed: nothing would be compared"
        results = as_from_cpp()
        came = {name: n - before[name] for name, n in unboxed().items() if n > before[name]}
        assert came == dict.fromkeys((LAYER, LAYER_BACKWARD, GROUP) if KNOWN else (), 1)
    del boxed[-1]  # the gradient of the bias that is not there
    for one, other in zip(results, boxed, strict=True):
        assert torch.equal(one, other)


def test_what_torch_refuses_or_an_undefined_weight_breaks_a_call_from_cpp() -> None:
    with planish.enabled():
        for arguments in [(X, (7,)), (X.long(), (8,)), (X, (8,), torch.ones(7))]:
            with pytest.raises((RuntimeError, NotImplementedError)):
                F.layer_norm(*arguments)
        y = F.layer_norm(X, (8,), None, torch.ones(8))
    torch.testing.assert_close(y, F.layer_norm(X, (8,), None, torch.ones(8)))


def test_another_override_that_comes_and_goes_leaves_calls_boxed() -> None:
    with on_planish(LAYER):
        with another_override(X):
            assert torch.equal(F.layer_norm(torch.ones(3, 8), (8,)), X)
        before = unboxed()[LAYER]
        F.layer_norm(X, (8,))
        assert unboxed()[LAYER] == before + KNOWN
