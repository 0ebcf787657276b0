"""Calls of torch's norms that planish's own functions make, marked as their own: planish runs them
and their derivatives, enabled or not, and no other call of these operators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from fused_blocks import SIZE, Sum
from support import FLOATS, Calls, Watched, another_override, on_planish

import planish
import torch
from planish.operators import steps
from torch import Tensor

LAYER, GROUP, FUSED, FORWARD, BACKWARD = (
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "planish::norm_forward",
    "planish::norm_backward",
)
X, W, B = torch.randn(6, 40), torch.randn(40), torch.randn(40)
NORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "layer_norm": (
        lambda x, w, b: planish.layer_norm(x, -1, w, b),
        lambda x, w, b: F.layer_norm(x, (40,), w, b),
    ),
    "group_norm": (
        lambda x, w, b: planish.group_norm(x, 4, w, b),
        lambda x, w, b: F.group_norm(x, 4, w, b),
    ),
    "rms_norm": (
        lambda x, w: planish.rms_norm(x, -1, w),
        lambda x, w: F.rms_norm(x, (40,), w, 1e-5),
    ),
}


def leaves(name: str = "", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    tensors = (X, W) if name == "rms_norm" else (X, W, B)
    return [t.to(dtype).requires_grad_() for t in tensors]


def is_torchs(y: Tensor) -> bool:
    """Whether its derivative is torch's own, in C++."""
    return y.grad_fn is not None and any(n in y.grad_fn.name() for n in ("Native", "FusedRms"))


@pytest.mark.parametrize("name", NORMS)
def test_a_call_has_no_derivative_in_cpp_or_runs_elsewhere(name: str) -> None:
    ours, torchs = NORMS[name]
    given, calls = leaves(name), Calls()
    y = ours(*given)
    assert is_torchs(y)
    torch.autograd.grad(y, given, torch.ones_like(y))
    assert (calls.on_planish(FORWARD), calls.on_planish(BACKWARD)) == (1, 1)
    calls = Calls()
    y = torchs(*given)
    torch.autograd.grad(y, given, torch.ones_like(y))
    assert calls.on_planish(FORWARD) == calls.on_planish(BACKWARD) == 0
    assert calls.on_planish(LAYER) == calls.on_planish(GROUP) == 0
    assert calls.on_planish(FUSED) == calls.on_planish(f"{FUSED}_backward") == 0
    assert (name == "rms_norm") != is_torchs(y), "torch has it as a composition on the CPU"
    assert not calls.on_torch(LAYER) and not calls.on_torch(GROUP)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_switch_or_the_way_changes_bits(name: str, dtype: torch.dtype) -> None:
    """Of a call of its own, of one whose saved tensors hooks take, and of those while enabled."""
    ours, _ = NORMS[name]
    given = leaves(name, dtype)
    dy = torch.randn(X.shape).to(dtype)
    found = []
    for hooked in (False, True):
        if hooked:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                y = ours(*given)
            assert not is_torchs(y)
        else:
            y = ours(*given)
        found.append([y, *torch.autograd.grad(y, given, dy)])
    if name != "group_norm":
        with planish.enabled():
            y = ours(*given)
        found.append([y, *torch.autograd.grad(y, given, dy)])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", NORMS)
def test_a_graph_forgets_whose_it_is(name: str) -> None:
    """Where the switch was thrown meanwhile, and on a thread of its own."""
    ours, _ = NORMS[name]
    given = leaves(name, torch.bfloat16)
    wanted = torch.autograd.grad(ours(*given).sum(), given)
    with planish.enabled():
        y = ours(*given)
    planish.disable()
    calls, found = Calls(), []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(y.sum(), given)))
    thread.start()
    thread.join()
    assert calls.on_planish(BACKWARD) == 1 or name != "layer_norm"
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_a_call_that_failed_marks_the_next() -> None:
    planish.layer_norm(X, -1)
    with pytest.raises(RuntimeError):
        planish.layer_norm(X, -1, torch.ones(3))
    with pytest.raises(RuntimeError, match="eps is nan; wanted a finite number"):
        planish.layer_norm(X, -1, eps=float("nan"))
    calls = Calls()
    F.layer_norm(X, (40,))
    F.group_norm(X, 4)
    assert calls.on_planish(FORWARD) == 0


def test_a_mode_sees_planishs_call_as_another() -> None:
    """What takes calls apart, and autocast, goes the way of planish's own operators."""
    with Watched() as mode:
        planish.layer_norm(X, -1, W, B)
    assert f"{FORWARD.replace('::', '.')}.default" in mode.seen
    calls = Calls()
    with torch.autocast("cpu", torch.bfloat16):
        planish.layer_norm(X, -1, W, B)
    assert calls.on_planish(FORWARD) == 1


SUMS: dict[str, Callable[..., Any]] = {
    "add_layer_norm": lambda x, r, w, b: planish.add_layer_norm(x, r, w, b),
    "add_rms_norm": lambda x, r, w, b: planish.add_rms_norm(x, r, w),
    "qk_norm": lambda x, r, w, b: planish.qk_norm(x, r, w, b, 1e-6, kind="layer"),
}


@pytest.mark.parametrize("on", [False, True], ids=["off", "enabled"])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_small_call_has_other_bits_than_a_large_one(
    dtype: torch.dtype, name: str, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*leaves(dtype=dtype), torch.randn(X.shape).to(dtype).requires_grad_()]
    x, w, b, r = given
    dys = [torch.randn(X.shape).to(dtype) for _ in range(2)]
    if on:
        planish.enable()
    found = []
    for small in (1 << 16, 0):
        monkeypatch.setattr(steps, "_SMALL", {False: small, True: small})
        results = SUMS[name](x, r, w, b)
        used = [x, r, w] if name == "add_rms_norm" else [x, r, w, b]
        found.append([*results, *torch.autograd.grad(results, used, dys)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_small_sum_of_a_model_is_one_call_in_training(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There torch's sum and the norm behind it cost the host less than a function of Python's."""
    stages, x = "planish::norm_forward (stages)", torch.randn(3, SIZE, dtype=dtype)
    blocks = [Sum().to(dtype) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    planish.replace(blocks[0])
    planish.replace(blocks[1], fuse=True)
    found = []
    for block in blocks:
        calls = Calls()
        y = block(x)
        assert calls.on_planish(stages) == 0 and calls.on_planish(FORWARD) == 1
        found.append([y, *torch.autograd.grad(y.sum(), [block.norm.weight, block.linear.weight])])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    monkeypatch.setattr(steps, "_SMALL", {False: 0, True: 0})
    calls = Calls()
    blocks[1](x)
    assert calls.on_planish(stages) == 1


def test_another_override_hides_what_enable_puts_above_it() -> None:
    planish.layer_norm(X, -1)  # planish stays under torch's operator from here on
    with another_override(X):
        with on_planish(LAYER):
            assert not torch.equal(F.layer_norm(X, (40,)), X)
        assert torch.equal(F.layer_norm(B.expand(6, 40), (40,)), X)
    assert not torch.equal(F.layer_norm(X, (40,)), X)
