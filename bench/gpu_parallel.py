"""Training steps of models on the GPUs of one host, by NCCL, as torch has them, under
planish.enable() or with planish.replace(), and with replace(fuse=True): a Llama on one GPU, under
FSDP2, and under tensor parallel with sequence parallel; a GPT-2, a ConvNeXt and a DiT under FSDP2,
and the ConvNeXt under DistributedDataParallel.

    python bench/gpu_parallel.py [--ranks=2] [--out=FILE] [--turns=7]
    python bench/gpu_parallel.py "GPT-2, FSDP2" "DiT, FSDP2"     # some of them
    python bench/gpu_parallel.py --tiny           # sizes for CPUs, by gloo

The models are those of parallel_models.py. Every GPU sees as many tokens in each way: under tensor
parallel the batch is as many times larger as there are ranks. The steps (forward, backward, AdamW)
go by turns; a turn's time is the clock's of the slowest rank. Printed is a table of medians in
milliseconds with the first and the last quarter; these and the losses of the first steps are
written to a JSON file."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.multiprocessing as mp

import planish
import torch
from parallel_models import KINDS
from torch import Tensor, nn

CHECKED = 3  # steps whose losses are written


# ---- The ways ------------------------------------------------------------------------------------


def _alone(model: nn.Module, device: str, layers: str) -> nn.Module:
    return model


def _ddp(model: nn.Module, device: str, layers: str) -> nn.Module:
    ids = [torch.cuda.current_device()] if device == "cuda" else None
    model = model.to(memory_format=torch.channels_last)
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)


def _fsdp(model: nn.Module, device: str, layers: str) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
    for layer in model.get_submodule(layers):  # type: ignore[attr-defined]
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def _tensor_parallel(model: nn.Module, device: str, layers: str) -> nn.Module:
    """With sequence parallel: norms have the rows of their own steps of the sequences."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    steps, whole = Shard(1), Replicate()
    of_layer: dict[str, Any] = {
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": steps},
            desired_input_kwarg_layouts={"hidden_states": whole},
        ),
        **{f"self_attn.{one}_proj": ColwiseParallel() for one in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=steps),
        "mlp": PrepareModuleInput(input_layouts=(steps,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=steps),
        "input_layernorm": SequenceParallel(),
        "post_attention_layernorm": SequenceParallel(),
    }
    plan = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=steps),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=steps, output_layouts=whole),
    }
    return parallelize_module(
        model, mesh, plan | {f"layers.*.{name}": style for name, style in of_layer.items()}
    )


class Way(NamedTuple):
    kind: str
    wrap: Callable[[nn.Module, str, str], nn.Module]
    is_whole: bool = False  # every rank sees the batches of all
    kept: torch.dtype = torch.bfloat16  # what parameters are in; FSDP2 casts by itself
    hows: tuple[str, ...] = ("torch", "enable", "fuse")


_OF_LLAMA = ("torch", "replace", "fuse")  # its norms are no operator of torch's to enable

WAYS = {
    "Llama, one GPU": Way("Llama", _alone, hows=_OF_LLAMA),
    "Llama, FSDP2": Way("Llama", _fsdp, kept=torch.float32, hows=_OF_LLAMA),
    "Llama, TP + SP": Way("Llama", _tensor_parallel, True, hows=_OF_LLAMA),
    "GPT-2, FSDP2": Way("GPT-2", _fsdp, kept=torch.float32),
    "ConvNeXt, FSDP2": Way("ConvNeXt", _fsdp, kept=torch.float32),
    "ConvNeXt, DDP": Way("ConvNeXt", _ddp),
    "DiT, FSDP2": Way("DiT", _fsdp, kept=torch.float32),
}


# ---- What is timed -------------------------------------------------------------------------------


class Training:
    """A model, its optimizer and its batches."""

    def __init__(self, way: Way, how: str, tiny: bool, device: str) -> None:
        kind, self.how = KINDS[way.kind], how
        torch.manual_seed(11)
        with torch.device(device):
            model = kind.make(tiny).to(way.kept)
        if how in ("replace", "fuse"):
            planish.replace(model, fuse=how == "fuse")
        self.model, self.loss = way.wrap(model, device, kind.layers), kind.loss
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=device == "cuda")
        make = torch.Generator().manual_seed(5 if way.is_whole else 5 + dist.get_rank())
        batch = kind.batch(tiny, dist.get_world_size() if way.is_whole else 1, make)
        self.batch = tuple(
            one.to(device, torch.bfloat16 if one.is_floating_point() else None) for one in batch
        )

    def step(self) -> Tensor:
        loss = self.loss(self.model, self.batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def put_in(self) -> contextlib.AbstractContextManager[None]:
        """Steps are taken inside."""
        return planish.enabled() if self.how == "enable" else contextlib.nullcontext()


def _waited(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _timed(training: Training, steps: int, device: str) -> float:
    """Milliseconds a step, the slowest rank's."""
    with training.put_in():
        _waited(device)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            training.step()
        _waited(device)
        took = time.perf_counter() - begin
    found = torch.tensor(took / steps * 1000, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _way(way: Way, tiny: bool, turns: int, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    trainings = {how: Training(way, how, tiny, device) for how in way.hows}
    losses: dict[str, list[float]] = {}
    for how, training in trainings.items():
        planish.reset_stats()
        with training.put_in():
            losses[how] = [round(float(training.step()), 5) for _ in range(CHECKED)]
        found[how] = {"planish's calls": sum(c["planish"] for c in planish.stats().values())}
    times: dict[str, list[float]] = {how: [] for how in way.hows}
    for turn in range(turns):
        for how in way.hows if turn % 2 else reversed(way.hows):
            times[how].append(_timed(trainings[how], 3, device))
    for how in way.hows:
        quarters = statistics.quantiles(times[how], n=4)
        found[how] |= {
            "losses": losses[how],
            "median": round(quarters[1], 2),
            "first quarter": round(quarters[0], 2),
            "last quarter": round(quarters[2], 2),
        }
    return found


def _print(name: str, found: dict[str, Any]) -> None:
    for how, one in found.items():
        spread = f"({one['first quarter']:.1f} to {one['last quarter']:.1f})"
        ratio, calls = one["median"] / found["torch"]["median"], one["planish's calls"]
        print(
            f"{name:16} {how:8} {one['median']:7.1f} {spread:18} {ratio:.3f} of torch's, "
            f"{calls:4} calls, losses {one['losses']}",
            flush=True,
        )


def _rank(rank: int, ranks: int, given: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29537", "NCCL_NVLS_ENABLE": "0"}
    device = "cpu" if given.tiny else "cuda"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if given.tiny else "nccl", rank=rank, world_size=ranks)
    found: dict[str, Any] = {
        "gpu": "none" if given.tiny else torch.cuda.get_device_name(),
        "ranks": ranks,
        "torch": torch.__version__,
        "milliseconds": {},
    }
    for way in given.ways or WAYS:
        found["milliseconds"][way] = _way(WAYS[way], given.tiny, given.turns, device)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        if rank == 0:
            _print(way, found["milliseconds"][way])
        if rank == 0 and given.out:  # what is there so far
            with open(given.out, "w") as file:
                file.write(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], metavar="way")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out")
    given = parser.parse_args()
    if not given.tiny and torch.cuda.device_count() < given.ranks:
        raise SystemExit(f"{given.ranks} GPUs are wanted, {torch.cuda.device_count()} are there")
    mp.spawn(_rank, (given.ranks, given), given.ranks)


if __name__ == "__main__":
    main()
