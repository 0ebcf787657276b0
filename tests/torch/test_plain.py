"""planish's own operators for plain tensors, which go past what torch runs in Python around them.

Each case is compared with the operator as it is registered, which is what tracing, transforms and
modes see.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import Calls, Watched
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import planish
import torch
from planish.library.seen import is_plain
from torch import Tensor

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"
IMAGE = torch.randn(2, 6, 4, 5)
APART = torch.randn(400).as_strided((2, 6, 2), (160, 10, 15))
LAST = IMAGE.to(memory_format=torch.channels_last)


Norm = Callable[[Tensor, Tensor, Tensor], Tensor]
NORMS: dict[str, Norm] = {
    "layer_norm": lambda x, w, b: planish.layer_norm(x, 1, w, b),
    "rms_norm": lambda x, w, b: planish.rms_norm(x, 1, w, b),
    "group_norm": lambda x, w, b: planish.group_norm(x, 3, w, b),
    "group_norm, no bias": lambda x, w, b: planish.group_norm(x, 3, w),
    "group_norm, bare": lambda x, w, b: planish.group_norm(x, 3),
    "group_norm and silu": lambda x, w, b: planish.group_norm(x, 3, w, b, activation="silu"),
    "weights": lambda x, w, b: planish.weight_standardize(x),
}


def parameters(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.linspace(1, 2, 6, dtype=dtype), torch.linspace(-1, 1, 6, dtype=dtype)


def run(norm: Norm, x: Tensor, dtype: torch.dtype) -> list[Tensor | None]:
    """y, dx and what there is of dweight and dbias."""
    leaves = [t.detach().clone().requires_grad_() for t in parameters(dtype)]
    x = x.detach().requires_grad_()
    y = norm(x, *leaves)
    dy = torch.arange(y.numel()).sin().reshape(y.shape).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *leaves], dy, allow_unused=True)]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(
    "x", [IMAGE, LAST, APART, IMAGE.half()], ids=["NCHW", "NHWC", "apart", "half"]
)
def test_plain_tensors_give_other_results_or_layouts(name: str, x: Tensor) -> None:
    found = run(NORMS[name], x, torch.float32)
    with Watched() as mode:
        wanted = run(NORMS[name], x, torch.float32)
    assert {
        f"{FORWARD.replace('::', '.')}.default",
        f"{BACKWARD.replace('::', '.')}.default",
    } <= mode.seen
    assert not found[0]._is_view()
    for one, other in zip(found, wanted, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    with torch.no_grad():
        bare = NORMS[name](x, *parameters())
    assert torch.equal(bare, found[0])
    assert bare.stride() == found[0].stride()
    assert not bare._is_view()
    assert not bare.requires_grad


def test_plain_tensors_go_the_long_way_or_others_the_short_one() -> None:
    live = IMAGE.clone().requires_grad_()
    assert "NormForward" in planish.layer_norm(live, 1).grad_fn.name()
    seen = Watched()
    planish.layer_norm(live, 1)
    with seen:
        planish.layer_norm(live, 1)
    assert f"{FORWARD.replace('::', '.')}.default" in seen.seen

    class Sub(Tensor):
        pass

    assert "NormForward" not in planish.layer_norm(live.as_subclass(Sub), 1).grad_fn.name()
    assert not is_plain(live.as_subclass(Sub))
    assert is_plain(torch.nn.Parameter(IMAGE), None)
    assert torch.vmap(lambda t: torch.tensor(is_plain(t)))(IMAGE).sum() == 0
    with torch.autograd.forward_ad.dual_level():
        assert not is_plain(IMAGE)


def test_only_one_of_the_tensors_wants_a_gradient() -> None:
    for which in range(3):
        tensors = [IMAGE.clone(), *parameters()]
        tensors[which].requires_grad_()
        y = planish.group_norm(tensors[0], 3, *tensors[1:])
        (found,) = torch.autograd.grad(y.square().sum(), tensors[which])
        exact = torch.group_norm(tensors[0].double(), 3, *(t.double() for t in tensors[1:]))
        (wanted,) = torch.autograd.grad(exact.square().sum(), tensors[which])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm"])
def test_second_gradients_of_plain_tensors_are_wrong(name: str) -> None:
    tensors = [t.double().requires_grad_() for t in (torch.randn(2, 6, 3), *parameters())]
    assert torch.autograd.gradcheck(NORMS[name], tensors)
    assert torch.autograd.gradgradcheck(NORMS[name], tensors)


def test_a_graph_recorded_shows_the_short_way() -> None:
    for name in ("layer_norm", "group_norm"):
        graph = make_fx(NORMS[name])(IMAGE, *parameters())
        assert "planish.norm_forward" in graph.code
        torch.testing.assert_close(graph(IMAGE, *parameters()), NORMS[name](IMAGE, *parameters()))
        compiled = torch.compile(NORMS[name], backend="aot_eager", fullgraph=True)
        x = IMAGE.clone().requires_grad_()
        found = torch.autograd.grad(compiled(x, *parameters()).square().sum(), x)[0]
        wanted = torch.autograd.grad(NORMS[name](x, *parameters()).square().sum(), x)[0]
        assert torch.equal(found, wanted)


def test_hooks_checkpoints_and_inference_mode_do_not_go_together_with_it() -> None:
    x = IMAGE.clone().requires_grad_()
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        y = planish.group_norm(x, 3, *parameters())
    assert len(packed) == 4
    again = checkpoint(NORMS["group_norm"], x, *parameters(), use_reentrant=False)
    wanted = torch.autograd.grad(y.square().sum(), x)[0]
    assert torch.equal(torch.autograd.grad(again.square().sum(), x)[0], wanted)
    with torch.inference_mode():
        inside = planish.group_norm(x, 3, *parameters())
    assert inside.is_inference()
    assert torch.equal(inside, y)


def test_a_tensor_changed_before_the_backward_goes_unnoticed() -> None:
    x = IMAGE.clone().requires_grad_()
    twice = x * 2
    y = planish.layer_norm(twice, 1, *parameters())
    twice.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_calls_are_not_counted() -> None:
    calls = Calls()
    x = IMAGE.clone().requires_grad_()
    planish.group_norm(x, 3).sum().backward()
    assert calls.on_planish(FORWARD) == calls.on_planish(BACKWARD) == 1


def test_a_profile_lacks_the_operators_of_plain_tensors() -> None:
    x, weight = IMAGE.clone(), torch.ones(6, requires_grad=True)
    planish.layer_norm(x, 1, weight).sum().backward()  # known from here on
    with torch.profiler.profile() as profile:
        planish.layer_norm(x, 1, weight).sum().backward()
        planish.layer_norm(x, 1)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts[FORWARD] == 2 and counts[BACKWARD] == 1
