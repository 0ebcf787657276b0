"""Norms with stages: derivatives of second order, what is saved, who falls back to torch's
operators, tracing, and DTensor."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from support import Calls, leaf
from torch.autograd import gradcheck, gradgradcheck
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import planish
import torch
from planish.library.loaded import ERROR_OVERLAP, ERROR_UNAVAILABLE, library
from planish.operators import asked, kept, short
from planish.operators import call as _call
from torch import Tensor

FORWARD = "planish::norm_forward (stages)"
BACKWARD = "planish::norm_backward (stages)"
QUANTIZED = "planish::quantized_norm"


# ---- Derivatives --------------------------------------------------------------------------------

DERIVED: dict[str, Callable[..., Any]] = {
    "bias behind a modulation": lambda x, r, w, m: planish.modulated_layer_norm(x, m, m, w, w),
    "gate and residual": lambda x, r, w, m: planish.modulated_rms_norm(
        x, m, None, w, residual=r, gate=m
    ),
    "groups, gate": lambda x, r, w, m: planish.gated_layer_norm(x, r, w, w, group_size=3),
    "groups, gate before": lambda x, r, w, m: planish.gated_layer_norm(
        x, r, w, w, norm_before_gate=False, group_size=3
    ),
    "gate before": lambda x, r, w, m: planish.gated_rms_norm(x, r, w, norm_before_gate=False),
    "offset, gelu": lambda x, r, w, m: planish.layer_norm(
        x, -1, w, w, weight_offset=1.0, activation="gelu"
    ),
    "column scale": lambda x, r, w, m: planish.add_layer_norm(x, r, w, w, column_scale=w),
    "the sum alone": lambda x, r, w, m: planish.add_rms_norm(x, r, w, column_scale=w)[1],
    "y alone": lambda x, r, w, m: planish.add_rms_norm(x, r, w, column_scale=w)[0],
}


def dropped(x: Tensor, r: Tensor, w: Tensor, m: Tensor) -> Any:
    torch.manual_seed(2)
    return planish.add_layer_norm(x, r, w, w, dropout_p=0.3, column_scale=w)


DERIVED["dropout"] = dropped


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_are_wrong(name: str) -> None:
    leaves = leaf(2, 3, 6), leaf(2, 3, 6), leaf(6), leaf(2, 1, 6)
    calls = Calls()
    assert gradcheck(DERIVED[name], leaves)
    assert calls.on_planish(FORWARD) > 0 and calls.on_planish(BACKWARD) > 0
    assert gradgradcheck(DERIVED[name], leaves)


def test_a_third_derivative_is_wrong() -> None:
    x, r = leaf(2, 5), leaf(2, 5)

    def second(x: Tensor, r: Tensor) -> Any:
        y = planish.gated_rms_norm(x, r)
        (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).sum(), x, create_graph=True)[0]

    assert gradcheck(second, (x, r))


def saved_bytes(call: Callable[[], Any]) -> int:
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = call()
    del results
    return sum(seen.values())


def test_more_is_saved_than_the_sum_and_what_the_formulas_need() -> None:
    x, residual = leaf(64, 128, dtype=torch.float32), leaf(64, 128, dtype=torch.float32)
    w, full, rows = leaf(128, dtype=torch.float32), 64 * 128 * 4, 64 * 8 * 2
    small = 3 * 128 * 4 + rows + 16
    add = planish.add_layer_norm
    assert saved_bytes(lambda: add(x, residual, w, w, dropout_p=0.5)) <= full + small
    assert saved_bytes(lambda: add(x, residual, w, column_scale=w)) <= 2 * full + small
    assert saved_bytes(lambda: planish.gated_rms_norm(x, residual, w)) <= 2 * full + small
    assert saved_bytes(lambda: planish.modulated_layer_norm(x, w, w)) <= full + small


def test_gradients_that_nobody_wants_are_made() -> None:
    x, residual, w = leaf(4, 8), torch.randn(4, 8).double(), leaf(8)
    y, total = planish.add_rms_norm(x, residual, w)
    assert torch.autograd.grad(total.sum(), x)[0].eq(1).all()
    y, _ = planish.add_rms_norm(x.detach(), residual, w)
    (dw,) = torch.autograd.grad(y.sum(), w)
    assert dw.shape == w.shape
    y, _ = planish.add_rms_norm(x.detach(), residual)
    assert not y.requires_grad


def test_a_gradient_for_a_quantised_result_is_zero_without_a_word() -> None:
    x, residual = leaf(3, 32, dtype=torch.float32), leaf(3, 32, dtype=torch.float32)
    calls = Calls()
    q, scale, total = planish.quantized_rms_norm(x, residual=residual)
    assert calls.on_planish(QUANTIZED) == 1
    dx, dresidual = torch.autograd.grad(total.sum(), (x, residual), retain_graph=True)
    assert dx.eq(1).all() and dresidual.eq(1).all()
    for result in (q.float(), scale):
        with pytest.raises(RuntimeError, match="quantized_rms_norm: it is forward only"):
            result.sum().backward(retain_graph=True)


# ---- Falling back -------------------------------------------------------------------------------


def add(x: Tensor, r: Tensor) -> Tensor:
    y, total = planish.add_rms_norm(x, r)
    return y + total


@pytest.mark.usefixtures("in_one_call")
def test_what_the_library_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x, r = leaf(4, 8), leaf(4, 8)
    wanted = torch.autograd.grad(add(x, r).pow(2).sum(), (x, r))
    monkeypatch.setattr(kept, "_calls", {})
    monkeypatch.setattr(asked, "why_not", lambda device: f"nothing on the {device.type}")
    planish.reset_stats()
    calls = Calls()
    found = torch.autograd.grad(add(x, r).pow(2).sum(), (x, r))
    assert calls.on_planish(FORWARD) == 0
    torch.testing.assert_close(found, wanted)
    assert planish.quantized_rms_norm(x.detach())[0].shape == x.shape
    assert calls.on_planish(QUANTIZED) == 0
    for name in (FORWARD, QUANTIZED):
        assert planish.stats()[name]["torch"] == {"nothing on the cpu": 1}


def test_a_device_without_a_driver_has_kernels() -> None:
    assert not asked.why_not(torch.device("cpu")) and not asked.why_not(torch.device("meta"))
    nowhere = torch.device("cuda", 127)
    try:
        why = asked.why_not(nowhere)
    except RuntimeError as error:  # there is a driver, and it knows no such GPU
        why = str(error)
    assert re.search("GPU|device|driver|CUDA", why), why


def test_a_backward_without_a_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        name: DERIVED[name] for name in ("dropout", "gate and residual", "groups, gate before")
    }
    leaves = leaf(2, 3, 6), leaf(2, 3, 6), leaf(6), leaf(2, 1, 6)

    def run(case: Callable[..., Any]) -> Any:
        ys = case(*leaves)
        ys = ys if isinstance(ys, tuple) else (ys,)
        total = torch.stack([y.pow(2).sum() for y in ys]).sum()
        return torch.autograd.grad(total, leaves, allow_unused=True)

    wanted = [run(case) for case in cases.values()]

    def refuse(*_: Any) -> None:
        raise RuntimeError("planish: no kernel")

    monkeypatch.setattr(short, "BACKWARD", refuse)
    with pytest.raises(RuntimeError, match="no kernel"):  # by its words it is not known
        run(cases["dropout"])
    monkeypatch.setattr(type(library()), "take_thrown", lambda _: ERROR_UNAVAILABLE)
    calls = Calls()
    found = [run(case) for case in cases.values()]
    assert calls.on_planish(BACKWARD) == 0
    torch.testing.assert_close(found, wanted)


def test_a_thrown_status_is_a_number() -> None:
    """It is kept for whoever catches the exception, once, and for the thread that threw."""
    rows = torch.randn(5, 8)
    x, out = rows[:4], rows[1:]
    library().take_thrown()
    options, axes = _call.pack_options(rms=True, save=False), _call.pack_axes([1], [1])

    def refused(seen: list[int]) -> None:
        with pytest.raises(RuntimeError, match="y shares memory with x"):
            torch.ops.planish.norm_into(x, *[None] * 4, axes, options, 1e-5, out, None)
        seen.append(library().take_thrown())

    seen: list[int] = []
    refused(seen)
    assert seen == [ERROR_OVERLAP] and library().take_thrown() == 0
    thread = threading.Thread(target=refused, args=(seen,))
    thread.start()
    thread.join()
    assert seen == [ERROR_OVERLAP] * 2 and library().take_thrown() == 0
    with pytest.raises(RuntimeError):  # not one of planish's refusals
        torch.ops.planish.norm_into(x, *[None] * 4, axes, 3.5, 1e-5, out, None)
    assert library().take_thrown() == 0


def test_transforms_see_a_kernel() -> None:
    x, r = torch.randn(3, 4, 8), torch.randn(3, 4, 8)
    wanted = add(x, r)
    calls = Calls()
    torch.testing.assert_close(torch.func.vmap(add)(x, r), wanted)
    _, tangent = torch.func.jvp(lambda x: add(x, r), (x,), (torch.ones_like(x),))
    assert tangent.shape == x.shape
    torch.func.grad(lambda x: add(x, r).sum())(x)
    assert calls.on_planish(FORWARD) == 0

    class Tagged(Tensor):
        pass

    assert isinstance(add(x.as_subclass(Tagged), r), Tagged)
    y = planish.add_rms_norm(x, r, row_scale=torch.ones(3, 4, requires_grad=True))[0]
    assert y.requires_grad and calls.on_planish(FORWARD) == 0
    with torch.inference_mode():
        old = torch.randn(3, 4, 8)
    w = torch.randn(8, requires_grad=True)
    planish.gated_rms_norm(old, r, w).sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize("name", DERIVED)
def test_a_compiled_function_is_another(name: str) -> None:
    leaves = [leaf(*s, dtype=torch.float32) for s in ((2, 3, 6), (2, 3, 6), (6,), (2, 1, 6))]
    if name == "dropout":
        pytest.skip("a compiled graph does not take torch.manual_seed")
    targets: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    torch.compile(DERIVED[name], backend=backend, fullgraph=True)(*leaves)
    assert targets.count("planish.norm_forward.default") == 1, targets
    results = []
    for run in (DERIVED[name], torch.compile(DERIVED[name], backend="aot_eager", fullgraph=True)):
        ys = run(*leaves)
        ys = ys if isinstance(ys, tuple) else (ys,)
        total = torch.stack([(y * y).sum() for y in ys]).sum()
        results.append([*ys, *torch.autograd.grad(total, leaves, allow_unused=True)])
    torch.testing.assert_close(*results)


def test_dropout_breaks_a_graph() -> None:
    x, r = leaf(64, 32), leaf(64, 32)
    run = torch.compile(
        lambda x, r: planish.add_layer_norm(x, r, dropout_p=0.5)[1],
        backend="aot_eager",
        fullgraph=True,
    )
    total = run(x, r)
    kept = total != r
    assert 0.4 < kept.double().mean() < 0.6
    (dx,) = torch.autograd.grad(total.sum(), x)
    assert torch.equal(dx, kept * 2.0)


# ---- DTensor ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", DERIVED)
def test_distributed_tensors_raise_or_are_wrong(mesh: Any, name: str) -> None:
    leaves = [leaf(*s, dtype=torch.float32) for s in ((2, 3, 6), (2, 3, 6), (6,), (2, 1, 6))]
    kinds = [Shard(0), Shard(0), Replicate(), Shard(0)]
    spread = [
        distribute_tensor(t.detach(), mesh, [kind]).requires_grad_()
        for t, kind in zip(leaves, kinds, strict=True)
    ]
    results: list[list[Any]] = []
    for given in (leaves, spread):
        if name == "dropout":
            given = [given[0], given[1], given[2], given[3]]
        ys = DERIVED[name](*given)
        ys = ys if isinstance(ys, tuple) else (ys,)
        total = sum(y.pow(2).sum() for y in ys)
        results.append([*ys, *torch.autograd.grad(total, given, allow_unused=True)])
    assert isinstance(results[1][0], DTensor)
    if name == "dropout":
        return  # the composition draws another mask
    whole = [t if t is None else t.full_tensor() for t in results[1]]
    torch.testing.assert_close(results[0], whole)
