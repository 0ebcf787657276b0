"""A training step of a Llama on the GPUs of one host, by NCCL, as torch has it and with
planish.replace(), also with fuse=True: on one GPU, under FSDP2, and under tensor parallel
with sequence parallel.

    python bench/gpu_parallel.py [--ranks=2] [--out=FILE] [--turns=7]
    python bench/gpu_parallel.py --tiny           # sizes for CPUs, by gloo

The layers are Transformers'. Every GPU sees as many tokens in each way: under tensor parallel the
batch is as many times larger as there are ranks. The steps (forward, backward, AdamW) go by turns;
a turn's time is the clock's of the slowest rank. Written are medians and the spread from the first
to the last quarter, in milliseconds, and the losses of the first steps, all in one JSON file."""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import planish
import torch
from torch import Tensor, nn


class Size(NamedTuple):
    """Of a model and of a batch a GPU."""

    layers: int
    width: int
    inner: int
    heads: int
    words: int
    batch: int
    length: int


SIZE, TINY = Size(8, 4096, 11008, 32, 32000, 4, 2048), Size(2, 64, 128, 4, 256, 2, 32)
PUT_IN = ("torch", "replace", "fuse")
CHECKED = 3  # steps whose losses are written


class Llama(nn.Module):
    """Transformers' layers between an embedding and a head."""

    def __init__(self, size: Size) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama import modeling_llama as of

        super().__init__()
        config = LlamaConfig(
            vocab_size=size.words,
            hidden_size=size.width,
            intermediate_size=size.inner,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            max_position_embeddings=size.length,
            attn_implementation="sdpa",
        )
        self.embedding = nn.Embedding(size.words, size.width)
        self.layers = nn.ModuleList(of.LlamaDecoderLayer(config, i) for i in range(size.layers))
        self.norm = of.LlamaRMSNorm(size.width, eps=config.rms_norm_eps)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.rotary = of.LlamaRotaryEmbedding(config)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        positions = torch.arange(words.shape[1], device=words.device)[None]
        turned = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=turned)
        y: Tensor = self.head(self.norm(x))
        return y


# ---- The ways ------------------------------------------------------------------------------------


def _alone(model: nn.Module, device: str) -> nn.Module:
    return model


def _fsdp(model: nn.Module, device: str) -> nn.Module:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def _tensor_parallel(model: nn.Module, device: str) -> nn.Module:
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


#: What wraps a model, and by how many times a rank's batch is larger than one GPU's share.
WAYS: dict[str, tuple[Callable[[nn.Module, str], nn.Module], bool]] = {
    "one GPU": (_alone, False),
    "FSDP2": (_fsdp, False),
    "TP + SP": (_tensor_parallel, True),
}


# ---- What is timed -------------------------------------------------------------------------------


class Training:
    """A model, its optimizer and its batches."""

    def __init__(self, way: str, how: str, size: Size, device: str) -> None:
        wrap, is_whole = WAYS[way]
        ranks = dist.get_world_size()
        torch.manual_seed(11)
        kept = torch.float32 if way == "FSDP2" else torch.bfloat16  # FSDP2 casts by itself
        with torch.device(device):
            model = Llama(size).to(kept)
        if how != "torch":
            planish.replace(model, fuse=how == "fuse")
        self.model = wrap(model, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=device == "cuda")
        make = torch.Generator().manual_seed(5 if is_whole else 5 + dist.get_rank())
        batch = size.batch * (ranks if is_whole else 1)
        self.words = torch.randint(size.words, (batch, size.length), generator=make).to(device)

    def step(self) -> Tensor:
        said = self.model(self.words)
        loss = F.cross_entropy(said.flatten(0, 1).float(), self.words.roll(-1, 1).flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def _waited(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _timed(training: Training, steps: int, device: str) -> float:
    """Milliseconds a step, the slowest rank's."""
    _waited(device)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        training.step()
    _waited(device)
    found = torch.tensor((time.perf_counter() - begin) / steps * 1000, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _way(way: str, size: Size, turns: int, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    trainings = {how: Training(way, how, size, device) for how in PUT_IN}
    losses: dict[str, list[float]] = {}
    for how, training in trainings.items():
        planish.reset_stats()
        losses[how] = [round(float(training.step()), 5) for _ in range(CHECKED)]
        found[how] = {"planish's calls": sum(c["planish"] for c in planish.stats().values())}
    times: dict[str, list[float]] = {how: [] for how in PUT_IN}
    for turn in range(turns):
        for how in PUT_IN if turn % 2 else reversed(PUT_IN):
            times[how].append(_timed(trainings[how], 3, device))
    for how in PUT_IN:
        quarters = statistics.quantiles(times[how], n=4)
        found[how] |= {
            "losses": losses[how],
            "median": round(quarters[1], 2),
            "first quarter": round(quarters[0], 2),
            "last quarter": round(quarters[2], 2),
        }
    return found


def _rank(rank: int, ranks: int, given: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29537", "NCCL_NVLS_ENABLE": "0"}
    device = "cpu" if given.tiny else "cuda"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if given.tiny else "nccl", rank=rank, world_size=ranks)
    size = TINY if given.tiny else SIZE
    found: dict[str, Any] = {
        "gpu": "none" if given.tiny else torch.cuda.get_device_name(),
        "ranks": ranks,
        "torch": torch.__version__,
        "size": size._asdict(),
        "milliseconds": {},
    }
    for way in given.ways or WAYS:
        found["milliseconds"][way] = _way(way, size, given.turns, device)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        if rank == 0 and given.out:  # what is there so far
            with open(given.out, "w") as file:
                file.write(json.dumps(found, indent=1) + "\n")
    if rank == 0:
        print(json.dumps(found, indent=1))
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
