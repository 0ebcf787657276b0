"""planish under torch on CUDA beside the rest of torch: samples, compilers, libraries. It needs a
GPU."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.nn.functional as F
from cuda_support import GPU, SHAPES, TOLERANCE, assert_like_torch, given, layer, random, rms
from support import (
    FLOATS,
    LAYER,
    LAYER_BACKWARD,
    RMS,
    RMS_BACKWARD,
    Calls,
    exact_norm,
    on_planish,
    row_error,
    wide,
)
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from planish.commands import doctor
from planish.library import dispatcher, switch
from torch import Tensor, nn

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

SHAPES += [(2, 262144)]


@pytest.fixture(autouse=True)
def no_error_is_left_on_the_gpu() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients_are_wrong(check: Callable[..., bool]) -> None:
    x, weight, bias, _ = given((3, 4, 6), torch.float64)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    with on_planish(LAYER, RMS):
        assert check(lambda a, w, b: F.layer_norm(a, (6,), w, b), leaves)
        assert check(lambda a, w: F.rms_norm(a, (6,), w, 1e-5), leaves[:2])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", ["nn.functional.layer_norm", "native_layer_norm", "nn.functional.rms_norm"]
)
def test_torchs_samples_differ_from_torch(name: str, dtype: torch.dtype) -> None:
    pytest.importorskip("expecttest", reason="torch's op_db needs expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == name)

    def run(sample: Any) -> list[Any]:
        leaves = [sample.input, *sample.args, *sample.kwargs.values()]
        leaves = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        found = op(sample.input, *sample.args, **sample.kwargs)
        results = [found] if isinstance(found, Tensor) else list(found)
        dy = random(*results[0].shape, dtype=dtype)
        return [*results, *torch.autograd.grad(results[:1], leaves, [dy], allow_unused=True)]

    calls = Calls()
    samples = list(op.sample_inputs("cuda", dtype, requires_grad=True))
    for sample in samples:
        native = run(sample)
        with planish.enabled():
            ours = run(sample)
        assert_like_torch(ours, native, *TOLERANCE[dtype])
    assert samples
    assert calls.on_planish(RMS if "rms" in name else LAYER) > 0
    if op.error_inputs_func is None:
        return
    for bad in op.error_inputs("cuda"):
        wrong = bad.sample_input
        with planish.enabled(), pytest.raises(bad.error_type, match=bad.error_regex):
            op(wrong.input, *wrong.args, **wrong.kwargs)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.RMSNorm(64)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models_differ(backend: str) -> None:
    torch._dynamo.reset()
    model = Model().to(GPU)
    x = random(12, 32)

    def step(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.zero_grad()
        y = function(x)
        y.square().mean().backward()
        return [y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    native = step(model)
    calls = Calls()
    with planish.enabled():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        ours = step(compiled)
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    if backend == "aot_eager":
        assert calls.on_planish(LAYER) > 0
    torch._dynamo.reset()


def test_deterministic_mode_changes_bits() -> None:
    x, weight, bias, dy = given((64, 4096), torch.float32)
    with on_planish(LAYER, LAYER_BACKWARD):
        before = layer(x, weight, bias, dy)
        torch.use_deterministic_algorithms(True)
        try:
            assert all(map(torch.equal, layer(x, weight, bias, dy), before))
        finally:
            torch.use_deterministic_algorithms(False)


def test_memory_grows() -> None:
    x, weight, bias, dy = given((64, 4096), torch.float16)
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        for _ in range(3):
            layer(x, weight, bias, dy)
            rms(x, weight, bias, dy)
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            layer(x, weight, bias, dy)
            rms(x, weight, bias, dy)
        # autograd's own thread lets go of the last round's tensors when it comes to it
        end = time.monotonic() + 2
        while torch.cuda.memory_allocated() != before and time.monotonic() < end:
            time.sleep(0.01)
        assert torch.cuda.memory_allocated() == before


def test_another_librarys_override_is_lost_or_in_the_way() -> None:
    """What torch/_native does with quack's RMSNorm at import, here by hand."""
    x, weight, _, _ = given((6, 64), torch.float32)
    seen: list[str] = []

    def theirs(
        input: Tensor, shape: list[int], w: Tensor | None, eps: float | None
    ) -> tuple[Tensor, Tensor]:
        seen.append("theirs")
        rstd = (input.square().mean(-1, keepdim=True) + (eps or 1e-7)).rsqrt()
        return input * rstd * (1 if w is None else w), rstd

    def register() -> torch.library.Library:
        made = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.impl("_fused_rms_norm", theirs, "CUDA")
        return made

    other = register()
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 1
    with on_planish(RMS):
        F.rms_norm(x, (64,), weight)
    assert len(seen) == 1
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 2
    planish.enable()
    other._destroy()
    with on_planish(RMS):
        F.rms_norm(x, (64,), weight)
    other = register()
    F.rms_norm(x, (64,), weight)  # the last registration wins
    assert len(seen) == 3
    assert planish.disable()
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 4
    other._destroy()
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 4


def test_any_axes_differ_on_the_gpu() -> None:
    x, weight, bias, dy = given((6, 64), torch.float32)
    native = layer(x, weight, bias, dy)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = planish.layer_norm(leaves[0], 1, leaves[1], leaves[2])
    ours = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    y = planish.layer_norm(leaves[0], 1, leaves[1], leaves[2])
    torch.autograd.grad(y.sum(), leaves)  # a gradient with strides of 0
    for dims in (0, (0, 1)):
        torch.testing.assert_close(
            planish.layer_norm(x, dims), planish.layer_norm(x.cpu(), dims).to(GPU)
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_modules_run_elsewhere(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.RMSNorm(64)).to(GPU, dtype)
    x = random(3, 6, 128, dtype=dtype)[..., ::2].requires_grad_()
    native = model(x)
    gradients = torch.autograd.grad(native.sum(), [x, *model.parameters()])
    calls = Calls()
    ours = planish.replace(model)(x)
    assert calls.on_planish("planish::norm_forward") == 2
    assert_like_torch([ours], [native], *TOLERANCE[dtype])
    assert_like_torch(
        list(torch.autograd.grad(ours.sum(), [x, *model.parameters()])),
        list(gradients),
        *TOLERANCE[dtype],
    )
    assert calls.on_planish("planish::norm_backward") == 2
    assert model(x[:0]).shape == (0, 6, 64)


def test_a_large_mean_costs_digits() -> None:
    """Rows far from zero: what a sum of squares gets wrong."""
    x = random(64, 1024, dtype=torch.float32) + 1e4
    right = exact_norm(x)[0]
    with on_planish(LAYER):
        y = F.layer_norm(x, (1024,))
    assert row_error(y, right, -1) <= 4
    assert abs(float(wide(y).mean())) < 1e-3


def test_the_groups_of_a_device_are_mixed_up() -> None:
    with planish.enabled("layer_norm", "cuda"):
        assert switch.is_enabled("layer_norm", "cuda")
        assert not switch.is_enabled("layer_norm", "cpu")
        assert not switch.is_enabled("rms_norm", "cuda")
        with planish.enabled(autocast="keep"):
            assert switch.is_enabled("rms_norm", "cpu")
        assert not dispatcher.autocast_passes
        assert not switch.is_enabled("rms_norm", "cuda")


def test_the_doctor_finds_a_problem() -> None:
    """With an operator that planish has on a CPU alone, on a machine with a GPU."""
    assert doctor.report()["problems"] == []
