"""Small models trained on 2 and 4 ranks in the ways torch has, with planish put in before wrapping,
after it, and under torch's operators: to the losses of one process, within what torch alone
keeps."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from distributed_models import batch_of, loss_of, model_of
from distributed_support import here, run
from distributed_ways import PUT_IN, WAYS, train
from torch.distributed.tensor import DTensor

import planish
import torch
from torch import Tensor, nn


def _put(how: str, model: nn.Module) -> None:
    if how in ("replace", "fuse"):
        planish.replace(model, fuse=how == "fuse")
    elif how == "enable":
        planish.enable()
    elif how == "backend":
        for module in model.modules():
            if module._compiled_call_impl is not None:
                options = {"planish": "always"}
                module.compile(backend="planish", options=options, fullgraph=True)


def _norms_on_planish() -> int:
    """Calls that ran on planish's kernels since the counts were reset."""
    return sum(calls["planish"] for calls in planish.stats().values())


def _losses(way: str, names: tuple[str, ...]) -> dict[tuple[str, str], tuple[list[float], int]]:
    found = {}
    for name in names:
        for how in WAYS[way].put_in:
            before, after = PUT_IN[how]
            planish.reset_stats()
            try:
                model = here(model_of(name))
                _put(before, model)
                wrapped = WAYS[way].wrap(model)
                _put(after, wrapped)
                losses = train(wrapped, WAYS[way].take)
            finally:
                planish.disable()
            found[name, how] = losses, _norms_on_planish()
    return found


@pytest.mark.parametrize(
    ("way", "ranks"), [(name, ranks) for name, way in WAYS.items() for ranks in way.ranks]
)
def test_losses_are_those_of_one_process(way: str, ranks: int) -> None:
    if way == "context parallel":
        pytest.importorskip("torch.distributed.tensor.experimental._context_parallel")
    names = WAYS[way].models
    found = run(ranks, _losses, way, names, limit=400)
    for name in names:
        alone = torch.tensor(train(model_of(name)), dtype=torch.float64)
        for of_rank in found:
            torchs = _distance(of_rank[name, "torch"][0], alone)
            for how in WAYS[way].put_in:
                losses, calls = of_rank[name, how]
                assert _distance(losses, alone) <= max(4 * torchs, WAYS[way].room), (
                    name,
                    how,
                    losses,
                )
                assert (calls > 0) == (how != "torch"), (name, how, calls)


def _distance(losses: list[float], alone: Tensor) -> float:
    """The largest relative difference."""
    return float(((torch.tensor(losses, dtype=torch.float64) - alone) / alone).abs().max())


# ---- Parameters of ranks -------------------------------------------------------------------------


def _gradients_of_ranks(way: str) -> list[Tensor]:
    model = WAYS[way].wrap(planish.replace(here(model_of("llama")), fuse=True))
    words = batch_of(dist.get_rank() if way == "ddp" else 0)
    loss_of(model, here(words)).backward()
    named = model.named_parameters()
    gradients = [one.grad for name, one in named if way == "ddp" or "norm" in name]
    return [one.full_tensor() if isinstance(one, DTensor) else one for one in gradients]  # type: ignore[misc]


@pytest.mark.parametrize("way", ["ddp", "tp + sp"])
def test_gradients_of_replicated_parameters_are_equal_bit_for_bit(way: str) -> None:
    ranks = run(2, _gradients_of_ranks, way)
    assert len(ranks[0]) >= 5  # those of the norms
    assert all(map(torch.equal, *ranks))
