"""planish.replace() of norms that are not torch's own: what is taken, what is left, and back."""

from __future__ import annotations

import copy
import logging
import pickle
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Calls

import planish
import torch
from planish import zoo
from planish.replacing import pairs, probe, swapped
from torch import Tensor, nn

FORWARD = "planish::norm_forward"
HALF = [torch.float32, torch.bfloat16, torch.float16]


class Llama(nn.Module):
    """Rounds before the weight; named as no library's."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        dtype = hidden_states.dtype
        x = hidden_states.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class LlamaNorm(Llama):
    pass


class OnceNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight * wide).to(x.dtype)


class GemmaNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (1.0 + self.weight.float())).type_as(x)


class T5Norm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class CohereNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * wide).to(x.dtype)


class GateBeforeNorm(Llama):
    group_size = 8

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        wide = x.float()
        if gate is not None:
            wide = wide * nn.functional.silu(gate.float())
        parts = wide.unflatten(-1, (-1, self.group_size))
        parts = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * parts.flatten(-2).to(x.dtype)


class GateBehindNorm(Llama):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = LlamaNorm.forward(self, x)
        return (y * nn.functional.silu(gate.float())).to(x.dtype)


class WeightlessNorm(nn.Module):
    eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class ChannelsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class L2Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.gamma = size**0.5, nn.Parameter(torch.ones(size, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.normalize(x.float() if x.dtype in HALF else x, dim=1)
        return wide.to(x.dtype) * self.scale * self.gamma


class AbsNorm(Llama):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.abs().mean(-1, keepdim=True) + self.variance_epsilon)


class EpsOutsideNorm(Llama):
    """A new version of a library with other mathematics: different only for small values."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        rms = wide.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon
        return self.weight * (wide / rms).to(x.dtype)


class DetachedNorm(Llama):
    """The same results as Llama's, other gradients."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * rstd.detach()).to(x.dtype)


def rows(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(3, 7, 32, generator=generator) * 2 + 0.3).to(dtype)


def image(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 32, 5, 4, generator=torch.Generator().manual_seed(6)).to(dtype)


#: Class, whether it takes a gate, its input, the words of its form, and whether it rounds as it.
TAKEN: list[tuple[Callable[[], nn.Module], Callable[..., Tensor], str, bool]] = [
    (lambda: LlamaNorm(32), rows, "RMS norm, order of rounding 'xhat'", True),
    (lambda: OnceNorm(32), rows, "RMS norm", True),
    (lambda: GemmaNorm(32), rows, "RMS norm, 1 + weight", True),
    (lambda: T5Norm(32), rows, "RMS norm, order of rounding 'weight'", True),
    (lambda: CohereNorm(32), rows, "layer norm", True),
    (lambda: WeightlessNorm(), rows, "RMS norm", True),
    (lambda: ChannelsNorm(32), image, "layer norm, over channels, order of rounding 'wide'", False),
    (lambda: L2Norm(32), image, "L2 norm, over channels, order of rounding 'wide'", False),
]
IDS = ["llama", "once", "gemma", "t5", "cohere", "weightless", "channels", "l2"]


def shaken(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.to(dtype)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("case", TAKEN, ids=IDS)
def test_a_class_computes_something_else_once_it_is_taken(case: Any, dtype: torch.dtype) -> None:
    make, inputs, words, same = case
    module = shaken(make(), dtype)
    kind, x = type(module), inputs(dtype).requires_grad_()
    native = module(x)
    dy = inputs(native.dtype).flip(0, -1)  # as x itself it would cancel
    leaves = [x, *module.parameters()]
    before = torch.autograd.grad(native, leaves, dy)
    state = {name: value.clone() for name, value in module.state_dict().items()}

    assert planish.replace(module) is module
    assert isinstance(module, kind)
    assert type(module).__name__ == kind.__name__
    (entry,) = planish.replaced(module).taken
    assert entry.what == words
    calls = Calls()
    y = module(x)
    assert calls.on_planish(FORWARD) == 1
    assert y.dtype == native.dtype
    assert list(module.state_dict()) == list(state)
    ulp = torch.finfo(y.dtype).eps
    largest = native.detach().double().abs().amax(-1 if inputs is rows else 1, keepdim=True)
    apart = (y.detach().double() - native.detach().double()).abs() / (largest * ulp)
    if dtype is torch.float32:
        assert float(apart.max()) <= 8
    elif same:
        assert float((apart > 0).double().mean()) <= 0.01, "another order of rounding"
        assert float(apart.max()) <= 2
    else:
        assert float(apart.max()) <= 4
    for one, other in zip(torch.autograd.grad(y, leaves, dy), before, strict=True):
        bound = 32 * torch.finfo(one.dtype).eps * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=bound)

    assert planish.restore(module) is module
    assert type(module) is kind
    assert torch.equal(module(x), native)
    assert not planish.replaced(module).taken


@pytest.mark.parametrize("cls", [GateBeforeNorm, GateBehindNorm])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_gate_is_lost_or_on_the_wrong_side(cls: type[Llama], dtype: torch.dtype) -> None:
    module, x = shaken(cls(32), dtype), rows(dtype)
    gate = x.flip(0) * 2
    native = module(x, gate)
    planish.replace(module)
    assert ("before" if cls is GateBeforeNorm else "behind") in planish.replaced(module).taken[
        0
    ].what
    calls = Calls()
    for y in (module(x, gate), module(x, gate=gate)):
        bound = 4 * torch.finfo(dtype).eps * float(native.detach().abs().max())
        torch.testing.assert_close(y, native, rtol=0, atol=bound)
    assert calls.on_planish(FORWARD) == 2


@pytest.mark.parametrize("cls", [AbsNorm, EpsOutsideNorm, DetachedNorm])
def test_other_mathematics_is_taken_or_left_unsaid(cls: type[Llama]) -> None:
    module, x = cls(32), rows(torch.float32)
    native = module(x)
    with pytest.warns(UserWarning, match=f"took nothing.*{cls.__name__}"):
        planish.replace(module)
    assert type(module) is cls
    assert torch.equal(module(x), native)
    (entry,) = planish.replaced(module).left
    assert entry.modules == 1
    assert entry.what


def test_a_class_that_is_called_no_norm_is_taken() -> None:
    with pytest.warns(UserWarning, match="no norms that are modules"):
        module = planish.replace(Llama(32))
    assert type(module) is Llama


def test_what_was_not_proven_does_not_run_the_modules_own_forward() -> None:
    module = planish.replace(ChannelsNorm(6))
    calls = Calls()
    x = torch.randn(2, 6, 3, 4)
    module(x)
    assert calls.on_planish(FORWARD) == 1
    with pytest.raises(RuntimeError):  # of torch: weight[:, None, None] does not fit
        module(torch.randn(2, 6, 3))
    with pytest.raises(TypeError):
        module(x, x)
    assert calls.on_planish(FORWARD) == 1


def test_short_vectors_lose_the_floor_of_their_length() -> None:
    module = shaken(L2Norm(4), torch.float32)
    x = torch.randn(2, 4, 3, 3)
    x[0, :, 0, 0] = 0
    x[1, :, 1, 1] = 1e-12
    x[1, :, 2, 1] *= 1e-10
    native = module(x)
    planish.replace(module)
    assert torch.equal(module(x), native)
    x[1] = x[0]
    x[1, :, 0, 0] = 1.0
    expected = L2Norm.forward(module, x)
    calls = Calls()
    torch.testing.assert_close(module(x), expected, rtol=1e-6, atol=1e-6)
    assert calls.on_planish(FORWARD) == 1


def test_probes_are_counted_as_calls_or_draw_random_numbers() -> None:
    probe._proofs.clear()
    calls, state = Calls(), torch.get_rng_state()
    planish.replace(LlamaNorm(24))
    assert calls.on_planish(FORWARD) == 0
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
    assert (len(seen), calls.on_planish(FORWARD)) == (2, 3)
    module.forward = module._old_forward  # what removing the hook leaves
    planish.restore(model)
    assert module._old_forward.__func__ is LlamaNorm.forward
    assert module.forward.__func__ is LlamaNorm.forward
    planish.replace(model)
    calls = Calls()
    model(x)
    assert calls.on_planish(FORWARD) == 3
    planish.restore(model)
    assert torch.equal(model(x), native)

    model = Model()
    model.first.forward = lambda x: x  # anything else stays in force, and is said
    planish.replace(model)
    assert [entry.name for entry in planish.replaced(model).left] == [f"{__name__}.LlamaNorm"]
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
            assert calls.on_planish(FORWARD) == 3
            y.sum().backward()
            assert model.first.weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


def test_what_was_done_goes_unsaid(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(LlamaNorm(16), nn.BatchNorm1d(16), nn.LayerNorm(16))
    before = planish.replaced(model)
    assert (before.modules_taken, before.modules_left) == (0, 3)
    with caplog.at_level(logging.INFO, "planish"):
        planish.replace(model)
    text = caplog.records[-1].getMessage()
    for words in (
        "2 norms on planish, 1 left",
        "LlamaNorm: RMS norm",
        "BatchNorm1d: statistics over",
    ):
        assert words in text
    assert str(planish.replaced(model)) in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planish.replace(model)  # nothing new, and no warning


# ---- Activations ------------------------------------------------------------------------------


class Head(nn.Module):
    """A norm and its activation as attributes; the second activation serves twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_out, self.act_out = nn.GroupNorm(2, 8), nn.SiLU()
        self.norm_in, self.act_in = nn.GroupNorm(2, 8), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_in(x)
        x = self.act_in(x)
        y = self.act_in(x)
        if self.norm_out is not None:
            y = self.norm_out(y)
            y = self.act_out(y)
        return y


def test_activations_that_are_attributes_are_fused_where_they_must_not_or_stay_fused() -> None:
    assert pairs.of(Head) == (("norm_out", "act_out"),)
    model, x = nn.Sequential(Head(), nn.GroupNorm(4, 8), nn.ReLU()), torch.randn(2, 8, 6, 6)
    native, silu, relu = model(x), model[0].act_out, model[2]
    planish.replace(model)
    assert planish.replaced(model).fused == 0
    planish.replace(model, activations=True)
    assert (model[0].norm_out.activation, model[0].norm_in.activation) == ("silu", None)
    assert planish.replaced(model).fused == 2
    torch.testing.assert_close(model(x), native)
    other = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(other(x), native)
    for one in (model, other):
        planish.restore(one)
        assert torch.equal(one(x), native)
    assert (model[0].act_out, model[2]) == (silu, relu)


def needs(*packages: str) -> None:
    missing = zoo.missing_packages(packages)
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    zoo.prepare()


@pytest.mark.parametrize("norm", ["default", "scale_shift"])
@pytest.mark.parametrize("resample", [{}, {"up": True}, {"down": True}], ids=str)
def test_diffusers_resnet_block_is_not_fused_or_differs(
    norm: str, resample: dict[str, bool]
) -> None:
    needs("diffusers")
    from diffusers.models.resnet import ResnetBlock2D

    block = ResnetBlock2D(
        in_channels=16,
        out_channels=24,
        temb_channels=8,
        groups=4,
        time_embedding_norm=norm,
        **resample,
    )
    x, temb = torch.randn(2, 16, 8, 8, requires_grad=True), torch.randn(2, 8)
    native = block(x, temb)
    dx = torch.autograd.grad(native.pow(2).sum(), x)[0]
    planish.replace(block, activations=True)
    assert isinstance(block, ResnetBlock2D)
    assert planish.replaced(block).fused == (2 if norm == "default" else 1)
    calls = Calls()
    y = block(x, temb)
    assert calls.on_planish(FORWARD) == 2
    torch.testing.assert_close(y, native, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(y.pow(2).sum(), x)[0], dx, rtol=1e-3, atol=1e-4)
    other = copy.deepcopy(block)
    assert torch.equal(other(x, temb), y)
    seen = []
    block.nonlinearity.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(block(x, temb), native, rtol=1e-4, atol=1e-5)
    assert len(seen) == 3  # a hook sees what it saw
    planish.restore(other)
    assert type(other) is ResnetBlock2D
    assert torch.equal(other(x, temb), native)


def test_a_library_with_other_mathematics_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("transformers")
    from transformers.models.llama import modeling_llama

    cls = modeling_llama.LlamaRMSNorm
    module = cls(16)
    planish.replace(module)
    assert planish.replaced(module).modules_taken == 1
    monkeypatch.setattr(cls, "forward", AbsNorm.forward)
    with pytest.warns(UserWarning, match="LlamaRMSNorm"):
        other = planish.replace(cls(16))
    assert type(other) is cls


def test_a_swapped_module_is_looked_for_by_its_dtype() -> None:
    module = planish.replace(LlamaNorm(16))
    decision = swapped.decide(LlamaNorm(16).to(torch.float8_e4m3fn))
    assert isinstance(decision, str)
    assert "float8" in decision
    assert type(module)._planish_proof.same_rounding
