"""Calls of fused norms that are known from before: the bits of the first, of every order of
derivative, and never another call's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.checkpoint

import planish
import torch
from planish.operators import kept
from torch import Tensor

pytestmark = pytest.mark.usefixtures("in_one_call")

Function = Callable[..., Any]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "add_rms": (planish.add_rms_norm, ((2, 3, 8), (2, 3, 8), (8,))),
    "add_rms xhat": (
        lambda *t: planish.add_rms_norm(*t, cast="xhat"),
        ((2, 3, 8), (2, 3, 8), (8,)),
    ),
    "add_layer": (planish.add_layer_norm, ((2, 3, 8), (2, 3, 8), (8,), (8,))),
    "add_layer scaled": (
        lambda x, r, w, b, c: planish.add_layer_norm(x, r, w, b, column_scale=c),
        ((2, 3, 8), (2, 3, 8), (8,), (8,), (8,)),
    ),
    "modulated": (planish.modulated_layer_norm, ((2, 3, 8), (2, 1, 8), (2, 1, 8))),
    "modulated sum": (
        lambda x, a, b, r, g: planish.modulated_rms_norm(x, a, b, residual=r, gate=g),
        ((2, 3, 8), (2, 1, 8), (2, 1, 8), (2, 3, 8), (2, 1, 8)),
    ),
    "scale alone": (
        lambda x, a: planish.modulated_layer_norm(x, a, None),
        ((2, 3, 8), (2, 1, 8)),
    ),
    "shift alone": (
        lambda x, r, w: planish.modulated_rms_norm(x, None, r, w),
        ((2, 3, 8), (2, 3, 8), (8,)),
    ),
    "short shift alone": (
        lambda x, r, w: planish.modulated_rms_norm(x, None, r, w),
        ((2, 3, 8), (2, 1, 8), (8,)),
    ),
    "gated": (planish.gated_rms_norm, ((2, 3, 8), (2, 3, 8), (8,))),
    "gated before": (
        lambda *t: planish.gated_rms_norm(*t, norm_before_gate=False),
        ((2, 3, 8), (2, 3, 8), (8,)),
    ),
    "gated groups": (
        lambda *t: planish.gated_layer_norm(*t, group_size=4, norm_before_gate=False),
        ((2, 3, 8), (2, 3, 8), (8,), (8,)),
    ),
    "gated groups, no weight": (
        lambda *t: planish.gated_rms_norm(*t, group_size=4, cast="xhat"),
        ((2, 3, 8), (2, 3, 8)),
    ),
}


def step(function: Function, tensors: list[Tensor]) -> list[Tensor]:
    found = function(*tensors)
    results = [found] if isinstance(found, Tensor) else list(found)
    wanted = [t for t in tensors if t.requires_grad]
    if not wanted:
        return results
    dys = [drawn(*y.shape, dtype=y.dtype, seed=9 + i) for i, y in enumerate(results)]
    return [*(y.detach() for y in results), *torch.autograd.grad(results, wanted, dys)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_known_call_has_other_bits(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    tensors = [drawn(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes)]
    kept._calls.clear()
    first = step(function, tensors)
    assert len(kept._calls) == 1
    for one, other in zip(step(function, tensors), first, strict=True):
        assert torch.equal(one, other)
    for needed in itertools.product((False, True), repeat=len(tensors)):
        if not any(needed):
            continue
        live = [t.clone().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
        kept._calls.clear()
        first = step(function, live)
        assert len(kept._calls) == 1
        for one, other in zip(step(function, live), first, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_a_known_call_are_wrong(name: str) -> None:
    function, shapes = CASES[name]
    tensors = [drawn(*s, seed=i).double().requires_grad_() for i, s in enumerate(shapes)]
    function(*tensors)  # from here on it is known
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_another_call_takes_a_known_one() -> None:
    """Whatever of a call is another, its result is as without anything known."""
    x, r, w = drawn(2, 3, 8), drawn(2, 3, 8, seed=1), drawn(8, seed=2)
    calls: list[Callable[[], Any]] = [
        lambda: planish.add_rms_norm(x, r, w),
        lambda: planish.add_rms_norm(x, r, w, 1e-2),
        lambda: planish.add_rms_norm(x, r, w, weight_offset=1.0),
        lambda: planish.add_rms_norm(x, r, w, weight_offset=0.5),
        lambda: planish.add_rms_norm(x, r, w, sum_dtype=torch.float64),
        lambda: planish.add_rms_norm(x, r, w, out_dtype=torch.bfloat16),
        lambda: planish.add_rms_norm(x, r, w, row_scale=drawn(2, 3)),
        lambda: planish.add_rms_norm(x, r),
        lambda: planish.add_rms_norm(x.bfloat16(), r, w),
        lambda: planish.add_rms_norm(x.mT.contiguous().mT, r, w),
        lambda: planish.add_rms_norm(x[:1], r[:1], w),
        lambda: planish.add_rms_norm(x, r, w.expand(3, 8)),
        lambda: planish.add_layer_norm(x, r, w),
        lambda: planish.add_layer_norm(x, r, None, w),
        lambda: planish.gated_rms_norm(x, r, w),
        lambda: planish.gated_rms_norm(x, r, w, group_size=2),
        lambda: planish.gated_rms_norm(x, r, w, norm_before_gate=False),
        lambda: planish.modulated_rms_norm(x, w, r),
        lambda: planish.modulated_rms_norm(x, r, w),
    ]
    wanted = []
    for call in calls:
        kept._calls.clear()
        wanted.append(call())
    for _ in range(2):
        for call, other in zip(calls, wanted, strict=True):
            found = call()
            pair = (found, other) if isinstance(found, tuple) else ((found,), (other,))
            for a, b in zip(*pair, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def test_what_is_wrong_passes_because_something_right_is_known() -> None:
    x, w = drawn(2, 3, 8), drawn(8)
    planish.add_rms_norm(x, x, w)
    planish.add_rms_norm(x, x, w, dropout_p=0.0, training=False)
    with pytest.raises(ValueError, match="dropout_p"):
        planish.add_rms_norm(x, x, w, dropout_p=2.0, training=False)
    with pytest.raises(ValueError, match="cast"):
        planish.add_rms_norm(x, x, w, cast="twice")
    with pytest.raises(RuntimeError, match="residual"):
        planish.add_rms_norm(x, x[:1], w)
    with pytest.raises(TypeError, match="residual"):
        planish.add_rms_norm(x, 1.0, w)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scale or shift"):
        planish.modulated_rms_norm(x, None, None)


def test_inference_tensors_and_modes_break_a_known_call() -> None:
    x, w = drawn(2, 3, 8), drawn(8).requires_grad_()
    wanted = planish.add_rms_norm(x, x, w)[0]
    with torch.inference_mode():
        made = x.clone()
        assert torch.equal(planish.add_rms_norm(made, made, w)[0], wanted)
    y, _ = planish.add_rms_norm(made, made, w)
    (grad,) = torch.autograd.grad(y.sum(), w)
    (other,) = torch.autograd.grad(planish.add_rms_norm(x, x, w)[0].sum(), w)
    assert torch.equal(grad, other)
    jvp = torch.func.jvp(lambda t: planish.add_rms_norm(t, t, w.detach())[0], (x,), (x,))[1]
    assert jvp.shape == x.shape
    many = torch.vmap(lambda t: planish.add_rms_norm(t, t, w.detach())[0])(x)
    torch.testing.assert_close(many, wanted.detach())


def test_so_many_calls_are_kept_that_memory_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_ROOM", 4)
    kept._calls.clear()
    for length in range(1, 20):
        x = drawn(1, length, 8)
        assert planish.add_rms_norm(x, x)[0].shape == x.shape
        assert len(kept._calls) <= 4


@pytest.mark.parametrize("name", CASES)
def test_recomputation_under_a_checkpoint_saves_other_tensors(name: str) -> None:
    """The first call of its kind is in the forward, the second is the recomputation."""
    function, shapes = CASES[name]
    tensors = [drawn(*s, seed=i).requires_grad_() for i, s in enumerate(shapes)]
    kept._calls.clear()
    wanted = step(function, tensors)
    kept._calls.clear()

    def again(*given: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(function, *given, use_reentrant=False)

    for one, other in zip(step(again, tensors), wanted, strict=True):
        assert torch.equal(one, other)
