"""planish.replace(model, fuse=True): what stands around norms is fused in blocks of real models,
with the results that the models had; and back. Blocks written for it are in
test_replace_fuse_blocks.py."""

from __future__ import annotations

import collections
import copy
import pickle
import warnings
from typing import Any

import pytest

import planish
import torch
from planish import zoo
from planish.commands import distance
from torch import Tensor, nn

#: These are small: else they would go to torch's operators, one after the other.
pytestmark = pytest.mark.usefixtures("in_one_call")


def built(name: str, dtype: torch.dtype = torch.float32) -> zoo.Built:
    entry = zoo.entries()[name]
    missing = zoo.missing_packages(entry.packages)
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    return zoo.build(entry, dtype)


def state(model: nn.Module) -> Any:
    """Everything that replace() must not change for good."""
    processors = {
        name: type(module.__dict__["processor"])
        for name, module in model.named_modules()
        if "processor" in module.__dict__
    }
    return (
        {name: (type(module), sorted(module.__dict__)) for name, module in model.named_modules()},
        processors,
        {name: id(parameter) for name, parameter in model.named_parameters()},
        list(model.state_dict()),
    )


#: Per forward of two layers (or of one with a second stream).
MODELS = {
    "llama": {"add_rms_norm": 2},
    "mistral": {"add_rms_norm": 2},
    "qwen3": {"add_rms_norm": 2, "qk_norm": 2},
    "gemma3": {"add_rms_norm": 2, "qk_norm": 2, "modulated_rms_norm": 2},
    "gpt2": {"add_layer_norm": 2},
    "whisper": {"add_layer_norm": 6},
    "bert": {"add_layer_norm": 4},
    "vit": {"add_layer_norm": 2},
    "dinov2": {"add_layer_norm": 2},
    "timm/vit_little_patch16_reg1_gap_256": {"add_layer_norm": 2},
    "sd_unet": {"add_layer_norm": 8},
    "dit": {"add_layer_norm": 2, "modulated_layer_norm": 3},
    "sd3.5_medium": {"modulated_layer_norm": 7, "qk_norm": 5},
    "flux": {"modulated_layer_norm": 7, "qk_norm": 4},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_not_fused_or_gives_something_else(
    name: str, calls: collections.Counter[str]
) -> None:
    model, inputs = built(name)
    exact = distance.step(copy.deepcopy(model).double(), zoo.mapped(inputs, _double))
    before = distance.step(model, inputs)
    was = state(model)
    planish.replace(model, fuse=True)
    calls.clear()
    after = distance.step(model, inputs)
    assert dict(calls) == MODELS[name]
    floor = distance.ROUNDINGS * torch.finfo(torch.float32).eps
    for part in (0, 1):
        theirs, ours, wanted = (
            list(found[0]) if part == 0 else [found[1][key] for key in sorted(exact[1])]
            for found in (before, after, exact)
        )
        limit = max(distance.FACTOR * distance.apart(theirs, wanted), floor)
        assert distance.apart(ours, wanted) <= limit
    planish.restore(model)
    assert state(model) == was
    calls.clear()
    again = distance.step(model, inputs)
    assert not calls
    assert all(torch.equal(one, other) for one, other in zip(again[0], before[0], strict=True))


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "dinov2", "flux"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_farther_from_exact_than_before(
    name: str, dtype: torch.dtype, calls: collections.Counter[str]
) -> None:
    model, inputs = built(name, dtype)
    exact = distance.step(copy.deepcopy(model).double(), zoo.mapped(inputs, _double))
    before = distance.step(model, inputs)
    fused = planish.replace(model, fuse=True)
    calls.clear()
    after = distance.step(fused, inputs)
    assert dict(calls) == MODELS[name]
    floor = distance.ROUNDINGS * torch.finfo(dtype).eps
    keys = sorted(exact[1])
    for theirs, ours, wanted in (
        (before[0], after[0], exact[0]),
        *([[found[1][k] for k in keys] for found in (before, after, exact)],),
    ):
        limit = max(distance.FACTOR * distance.apart(theirs, wanted), floor)
        assert distance.apart(ours, wanted) <= limit


@pytest.mark.parametrize("name", ["bert", "flux", "dinov2"])
def test_copies_and_pickles_lose_what_is_fused_or_cannot_be_restored(
    name: str, calls: collections.Counter[str]
) -> None:
    model, inputs = built(name)
    was = state(model)[0]
    planish.replace(model, fuse=True)
    wanted = zoo.tensors_of(model(**inputs))
    fused = calls.copy()
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls.clear()
        found = zoo.tensors_of(made(**inputs))
        if name == "flux":  # processors are no modules: a pickled one runs the norms apart
            fused["qk_norm"] = calls["qk_norm"]
        assert calls == fused
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        planish.restore(made)
        assert {key: value[0] for key, value in state(made)[0].items()} == {
            key: value[0] for key, value in was.items()
        }


def test_stochastic_depth_or_dropout_draws_other_masks(calls: collections.Counter[str]) -> None:
    if zoo.missing_packages(("timm",)):
        pytest.skip("timm not installed")
    zoo.prepare()
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        depth=3,
        init_values=0.3,
        drop_path_rate=0.5,
        proj_drop_rate=0.2,
        embed_dim=48,
    ).train()
    x = torch.randn(4, 3, 32, 32)
    before = _trained(model, x)
    planish.replace(model, fuse=True)
    calls.clear()
    after = _trained(model, x)
    assert calls["add_layer_norm"] == 3
    largest = max(float(one.abs().max()) for one in before)
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * largest)


def _trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    y = model(x)
    y.square().mean().backward()
    found = [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return [*found, torch.rand(3)]  # the generator stands where it stood


def test_gradient_checkpointing_generate_or_a_cache_break(calls: collections.Counter[str]) -> None:
    model, inputs = built("qwen3")
    ids = inputs["input_ids"]
    tokens = model.generate(ids, max_new_tokens=5, do_sample=False)  # type: ignore[operator]
    model.train()
    before = _loss(model, ids)
    planish.replace(model, fuse=True)
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    calls.clear()
    after = _loss(model, ids)
    assert calls["add_rms_norm"] == 4  # two layers, each run twice
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    model.eval()
    found = model.generate(ids, max_new_tokens=5, do_sample=False)  # type: ignore[operator]
    assert torch.equal(found, tokens)


def _loss(model: Any, ids: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def test_hooks_of_a_norm_are_not_called_or_see_something_else(
    calls: collections.Counter[str],
) -> None:
    model, inputs = built("llama")
    seen: list[Tensor] = []
    norm: Any = model.get_submodule("model.layers.0.post_attention_layernorm")
    planish.replace(model, fuse=True)
    with torch.no_grad():
        plain = model(**inputs).logits
        calls.clear()
        hook = norm.register_forward_hook(lambda _, given, y: seen.append(given[0]))
        assert torch.equal(model(**inputs).logits, plain)
        assert len(seen) == 1 and calls["add_rms_norm"] == 1
        hook.remove()
        calls.clear()
        model(**inputs)
        assert len(seen) == 1 and calls["add_rms_norm"] == 2


@pytest.mark.parametrize("name", ["llama", "bert", "sd3.5_medium"])
def test_autocast_gives_other_dtypes(name: str) -> None:
    model, inputs = built(name)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        before = zoo.tensors_of(model(**inputs))
        after = zoo.tensors_of(planish.replace(model, fuse=True)(**inputs))
    for one, other in zip(after, before, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * float(other.abs().max()))


def test_a_compiled_model_breaks_its_graph() -> None:
    model, inputs = built("timm/vit_little_patch16_reg1_gap_256")
    wanted = model(**inputs)
    planish.replace(model, fuse=True)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**inputs), wanted, rtol=1e-4, atol=1e-5)


def test_what_was_fused_goes_unsaid() -> None:
    model, _ = built("llama")
    assert planish.replaced(model).together == ()
    planish.replace(model, fuse=True)
    report = planish.replaced(model)
    assert report.places_fused == 2
    (entry,) = report.together
    assert entry.name == "transformers.LlamaDecoderLayer"
    assert entry.what == "post_attention_layernorm: add + norm" and entry.modules == 2
    alone = {entry.name: entry.what for entry in report.alone}
    assert "decorator" in alone["transformers.LlamaModel"]
    assert "input_layernorm" in alone["transformers.LlamaDecoderLayer"]
    assert "2 with what stands around them" in str(report)
    planish.restore(model)
    assert planish.replaced(model).together == planish.replaced(model).alone == ()


def test_a_probe_draws_random_numbers_or_is_counted() -> None:
    model, _ = built("timm/vit_little_patch16_reg1_gap_256")
    torch.manual_seed(3)
    wanted = torch.rand(4)
    before = planish.stats()
    torch.manual_seed(3)
    planish.replace(model, fuse=True)
    assert torch.equal(torch.rand(4), wanted)
    assert planish.stats() == before


def test_a_model_without_blocks_warns_of_more_than_before() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planish.replace(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), fuse=True)
