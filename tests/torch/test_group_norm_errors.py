"""aten::native_group_norm on planish: errors, what goes to torch, enabling and disabling."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch.nn.functional as F
from group_norm_support import aten, raised_by
from support import GROUP, GROUP_BACKWARD, Calls, description, on_planish

import planish
import torch
from torch import Tensor

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d

torch.manual_seed(0)

X, WEIGHT = torch.randn(2, 6, 4, 5), torch.randn(6)

WRONG, LAYOUT = "shapes that do not fit", "a layout that torch refuses"

DTYPE, MIXED = "a dtype other than f16, bf16, f32, f64", "a mix of dtypes that torch refuses"


def backward(**changed: object) -> object:
    _, mean, rstd = aten.native_group_norm(X, None, None, 2, 6, 20, 3, 1e-5)
    given: dict[str, object] = {"dy": X, "x": X, "mean": mean, "rstd": rstd, "weight": None}
    given |= {"sizes": (2, 6, 20), "groups": 3, "mask": [True, False, False]}
    given |= changed
    sizes = given.pop("sizes")
    assert isinstance(sizes, tuple)
    dy, x, mean, rstd, weight, groups, mask = given.values()
    return aten.native_group_norm_backward(dy, x, mean, rstd, weight, *sizes, groups, mask)


def forward(x: Tensor, sizes: tuple[int, int, int], groups: int, *parameters: object) -> object:
    weight, bias = [*parameters, None, None][:2]
    return aten.native_group_norm(x, weight, bias, *sizes, groups, 1e-5)


MISTAKES: dict[str, tuple[str, str, Callable[[], object]]] = {
    "channels not divisible": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 4)),
    "no groups": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 0)),
    "weight of another size": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 3, WEIGHT[:5])),
    "weight of another rank": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 3, WEIGHT.view(2, 3))),
    "bias of another size": (GROUP, WRONG, lambda: forward(X, (2, 6, 20), 3, None, WEIGHT[:1])),
    "integers": (GROUP, DTYPE, lambda: F.group_norm(X.int(), 3)),
    "complex": (GROUP, DTYPE, lambda: F.group_norm(X.to(torch.complex64), 3)),
    "float weight of half x's bias": (
        GROUP,
        MIXED,
        lambda: F.group_norm(X.half(), 3, WEIGHT.half(), WEIGHT),
    ),
    "double weight": (GROUP, MIXED, lambda: F.group_norm(X, 3, WEIGHT.double())),
    "not dense": (GROUP, LAYOUT, lambda: forward(X.permute(0, 2, 3, 1), (2, 4, 30), 2)),
    "gradient of another dtype": (GROUP_BACKWARD, MIXED, lambda: backward(dy=X.double())),
    "statistics of another dtype": (
        GROUP_BACKWARD,
        MIXED,
        lambda: backward(mean=torch.zeros(2, 3).double()),
    ),
    "statistics of another size": (GROUP_BACKWARD, WRONG, lambda: backward(mean=torch.zeros(2, 2))),
    "gradient of no weight": (
        GROUP_BACKWARD,
        "the gradient of a parameter that is not there",
        lambda: backward(mask=[True, True, False]),
    ),
    "other groups": (GROUP_BACKWARD, WRONG, lambda: backward(groups=6)),
}
#: No mistakes from torch 2.14 on.
TAKEN_BY_SOME = {"not dense", "gradient of no weight"}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_raises_something_else_or_is_not_counted(name: str) -> None:
    operator, reason, call = MISTAKES[name]
    native = raised_by(call)
    assert native or name in TAKEN_BY_SOME, "torch takes this"
    calls = Calls()
    with planish.enabled():
        ours = raised_by(call)
    assert ours == native
    on_torch = {} if name == "not dense" and not native else {reason: 1}
    assert calls.on_torch(operator) == on_torch


@pytest.mark.parametrize(
    ("reason", "call"),
    [
        ("no elements", lambda: F.group_norm(X[:0], 3)),
        ("more axes than planish takes", lambda: F.group_norm(X.view(2, 6, *[1] * 13, 20), 3)),
        ("refused by libplanish", lambda: F.group_norm(X, 3, eps=float("inf"))),
    ],
)
def test_what_goes_to_torch_is_changed_or_not_counted(
    reason: str, call: Callable[[], Tensor]
) -> None:
    native = call()
    calls = Calls()
    with planish.enabled():
        ours = call()
    assert calls.on_torch(GROUP) == {reason: 1}
    assert description([ours]) == description([native])
    assert torch.equal(ours, native)


def test_errors_leak_tensors() -> None:
    before = X._use_count(), WEIGHT._use_count()
    with planish.enabled():
        for _ in range(50):
            for _, _, call in MISTAKES.values():
                with contextlib.suppress(Exception):
                    call()
            F.group_norm(X, 3, WEIGHT, WEIGHT)
    assert (X._use_count(), WEIGHT._use_count()) == before


def test_enabling_one_group_enables_the_other() -> None:
    calls = Calls()
    with planish.enabled("layer_norm"):
        F.group_norm(X, 3)
    assert calls.on_planish(GROUP) == 0
    with planish.enabled("group_norm"):
        F.group_norm(X, 3)
        F.layer_norm(X, (5,))
    assert calls.on_planish(GROUP) == 1
    assert calls.on_planish("native_layer_norm") == 0


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_graph_recorded_before_enabling_or_disabling_has_other_gradients(
    channels_last: bool,
) -> None:
    x = X.contiguous(memory_format=LAST) if channels_last else X
    leaves = [x.clone(memory_format=torch.preserve_format).requires_grad_()]
    leaves += [WEIGHT.clone().requires_grad_() for _ in range(2)]

    def loss() -> Tensor:
        return F.group_norm(leaves[0], 3, leaves[1], leaves[2]).pow(3).sum()

    native = torch.autograd.grad(loss(), leaves)
    before = loss()
    with on_planish(GROUP, GROUP_BACKWARD):
        across = torch.autograd.grad(before, leaves)
        inside = torch.autograd.grad(loss(), leaves)
        recorded = loss()
    after = torch.autograd.grad(recorded, leaves)
    for found in (across, inside, after):
        for mine, theirs in zip(found, native, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
