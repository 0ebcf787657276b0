"""planish.distributed.ShardedNorm, as a style of torch's tensor parallel: models with their heads
on 2 and 4 ranks give what they give on one, are saved and loaded, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed_support import draw, here, run, world_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

import planish
import torch
from torch import Tensor


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

    model, x = here(_Queries(_norm(kind, width), width)), here(draw(3, 5, 16))
    if ranks:
        mesh = world_mesh()
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
    model = here(model)
    if ranks:
        plan: dict[str, Any] = {f"{name}_proj": ColwiseParallel() for name in "qkv"}
        plan |= {f"{name}_norm": planish.distributed.ShardedNorm() for name in "qk"}
        plan["o_proj"] = RowwiseParallel()
        mesh = world_mesh()
        for layer in model.model.layers:
            parallelize_module(layer.self_attn, mesh, plan)
    words = here(torch.arange(14)).view(2, 7)
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


def _sharded_model(width: int) -> torch.nn.Module:
    from torch.distributed.tensor.parallel import parallelize_module

    model = here(_Queries(_norm("layer", width), width))
    plan = {"q_norm": planish.distributed.ShardedNorm()}
    return parallelize_module(model, world_mesh(), plan)


def _saved(folder: str, width: int) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": _sharded_model(width).state_dict()}, checkpoint_id=folder)


def _loaded(folder: str, width: int) -> list[Tensor]:
    import torch.distributed.checkpoint as dcp

    model = _sharded_model(width)
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
    run(before, _saved, str(tmp_path), width)
    wanted = _Queries(_norm("layer", width), width).q_norm
    for weight, bias in run(after, _loaded, str(tmp_path), width):
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
    model: Any = parallelize_module(here(_Queries(_norm(kind, 24), 24)), world_mesh(), plan)
    model.compile(backend="aot_eager", fullgraph=True)
    y = model(here(draw(3, 5, 16)))
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
