"""Batch norm under torch on CUDA: cuDNN's operators and torch's own, in training, in eval and
frozen, against torch in f64. It needs a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch.nn.functional as F
from cuda_support import GPU, random

import planish
import torch
from torch import Tensor, nn

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

LAST = torch.channels_last
SHAPES = [(8, 16, 14, 14), (4, 64, 7, 7), (2, 3, 33, 5), (16, 24, 1, 1), (64, 40, 28, 28)]
#: Of few pixels: whole slabs of channels, smaller last ones, chunks of less than 16 bytes, none.
SHAPES += [(64, 256, 7, 7), (33, 36, 7, 7), (21, 41, 7, 7), (16, 24, 5, 5), (65, 88, 3, 3)]
#: Of the largest value: f32 sums of some ten thousand values, and a result rounded once.
ROOM = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def no_error_is_left_on_the_gpu() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def run(
    x: Tensor, module: nn.BatchNorm2d, dy: Tensor, training: bool, wide: bool = False
) -> list[Tensor]:
    """y, the gradients of x, weight and bias, and the running statistics."""
    kind = torch.float64 if wide else None
    x = x.detach().to(kind or x.dtype).requires_grad_()
    w, b = (p.detach().to(kind or p.dtype).requires_grad_() for p in module.parameters())
    mean, var = (t.clone().to(kind or t.dtype) for t in (module.running_mean, module.running_var))
    y = F.batch_norm(x, mean, var, w, b, training, 0.1, 1e-5)
    grads = torch.autograd.grad(y, (x, w, b), dy.to(y.dtype))
    return [y.detach(), *grads, mean, var]


def near(found: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> None:
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        kind = dtype if a.dtype == dtype else torch.float32
        room = ROOM[kind] * (1 if i in (0, 1) else 4) * float(b.abs().max())
        assert float((a.double() - b).abs().max()) <= room, (
            ["y", "dx", "dw", "db", "mean", "var"][i],
            i,
        )


CASES = list(itertools.product(SHAPES, [False, True], ROOM, [False, True], [False, True]))


@pytest.mark.parametrize(("shape", "last", "dtype", "training", "halves"), CASES)
def test_values(
    shape: tuple[int, ...], last: bool, dtype: torch.dtype, training: bool, halves: bool
) -> None:
    """Weights of x's dtype or of f32; the layout of y and dx is torch's."""
    x, dy = random(*shape, dtype=dtype, seed=1), random(*shape, dtype=dtype, seed=2)
    if last:
        x, dy = (t.contiguous(memory_format=LAST) for t in (x * 2 + 1, dy))
    module = nn.BatchNorm2d(shape[1]).to(GPU, dtype if halves else torch.float32)
    with torch.no_grad():
        module.weight.normal_(1, 0.2)
        module.bias.normal_()
        module.running_var.uniform_(0.5, 2)
    torchs = run(x, module, dy, training)
    with planish.enabled():
        ours = run(x, module, dy, training)
        again = run(x, module, dy, training)
    near(ours, run(x, module, dy, training, wide=True), dtype)
    for i, (a, b, c) in enumerate(zip(ours, torchs, again, strict=True)):
        # torch's own kernel of bf16 lays dx of eval out row-major, whatever x is.
        like = x if i == 1 and not training else b
        assert a.dtype == b.dtype and a.stride() == like.stride()
        assert torch.equal(a, c)


def test_planish_runs_it() -> None:
    planish.reset_stats()
    x = random(32, 64, 28, 28, dtype=torch.float16).requires_grad_()
    module = nn.BatchNorm2d(64).to(GPU)
    with planish.enabled():
        module(x).sum().backward()
    counted: Any = planish.stats()
    assert sum(row["planish"] for row in counted.values()) > 0, counted


def test_enabled_between_forward_and_backward() -> None:
    """A reserve of cuDNN's meets planish's backward, and one of planish's meets disable()."""
    x = random(8, 16, 14, 14, dtype=torch.float16)
    module = nn.BatchNorm2d(16).to(GPU)
    wanted = run(x, module, torch.ones_like(x), True, wide=True)[1]
    for before in (False, True):
        leaf = x.clone().requires_grad_()
        (planish.enable if before else planish.disable)()
        y = module(leaf)
        (planish.disable if before else planish.enable)()
        (found,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        planish.disable()
        assert float((found.double() - wanted).abs().max()) <= 2e-3


def test_in_a_graph() -> None:
    x = random(8, 16, 14, 14, dtype=torch.bfloat16)
    module = nn.BatchNorm2d(16).to(GPU, torch.bfloat16)
    with planish.enabled():
        module(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
        graph.replay()
        assert torch.equal(y, F.batch_norm(x, None, None, module.weight, module.bias, True))


def test_modules_of_planish() -> None:
    """BatchNorm2d with a residual and an activation behind it."""
    x, r = (random(8, 32, 14, 14, dtype=torch.float16, seed=i).requires_grad_() for i in (1, 2))
    module = planish.BatchNorm2d(32, activation="relu").to(GPU)
    y = module(x, r)
    wanted = F.relu(F.batch_norm(x.double(), None, None, training=True) + r.double())
    assert float((y.double() - wanted).abs().max()) <= 1e-2
    dy = random(8, 32, 14, 14, dtype=torch.float16, seed=3)
    found = torch.autograd.grad(y, (x, r), dy)
    exact = torch.autograd.grad(wanted, (x, r), dy.double())
    for a, b in zip(found, exact, strict=True):
        share = ((a.double() - b.double()).abs() > 1e-2).double().mean()
        assert float(share) < 1e-3  # where z is near 0, its sign decides


@pytest.mark.parametrize("dtype", ROOM)
@pytest.mark.parametrize("behind", [None, "relu"])
def test_images_of_few_pixels_that_lie_apart(dtype: torch.dtype, behind: str | None) -> None:
    """Some channels of a wider tensor: images at other distances, and at odd addresses."""
    for first, channels, side in ((0, 48, 7), (3, 40, 7), (8, 36, 5), (1, 72, 3), (0, 41, 7)):
        wide = [random(21, 77, side, side, dtype=dtype, seed=i) for i in range(3)]
        x, addend, dy = (t[:, first : first + channels] for t in wide)
        added = addend if behind else None
        leaf = x.detach().requires_grad_()
        y = planish.batch_norm(leaf, None, None, training=True, activation=behind, addend=added)
        (dx,) = torch.autograd.grad(y, leaf, dy)
        exact = x.double().requires_grad_()
        z = F.batch_norm(exact, None, None, training=True)
        z = F.relu(z + addend.double()) if behind else z
        (wanted,) = torch.autograd.grad(z, exact, dy.double())
        room = ROOM[dtype] * float(z.abs().max())
        assert float((y.double() - z).abs().max()) <= room
        off = (dx.double() - wanted).abs() > ROOM[dtype] * float(wanted.abs().max())
        assert float(off.double().mean()) <= (2e-3 if behind else 0)  # z near 0: its sign decides


def _in_layouts(wide: Tensor) -> dict[str, Tensor]:
    """16 channels of an image, as these lie: dense ones, and parts of wider ones."""
    dense = wide[:, 5:21].contiguous()
    last = dense.contiguous(memory_format=LAST)
    part = wide.contiguous(memory_format=LAST)[:, 5:21]
    apart = dense.transpose(0, 2).contiguous().transpose(0, 2)
    turned = last.mT.contiguous().mT
    return {"first": dense, "last": last, "part of last": part, "turned": turned, "apart": apart}


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("training", [True, False])
def test_tensors_of_other_layouts(training: bool, activation: str | None) -> None:
    """x, what is added, and the gradient, each as it comes."""
    xs, rs, dys = (_in_layouts(random(4, 32, 6, 5, seed=i)) for i in range(3))
    mean, var = random(16, seed=3), random(16, seed=4).square() + 0.5
    given = (None, None) if training else (mean, var)
    for of_x, of_r, of_dy in itertools.product(xs, *[("first", "last", "apart")] * 2):
        x, r = (t.detach().requires_grad_() for t in (xs[of_x], rs[of_r]))
        y = planish.batch_norm(x, *given, training=training, activation=activation, addend=r)
        found = y, *torch.autograd.grad(y, (x, r), dys[of_dy])
        x, r = (t.detach().double().requires_grad_() for t in (x, r))
        z = (
            F.batch_norm(x, *(None if t is None else t.double() for t in given), training=training)
            + r
        )
        z = {"relu": F.relu, "silu": F.silu, None: lambda z: z}[activation](z)
        wanted = z, *torch.autograd.grad(z, (x, r), dys[of_dy].double())
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5)
