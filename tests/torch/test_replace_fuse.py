"""planish.replace(model, fuse=True): what stands around norms is fused in blocks of real models,
with the results that the models had; and back."""

from __future__ import annotations

import ast
import collections
import copy
import functools
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import planish
import torch
from planish import _fused, distance, zoo
from planish.replacing import reading, rewriting
from torch import Tensor, nn

_FUNCTIONS = (
    *("add_layer_norm", "add_rms_norm", "modulated_layer_norm", "modulated_rms_norm", "qk_norm"),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[collections.Counter[str]]:
    """How often each fused function is called."""
    counter: collections.Counter[str] = collections.Counter()
    for name in _FUNCTIONS:
        function = getattr(_fused, name)

        def counted(*args: Any, name: str = name, function: Any = function, **kwargs: Any) -> Any:
            counter[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(_fused, name, functools.wraps(function)(counted))
    yield counter


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
    "gemma3": {"add_rms_norm": 2, "qk_norm": 2},
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


# ---- Blocks of no library -----------------------------------------------------------------------


class Block(nn.Module):
    """Two norms that a forward may use."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(size), nn.LayerNorm(size)
        self.q_norm, self.k_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.linear = nn.Linear(size, size)
        self.gamma = nn.Parameter(torch.rand(size))
        self.wide = True


class Aliased(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(self.one(x))
        kept = h
        h = self.two(h)
        return kept * 2 + h


class Branches(Block):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = x + self.linear(x)
        if y is not None:
            residual = h
            h = self.one(h)
            h = residual + self.linear(h) * y
        residual = h
        h = self.two(h)
        return residual + h


class Asks(Block):
    """The if asks for the sum itself."""

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        if h.sum() > 0:
            h = h * 2
            h = h + 1
        else:
            h = h - 1
        y = self.two(h)
        return y + h


class Early(Block):
    def forward(self, x: Tensor, early: bool = False) -> Tensor:
        h = x + self.linear(x)
        if early:
            return h
        return h + self.two(h)


class Settings(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        if self.wide:
            y = self.one(h)
        else:
            y = self.two(h)
            y = y * 2
        return y + h


class Broadcast(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.gamma
        return self.one(h) + self.two(x + 1)


class Kept(Block):
    """What the gate gives is read again."""

    def forward(self, x: Tensor) -> Tensor:
        gate, scale, shift = x[:, :1] * 2, x[:, :1], x[:, 1:2]
        out = self.linear(x)
        out = gate * out
        h = x + out
        h = self.one(h) * (1 + scale) + shift
        return h + out


class Gated(Block):
    def forward(self, x: Tensor) -> Tensor:
        gate, scale, shift = x[:, :1] * 2, x[:, :1], x[:, 1:2]
        out = gate * self.linear(x)
        h = x + out
        n = self.one(h)
        n = n * (scale + 1) + shift
        return n + h


class Added(Block):
    """What the layer scale gives is added to behind the sum."""

    def __init__(self, size: int = 32) -> None:
        super().__init__(size)
        self.layer_scale = LayerScale(size)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        out = self.layer_scale(out)
        h = out + x
        n = self.one(h)
        out += n
        return out


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Ordered(Added):
    """Both summands draw random numbers, the scaled one first."""

    def __init__(self, size: int = 32) -> None:
        super().__init__(size)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        h = self.layer_scale(self.drop(x)) + self.drop(self.linear(x))
        return self.one(h)


class Conditional(Block):
    def forward(self, x: Tensor) -> Tensor:
        h = x + self.linear(x)
        return self.one(h) if h.sum() > 0 else h


class Heads(Block):
    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q_norm(x), self.k_norm(self.linear(x))
        a = self.q_norm(q.view(x.shape)).transpose(0, 1)
        b = self.k_norm(a.transpose(0, 1))  # reads what the line before made
        return q * k + a.transpose(0, 1) * b


class Loop(Block):
    def forward(self, x: Tensor) -> Tensor:
        w = x
        for _ in range(3):
            w = self.linear(w)
            h = x + w
            x = self.one(h)
        return x


BLOCKS: dict[type[Block], dict[str, int]] = {
    Aliased: {"add_layer_norm": 1},
    Branches: {"add_layer_norm": 1},
    Asks: {"add_layer_norm": 1},
    Early: {"add_layer_norm": 1},
    Settings: {"add_layer_norm": 1},
    Broadcast: {},
    Kept: {"modulated_layer_norm": 1},
    Gated: {"modulated_layer_norm": 1},
    Added: {"add_layer_norm": 1},
    Ordered: {"add_layer_norm": 1},
    Conditional: {},
    Heads: {"qk_norm": 1},
    Loop: {"add_layer_norm": 3},
}


@pytest.mark.parametrize("cls", BLOCKS, ids=lambda cls: cls.__name__)
def test_a_rewritten_block_does_something_else(
    cls: type[Block], calls: collections.Counter[str]
) -> None:
    torch.manual_seed(1)
    block, x = cls(), torch.randn(2, 5, 32)
    given: list[tuple[Any, ...]] = [(x,)]
    if cls is Branches:
        given.append((x, torch.randn(2, 5, 32)))
    if cls is Early:
        given.append((x, True))
    wanted = [block(*one) for one in given]
    planish.replace(block, fuse=True)
    calls.clear()
    torch.testing.assert_close(block(*given[0]), wanted[0], rtol=1e-5, atol=1e-5)
    assert dict(calls) == BLOCKS[cls]
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(block(*one), other, rtol=1e-5, atol=1e-5)
    if cls is Settings:
        block.wide = False
        torch.testing.assert_close(block(x), _own(Settings, block, x), rtol=1e-5, atol=1e-5)
    planish.restore(block)
    assert type(block) is cls


def _own(cls: type[Block], block: Any, x: Tensor) -> Tensor:
    return cls.forward(block, x)  # type: ignore[operator, no-any-return]


def test_a_cross_attention_block_has_one_sum_fused_of_two(
    calls: collections.Counter[str],
) -> None:
    block = planish.replace(Branches(), fuse=True)
    calls.clear()
    block(torch.randn(2, 5, 32), torch.randn(2, 5, 32))
    assert calls["add_layer_norm"] == 2


class Vendor(nn.Module):
    """Its source says one thing and it does another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.linear(x)
        return self.norm(x)


def test_a_forward_that_is_not_its_source_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    other = compile("def forward(self, x):\n    return self.norm(x)\n", __file__, "exec")
    found: dict[str, Any] = {}
    exec(other, found)
    monkeypatch.setattr(Vendor, "forward", found["forward"])
    block = planish.replace(Vendor(), fuse=True)
    assert type(block) is Vendor
    (entry,) = planish.replacing._report(block, True).alone
    assert "source" in entry.what
    x = torch.randn(2, 32)
    torch.testing.assert_close(block(x), nn.functional.layer_norm(x, [32]))


def test_a_bound_forward_of_a_block_is_lost() -> None:
    block, seen = Vendor(), []
    own = block.forward

    def forward(x: Tensor) -> Tensor:
        seen.append(1)
        return own(x)

    block.forward = forward  # type: ignore[method-assign]
    planish.replace(block, fuse=True)
    block(torch.randn(2, 32))
    assert seen == [1] and type(block) is Vendor


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_fused_block_keeps_the_dtype_it_was_fused_with(
    dtype: torch.dtype, calls: collections.Counter[str]
) -> None:
    block = planish.replace(Aliased(), fuse=True).to(dtype)
    calls.clear()
    x = torch.randn(2, 5, 32).to(dtype)
    y = block(x)
    assert calls["add_layer_norm"] == 1 and y.dtype == dtype
    planish.restore(block)
    torch.testing.assert_close(block(x), y, rtol=2e-2, atol=2e-2)


def test_a_probe_draws_random_numbers_or_is_counted() -> None:
    model, _ = built("timm/vit_little_patch16_reg1_gap_256")
    torch.manual_seed(3)
    wanted = torch.rand(4)
    before = planish.stats()
    torch.manual_seed(3)
    planish.replace(model, fuse=True)
    assert torch.equal(torch.rand(4), wanted)
    assert planish.stats() == before


def test_another_result_passes_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is a little off is not put into a block, and the report says so."""
    own = _fused.add_layer_norm

    def off(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        y, s = own(*args, **kwargs)
        return y * 1.001, s

    monkeypatch.setattr(_fused, "add_layer_norm", off)

    class Other(Vendor):
        """Of a width that no other test has proven."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(40), nn.Linear(40, 40)

    block = planish.replace(Other(), fuse=True)
    assert type(block) is Other
    (entry,) = planish.replacing._report(block, True).alone
    assert "ULP" in entry.what


def test_a_reader_reads_places_where_there_are_none() -> None:
    for source, wanted in SOURCES.items():
        function: Any = ast.parse(source).body[0]
        found: list[reading.Place] = []

        def accept(place: reading.Place, found: list[reading.Place] = found) -> str:
            found.append(place)
            return "helper"

        reading.Reader(function, ["self"], accept, lambda test: None).run()
        assert [str(place) for place in found] == wanted, source


SOURCES = {
    # v is set again before the norm
    "def f(self, a, b):\n v = a + b\n v = v * 2\n return self.norm(v)": [],
    # the norm takes more than the sum
    "def f(self, a, b):\n v = a + b\n return self.norm(v, b)": [],
    # a product, no sum
    "def f(self, a, b):\n v = a * b\n return self.norm(v)": [],
    # self is something else by now
    "def f(self, a, b):\n self = b\n v = a + b\n return self.norm(v)": [],
    # the modulation reads the sum
    "def f(self, a, b):\n v = a + b\n return self.norm(v) * (1 + v) + b": ["add + norm"],
    # 2 + scale is no modulation
    "def f(self, a, s):\n return self.norm(a) * (2 + s) + s": [],
    "def f(self, a, s):\n return self.norm(a) * (1 + s) + s": ["norm + modulation"],
    "def f(self, a, b):\n return self.norm(a + b)": ["add + norm"],
    "def f(self, a):\n return [self.norm(x + a) for x in a]": [],
}


def test_a_rewritten_function_has_other_lines_or_defaults() -> None:
    def given(self: Any, x: int, y: int = 3, *, z: int = 4) -> int:
        return x + y + z

    tree = rewriting.parsed(given)
    made = rewriting.rewritten(given, tree, {})
    assert made(None, 1) == 8 and made.__code__.co_firstlineno == given.__code__.co_firstlineno
    assert made.__defaults__ == (3,) and made.__name__ == "given"
    with pytest.raises(rewriting.Unreadable, match="no function"):
        rewriting.parsed(len)
    wrapped: Callable[..., int] = functools.wraps(given)(lambda *a: 1)
    with pytest.raises(rewriting.Unreadable, match="decorator"):
        rewriting.parsed(wrapped)


def test_a_model_without_blocks_warns_of_more_than_before() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planish.replace(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), fuse=True)
