"""Graphs with a norm in which a model also writes to tensors, casts to fewer bits, leaves gradients
out, or names its arguments: the results are those of eager calls, and what is written stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.nn.functional as F
from compile_support import compiled, results_of, uncached  # noqa: F401 (a fixture)
from test_compile_joins import close

import planish
import planish.compile
import torch
from torch import Tensor, nn

FORWARD = "planish::graph_forward"
EPS = 1e-6


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


# ---- What is written beside a norm ---------------------------------------------------------------


class Counting(nn.Module):
    """A buffer that counts, one that is a cache, and results in room that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.batch = nn.RMSNorm(16), nn.BatchNorm1d(16)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)  # type: ignore[operator]
        self.cache.index_copy_(0, torch.tensor([1, 3]), x[:2].detach())  # type: ignore[operator]
        room = torch.empty_like(x)
        torch.add(x.detach(), 1.0, out=room)
        h = F.layer_norm(x, (16,))
        h.mul_(2)
        torch.relu_(h)
        return self.norm(self.batch(x)) + self.cache.sum() + room + h  # type: ignore[operator]


@pytest.mark.parametrize("mode", ["faster", "always"])
def test_what_is_written_is_lost(mode: str) -> None:
    torch.manual_seed(0)
    ours, torchs = Counting(), Counting()
    x = torch.randn(8, 16)
    run, _ = compiled(ours, mode)
    for _ in range(2):
        found, wanted = results_of(run, ours, x), results_of(torchs, torchs, x)
    close(found, wanted)
    close(list(ours.buffers()), list(torchs.buffers()))
    assert float(ours.calls) == float(ours.batch.num_batches_tracked) == 2  # type: ignore[arg-type]


# ---- What is no norm, or is one of something else ------------------------------------------------


def in_place_squares(x: Tensor, w: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow_(2).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + EPS)


def written_variance(x: Tensor, w: Tensor) -> Tensor:
    variance = x.pow(2).mean(-1, keepdim=True)
    variance.mul_(4)
    return x * torch.rsqrt(variance + EPS)


def written_view(x: Tensor, w: Tensor) -> Tensor:
    h = x * 1
    root = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    h.view(-1).mul_(3)
    return h * root


def written_before_the_weight(x: Tensor, w: Tensor) -> Tensor:
    weight = w * 1
    h = rms(x)
    weight += 1
    return h * weight


def modulated_later(x: Tensor, w: Tensor) -> Tensor:
    h = x * 1
    y = F.rms_norm(h, (16,))
    h.add_(1)
    return y * (1 + w) + h


def through_fp8(x: Tensor, w: Tensor) -> Tensor:
    return rms(x.to(torch.float8_e4m3fn).float())


def through_whole_numbers(x: Tensor, w: Tensor) -> Tensor:
    return rms((4 * x).to(torch.int32).float())


def weight_of_fewer_bits(x: Tensor, w: Tensor) -> Tensor:
    return rms(x) * w.to(torch.float8_e4m3fn).float()


def gate_of_fewer_bits(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (16,)) * F.silu(input=(3 * x).to(torch.int32).float())


def constant_mean(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + EPS) * w


def constant_root(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return x * root * w


def several_added(x: Tensor, w: Tensor) -> Tensor:
    return rms(x) * torch.add(w, 1, alpha=3)


def other_bits(x: Tensor, w: Tensor) -> Tensor:
    return rms(x) * w.detach().half().view(torch.bfloat16)


def endless_eps(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + float("inf"))


def one_number(x: Tensor, w: Tensor) -> Tensor:
    h = x.sum()
    return x * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)


def named(x: Tensor, w: Tensor) -> Tensor:
    root = torch.sqrt(input=torch.square(input=x).mean(-1, keepdim=True) + EPS)
    weight = torch.reshape(input=w, shape=(1, 16))
    return x / root * weight + torch.pow(input=x.abs() + 1, exponent=-0.5)


def named_norms(x: Tensor, w: Tensor) -> Tensor:
    y = F.rms_norm(input=x, normalized_shape=(16,), weight=w)
    return y + F.silu(input=F.layer_norm(input=x, normalized_shape=(16,)))


@pytest.mark.parametrize("mode", ["faster", "always"])
@pytest.mark.parametrize(
    "function",
    [
        in_place_squares,
        written_variance,
        written_view,
        written_before_the_weight,
        modulated_later,
        through_fp8,
        through_whole_numbers,
        weight_of_fewer_bits,
        gate_of_fewer_bits,
        constant_mean,
        constant_root,
        several_added,
        other_bits,
        endless_eps,
        one_number,
        named,
        named_norms,
    ],
)
def test_it_is_taken_for_another(function: Callable[[Tensor, Tensor], Tensor], mode: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(6, 16), torch.randn(16)
    with torch.no_grad():
        run, _ = compiled(function, mode)
        close([run(x, w)], [function(x, w)])
    if function in (written_view, modulated_later, through_whole_numbers):
        return  # torch itself has no gradient
    run, _ = compiled(function, mode)
    close(results_of(run, None, x, w), results_of(function, None, x, w))


def test_a_size_that_depends_on_data_stops_a_norm() -> None:
    def chosen(x: Tensor, w: Tensor) -> Tensor:
        return rms(x[(x[:, 0] > 0).nonzero().flatten()]) * w

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run, graphs = compiled(chosen)
        x, w = torch.randn(9, 16), torch.randn(16)
        close([run(x, w)], [chosen(x, w)])
    assert graphs.counted()[FORWARD] == 1


def test_why_it_was_left() -> None:
    before = len(planish.compile.report())
    for function in (written_variance, constant_root):
        run, _ = compiled(function)
        run(torch.randn(6, 16).requires_grad_(), torch.randn(16))
    why = {entry.why for entry in planish.compile.report()[before:]}
    assert "something is written in place between its parts" in why
    assert "a part of it is not differentiated" in why
