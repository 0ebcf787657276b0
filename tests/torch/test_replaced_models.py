"""Models with replaced norms: pickled, copied, moved, sharded, quantised, hooked, reported."""

from __future__ import annotations

import copy
import logging
import pickle
import types
import warnings
from pathlib import Path

import pytest
from replace_support import FORWARD, LlamaNorm
from support import Calls

import planish
import torch
from planish.replacing import probe
from torch import Tensor, nn


def test_probes_are_counted_as_calls_or_draw_random_numbers() -> None:
    probe._proofs.clear()
    calls, state = Calls(), torch.get_rng_state()
    planish.replace(LlamaNorm(24))
    assert calls.on_planish(*FORWARD) == 0
    assert torch.equal(torch.get_rng_state(), state)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.linear = LlamaNorm(16), nn.Linear(16, 16)
        self.tied, self.last = self.first, nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.linear(self.tied(self.first(x))))


def test_parameters_hooks_or_flags_are_lost() -> None:
    model, x = Model().eval(), torch.randn(3, 16)
    model.first.weight.requires_grad_(False)
    model.first.note = "kept"
    seen: list[str] = []
    model.first.register_forward_hook(lambda *_: seen.append("hook"))
    parameters, modules = dict(model.named_parameters()), list(model.modules())
    native = model(x)
    planish.replace(model)
    assert list(model.modules()) == modules  # the same objects
    assert all(dict(model.named_parameters())[name] is p for name, p in parameters.items())
    assert (model.first.note, model.first.training, model.tied) == ("kept", False, model.first)
    torch.testing.assert_close(model(x), native)
    assert seen == ["hook"] * 4
    planish.restore(model)
    assert [type(module) for module in model.modules()] == [
        Model,
        LlamaNorm,
        nn.Linear,
        nn.LayerNorm,
    ]
    assert "_planish_was" not in model.last.__dict__
    assert torch.equal(model(x), native)


def test_a_replaced_model_cannot_be_pickled_copied_moved_or_compiled(tmp_path: Path) -> None:
    model, x = planish.replace(Model()), torch.randn(3, 16)
    native = model(x)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert planish.replaced(other) == planish.replaced(model)
        assert other.first is other.tied
        assert torch.equal(other(x), native)
        planish.restore(other)
        assert type(other.first) is LlamaNorm
    assert planish.replaced(model).modules_taken == 2
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), native)
    assert model.to("meta")(x.to("meta")).shape == native.shape


def test_parameters_that_are_nowhere_are_looked_at() -> None:
    with torch.device("meta"):
        model = Model()
    planish.replace(model)
    assert planish.replaced(model).modules_taken == 2
    model.to_empty(device="cpu")


def test_a_forward_bound_by_a_hook_of_accelerate_is_lost() -> None:
    """accelerate binds a forward to the instance, which calls the one it found."""
    model, x = Model(), torch.randn(3, 16)
    native = model(x)
    module, seen = model.first, []
    module._old_forward = module.forward
    module.forward = types.MethodType(
        lambda self, *a: seen.append(1) or self._old_forward(*a), module
    )
    planish.replace(model)
    calls = Calls()
    torch.testing.assert_close(model(x), native)
    assert (len(seen), calls.on_planish(*FORWARD)) == (2, 3)
    module.forward = module._old_forward  # what removing the hook leaves
    planish.restore(model)
    assert module._old_forward.__func__ is LlamaNorm.forward
    assert module.forward.__func__ is LlamaNorm.forward
    planish.replace(model)
    calls = Calls()
    model(x)
    assert calls.on_planish(*FORWARD) == 3
    planish.restore(model)
    assert torch.equal(model(x), native)

    model = Model()
    model.first.forward = lambda x: x  # anything else stays in force, and is said
    planish.replace(model)
    assert [entry.name for entry in planish.replaced(model).left] == [
        f"{LlamaNorm.__module__}.LlamaNorm"
    ]
    assert "replaced on the instance" in planish.replaced(model).left[0].what


def test_parametrized_or_quantised_models_break() -> None:
    model, x = Model(), torch.randn(3, 16)
    torch.nn.utils.parametrize.register_parametrization(model.first, "weight", nn.Identity())
    planish.replace(model)
    assert planish.replaced(model).modules_taken == 1
    assert "parametri" in str(planish.replaced(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.ao.quantization.quantize_dynamic(Model().eval(), {nn.Linear})
        native = quantised(x)
    planish.replace(quantised)
    assert planish.replaced(quantised).modules_taken == 2
    torch.testing.assert_close(quantised(x), native)


def test_a_model_in_shards_is_not_replaced(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    if torch.distributed.is_initialized():
        pytest.skip("a process group of another test is there")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        x = torch.randn(3, 16)
        plain = Model()
        native = plain(x)
        for first in (True, False):
            model = copy.deepcopy(plain)
            if first:
                planish.replace(model)
            fully_shard(model, mesh=mesh)
            if not first:
                planish.replace(model)
            assert planish.replaced(model).modules_taken == 2
            calls = Calls()
            y = model(x)
            torch.testing.assert_close(y, native)
            assert calls.on_planish(*FORWARD) == 3
            y.sum().backward()
            assert model.first.weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


def test_what_was_done_goes_unsaid(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(LlamaNorm(16), nn.SyncBatchNorm(16), nn.LayerNorm(16))
    before = planish.replaced(model)
    assert (before.modules_taken, before.modules_left) == (0, 3)
    with caplog.at_level(logging.INFO, "planish"):
        planish.replace(model)
    text = caplog.records[-1].getMessage()
    for words in (
        "2 norms on planish, 1 left",
        "LlamaNorm: RMS norm",
        "SyncBatchNorm: statistics over",
    ):
        assert words in text
    assert str(planish.replaced(model)) in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planish.replace(model)  # nothing new, and no warning
