"""Layer norm over the channels of an NCHW tensor seen as NHWC: one kernel, no copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch.nn.functional as F
from support import FLOATS, LAYER, LAYER_BACKWARD, description, exact_norm, on_planish, row_error
from torch.utils._python_dispatch import TorchDispatchMode

import torch
from torch import Tensor

pytest.importorskip("expecttest", reason="torch's op_db needs expecttest, which is not installed")

from torch.testing._internal.common_methods_invocations import op_db

#: docs/guide/reproducibility.md, in ULP: y of 16 bits is the exact value or the one beside it;
#: 4 for the rest.
#: (Of 16 bits torch has rstd saved in 16 bits, which costs dx a digit whoever computes it.)
BOUND = {torch.float32: 4.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}
GRADIENT_BOUND = 4.0

#: Of y's gradient, (N, H, W, C).
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda dy: dy,
    "permuted as x": lambda dy: dy.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
    "samples last": lambda dy: dy.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "sliced": lambda dy: torch.cat([dy, dy], 2)[:, :, : dy.shape[2]],
    "expanded": lambda dy: dy[:, :1, :1, :].expand(dy.shape),
}


class Names(TorchDispatchMode):
    """The operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def given(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    n, c, h, w = shape
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = [shape, (c,), (c,), (n, h, w, c)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in sizes]


def run(x: Tensor, weight: Tensor, bias: Tensor, dy: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = F.layer_norm(leaves[0].permute(0, 2, 3, 1), weight.shape, leaves[1], leaves[2])
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(2, 33, 5, 7), (3, 96, 4, 4), (1, 8, 1, 9), (2, 1, 3, 3)])
def test_values_leave_the_bounds_or_are_worse_than_torchs(
    shape: tuple[int, ...], dtype: torch.dtype, gradient: str
) -> None:
    x, weight, bias, dy = given(shape, dtype)
    dy = GRADIENTS[gradient](dy)
    native = run(x, weight, bias, dy)
    with on_planish(LAYER, LAYER_BACKWARD):
        ours = run(x, weight, bias, dy)
    assert description(ours[:1]) == description(native[:1])
    assert ours[0].is_contiguous()
    channels = shape[1]
    rows = [t.reshape(-1, channels) for t in (x.permute(0, 2, 3, 1), dy)]
    right = exact_norm(rows[0], weight, bias, rows[1])
    sums = np.abs(exact_norm(rows[0], weight, bias, rows[1].abs())[3])
    for i, exact in enumerate(right):
        found = [results[i] for results in (ours, native)]
        if i == 1:
            found = [t.permute(0, 2, 3, 1) for t in found]
        found = [t.reshape(exact.shape) for t in found]
        axis, scale = (-1, None) if i < 2 else (0, sums)
        error, torchs = (row_error(t, exact, axis, scale) for t in found)
        bound = GRADIENT_BOUND if i else BOUND[dtype]
        assert error <= max(torchs, bound), f"{i}: {error} ULP, torch {torchs}"


def test_a_permuted_view_is_copied() -> None:
    x, weight, bias, _ = given((2, 96, 7, 7), torch.float32)
    with on_planish(LAYER) as calls, Names() as seen:
        y = F.layer_norm(x.permute(0, 2, 3, 1), (96,), weight, bias)
    assert seen.names == ["aten.permute.default", "aten.native_layer_norm.default"]
    assert calls.on_planish(LAYER) == 1
    assert y.is_contiguous()


def permuted(t: object) -> object:
    """The same values with the axes in another order in memory."""
    if not isinstance(t, Tensor) or t.dim() < 2:
        return t
    return t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()


def test_torchs_samples_differ_on_permuted_views() -> None:
    op = next(op for op in op_db if op.name == "nn.functional.layer_norm")
    count = 0
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=True):
        x = permuted(sample.input)
        assert isinstance(x, Tensor)
        count += not x.is_contiguous()

        def results(x: Tensor = x, sample: object = sample) -> list[Tensor]:
            y = op(x, *sample.args, **sample.kwargs)  # type: ignore[attr-defined]
            dy = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
            return [y, *torch.autograd.grad(y, x, dy)]

        native = results()
        with on_planish(LAYER, LAYER_BACKWARD):
            ours = results()
        assert description(ours) == description(native)
        for mine, theirs in zip(ours, native, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert count >= 2
