"""The ways torch has to train a model on several ranks, as tests go through them: what wraps a
model of distributed_models.py, and how it then takes its steps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.nn.functional as F
from distributed_models import MODELS, batch_of, loss_of
from distributed_support import here, on_a_gpu, world_mesh

import torch
from torch import Tensor, nn

__all__ = ["PUT_IN", "WAYS", "Way", "train"]

STEPS = 3


# ---- Steps ---------------------------------------------------------------------------------------


def train(
    model: nn.Module, take: Callable[[nn.Module, Tensor], Tensor] | None = None
) -> list[float]:
    """The losses of the steps, each of which ``take`` makes of all words of the step, gradients
    included; None: in one piece."""
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    losses = []
    for step in range(STEPS):
        losses.append(float((take or _whole)(model, here(batch_of(step)))))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _whole(model: nn.Module, words: Tensor) -> Tensor:
    loss = loss_of(model, words)
    loss.backward()
    return loss.detach()


def _mean_of_ranks(loss: Tensor) -> Tensor:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def _split(model: nn.Module, words: Tensor) -> Tensor:
    """Each rank takes its share of the sequences."""
    return _mean_of_ranks(_whole(model, words.chunk(dist.get_world_size())[dist.get_rank()]))


def _halved(model: nn.Module, words: Tensor) -> Tensor:
    """The first half of the ranks takes the first half of the sequences."""
    half = dist.get_rank() * 2 // dist.get_world_size()
    return _mean_of_ranks(_whole(model, words.chunk(2)[half]))


# ---- Data parallel -------------------------------------------------------------------------------


def _ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _fsdp(model: nn.Module, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, **options)
    return fully_shard(model, **options)  # type: ignore[return-value]


def _fsdp_mixed(model: nn.Module, **options: Any) -> nn.Module:
    """Parameters are gathered in bf16 and gradients are summed in f32; what comes in is cast."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    model.register_forward_hook(lambda model, given, said: said.float())
    return _fsdp(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), **options)


def _fsdp_offloaded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return _fsdp_mixed(model, offload_policy=CPUOffloadPolicy(pin_memory=False))


def _checkpoint(model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    blocks = {type(block) for block in model.blocks}  # type: ignore[union-attr]
    apply_activation_checkpointing(model, check_fn=lambda module: type(module) in blocks)
    return model


def _checkpointed(model: nn.Module) -> nn.Module:
    return _fsdp(_checkpoint(model))


def _checkpointed_mixed(model: nn.Module) -> nn.Module:
    return _fsdp_offloaded(_checkpoint(model))


# ---- Tensor parallel -----------------------------------------------------------------------------


def _tensor_parallel(model: nn.Module, mesh: Any = None) -> nn.Module:
    """With sequence parallel: norms have their own steps of a sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = mesh or world_mesh()
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


# ---- Meshes of two axes --------------------------------------------------------------------------


def _tensor_parallel_fsdp(model: nn.Module) -> nn.Module:
    mesh = world_mesh("data", "tensor")
    return _fsdp(_tensor_parallel(model, mesh["tensor"]), mesh=mesh["data"])


def _hybrid_fsdp(model: nn.Module) -> nn.Module:
    """Sharded inside of each half of the ranks, and the same on both."""
    return _fsdp(model, mesh=world_mesh("replicate", "shard"))


# ---- Compiled ------------------------------------------------------------------------------------


def _compile(model: nn.Module) -> nn.Module:
    """Each block by itself, as torchtitan does."""
    torch.compiler.reset()
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend="aot_eager", fullgraph=True)
    return model


def _compiled_fsdp(model: nn.Module) -> nn.Module:
    return _fsdp(_compile(model))


def _compiled_tensor_parallel(model: nn.Module) -> nn.Module:
    """As a whole: torch itself does not compile a block that takes a DTensor of a collective."""
    torch.compiler.reset()
    _tensor_parallel(model).compile(backend="aot_eager", fullgraph=True)
    return model


def _compiled_by_inductor(wrap: Callable[[nn.Module], nn.Module], model: nn.Module) -> nn.Module:
    """As a whole, or each block by itself where parameters of blocks are gathered."""
    torch.compiler.reset()
    whole = wrap is _tensor_parallel
    wrapped = wrap(model)
    for module in [wrapped] if whole else wrapped.blocks:  # type: ignore[union-attr]
        module.compile(backend="inductor", fullgraph=True)  # type: ignore[operator]
    return wrapped


# ---- Pipelines -----------------------------------------------------------------------------------


def _stage(model: nn.Module) -> nn.Module:
    """This rank's half of a model; what the other has is left out."""
    half: Any = model
    if dist.get_rank() == 0:
        half.blocks, half.norm, half.head = half.blocks[:1], nn.Identity(), nn.Identity()
    else:
        half.embedding, half.blocks = nn.Identity(), half.blocks[1:]
    return model


def _loss_of_stage(said: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(said.flatten(0, 1), wanted.flatten())


def _piped(schedule: str, model: nn.Module, words: Tensor) -> Tensor:
    """One step in four pieces of the batch."""
    from torch.distributed import pipelining

    rank, losses = dist.get_rank(), []
    stage = pipelining.PipelineStage(model, rank, 2, words.device)
    run = getattr(pipelining, schedule)(stage, n_microbatches=4, loss_fn=_loss_of_stage)
    if rank == 0:
        run.step(words)
    else:
        run.step(target=words.roll(1, 1), losses=losses)
    loss = (
        torch.stack(losses).mean().detach() if losses else words.new_zeros((), dtype=torch.float32)
    )
    dist.broadcast(loss, 1)
    return loss


# ---- Context parallel ----------------------------------------------------------------------------


@contextlib.contextmanager
def _ring_attention_on_cpus(mesh: Any) -> Iterator[None]:
    """torch's ring attention has handlers for attention on GPUs alone: here are those of the CPU's
    operator, around the same templates."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    aten, group, steps = torch.ops.aten, mesh.get_group(), 2
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward

    def placed(local: Tensor, like: DTensor) -> DTensor:
        return DTensor.from_local(local, mesh, like.placements, run_check=False)

    def attend(op: Any, args: Any, options: Any) -> Any:
        query, key, value, _, is_causal = args
        local = (one.to_local() for one in (query, key, value))
        made = ring._templated_ring_attention(
            group, steps, forward.default, *local, is_causal=is_causal, dropout_p=0.0, **options
        )
        return tuple(placed(one, query) for one in made)

    def differentiate(op: Any, args: Any, options: Any) -> Any:
        dy, query, key, value, out, lse, _, is_causal = args
        local = (one.to_local() for one in (query, key, value, out, lse))
        made = ring._templated_ring_attention_backward(
            group, steps, backward.default, dy.to_local(), "grad_out", *local,
            is_causal=is_causal, dropout_p=0.0, **options,
        )  # fmt: skip
        return tuple(placed(one, query) for one in made)

    dispatcher: Any = DTensor._op_dispatcher
    known = dispatcher._custom_op_handlers
    dispatcher._custom_op_handlers = {
        **known,
        forward.default: attend,
        backward.default: differentiate,
    }
    try:
        yield
    finally:
        dispatcher._custom_op_handlers = known


def _along_the_context(model: nn.Module, words: Tensor) -> Tensor:
    """Each rank takes its steps of every sequence."""
    from torch.distributed.tensor.experimental import context_parallel

    mesh = world_mesh()
    wanted, words = words.roll(1, 1), words.clone()
    with (
        context_parallel(mesh, buffers=[words, wanted], buffer_seq_dims=[1, 1]),
        contextlib.nullcontext() if on_a_gpu() else _ring_attention_on_cpus(mesh),
    ):
        loss = _loss_of_stage(model(words), wanted)
        loss.backward()
    return _mean_of_ranks(loss)


# ---- All of them ---------------------------------------------------------------------------------


#: How planish comes in: what is called before the wrapping, and what after it.
PUT_IN = {
    "torch": ("", ""),
    "replace before": ("replace", ""),
    "replace after": ("", "replace"),
    "fuse before": ("fuse", ""),
    "fuse after": ("", "fuse"),
    "enable": ("", "enable"),
    "backend": ("", "backend"),
}
#: Those of models that are compiled by inductor, and of all others.
_IN_GRAPHS = ("torch", "backend")
_ELSE = tuple(how for how in PUT_IN if how != "backend")


class Way(NamedTuple):
    wrap: Callable[[nn.Module], nn.Module]
    take: Callable[[nn.Module, Tensor], Tensor] = _split
    models: tuple[str, ...] = tuple(MODELS)
    ranks: tuple[int, ...] = (2,)
    put_in: tuple[str, ...] = _ELSE
    #: How far losses may be from those of one process where torch's own are as near as that.
    room: float = 2e-6


_WORDS, _TWO = ("llama", "gpt"), ("llama", "dit")
_ROUNDED = 5e-4  # an eighth of a rounding to bf16

WAYS = {
    "ddp": Way(_ddp, ranks=(2, 4)),
    "fsdp2": Way(_fsdp, ranks=(2, 4)),
    "checkpoint, fsdp2": Way(_checkpointed, ranks=(2, 4)),
    "tp + sp": Way(_tensor_parallel, _whole, _WORDS, (2, 4)),
    "tp + sp, fsdp2": Way(_tensor_parallel_fsdp, _halved, _WORDS, (4,)),
    "hybrid fsdp2": Way(_hybrid_fsdp, models=_TWO, ranks=(4,)),
    "fsdp2, bf16": Way(_fsdp_mixed, models=_TWO, ranks=(2, 4), room=_ROUNDED),
    "fsdp2, bf16, offloaded": Way(_fsdp_offloaded, models=_TWO, room=_ROUNDED),
    "checkpoint, fsdp2, bf16, offloaded": Way(_checkpointed_mixed, models=_TWO, room=_ROUNDED),
    "compiled, fsdp2": Way(_compiled_fsdp, models=_TWO),
    "compiled, tp + sp": Way(
        _compiled_tensor_parallel,
        _whole,
        ("llama",),
        put_in=("torch", "replace before", "fuse after", "enable"),  # each takes torch 8 s to trace
    ),
    "gpipe": Way(_stage, functools.partial(_piped, "ScheduleGPipe"), _TWO),
    "1f1b": Way(_stage, functools.partial(_piped, "Schedule1F1B"), _TWO),
    "context parallel": Way(_ddp, _along_the_context, _WORDS),
    # Each takes torch 20 s or more to compile.
    "by inductor, fsdp2": Way(
        functools.partial(_compiled_by_inductor, _fsdp), models=("llama",), put_in=_IN_GRAPHS
    ),
    "by inductor, tp + sp": Way(
        functools.partial(_compiled_by_inductor, _tensor_parallel),
        _whole,
        ("llama",),
        put_in=_IN_GRAPHS,
    ),
}
