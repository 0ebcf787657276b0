"""aten::native_group_norm on planish: derivatives and tracing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.nn.functional as F
from group_norm_support import FASTER, gradients
from support import GROUP, GROUP_BACKWARD, Calls, description, on_planish
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import planish
import torch
from torch import Tensor, nn

LAST, LAST_3D = torch.channels_last, torch.channels_last_3d

torch.manual_seed(0)

X, WEIGHT = torch.randn(2, 6, 4, 5), torch.randn(6)

WRONG, LAYOUT = "shapes that do not fit", "a layout that torch refuses"

DTYPE, MIXED = "a dtype other than f16, bf16, f32, f64", "a mix of dtypes that torch refuses"


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_of_either_order_are_wrong(
    channels_last: bool, groups: int, check: Callable[..., bool]
) -> None:
    x = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=LAST)
    leaves = [x.requires_grad_()]
    leaves += [torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    with on_planish(GROUP):
        assert check(lambda x, w, b: F.group_norm(x, groups, w, b), leaves)
        assert check(lambda x: F.group_norm(x, groups), leaves[:1])


def test_function_transforms_differ() -> None:
    x, tangent = torch.randn(3, 6, 4), torch.randn(3, 6, 4)

    def norm(x: Tensor) -> Tensor:
        return F.group_norm(x, 3, WEIGHT, WEIGHT)

    def sample(x: Tensor) -> Tensor:
        return norm(x[None])[0]

    def loss(x: Tensor) -> Tensor:
        return sample(x).pow(3).sum()

    def results() -> list[object]:
        return [
            torch.func.vmap(sample)(x),
            torch.func.vmap(norm)(torch.stack([x, 2 * x])),
            torch.func.vmap(norm, in_dims=2)(torch.stack([x, 2 * x], 2)),
            torch.func.vmap(torch.func.grad(loss))(x),
            torch.func.jvp(norm, (x,), (tangent,)),
            torch.func.vjp(norm, x)[1](tangent),
            torch.func.jacrev(sample)(x[0]),
            torch.func.jacfwd(sample)(x[0]),
            torch.func.hessian(loss)(x[0]),
            torch.func.functionalize(norm)(x),
        ]

    native = results()
    with on_planish(GROUP):
        ours = results()
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GroupNorm(2, 6)
        self.convolution = nn.Conv2d(6, 8, 3, padding=1)
        self.second = nn.GroupNorm(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.convolution(self.first(x)))


def assert_same(ours: list[Tensor], native: list[Tensor]) -> None:
    for mine, theirs in zip(ours, native, strict=True):
        assert description([mine]) == description([theirs])
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST], ids=str)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_differ(backend: str, memory_format: torch.memory_format) -> None:
    model, x = Model(), X.contiguous(memory_format=memory_format)
    native = gradients(model, x)
    torch._dynamo.reset()
    with on_planish(GROUP, GROUP_BACKWARD):
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert_same(gradients(compiled, x), native)
    assert_same(gradients(compiled, x), native)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_export_and_make_fx_differ() -> None:
    model, x = Model().eval(), X
    native = model(x)
    graph = make_fx(model)(x).graph
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}).graph
    with on_planish(GROUP):
        assert str(make_fx(model)(x).graph) == str(graph)
        program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
        assert str(program.graph) == str(exported)
        modules = [torch.jit.trace(model, x), torch.jit.freeze(torch.jit.script(model))]
        for module in [*modules, program.module(), program.run_decompositions().module()]:
            torch.testing.assert_close(module(x), native, rtol=1e-4, atol=1e-4)


def test_autocast_changes_dtypes_or_values() -> None:
    model = Model()

    def results() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            leaf = X.clone().requires_grad_()
            y = model(leaf)
        return [y, *torch.autograd.grad(y.float().pow(2).sum(), [leaf, *model.parameters()])]

    native = results()
    with on_planish(GROUP, GROUP_BACKWARD):
        ours = results()
    assert [t.dtype for t in ours] == [t.dtype for t in native]
    torch.testing.assert_close(ours[0], native[0], rtol=4e-2, atol=4e-2)


def test_a_dispatch_mode_sees_other_operators() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    with on_planish(GROUP), Names() as seen:
        F.group_norm(X, 3, WEIGHT, WEIGHT)
        F.group_norm(X.contiguous(memory_format=LAST), 3)
    assert [name for name in seen.names if "norm" in name] == ["aten.native_group_norm.default"] * 2


@pytest.mark.parametrize(
    ("shape", "groups", "dtype", "last", "passes"),
    [
        ((2, 320, 2, 2), 10, torch.float32, True, (False, False)),
        ((2, 320, 2, 2), 10, torch.bfloat16, True, (False, False)),
        ((2, 288, 2, 2), 32, torch.float32, True, (True, True)),  # nine channels to a group
        ((2, 320, 2, 2), 10, torch.bfloat16, False, (True, False)),
        ((2, 1280, 2, 2), 32, torch.float32, False, (False, True)),
        ((2, 1280, 4, 4), 32, torch.float32, False, (True, False)),
        ((2, 1280, 4, 4), 32, torch.bfloat16, False, (True, True)),
        ((1, 4, 2, 2), 2, torch.bfloat16, True, (True, True)),  # two channels to a group
    ],
    ids=str,
)
def test_an_image_of_few_pixels_goes_where_it_is_slower(
    shape: tuple[int, ...],
    groups: int,
    dtype: torch.dtype,
    last: bool,
    passes: tuple[bool, bool],
) -> None:
    x = torch.randn(shape, dtype=dtype)
    x = (x.contiguous(memory_format=LAST) if last else x).requires_grad_()
    calls, threads = Calls(), torch.get_num_threads()
    torch.set_num_threads(1)  # test_group_rules has what holds with more
    try:
        with planish.enabled():
            y = F.group_norm(x, groups)
            y.backward(torch.ones_like(y))
    finally:
        torch.set_num_threads(threads)
    for operator, stays in zip((GROUP, GROUP_BACKWARD), passes, strict=True):
        assert calls.on_planish(operator) == int(stays)
        assert calls.on_torch(operator) == ({} if stays else {FASTER: 1})
