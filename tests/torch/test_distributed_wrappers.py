"""Wrappers that replace() meets: what is inside of them is replaced, before and after, and trains
as torch's; of what has no memory it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from distributed_models import batch_of, loss_of, model_of
from distributed_support import run

import planish
import torch
from torch import Tensor, nn


def _fsdp1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def _compiled(model: nn.Module) -> nn.Module:
    torch.compiler.reset()
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


WRAPPERS = {"FSDP1": _fsdp1, "torch.compile": _compiled, "DDP": nn.parallel.DistributedDataParallel}


def _losses(wrapper: str, how: str, fuse: bool) -> tuple[list[float], int]:
    model = model_of("llama")
    if how == "before":
        planish.replace(model, fuse=fuse)
    model = WRAPPERS[wrapper](model)
    planish.reset_stats()
    losses: list[float] = []
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.2)
    for step in range(3):
        if how == "after" and step == 1:  # a graph was made, or parameters were flattened
            planish.replace(model, fuse=fuse)
            planish.reset_stats()
        loss = loss_of(model, batch_of(step).chunk(dist.get_world_size())[dist.get_rank()])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, sum(calls["planish"] for calls in planish.stats().values())


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_inside_is_replaced(wrapper: str, how: str, fuse: bool) -> None:
    wanted = run(2, _losses, wrapper, "torch", fuse, limit=300)
    for (losses, calls), (torchs, none) in zip(
        run(2, _losses, wrapper, how, fuse, limit=300), wanted, strict=True
    ):
        assert losses == pytest.approx(torchs, rel=1e-5)
        assert calls > 0
        assert none == 0


class _RMSNorm(nn.Module):
    """Of whose weight the memory is given back, as FSDP1 does between forwards."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(8)
        self.weight.untyped_storage().resize_(0)

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


def test_what_has_no_memory_is_not_proven_and_why() -> None:
    said = str(planish.replaced(planish.replace(nn.Sequential(_RMSNorm()))))
    assert "0 norms on planish" in said
    assert "have no memory now, as FSDP1 leaves those that are sharded" in said, said


# ---- What prepares a model for its user ----------------------------------------------------------


def _accelerated(fuse: bool | None) -> tuple[list[float], int]:
    from accelerate import Accelerator

    model = model_of("llama")
    if fuse is not None:
        planish.replace(model, fuse=fuse)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.2))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    planish.reset_stats()
    losses: list[float] = []
    for step in range(3):
        loss = loss_of(model, batch_of(step).chunk(2)[dist.get_rank()])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, sum(calls["planish"] for calls in planish.stats().values())


@pytest.mark.parametrize("fuse", [False, True])
def test_accelerate_prepares_a_replaced_model(fuse: bool) -> None:
    pytest.importorskip("accelerate")
    wanted = run(2, _accelerated, None)
    for (losses, calls), (torchs, none) in zip(run(2, _accelerated, fuse), wanted, strict=True):
        assert losses == pytest.approx(torchs, rel=1e-5)
        assert (calls > 0, none) == (True, 0)


class _Words(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The words of a step, a sequence each."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        words = batch_of(at // 8)[at % 8]
        return {"input_ids": words, "labels": words}


def _trained(folder: str, fuse: bool | None) -> tuple[list[float], int]:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=17, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if fuse is not None:
        planish.replace(model, fuse=fuse)
    planish.reset_stats()
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=3, use_cpu=True, logging_steps=1,
        report_to=[], save_strategy="no", disable_tqdm=True, seed=3, data_seed=3,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=_Words())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, sum(calls["planish"] for calls in planish.stats().values())


@pytest.mark.parametrize("fuse", [False, True])
def test_a_trainer_takes_a_replaced_model(tmp_path: Path, fuse: bool) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    wanted = run(2, _trained, str(tmp_path), None)
    for (losses, calls), (torchs, none) in zip(
        run(2, _trained, str(tmp_path), fuse), wanted, strict=True
    ):
        assert len(losses) == 3
        assert losses == pytest.approx(torchs, rel=1e-4)
        assert (calls > 0, none) == (True, 0)
