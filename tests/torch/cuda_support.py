"""What test_cuda.py, test_cuda_running.py, test_cuda_torch.py, test_cuda_groups.py share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from support import LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD, description

import torch
from torch import Tensor

GPU = torch.device("cuda", 0)
LAYOUT = "a layout that no fast kernel takes, or no kernel could be made"
#: rows, columns: within a warp, a block, a cluster, and past one read
SHAPES = [(4, 2), (1, 8), (7, 33), (64, 96), (300, 128), (13, 769), (64, 4096), (3, 15872)]


def random(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=generator, dtype=torch.float64).to(GPU, dtype)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor) -> list[Tensor]:
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    leaves[0] = x.detach().requires_grad_()
    y = F.layer_norm(leaves[0], dy.shape[-1:], leaves[1], leaves[2])
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [y.detach(), *torch.autograd.grad(y, wanted, dy)]


def rms(x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_()]
    if weight is not None:
        leaves.append(weight.detach().clone().requires_grad_())
    y = F.rms_norm(leaves[0], dy.shape[-1:], leaves[1] if weight is not None else None, 1e-5)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


NORMS: dict[str, tuple[Callable[..., list[Tensor]], str, str]] = {
    "layer_norm": (layer, LAYER, LAYER_BACKWARD),
    "rms_norm": (rms, RMS, RMS_BACKWARD),
}


def given(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    cols = shape[-1]
    parameters = [random(cols, dtype=dtype, seed=1), random(cols, dtype=dtype, seed=2)]
    return [random(*shape, dtype=dtype), *parameters, random(*shape, dtype=dtype, seed=3)]


def assert_like_torch(ours: list[Any], native: list[Any], rtol: float, atol: float) -> None:
    assert description(ours) == description(native)
    for mine, theirs in zip(ours, native, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)


TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-4),
    torch.bfloat16: (2e-2, 2e-1),
    torch.float16: (2e-3, 2e-2),
}
