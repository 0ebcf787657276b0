"""DTensors: planish's functions on 2 and 4 ranks give what they give on one, with no collective
where rows are sharded and one of a few bytes a row where a normalised axis is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from distributed_support import run
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import planish
import torch
from torch import Tensor

COLUMNS = 24


def _draw(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _first(results: Any) -> Tensor:
    return results[0] + results[1].to(results[0].dtype) if isinstance(results, tuple) else results


#: name: (function of x and parameters, their sizes behind x's (rows, 3, COLUMNS)); what is
#: "rows" has x's shape
NORMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "layer_norm": (lambda x, w, b: planish.layer_norm(x, -1, w, b), [[COLUMNS], [COLUMNS]]),
    "rms_norm": (lambda x, w: planish.rms_norm(x, -1, w, eps=1e-6), [[COLUMNS]]),
    "over two axes": (lambda x, w: planish.layer_norm(x, (1, 2), w), [[3, COLUMNS]]),
    "weight offset": (
        lambda x, w: planish.rms_norm(x, -1, w, eps=1e-6, weight_offset=1.0),
        [[COLUMNS]],
    ),
    "add_rms_norm": (lambda x, r, w: planish.add_rms_norm(x, r, w, 1e-6), ["rows", [COLUMNS]]),
    "add_layer_norm, LayerScale": (
        lambda x, r, w, b, s: planish.add_layer_norm(x, r, w, b, column_scale=s),
        ["rows", [COLUMNS], [COLUMNS], [COLUMNS]],
    ),
    "gated_rms_norm": (
        lambda x, g, w: planish.gated_rms_norm(x, g, w, 1e-6),
        ["rows", [COLUMNS]],
    ),
    "normalize": (
        lambda x, w, b: planish.normalize(x, dim=-1, weight=w, bias=b),
        [[COLUMNS], [COLUMNS]],
    ),
    # About half of the rows are shorter than eps.
    "normalize, many short rows": (lambda x: planish.normalize(x, dim=-1, eps=6.9), []),
    "activation": (
        lambda x, w, b: planish.layer_norm(x, -1, w, b, activation="silu"),
        [[COLUMNS], [COLUMNS]],
    ),
}


def _parameters(sizes: list[Any], rows: int) -> list[Tensor]:
    return [_draw(rows, 3, COLUMNS) if s == "rows" else _draw(*s) for s in sizes]


def _whole(name: str, rows: int) -> list[Tensor]:
    norm, sizes = NORMS[name]
    tensors = [_draw(rows, 3, COLUMNS) + 1, *_parameters(sizes, rows)]
    for tensor in tensors:
        tensor.requires_grad_()
    y = _first(norm(*tensors))
    return [y.detach(), *torch.autograd.grad(y, tensors, _draw(*y.shape))]


def _placed(name: str, rows: int, axis: int) -> tuple[list[Tensor], dict[str, int], list[str]]:
    """(whole results, collectives of forward and backward, placements of the gradients)"""
    norm, sizes = NORMS[name]
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(_draw(rows, 3, COLUMNS) + 1, mesh, [Shard(axis)])
    tensors = [x]
    for size, parameter in zip(sizes, _parameters(sizes, rows), strict=True):
        last = size != "rows" and axis == 2
        where = Shard(axis) if size == "rows" else Shard(len(size) - 1) if last else Replicate()
        tensors.append(distribute_tensor(parameter, mesh, [where]))
    for tensor in tensors:
        tensor.requires_grad_()
    dy = distribute_tensor(_draw(rows, 3, COLUMNS), mesh, [Shard(axis)])
    with CommDebugMode() as mode:
        y = _first(norm(*tensors))
        gradients = torch.autograd.grad(y, tensors, dy)
    assert isinstance(y, DTensor)
    assert y.placements == (Shard(axis),)
    counts = {str(which): count for which, count in mode.get_comm_counts().items()}
    places = [str(g.placements[0]) for g in gradients[1:]]  # type: ignore[attr-defined]
    return [t.full_tensor().detach() for t in (y, *gradients)], counts, places  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("ranks", "rows"), [(2, 8), (2, 5), (4, 6)])
def test_sharded_rows_need_no_collective(ranks: int, rows: int, name: str) -> None:
    for results, counts, places in run(ranks, _placed, name, rows, 0):
        assert sum(counts.values()) == 0, counts
        for size, place in zip(NORMS[name][1], places, strict=True):
            assert place == str(Shard(0) if size == "rows" else Partial()), (size, place)
        for got, wanted in zip(results, _whole(name, rows), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sharded_normalised_axis_costs_one_exchange_each_way(ranks: int, name: str) -> None:
    for results, counts, _ in run(ranks, _placed, name, 4, 2):
        assert sum(counts.values()) == 2, counts
        for got, wanted in zip(results, _whole(name, 4), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def _weight_norm(dims: tuple[int, ...]) -> int:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = [_draw(6, 4, 5), _draw(6)]
    placed = [distribute_tensor(tensors[0], mesh, [Shard(1)])]
    placed.append(distribute_tensor(tensors[1], mesh, [Replicate()]))
    dy, results = _draw(6, 4, 5), []
    both = (placed, distribute_tensor(dy, mesh, [Shard(1)])), (tensors, dy)
    with CommDebugMode() as mode:
        for each, d in both:
            leaves = [tensor.requires_grad_() for tensor in each]
            y = planish.normalize(leaves[0], dim=dims, eps=0, weight=leaves[1], affine_dims=0)
            results.append([y, *torch.autograd.grad(y, leaves, d)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one.full_tensor(), other)  # type: ignore[attr-defined]
    assert results[0][2].placements == (Partial(),)  # type: ignore[attr-defined]
    return sum(mode.get_comm_counts().values())


@pytest.mark.parametrize(("dims", "exchanges"), [((1, 2), 2), ((2,), 0)])
def test_a_weight_norm_is_sharded_without_a_gather(dims: tuple[int, ...], exchanges: int) -> None:
    assert run(2, _weight_norm, dims) == [exchanges] * 2


# ---- Images --------------------------------------------------------------------------------------


def _group_norm(axis: int, sharded: bool) -> tuple[list[Tensor], dict[str, int]]:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = [_draw(4, 8, 6, 5), _draw(8), _draw(8)]
    if sharded:
        parameters = [Shard(0) if axis == 1 else Replicate()] * 2
        places = [Shard(axis), *parameters]
        tensors = [distribute_tensor(t, mesh, [p]) for t, p in zip(tensors, places, strict=True)]
    for tensor in tensors:
        tensor.requires_grad_()
    with CommDebugMode() as mode:
        y = planish.group_norm(tensors[0], 4, *tensors[1:], activation="silu")
        gradients = torch.autograd.grad(y.square().sum(), tensors)
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in (y, *gradients)]
    counts = {str(which): count for which, count in mode.get_comm_counts().items()}
    return [t.detach() for t in whole], counts


@pytest.mark.parametrize(("axis", "most"), [(0, 0), (1, 0), (2, 2), (3, 2)])
def test_group_norm_by_batch_groups_and_pixels(axis: int, most: int) -> None:
    for (got, counts), (wanted, _) in zip(
        run(2, _group_norm, axis, True), run(2, _group_norm, axis, False), strict=True
    ):
        assert sum(counts.values()) <= most, counts
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# ---- Queries and keys, and quantised results -----------------------------------------------------


def _qk_norm() -> tuple[list[Tensor], int]:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = [_draw(2, 3, 4, 16), _draw(2, 3, 2, 16), _draw(16), _draw(16)]
    places = [Shard(2), Shard(2), Replicate(), Replicate()]
    placed = [distribute_tensor(t, mesh, [p]) for t, p in zip(tensors, places, strict=True)]
    with CommDebugMode() as mode:
        results = planish.qk_norm(*placed, 1e-6)  # type: ignore[arg-type]
    wanted = planish.qk_norm(*tensors, 1e-6)  # type: ignore[arg-type]
    for got, other in zip(results, wanted, strict=True):
        torch.testing.assert_close(got.full_tensor(), other)  # type: ignore[attr-defined]
    return [], sum(mode.get_comm_counts().values())


def _quantized() -> tuple[list[Tensor], int]:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    x, weight = _draw(6, 32), _draw(32)
    placed = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(weight, mesh, [Replicate()])
    with CommDebugMode() as mode:
        q, scales = planish.quantized_rms_norm(*placed, 1e-6)[:2]
    wanted, wanted_scales = planish.quantized_rms_norm(x, weight, 1e-6)[:2]
    for got, other in ((q, wanted), (scales, wanted_scales)):  # gloo gathers no fp8
        own = other.chunk(dist.get_world_size())[dist.get_rank()]
        assert torch.equal(got.to_local().float(), own.float())  # type: ignore[attr-defined]
    return [], sum(mode.get_comm_counts().values())


@pytest.mark.parametrize("call", [_qk_norm, _quantized])
def test_sharded_heads_and_quantised_rows_need_no_collective(call: Callable[[], Any]) -> None:
    for _, count in run(2, call):
        assert count == 0


# ---- A style of torch's --------------------------------------------------------------------------


class _Queries(torch.nn.Module):
    """A projection of all heads' queries, normalised together, as OLMo 2 has it."""

    def __init__(self, norm: torch.nn.Module, width: int) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(5)
        self.q_proj = torch.nn.Linear(16, width, bias=False)
        self.q_norm = norm
        self.o_proj = torch.nn.Linear(width, 16, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=make))

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(self.q_norm(self.q_proj(x)).sin())


def _norm(kind: str, width: int) -> torch.nn.Module:
    if kind == "llama":
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        return LlamaRMSNorm(width, 1e-6)
    return torch.nn.LayerNorm(width) if kind == "layer" else torch.nn.RMSNorm(width, 1e-6)


def _styled(kind: str, width: int, ranks: int | None) -> tuple[list[Tensor], dict[str, int], float]:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model, x = _Queries(_norm(kind, width), width), _draw(3, 5, 16)
    if ranks:
        mesh = dist.init_device_mesh("cpu", (ranks,))
        plan = {
            "q_proj": ColwiseParallel(),
            # torch's RowwiseParallel takes uneven parts as a DTensor alone
            "q_norm": planish.distributed.ShardedNorm(use_local_output=width % ranks == 0),
            "o_proj": RowwiseParallel(),
        }
        model = parallelize_module(model, mesh, plan)
        assert isinstance(model.q_norm.weight, DTensor)
    with CommDebugMode() as mode:
        y = model(x)
        y.square().sum().backward()
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    tensors = [y, *(parameter.grad for parameter in model.parameters())]
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]  # type: ignore[union-attr]
    norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
    return [t.detach() for t in whole], {str(k): v for k, v in mode.get_comm_counts().items()}, norm


@pytest.mark.parametrize(("ranks", "width"), [(2, 24), (2, 25), (4, 24)])
@pytest.mark.parametrize("kind", ["rms", "layer", "llama"])
def test_sharded_norm_behind_a_column_parallel_projection(
    kind: str, ranks: int, width: int
) -> None:
    if kind == "llama":
        pytest.importorskip("transformers")
    wanted, _, norm = _styled(kind, width, None)
    for got, counts, total in run(ranks, _styled, kind, width, ranks):
        gathers = [count for which, count in counts.items() if "gather" in which]
        assert sum(gathers) == 2, counts  # one of the norm's each way
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert total == pytest.approx(norm, rel=1e-4)


def _olmo(ranks: int | None) -> list[Tensor]:
    """OLMo 2, whose norms of queries and keys go across all heads; these lie on the ranks."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )
    from transformers import Olmo2Config, Olmo2ForCausalLM

    torch.manual_seed(0)
    config = Olmo2Config(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, attn_implementation="eager", pad_token_id=0,
    )  # fmt: skip
    model: Any = Olmo2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand_like(parameter))
    if ranks:
        plan: dict[str, Any] = {f"{name}_proj": ColwiseParallel() for name in "qkv"}
        plan |= {f"{name}_norm": planish.distributed.ShardedNorm() for name in "qk"}
        plan["o_proj"] = RowwiseParallel()
        mesh = dist.init_device_mesh("cpu", (ranks,))
        for layer in model.model.layers:
            parallelize_module(layer.self_attn, mesh, plan)
    words = torch.arange(14).view(2, 7)
    said = model(words, labels=words)
    said.loss.backward()
    tensors = [said.logits, *(parameter.grad for parameter in model.parameters())]
    return [(t.full_tensor() if isinstance(t, DTensor) else t).detach() for t in tensors]


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_olmo_2_with_sharded_heads(ranks: int) -> None:
    pytest.importorskip("transformers.models.olmo2")
    wanted = _olmo(None)
    for got in run(ranks, _olmo, ranks):
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _sharded_model(ranks: int, width: int) -> torch.nn.Module:
    from torch.distributed.tensor.parallel import parallelize_module

    model = _Queries(_norm("layer", width), width)
    plan = {"q_norm": planish.distributed.ShardedNorm()}
    return parallelize_module(model, dist.init_device_mesh("cpu", (ranks,)), plan)


def _saved(folder: str, ranks: int, width: int) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": _sharded_model(ranks, width).state_dict()}, checkpoint_id=folder)


def _loaded(folder: str, ranks: int, width: int) -> list[Tensor]:
    import torch.distributed.checkpoint as dcp

    model = _sharded_model(ranks, width)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder)
    norm: Any = model.q_norm
    return [norm.weight.full_tensor().detach(), norm.bias.full_tensor().detach()]


@pytest.mark.parametrize(("width", "before", "after"), [(24, 2, 4), (25, 4, 2), (25, 2, 1)])
def test_distributed_checkpoints_of_a_sharded_norm(
    tmp_path: Path, width: int, before: int, after: int
) -> None:
    run(before, _saved, str(tmp_path), before, width)
    wanted = _Queries(_norm("layer", width), width).q_norm
    for weight, bias in run(after, _loaded, str(tmp_path), after, width):
        assert torch.equal(weight, wanted.weight)
        assert torch.equal(bias, wanted.bias)


# ---- Compiled ------------------------------------------------------------------------------------


def _compiled(kind: str) -> tuple[list[Tensor], int]:
    """A model with a ShardedNorm as one graph, and planish's calls."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.compiler.reset()
    planish.reset_stats()
    plan = {
        "q_proj": ColwiseParallel(),
        "q_norm": planish.distributed.ShardedNorm(),
        "o_proj": RowwiseParallel(),
    }
    mesh = dist.init_device_mesh("cpu", (2,))
    model: Any = parallelize_module(_Queries(_norm(kind, 24), 24), mesh, plan)
    model.compile(backend="aot_eager", fullgraph=True)
    y = model(_draw(3, 5, 16))
    y.square().sum().backward()
    gradients = [parameter.grad.full_tensor() for parameter in model.parameters()]
    return [y.detach(), *gradients], sum(one["planish"] for one in planish.stats().values())


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_compiled_model_has_its_sharded_norm_in_one_graph(kind: str) -> None:
    wanted, _, _ = _styled(kind, 24, None)
    for got, calls in run(2, _compiled, kind):
        assert calls == 4  # two operators each way
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


_COMPILED = """
import sys, planish, torch, torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.init_device_mesh("cpu", (1,))
x = distribute_tensor(torch.randn(4, 6, 8), mesh, [Shard(1)])
weight = distribute_tensor(torch.ones(8), mesh, [Replicate()]).requires_grad_()
norms = {
    "planish": lambda x: planish.rms_norm(x, -1, weight, eps=1e-6),
    "enabled": lambda x: torch.nn.functional.rms_norm(x, (8,), weight, 1e-6),
}
norm = norms[sys.argv[1]]
if sys.argv[1] == "enabled":
    planish.enable()
y = torch.compile(norm, backend="aot_eager", fullgraph=True)(x)
y.sum().backward()
planish.disable()
wanted = torch.nn.functional.rms_norm(x.full_tensor(), (8,), None, 1e-6)
torch.testing.assert_close(y.full_tensor(), wanted)
calls = planish.stats()
assert sum(one["planish"] for one in calls.values()) == 2, calls
"""


@pytest.mark.parametrize("norm", ["planish", "enabled"])
def test_the_first_dtensor_of_a_process_may_come_while_a_graph_is_traced(norm: str) -> None:
    command = [sys.executable, "-c", _COMPILED, norm]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
