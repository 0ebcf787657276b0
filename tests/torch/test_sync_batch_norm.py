"""planish.SyncBatchNorm, by gloo on several processes: against a batch norm of all batches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch.distributed as dist
import torch.nn.functional as F
from distributed_support import here, on_a_gpu, run
from torch.nn.parallel import DistributedDataParallel

import planish
import torch
from planish.operators import sync_batch
from torch import Tensor, nn

#: Batches of the processes.
BATCHES = {"two": [3, 3], "uneven": [1, 4, 2], "an empty one": [2, 0, 3, 1]}


def _pieces(sizes: list[int], last: bool, scale: float) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    whole, added = (torch.randn(sum(sizes), 6, 4, 5, generator=generator) + scale for _ in range(2))
    if last:
        whole = whole.contiguous(memory_format=torch.channels_last)
    return list(whole.split(sizes)), list((added - scale).split(sizes))


def _norm(cls: Any, activation: str | None, **more: Any) -> Any:
    norm = cls(6, activation=activation, momentum=0.3, **more)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 6))
        norm.bias.copy_(torch.linspace(-1, 1, 6))
    return norm


def _step(norm: Any, x: Tensor, addend: Tensor | None) -> list[Any]:
    leaves = [t.detach().requires_grad_() for t in (x, addend) if t is not None]
    y = norm(*leaves)
    y.pow(3).sum().backward()
    return [y.detach(), *(t.grad for t in leaves)]


def _rank(sizes: list[int]) -> dict[Any, Any]:
    rank = dist.get_rank()
    found: dict[Any, Any] = {}
    for activation, added, last in itertools.product((None, "relu", "silu"), *[(False, True)] * 2):
        x, addend = (here(pieces[rank]) for pieces in _pieces(sizes, last, 0.0))
        norm = here(_norm(planish.SyncBatchNorm, activation))
        step = _step(norm, x, addend if added else None)
        grads = [norm.weight.grad, norm.bias.grad]
        for grad in grads:
            dist.all_reduce(grad)
        found[activation, added, last] = [*step, *grads, *norm.buffers()]
    far = here(_pieces(sizes, False, 1e4)[0][rank])
    exact = here(planish.SyncBatchNorm(6))
    found["far"] = [exact(far).detach()]
    found["eval"] = [exact.eval()(far).detach()]
    if not on_a_gpu():
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
            nn.SyncBatchNorm(6)(far)
    model = DistributedDataParallel(
        here(nn.Sequential(nn.Conv2d(6, 6, 1), planish.SyncBatchNorm(6, activation="relu")))
    )
    if min(sizes) > 0:
        model(far - 1e4).sum().backward()
        found["ddp"] = [p.grad for p in model.parameters()]
    return found


@pytest.mark.parametrize("case", BATCHES)
def test_several_processes_differ_from_one(case: str) -> None:
    sizes = BATCHES[case]
    ranks = run(len(sizes), _rank, sizes)
    for activation, added, last in itertools.product((None, "relu", "silu"), *[(False, True)] * 2):
        whole, addend = (torch.cat(pieces) for pieces in _pieces(sizes, last, 0.0))
        norm = _norm(planish.BatchNorm2d, activation)
        step = _step(norm, whole, addend if added else None)
        expected = [*step, norm.weight.grad, norm.bias.grad, *norm.buffers()]
        parts = [rank[activation, added, last] for rank in ranks]
        for i, right in enumerate(expected):
            if i < len(step):
                ours = torch.cat([part[i] for part in parts])
                torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)
            else:
                for part in parts:
                    torch.testing.assert_close(part[i], right, rtol=1e-4, atol=1e-4)
                    assert torch.equal(part[i], parts[0][i])
        if last:
            assert all(part[0].is_contiguous(memory_format=torch.channels_last) for part in parts)
    far = torch.cat(_pieces(sizes, False, 1e4)[0])
    expected_far = F.batch_norm(far.double(), None, None, training=True)
    ours_far = torch.cat([rank["far"][0] for rank in ranks])
    assert (ours_far - expected_far).abs().max() <= 4 * 2**-23 * expected_far.abs().max()
    if min(sizes) > 0:
        for gradients in zip(*(rank["ddp"] for rank in ranks), strict=True):
            assert all(torch.equal(one, gradients[0]) for one in gradients)


def test_merging_counts_what_is_not_there() -> None:
    parts = [torch.randn(6, n, dtype=torch.float64) * 3 + 5 for n in (4, 7, 2)]
    messages = [
        torch.cat([torch.tensor([p.shape[1]]), p.mean(1), (p - p.mean(1, True)).square().sum(1)])
        for p in parts
    ]
    whole = torch.cat(parts, 1)
    nothing = torch.zeros(13, dtype=torch.float64)
    for order in ([nothing, *messages], [*messages, nothing], [nothing, nothing, *messages]):
        mean, m2, count = sync_batch.merge(order, 6)
        assert int(count) == 13
        torch.testing.assert_close(mean, whole.mean(1))
        torch.testing.assert_close(m2, (whole - whole.mean(1, True)).square().sum(1))


def test_one_process_is_no_batch_norm() -> None:
    norm, other = (_norm(cls, "relu") for cls in (planish.SyncBatchNorm, planish.BatchNorm2d))
    x = torch.randn(3, 6, 4, 5)
    for mine, right in zip(_step(norm, x, x), _step(other, x, x), strict=True):
        assert torch.equal(mine, right)
    assert torch.equal(norm.eval()(x), other.eval()(x))


def test_conversion_loses_a_norm_or_its_state() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(6), nn.Sequential(planish.BatchNorm2d(6, activation="silu", once=True))
    ).eval()
    model[0].running_mean.normal_()
    x = torch.randn(2, 6, 3, 3)
    expected, keys = model(x), list(model.state_dict())
    parameters = list(model.parameters())
    made: Any = planish.SyncBatchNorm.convert_sync_batchnorm(model)
    assert made is model
    assert type(made[0]) is type(made[1][0]) is planish.SyncBatchNorm
    assert made[1][0].activation == "silu"
    assert made[1][0].once
    assert list(made.state_dict()) == keys
    assert all(a is b for a, b in zip(made.parameters(), parameters, strict=True))
    torch.testing.assert_close(made(x), expected)
    torchs: Any = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(planish.BatchNorm2d(6)))
    assert type(torchs[0]) is nn.SyncBatchNorm


def test_conversion_takes_what_does_more() -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    with pytest.raises(TypeError, match=r"Doubled has a forward of its own"):
        planish.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(Doubled(6)))


def test_17_axes_are_taken_for_others() -> None:
    x = torch.randn(2, 3, *[1] * 15)
    with pytest.raises(NotImplementedError, match="not implemented for 17 axes"):
        sync_batch.batch_norm(x, None, None, None, None, 0.1, 1e-5, None, None, None)
