"""planish's modules where a model is traced, scripted, exported or taken apart: what torch.nn's
modules allow, they allow."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)

import planish
import torch
from torch import Tensor, fx, nn

IMAGE = (2, 8, 4, 4)
MODULES: dict[str, tuple[nn.Module, nn.Module, tuple[int, ...]]] = {
    "LayerNorm": (nn.LayerNorm(8), planish.LayerNorm(8), (3, 8)),
    "RMSNorm": (nn.RMSNorm(8), planish.RMSNorm(8), (3, 8)),
    "GroupNorm": (nn.GroupNorm(2, 8), planish.GroupNorm(2, 8), IMAGE),
    "InstanceNorm2d": (
        nn.InstanceNorm2d(8, affine=True),
        planish.InstanceNorm2d(8, affine=True),
        IMAGE,
    ),
    "InstanceNorm1d, running": (
        nn.InstanceNorm1d(8, track_running_stats=True),
        planish.InstanceNorm1d(8, track_running_stats=True),
        (2, 8, 5),
    ),
}
OWN: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    **{name: (own, shape) for name, (_, own, shape) in MODULES.items()},
    "LayerNorm2d": (planish.LayerNorm2d(8), IMAGE),
    "RMSNorm2d": (planish.RMSNorm2d(8), IMAGE),
    "GroupNorm, silu": (planish.GroupNorm(2, 8, activation="silu"), IMAGE),
    "GroupNorm, relu": (planish.GroupNorm(2, 8, activation="relu"), IMAGE),
    "EvoNorm2dS0": (planish.EvoNorm2dS0(8, 2), IMAGE),
}


@pytest.fixture(params=[False, True], ids=["off", "enabled"], autouse=True)
def _switch(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        with planish.enabled():
            yield
    else:
        yield


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", OWN)
def test_script_raises_or_gives_other_results(name: str, tmp_path: Path) -> None:
    module, shape = OWN[name]
    x = torch.randn(shape)
    scripted = torch.jit.script(nn.Sequential(nn.Identity(), copy.deepcopy(module)))
    close(scripted(x), module(x))
    scripted.save(tmp_path / "scripted.pt")
    close(torch.jit.load(tmp_path / "scripted.pt")(x), module(x))


@pytest.mark.parametrize("name", OWN)
def test_trace_warns_or_gives_other_results(name: str) -> None:
    module, shape = OWN[name]
    module = copy.deepcopy(module)
    x = torch.randn(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        if name.startswith(("GroupNorm", "Instance", "EvoNorm")) or name.endswith("2d"):
            # torch's own warn of the sizes that they look at
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
        traced = torch.jit.trace(module, x, check_trace=False)
    close(traced(x), module(x))
    other = torch.randn(5, *shape[1:])
    close(traced(other), module(other))


@pytest.mark.parametrize("name", OWN)
def test_fx_looks_inside(name: str) -> None:
    module, shape = OWN[name]
    model = nn.Sequential(nn.Identity(), module)
    graph = fx.symbolic_trace(model)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1"]
    assert graph.get_submodule("1") is module
    x = torch.randn(shape)
    assert torch.equal(graph(x), model(x))


class Functions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = planish.layer_norm(x, 1) + planish.rms_norm(x, (2, 3))
        y = planish.layer_norm(y, -1, cast="xhat") + planish.rms_norm(y, -1, cast="xhat")
        return planish.group_norm(y, 2, activation="silu") + planish.weight_standardize(y)


def test_fx_does_not_record_functions() -> None:
    graph = fx.symbolic_trace(Functions())
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    for function in (
        planish.layer_norm,
        planish.rms_norm,
        planish.group_norm,
        planish.weight_standardize,
    ):
        assert function in called
    x = torch.randn(IMAGE)
    assert torch.equal(graph(x), Functions()(x))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_nested_tensors_raise_or_are_wrong(layout: torch.layout, name: str) -> None:
    theirs, own, _ = MODULES[name]
    parts = [torch.randn(2, 8), torch.randn(5, 8)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    try:
        theirs(nested)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch has no {name} of {layout} nested tensors: {type(error).__name__}")
    y = own(nested)
    assert y.is_nested
    for part, found in zip(parts, y.unbind(), strict=True):
        close(found, own(part))
    if name == "LayerNorm" and layout is torch.jagged:  # torch has strided ones with weights only
        for part, found in zip(parts, planish.layer_norm(nested, -1).unbind(), strict=True):
            close(found, planish.layer_norm(part, -1))


@pytest.mark.parametrize("name", OWN)
def test_tensors_made_in_inference_mode_train_no_weights(name: str) -> None:
    module, shape = OWN[name]
    module = copy.deepcopy(module)
    with torch.inference_mode():
        features = torch.randn(shape)
    parameters = [p for p in module.parameters() if p is not None]
    if not parameters:
        pytest.skip("no parameters to train")
    module(features).pow(2).sum().backward()
    found = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    module(features.clone()).pow(2).sum().backward()
    for one, p in zip(found, parameters, strict=True):
        assert one is not None
        close(one, p.grad)


class Tagged(Tensor):
    """A subclass with nothing of its own."""


@pytest.mark.parametrize("name", OWN)
def test_subclasses_are_lost_or_read_wrong(name: str) -> None:
    module, shape = OWN[name]
    x = torch.randn(shape)
    y = module(x.as_subclass(Tagged))
    assert type(y) is Tagged
    close(y.as_subclass(Tensor), module(x))


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm2d"])
def test_onnx_has_no_operator_for_it(name: str) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    theirs, own, shape = MODULES[name]
    x = torch.randn(shape)

    def operators(module: nn.Module) -> list[str]:
        program = torch.onnx.export(module.eval(), (x,), dynamo=True, verbose=False)
        return [node.op_type for node in program.model.graph]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert operators(copy.deepcopy(own)) == operators(copy.deepcopy(theirs))


# ---- Layout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 4, 4), (3, 8, 4, 4), (2, 8, 1, 4), (1, 8, 2, 3, 4)])
def test_channels_last_is_lost(shape: tuple[int, ...]) -> None:
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).contiguous(memory_format=last).requires_grad_()
    wanted = nn.GroupNorm(4, 8)(x)
    for y in (
        planish.GroupNorm(4, 8)(x),
        planish.group_norm(x, 4, activation="silu"),
        planish.layer_norm(x, 1),
        planish.rms_norm(x, (0, 2)),
    ):
        assert y.stride() == wanted.stride() == x.stride()
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert dx.is_contiguous(memory_format=last)
    compiled = torch.compile(planish.GroupNorm(4, 8), backend="aot_eager", fullgraph=True)
    with torch.no_grad():  # with a graph, AOTAutograd takes the stride of an axis of size 1 anew
        assert compiled(x).stride() == x.stride()


def test_layer_norm_modules_have_other_strides_than_torchs() -> None:
    x = torch.randn(4, 2, 2, 5).contiguous(memory_format=torch.channels_last)
    for theirs, own in (
        (nn.LayerNorm(5), planish.LayerNorm(5)),
        (nn.RMSNorm(5), planish.RMSNorm(5)),
    ):
        assert own(x).stride() == theirs(x).stride()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
def test_running_variances_lose_their_digits(scale: float) -> None:
    x = torch.randn(3, 4, 16, 16) * scale + 5 * scale
    exact = nn.InstanceNorm2d(4, momentum=1.0, track_running_stats=True).double()
    own = planish.InstanceNorm2d(4, momentum=1.0, track_running_stats=True)
    exact(x.double())
    own(x)
    torch.testing.assert_close(own.running_var.double(), exact.running_var, rtol=1e-6, atol=0)
    torch.testing.assert_close(own.running_mean.double(), exact.running_mean, rtol=1e-6, atol=0)


# ---- DTensor ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh() -> Iterator[object]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", [n for n in OWN if n not in ("InstanceNorm1d, running",)])
def test_distributed_tensors_raise_or_are_wrong(mesh: object, name: str) -> None:
    module, shape = OWN[name]
    plain = copy.deepcopy(module)
    spread = distribute_module(copy.deepcopy(module), mesh)
    x = torch.randn(shape)
    y = spread(distribute_tensor(x, mesh, [Shard(0)]))
    assert isinstance(y, DTensor)
    close(y.full_tensor(), plain(x))
    if name == "EvoNorm2dS0":
        return
    y.pow(2).sum().full_tensor().backward()
    plain(x).pow(2).sum().backward()
    for one, other in zip(spread.parameters(), plain.parameters(), strict=True):
        close(one.grad.full_tensor(), other.grad)


def test_gradients_of_sharded_rows_are_no_partial_sums(mesh: object) -> None:
    from planish.operators import ops, sharding

    assert sharding.register()
    rows = distribute_tensor(torch.randn(6, 8), mesh, [Shard(0)])
    weight = distribute_tensor(torch.randn(8), mesh, [Replicate()])
    y, mean, rstd = ops.plain_forward(rows, weight, None, [1], [1], 1e-5, False)
    assert [t.placements for t in (y, mean, rstd)] == [(Shard(0),)] * 3
    dx, dweight, dbias = ops.plain_backward(rows, rows, mean, rstd, weight, [1], [1], False)
    assert dx.placements == (Shard(0),)
    assert dweight.placements == dbias.placements == (Partial(),)
    columns = distribute_tensor(torch.randn(6, 8), mesh, [Shard(1)])
    y, _, _ = ops.plain_forward(columns, weight, None, [1], [1], 1e-5, False)
    assert y.placements == (Replicate(),)
