"""planish.distributed.batch_norm, and batch norms of DTensors: as of the whole batch on one rank,
by one exchange of statistics where a channel's values lie on several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from distributed_support import here, run, same_on_all_ranks, world_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import planish
import torch
from torch import Tensor

SIZES = (6, 8, 4, 4)


def _inputs() -> list[Tensor]:
    """x, weight, bias, addend, dy, running mean and variance."""
    make = torch.Generator().manual_seed(9)
    sizes = (SIZES, SIZES[1:2], SIZES[1:2], SIZES, SIZES, SIZES[1:2])
    drawn = [torch.randn(size, generator=make) for size in sizes]
    return [drawn[0] + 2, *drawn[1:], torch.linspace(0.5, 2, SIZES[1])]


def _step(norm: Any, inputs: list[Any], **options: Any) -> list[Any]:
    """y and the gradients, of x, weight, bias, addend and dy; and the running statistics."""
    x, weight, bias, addend, dy, mean, var = inputs
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias, addend)]
    y = norm(leaves[0], mean, var, *leaves[1:3], addend=leaves[3], activation="relu", **options)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy), mean, var]


def _close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


# ---- As a call -----------------------------------------------------------------------------------


def _on_ranks(sizes: list[int], training: bool) -> list[Tensor]:
    inputs = [here(t) for t in _inputs()]
    for at in (0, 3, 4):
        inputs[at] = inputs[at].split(sizes)[dist.get_rank()]
    with planish.distributed.checked():
        found = _step(planish.distributed.batch_norm, inputs, training=training)
    for gradient in found[2:4]:  # shares of what every rank has
        dist.all_reduce(gradient)
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sizes", [[6], [3, 3], [1, 5], [4, 0, 1, 1]], ids=str)
def test_parts_make_the_norm_of_the_whole_batch(sizes: list[int], training: bool) -> None:
    wanted = _step(planish.batch_norm, _inputs(), training=training)
    results = run(len(sizes), _on_ranks, sizes, training)
    for at, right in enumerate(wanted):
        if right.dim() == 4:
            _close(torch.cat([found[at] for found in results]), right)
        else:
            assert same_on_all_ranks([found[at] for found in results])
            _close(results[0][at], right)


def _refused() -> dict[str, str]:
    x, vector = torch.randn(SIZES), torch.ones(SIZES[1])
    calls: dict[str, Any] = {
        "channels": lambda: planish.distributed.batch_norm(x, vector[1:], vector, training=True),
        "addend": lambda: planish.distributed.batch_norm(
            x, None, None, addend=x[1:], training=True
        ),
        "dtype": lambda: planish.distributed.batch_norm(x.int(), None, None, training=True),
        "activation": lambda: planish.distributed.batch_norm(x, None, None, activation="tanh"),
        "no statistics": lambda: planish.distributed.batch_norm(x, None, None),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_bad_arguments() -> None:
    for found in run(2, _refused):
        assert found["channels"].startswith("RuntimeError: batch_norm: Expected 8 channels")
        assert found["addend"].startswith("RuntimeError: batch_norm: Expected addend")
        assert found["dtype"].startswith("NotImplementedError")
        assert found["activation"].startswith("ValueError: batch_norm: ")
        assert found["no statistics"].startswith("RuntimeError: running_mean must be defined")


# ---- Of DTensors ---------------------------------------------------------------------------------


def _of_tensors(axis: int, training: bool) -> tuple[list[Tensor], dict[str, int], bool]:
    mesh = world_mesh()
    vectors = Shard(0) if axis == 1 else Replicate()
    placed = [
        distribute_tensor(t.clone(), mesh, [Shard(axis) if t.dim() == 4 else vectors])
        for t in _inputs()
    ]
    with CommDebugMode() as mode:
        found = _step(planish.batch_norm, placed, training=training)
    counts = {str(which): count for which, count in mode.get_comm_counts().items()}
    is_local = found[0].placements == (Shard(axis),)
    return [t.full_tensor() if isinstance(t, DTensor) else t for t in found], counts, is_local


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("ranks", [2, 4])
def test_dtensors_gather_no_batch(ranks: int, axis: int, training: bool) -> None:
    wanted = _step(planish.batch_norm, _inputs(), training=training)
    for found, counts, is_local in run(ranks, _of_tensors, axis, training):
        # The statistics, and backward the two sums.
        assert sum(counts.values()) == (2 if training and axis != 1 else 0), counts
        assert is_local
        for one, right in zip(found, wanted, strict=True):
            _close(one, right)


def _by_torchs_rules() -> tuple[list[Tensor], str, str]:
    mesh = world_mesh()
    x, weight, bias, *_ = _inputs()
    summed = DTensor.from_local(x / 2, mesh, [Partial()])
    vectors = [distribute_tensor(t, mesh, [Replicate()]) for t in (weight, bias)]
    y = planish.batch_norm(summed, None, None, *vectors, training=True)
    errors = []
    whole = distribute_tensor(x, mesh, [Shard(0)])
    alone = distribute_tensor(x[:1, :, :1, :1].clone(), mesh, [Replicate()])
    for given in ((whole, weight), (alone, vectors[0])):
        try:
            planish.batch_norm(given[0], None, None, given[1], training=True)
            errors.append("")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return [y.full_tensor()], errors[0], errors[1]


def test_what_torchs_rules_are_for() -> None:
    x, weight, bias, *_ = _inputs()
    wanted = planish.batch_norm(x, None, None, weight, bias, training=True)
    for (y,), mixed, one_value in run(2, _by_torchs_rules):
        _close(y, wanted)
        assert "got mixed torch.Tensor and DTensor" in mixed
        assert one_value.startswith("ValueError: Expected more than 1 value per channel")
