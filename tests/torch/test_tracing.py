"""Whatever looks at a model instead of running it, or wraps its tensors, goes on as under torch."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
from collections.abc import Callable

import pytest
import torch.nn.functional as F
from support import LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD, Calls, on_planish
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import torch
from torch import Tensor, nn

WEIGHT, BIAS = torch.randn(8), torch.randn(8)


def layer(x: Tensor) -> Tensor:
    return F.layer_norm(x, (8,), WEIGHT, BIAS)


def rms(x: Tensor) -> Tensor:
    return F.rms_norm(x, (8,), WEIGHT)


NORMS = {"layer_norm": (layer, LAYER), "rms_norm": (rms, RMS)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.second = nn.RMSNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.linear(self.first(x)))


def gradients(model: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    y = model(leaf)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaf)]


def assert_same(ours: object, native: object) -> None:
    torch.testing.assert_close(ours, native, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["trace", "script", "freeze"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_differs(how: str) -> None:
    model, x = Model().eval(), torch.randn(4, 8)
    native = model(x)
    with on_planish(LAYER, RMS):
        module = torch.jit.trace(model, x) if how == "trace" else torch.jit.script(model)
        if how == "freeze":
            module = torch.jit.freeze(module)
        assert_same(module(x), native)
        assert_same(module(x), native)
        file = io.BytesIO()
        torch.jit.save(module, file)
        file.seek(0)
        assert_same(torch.jit.load(file)(x), native)
    assert_same(module(x), native)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_differ(backend: str) -> None:
    model, x = Model(), torch.randn(4, 8)
    native = gradients(model, x)
    calls = Calls()
    torch._dynamo.reset()
    with on_planish():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert_same(gradients(compiled, x), native)
        assert_same(gradients(compiled, torch.cat([x, x]))[0][:4], native[0])
    assert calls.on_planish(LAYER) > 0
    assert_same(gradients(compiled, x), native)


@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="the inductor needs a C++ compiler"
)
def test_the_inductor_fails() -> None:
    model, x = Model(), torch.randn(4, 8)
    native = gradients(model, x)
    torch._dynamo.reset()
    with on_planish():
        compiled = torch.compile(model, backend="inductor", fullgraph=True)
        assert_same(gradients(compiled, x), native)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", NORMS)
def test_make_fx_records_another_graph(name: str, mode: str) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if name == "layer_norm":
            return F.layer_norm(x, (8,), weight, bias)
        return F.rms_norm(x, (8,), weight) + bias

    arguments = (torch.randn(4, 8), WEIGHT, BIAS)
    native = make_fx(function, tracing_mode=mode)(*arguments)
    with on_planish():
        ours = make_fx(function, tracing_mode=mode)(*arguments)
        assert_same(ours(*arguments), function(*arguments))
    if mode == "symbolic" or name == "layer_norm":
        # with sizes known, the graph of rms_norm holds _fused_rms_norm itself, not its parts
        assert str(ours.graph) == str(native.graph)
    assert_same(ours(*arguments), native(*arguments))


class Dynamic(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape, weight) + F.rms_norm(x, weight.shape, weight)


def test_export_with_dynamic_sizes_differs() -> None:
    rows, columns = torch.export.Dim("rows", min=2), torch.export.Dim("columns", min=2)
    sizes = {"x": {0: rows, 1: columns}, "weight": {0: columns}}
    arguments = (torch.randn(4, 8), torch.randn(8))
    native = torch.export.export(Dynamic(), arguments, dynamic_shapes=sizes)
    with on_planish():
        ours = torch.export.export(Dynamic(), arguments, dynamic_shapes=sizes)
        assert str(ours.graph) == str(native.graph)
        decomposed = ours.run_decompositions()
        other = torch.randn(5, 12), torch.randn(12)
        wanted = Dynamic()(*other)
        assert_same(ours.module()(*other), wanted)
        assert_same(decomposed.module()(*other), wanted)
    assert_same(native.module()(*other), wanted)


@pytest.mark.parametrize("name", NORMS)
def test_fake_and_meta_tensors_see_data_or_other_shapes(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    function, _ = NORMS[name]
    real = torch.randn(4, 8)
    with on_planish():
        meta = F.layer_norm(real.to("meta"), (8,)) if name == "layer_norm" else None
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = function(mode.from_tensor(real))
        y = function(real)
    assert (fake.shape, fake.stride(), fake.dtype) == (y.shape, y.stride(), y.dtype)
    assert meta is None or (meta.shape, meta.stride()) == (y.shape, y.stride())


@pytest.mark.parametrize("name", NORMS)
def test_function_transforms_differ(name: str) -> None:
    function, operator = NORMS[name]
    x = torch.randn(3, 5, 8)
    tangent = torch.randn(5, 8)

    def loss(row: Tensor) -> Tensor:
        return function(row).pow(3).sum()

    def results() -> list[object]:
        return [
            torch.func.vmap(function)(x),
            torch.func.vmap(function, in_dims=1)(x),
            torch.func.grad(loss)(x[0]),
            torch.func.vmap(torch.func.grad(loss))(x),
            torch.func.jvp(function, (x[0],), (tangent,)),
            torch.func.vjp(function, x[0])[1](tangent),
            torch.func.jacrev(function)(x[0, 0]),
            torch.func.jacfwd(function)(x[0, 0]),
            torch.func.hessian(loss)(x[0, 0]),
            torch.func.functionalize(function)(x),
        ]

    native = results()
    with on_planish(operator):
        ours = results()
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NORMS)
def test_per_sample_gradients_of_parameters_differ(name: str) -> None:
    norm = nn.LayerNorm(8) if name == "layer_norm" else nn.RMSNorm(8)
    parameters = dict(norm.named_parameters())
    x = torch.randn(6, 5, 8)

    def loss(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(norm, values, (sample,)).pow(2).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    native = per_sample(parameters, x)
    with on_planish():
        ours = per_sample(parameters, x)
    torch.testing.assert_close(ours, native, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NORMS)
def test_second_gradients_in_float32_differ(name: str) -> None:
    function, operator = NORMS[name]
    x = torch.randn(5, 8)

    def second() -> Tensor:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf).pow(2).sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), leaf)[0]

    native = second()
    with on_planish(operator):
        ours = second()
    torch.testing.assert_close(ours, native, rtol=1e-3, atol=1e-4)


def test_autocast_changes_dtypes_or_values() -> None:
    model, x = Model(), torch.randn(4, 8)

    def run() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            leaf = x.clone().requires_grad_()
            y = model(leaf)
        return [y, *torch.autograd.grad(y.float().sum(), [leaf, *model.parameters()])]

    native = run()
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        ours = run()
    for mine, theirs in zip(ours, native, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=4e-2, atol=4e-2)


def test_inference_mode_makes_ordinary_tensors() -> None:
    x = torch.randn(4, 8)
    native = [layer(x), rms(x)]
    with on_planish(LAYER, "rms_norm"), torch.inference_mode():
        ours = [layer(x), rms(x)]
    assert all(t.is_inference() for t in ours)
    for mine, theirs in zip(ours, native, strict=True):
        assert_same(mine.clone(), theirs)
    with on_planish(RMS), torch.no_grad():
        assert not rms(x.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_differs(reentrant: bool) -> None:
    model, x = Model(), torch.randn(4, 8)
    native = gradients(model, x)
    leaf = x.clone().requires_grad_()
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        y = checkpoint(model, leaf, use_reentrant=reentrant)
        y.square().sum().backward()
    assert_same([y.detach(), leaf.grad], native)


def test_saved_tensor_hooks_are_passed_by_or_lose_their_exception() -> None:
    packed = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tuple(tensor.shape))
        return tensor

    def refuse(tensor: Tensor) -> Tensor:
        raise KeyError("refused")

    x = torch.randn(4, 8, requires_grad=True)
    with on_planish(LAYER, RMS):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            (layer(x) + rms(x)).sum().backward()
        for function in (layer, rms):
            with (
                torch.autograd.graph.saved_tensors_hooks(refuse, lambda t: t),
                pytest.raises(KeyError, match="refused"),
            ):
                function(x)
    assert (4, 1) in packed


def test_models_cannot_be_copied_or_pickled_while_enabled() -> None:
    model, x = Model(), torch.randn(4, 8)
    native = model(x)
    with on_planish(LAYER, RMS):
        assert_same(copy.deepcopy(model)(x), native)
        assert_same(pickle.loads(pickle.dumps(model))(x), native)
        y = F.layer_norm(x, (8,))
        torch.testing.assert_close(copy.deepcopy(y), y)


def test_a_dispatch_mode_sees_other_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.randn(4, 8)
    with on_planish(LAYER), Names() as seen:
        layer(x)
    assert seen.names == ["aten.native_layer_norm.default"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_reach_planish() -> None:
    parts = [torch.randn(2, 8), torch.randn(3, 8)]
    strided = torch.nested.nested_tensor(parts)
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    # torch 2.13 has no rms_norm for strided ones
    calls = [lambda: layer(strided), lambda: layer(jagged), lambda: rms(jagged)]
    native = [call() for call in calls]
    with on_planish():
        ours = [call() for call in calls]
    for mine, theirs in zip(ours, native, strict=True):
        for one, other in zip(mine.unbind(), theirs.unbind(), strict=True):
            assert_same(one, other)
