"""planish.hf: each of Transformers' marked norms computes what its class computes, the tables hold
planish and nothing of the Hub, and unregister() leaves no trace."""

from __future__ import annotations

import ast
import copy
import importlib
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kernels", reason="the package kernels is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from planish._torchvision import mend_torchvision

mend_torchvision()

import kernels  # noqa: E402
import transformers  # noqa: E402
from kernels.layer.globals import _KERNEL_MAPPING  # noqa: E402
from transformers.integrations import hub_kernels  # noqa: E402
from transformers.utils import import_utils  # noqa: E402

import planish  # noqa: E402
import planish.hf  # noqa: E402
import torch  # noqa: E402
from planish.replacing import probe  # noqa: E402

if not import_utils.is_kernels_available():
    pytest.skip(
        f"transformers {transformers.__version__} does not use kernels {kernels.__version__}",
        allow_module_level=True,
    )

INFERENCE, TRAINING, COMPILE = (
    kernels.Mode.INFERENCE,
    kernels.Mode.TRAINING,
    kernels.Mode.TORCH_COMPILE,
)
MODES = [INFERENCE, TRAINING, INFERENCE | COMPILE, TRAINING | COMPILE]


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    yield
    planish.hf.unregister()


# ---- The classes --------------------------------------------------------------------------------


def _layer(node: ast.ClassDef) -> str | None:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.args:
            name = mark.args[0]
            if mark.func.id == "use_kernel_forward_from_hub" and isinstance(name, ast.Constant):
                return str(name.value)
    return None


def _marked() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Every marked norm of this Transformers, by layer and by the text of its methods (but its
    constructor): (module, class) of each."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    models = pathlib.Path(transformers.__file__).parent / "models"
    for path in sorted(models.glob("*/modeling_*.py")):
        text = path.read_text()
        if "use_kernel_forward_from_hub(" not in text:
            continue
        for node in ast.parse(text).body:
            layer = _layer(node) if isinstance(node, ast.ClassDef) else None
            if layer is None or "Norm" not in layer:
                continue
            methods = [
                ast.unparse(part)
                for part in node.body
                if isinstance(part, ast.FunctionDef) and part.name not in ("__init__", "extra_repr")
            ]
            place = f"transformers.models.{path.parent.name}.{path.stem}", node.name
            found.setdefault((layer, "\n".join(methods)), []).append(place)
    return found


MARKED = _marked()
#: One class of each text.
FAMILIES = [(key[0], *places[0]) for key, places in MARKED.items()]


def _class(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def test_every_marked_norm_is_a_layer_that_planish_has():
    assert {layer for layer, _ in MARKED} == set(planish.hf.LAYERS)
    assert sum(len(places) for places in MARKED.values()) > 100


def _made(layer: str, module: str, name: str, dtype: torch.dtype) -> torch.nn.Module:
    norm: torch.nn.Module = _class(module, name)(320, eps=1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(320) * 0.3 + (0 if "Zero" in layer else 1))
    return norm


def _run(norm: torch.nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """y, then the gradients of the inputs and the weight, as tensors of their own."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = norm(*leaves)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y.dtype)
    gradients = torch.autograd.grad(y, [*leaves, norm.weight], dy)
    return [y.detach(), *gradients]


def _gap(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """In ULP of the largest magnitude of the row, elementwise."""
    largest = wanted.double().abs().amax(-1, keepdim=True)
    ulp = torch.finfo(wanted.dtype).eps * 2.0 ** torch.floor(torch.log2(largest))
    return (found.double() - wanted.double()).abs() / ulp


@pytest.mark.parametrize("weight_dtype", ["same", torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer, module, name", FAMILIES, ids=[name for *_, name in FAMILIES])
def test_a_layer_computes_what_its_class_computes(layer, module, name, dtype, weight_dtype):
    norm = _made(layer, module, name, dtype if weight_dtype == "same" else weight_dtype)
    inputs = [torch.randn(4, 33, 320).mul(3).to(dtype)]
    if layer == "RMSNormGated":
        inputs.append(torch.randn(4, 33, 320).to(dtype))
    own = _run(norm, *inputs)
    exact = _run(copy.deepcopy(norm).double(), *(t.double() for t in inputs))
    planish.hf.register()
    kernels.kernelize(norm, mode=TRAINING, device="cpu")
    assert norm.forward.__func__ is planish.hf.LAYERS[layer].forward
    activation, gated = getattr(norm, "activation", None), layer == "RMSNormGated"
    place = planish.hf._place_for(type(norm), activation, dtype, norm.weight.dtype, gated)
    assert place >= 0, "its own forward ran"
    ours = _run(norm, *inputs)
    for i, (found, wanted, truth) in enumerate(zip(ours, own, exact, strict=True)):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        gap = _gap(found, wanted)
        if dtype == torch.float32:  # as replace() has it of y, and of gradients
            bound = probe.GRADIENT_ULP if i else probe.BOUND_ULP
            assert gap.max() <= bound, f"{i}: {gap.max():.3g} ULP off"
        else:
            # Rounded in the same places: a sum in another order makes few of them fall to the other
            # side (another place of rounding: a fifth), and those by no more than x's precision.
            # Gradients may be rounded in fewer places, and are no farther from the truth then.
            few = gap > (4 if found.dtype == torch.float32 else 0)
            if i == 0:
                assert few.double().mean() < 0.02
            elif few.double().mean() >= 0.02:
                assert (found - truth).abs().mean() <= (wanted - truth).abs().mean()
            assert gap.max() * torch.finfo(found.dtype).eps <= 4 * torch.finfo(dtype).eps


def test_the_other_order_of_rounding_would_be_seen():
    """What keeps the test above honest: Llama's order and Olmo's differ by more than it allows."""
    llama = _class("transformers.models.llama.modeling_llama", "LlamaRMSNorm")(320)
    olmo = _class("transformers.models.olmo2.modeling_olmo2", "Olmo2RMSNorm")(320)
    x = torch.randn(64, 320).mul(3).bfloat16()
    weight = torch.randn(320).bfloat16()
    y = []
    for norm in (llama, olmo):
        norm.bfloat16()
        norm.weight.data.copy_(weight)
        y.append(norm(x))
    assert (_gap(*y) > 0).double().mean() > 0.05


class Doubled(_class("transformers.models.llama.modeling_llama", "LlamaRMSNorm")):  # type: ignore[misc]
    """Inherits Llama's mark and computes something else."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden_states)


def test_a_class_that_computes_something_else_keeps_its_forward():
    norm = Doubled(64)
    x = torch.randn(3, 64)
    own = norm(x)
    planish.hf.register()
    kernels.kernelize(norm, mode=INFERENCE, device="cpu")
    assert torch.equal(norm(x), own)


@pytest.fixture
def llama_norm() -> torch.nn.Module:
    norm = _class("transformers.models.llama.modeling_llama", "LlamaRMSNorm")(64)
    norm.weight.data.normal_()
    return norm


class Marked(torch.Tensor):
    """A subclass that says nothing of itself."""


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 64, dtype=torch.float64),
        torch.randn(0, 64),
        torch.randn(3, 64).as_subclass(Marked),
        torch.randn(3, 1),
        torch.randn(3, 64, device="meta"),
    ],
    ids=["f64", "empty", "subclass", "broadcast", "meta"],
)
def test_what_planish_does_not_run_is_the_class_s_own(llama_norm, x):
    llama_norm.to(x.device)
    own = llama_norm(x)
    planish.hf.register()
    kernels.kernelize(llama_norm, mode=INFERENCE, device="cpu")
    y = llama_norm(x)
    assert (y.dtype, y.shape, type(y)) == (own.dtype, own.shape, type(own))
    assert x.is_meta or torch.equal(y, own)


def test_eps_weight_and_activation_are_read_when_called():
    norm = _made("RMSNormGated", *_place("Qwen3NextRMSNormGated"), torch.float32)
    x, gate = torch.randn(2, 5, 320), torch.randn(2, 5, 320)
    planish.hf.register()
    kernels.kernelize(norm, mode=INFERENCE, device="cpu")
    norm(x, gate)
    norm.variance_epsilon, norm.activation = 3.0, "relu"
    norm.weight.data.mul_(2)
    found = norm(x, gate)
    assert _gap(found, type(norm).forward(norm, x, gate)).max() <= 4


def _place(name: str) -> tuple[str, str]:
    return next(p for places in MARKED.values() for p in places if p[1] == name)


# ---- The tables ---------------------------------------------------------------------------------


def _tables() -> tuple[dict[str, Any], dict[str, Any]]:
    return hub_kernels.get_kernel_mapping_transformers(), _KERNEL_MAPPING.get()


@pytest.mark.parametrize("hub", [False, True])
def test_the_tables_hold_planish_and_are_given_back(hub):
    hub_kernels.register_kernel_mapping_transformers()
    theirs, live = _tables()
    before = dict(theirs), sorted(live)
    cuda_before = theirs["RMSNorm"]["cuda"]
    planish.hf.register(hub=hub)
    assert planish.hf.registered()
    hub_kernels.register_kernel_mapping_transformers()  # what use_kernels=True does each time
    for layer in planish.hf.LAYERS:
        cuda = live[layer]["cuda"].repos_by_capability.find_smallest_interval(90)
        for repos in (cuda, live[layer]["cpu"].repos):
            assert [repos[mode].load() for mode in MODES] == [planish.hf.LAYERS[layer]] * 4
    others = [name for name in theirs if name not in planish.hf.LAYERS]
    assert len(others) > 3
    assert all(bool(theirs[name]) == hub for name in others)
    assert ("rocm" in theirs["RMSNorm"]) == hub
    planish.hf.register(hub=not hub)  # again: nothing piles up
    planish.hf.unregister()
    planish.hf.unregister()
    assert not planish.hf.registered()
    assert sorted(theirs) == sorted(before[0]) and sorted(live) == before[1]
    assert "cpu" not in theirs["RMSNorm"] and "cpu" not in live["RMSNorm"]
    assert set(theirs["RMSNorm"]["cuda"]) == set(cuda_before)
    assert not isinstance(theirs["RMSNorm"]["cuda"][INFERENCE], planish.hf._Here)


def _tiny_llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=64,
    )
    return transformers.LlamaForCausalLM(config)


IDS = torch.arange(24).view(2, 12) * 5 % 64


def test_use_kernels_runs_planish_and_asks_nothing_of_the_net(monkeypatch):
    def no_net(*_: object) -> None:
        raise AssertionError("something was asked of the net")

    monkeypatch.setattr(socket.socket, "connect", no_net)
    monkeypatch.setattr(socket, "getaddrinfo", no_net)
    planish.hf.register()
    model = _tiny_llama().bfloat16()
    own = model(IDS).logits
    calls = []
    runner = planish.hf.runners.runner

    def counted(form: Any) -> Any:
        run = runner(form)
        return lambda *given: calls.append(given) or run(*given)

    monkeypatch.setattr(planish.hf.runners, "runner", counted)
    monkeypatch.setattr(planish.hf, "_places", {})
    for training in (True, False, True):  # train() and eval() bind again
        model.train(training)
        model.set_use_kernels(True)
        calls.clear()
        assert _gap(model(IDS).logits, own).max() <= 4
        assert len(calls) == 5  # two layers of two norms, and the last
    model(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    planish.hf.unregister()
    calls.clear()
    assert torch.equal(model(IDS).logits, own)
    assert not calls, "planish still runs after unregister()"


def test_from_config_copies_and_state_go_on(tmp_path):
    planish.hf.register()
    _tiny_llama().save_pretrained(tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, use_kernels=True)
    assert model.model.norm.forward.__func__ is planish.hf.RMSNorm.forward
    assert set(model.state_dict()) == set(_tiny_llama().state_dict())
    twin = copy.deepcopy(model)
    twin.model.norm.weight.data.fill_(0)
    assert twin(IDS).logits.abs().max() == 0
    assert model(IDS).logits.abs().max() > 0


@pytest.mark.parametrize("training", [False, True])
def test_torch_compile_takes_one_graph_with_planish_in_it(training):
    planish.hf.register()
    model = _tiny_llama().bfloat16().train(training)
    own = model(IDS, labels=IDS).loss
    model.set_use_kernels(True, mode=(TRAINING if training else INFERENCE) | COMPILE)
    planish.hf._places.clear()  # the class is asked while its module is traced
    seen: list[str] = []

    def compiler(graph: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=lambda g, i: make_boxed_func(compiler(g, i)))
    with torch.set_grad_enabled(training):
        loss = torch.compile(model, backend=backend, fullgraph=True)(IDS, labels=IDS).loss
    assert seen.count("planish.norm_forward.default") == 5
    assert abs(loss.item() - own.item()) < 0.02
    if training:
        loss.backward()
        assert any("norm_backward.default" in name for name in seen)
        assert model.model.norm.weight.grad.isfinite().all()


def test_what_cannot_work_is_said(monkeypatch):
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: False)
    with pytest.raises(ImportError, match=r"does not use kernels \d.*wants \d"):
        planish.hf.register()
    monkeypatch.undo()
    monkeypatch.setattr(hub_kernels, "_kernels_enabled", False)
    with pytest.raises(RuntimeError, match="USE_HUB_KERNELS"):
        planish.hf.register()
    monkeypatch.undo()
    monkeypatch.delattr("kernels.layer.globals._KERNEL_MAPPING")
    with pytest.raises(ImportError, match="keeps its table elsewhere"):
        planish.hf.register()
    monkeypatch.undo()
    assert not planish.hf.registered()
