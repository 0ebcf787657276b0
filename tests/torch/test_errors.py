"""A mistake raises, with planish enabled, the exception and the words that torch alone raises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch.nn.functional as F
from support import LAYER, LAYER_BACKWARD, RMS, Calls, on_planish

import planish
import torch

aten = torch.ops.aten
X = torch.randn(3, 4)


def layer_backward(**changed: object) -> object:
    _, mean, rstd = aten.native_layer_norm(X, (4,), None, None, 1e-5)
    given = {"dy": X, "x": X, "shape": (4,), "mean": mean, "rstd": rstd, "weight": None}
    given.update(changed)
    return aten.native_layer_norm_backward(*given.values(), None, [True, False, False])


MISTAKES: dict[str, Callable[[], object]] = {
    "layer_norm: size that does not fit": lambda: F.layer_norm(X, (5,)),
    "layer_norm: no axes": lambda: F.layer_norm(X, ()),
    "layer_norm: more axes than x": lambda: F.layer_norm(X, (2, 3, 4)),
    "layer_norm: a scalar": lambda: F.layer_norm(torch.tensor(1.0), (1,)),
    "layer_norm: weight of another size": lambda: F.layer_norm(X, (4,), torch.ones(5)),
    "layer_norm: bias of another size": lambda: F.layer_norm(X, (4,), None, torch.ones(5)),
    "layer_norm: weight of another rank": lambda: F.layer_norm(X, (4,), torch.ones(1, 4)),
    "layer_norm: integers": lambda: F.layer_norm(X.int(), (4,)),
    "layer_norm: complex": lambda: F.layer_norm(X.to(torch.complex64), (4,)),
    "layer_norm: float8": lambda: F.layer_norm(X.to(torch.float8_e4m3fn), (4,)),
    "layer_norm: booleans": lambda: F.layer_norm(X > 0, (4,)),
    "layer_norm: weight on another device": lambda: F.layer_norm(
        X, (4,), torch.ones(4, device="meta")
    ),
    "layer_norm: float x with half weight": lambda: F.layer_norm(X, (4,), torch.ones(4).half()),
    "layer_norm: weight and bias of two dtypes": lambda: F.layer_norm(
        X.half(), (4,), torch.ones(4).half(), torch.ones(4)
    ),
    "layer_norm: sparse": lambda: F.layer_norm(X.to_sparse(), (4,)),
    "layer_norm_backward: gradient of another dtype": lambda: layer_backward(dy=X.double()),
    "layer_norm_backward: statistics of another dtype": lambda: layer_backward(
        mean=torch.zeros(3, 1).double()
    ),
    "rms_norm: size that does not fit": lambda: F.rms_norm(X, (5,)),
    "rms_norm: no axes": lambda: F.rms_norm(X, ()),
    "rms_norm: more axes than x": lambda: F.rms_norm(X, (2, 3, 4)),
    "rms_norm: weight of another size": lambda: F.rms_norm(X, (4,), torch.ones(1)),
    "rms_norm: integers": lambda: F.rms_norm(X.int(), (4,)),
    "_fused_rms_norm: more axes than x": lambda: aten._fused_rms_norm(X, (2, 3, 4), None, None),
    "_fused_rms_norm: integers": lambda: aten._fused_rms_norm(X.int(), (4,), None, None),
}


def raised(mistake: Callable[[], object]) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:
        mistake()
    return type(caught.value), str(caught.value).split("\nException raised from")[0]


@pytest.mark.parametrize("inference", [False, True], ids=["autograd", "inference"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_raises_something_else_than_under_torch(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        native = raised(MISTAKES[name])
        with on_planish():
            ours = raised(MISTAKES[name])
    assert ours == native


@pytest.mark.parametrize(
    ("operator", "reason", "call"),
    [
        (LAYER, "shapes that do not fit", lambda: F.layer_norm(X, (5,))),
        (LAYER, "a dtype other than f16, bf16, f32, f64", lambda: F.layer_norm(X.int(), (4,))),
        (
            LAYER,
            "a mix of dtypes that torch refuses",
            lambda: F.layer_norm(X, (4,), torch.ones(4).half()),
        ),
        (
            LAYER,
            "more axes than planish takes",
            lambda: F.layer_norm(X.reshape([1] * 15 + [3, 4]), (4,)),
        ),
        (LAYER, "refused by libplanish", lambda: F.layer_norm(X, (4,), eps=float("inf"))),
        (
            LAYER_BACKWARD,
            "the gradient of a parameter that is not there",
            lambda: aten.native_layer_norm_backward(
                X, X, (4,), X[:, :1], X[:, :1].contiguous(), None, None, [True, True, False]
            ),
        ),
        (RMS, "no elements", lambda: F.rms_norm(X[:0], (4,))),
        ("rms_norm (autograd)", "shapes that do not fit", lambda: F.rms_norm(X, (5,))),
    ],
)
def test_a_call_handed_to_torch_is_not_counted_with_its_reason(
    operator: str, reason: str, call: Callable[[], object]
) -> None:
    calls = Calls()
    with planish.enabled(), contextlib.suppress(RuntimeError):
        call()
    assert calls.on_torch(operator) == {reason: 1}


def test_complex_input_of_rms_norm_loses_its_result_or_gradient() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
    native = F.rms_norm(x, (4,))
    (gradient,) = torch.autograd.grad(native.abs().sum(), x)
    with on_planish():
        ours = F.rms_norm(x, (4,))
        (our_gradient,) = torch.autograd.grad(ours.abs().sum(), x)
    assert torch.equal(ours, native)
    assert torch.equal(our_gradient, gradient)


@pytest.mark.parametrize("function", [F.layer_norm, F.rms_norm])
def test_errors_leak_tensors(function: Callable[..., object]) -> None:
    x, weight = torch.randn(64, 1024), torch.randn(1024)
    before = x._use_count(), weight._use_count()
    with planish.enabled():
        for _ in range(100):
            with pytest.raises(RuntimeError):
                function(x, (5,), weight)
            function(x, (1024,), weight)
    assert (x._use_count(), weight._use_count()) == before
