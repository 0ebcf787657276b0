"""Small models trained on 2 and 4 ranks in the ways torch has, with planish put in before wrapping,
after it, and under torch's operators: to the losses of one process, within what torch alone
keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from distributed_models import MODELS, batch_of, loss_of, model_of
from distributed_support import run

import planish
import torch
from torch import Tensor, nn

STEPS = 3

#: How planish comes in: what is called before the wrapping, and what after it.
PUT_IN = {
    "torch": ("", ""),
    "replace before": ("replace", ""),
    "replace after": ("", "replace"),
    "fuse before": ("fuse", ""),
    "fuse after": ("", "fuse"),
    "enable": ("", "enable"),
}


def _put(how: str, model: nn.Module) -> None:
    if how in ("replace", "fuse"):
        planish.replace(model, fuse=how == "fuse")
    elif how == "enable":
        planish.enable()


# ---- The ways torch has --------------------------------------------------------------------------


def _ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block)
    return fully_shard(model)  # type: ignore[return-value]


def _checkpointed(model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    blocks = {type(block) for block in model.blocks}  # type: ignore[union-attr]
    apply_activation_checkpointing(model, check_fn=lambda module: type(module) in blocks)
    return _fsdp(model)


def _tensor_parallel(model: nn.Module) -> nn.Module:
    """With sequence parallel: norms have their own steps of a sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    steps, whole = Shard(1), Replicate()
    gathered = PrepareModuleInput(input_layouts=(steps,), desired_input_layouts=(whole,))
    plan = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=steps),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=steps, output_layouts=whole),
    }
    of_block = {
        "attention": gathered,
        **{f"attention.{one}": ColwiseParallel() for one in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=steps),
        "mlp": gathered,
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=steps),
    }
    for name, module in model.blocks[0].named_children():  # type: ignore[index]
        if isinstance(module, nn.RMSNorm | nn.LayerNorm):
            of_block[name] = SequenceParallel()
    plan |= {f"blocks.*.{name}": style for name, style in of_block.items()}
    return parallelize_module(model, mesh, plan)


WAYS = {
    "ddp": _ddp,
    "fsdp2": _fsdp,
    "checkpoint, fsdp2": _checkpointed,
    "tp + sp": _tensor_parallel,
}


# ---- Training ------------------------------------------------------------------------------------


def _train(model: nn.Module, is_split: bool) -> list[float]:
    """The losses of the steps; a rank takes its share of the batch where it is split."""
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    losses = []
    for step in range(STEPS):
        words = batch_of(step)
        if is_split:
            words = words.chunk(dist.get_world_size())[dist.get_rank()]
        loss = loss_of(model, words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if is_split:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        losses.append(float(mean))
    return losses


def _norms_on_planish() -> int:
    """Calls that ran on planish's kernels since the counts were reset."""
    return sum(calls["planish"] for calls in planish.stats().values())


def _losses(way: str, names: list[str]) -> dict[tuple[str, str], tuple[Any, int]]:
    found: dict[tuple[str, str], tuple[Any, int]] = {}
    for name in names:
        for how, (before, after) in PUT_IN.items():
            planish.reset_stats()
            try:
                model = model_of(name)
                _put(before, model)
                wrapped = WAYS[way](model)
                _put(after, wrapped)
                losses: Any = _train(wrapped, way != "tp + sp")
            finally:
                planish.disable()
            found[name, how] = losses, _norms_on_planish()
    return found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_losses_are_those_of_one_process(way: str, ranks: int) -> None:
    names = ["llama", "gpt"] if way == "tp + sp" else list(MODELS)
    found = run(ranks, _losses, way, names, limit=400)
    for name in names:
        alone = torch.tensor(_train(model_of(name), False), dtype=torch.float64)
        for of_rank in found:
            torchs = _distance(of_rank[name, "torch"][0], alone)
            for how in PUT_IN:
                losses, calls = of_rank[name, how]
                assert _distance(losses, alone) <= max(4 * torchs, 2e-6), (name, how, losses)
                assert (calls > 0) == (how != "torch"), (name, how, calls)


def _distance(losses: list[float], alone: Tensor) -> float:
    """The largest relative difference."""
    return float(((torch.tensor(losses, dtype=torch.float64) - alone) / alone).abs().max())


# ---- Parameters of ranks -------------------------------------------------------------------------


def _gradients_of_ranks() -> list[Tensor]:
    model = _ddp(planish.replace(model_of("llama"), fuse=True))
    loss_of(model, batch_of(dist.get_rank())).backward()
    return [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]


def test_gradients_of_replicated_parameters_are_equal_bit_for_bit() -> None:
    ranks = run(2, _gradients_of_ranks)
    assert all(map(torch.equal, *ranks))
