"""Activations behind planish's norms on a GPU: one call of the kernels each way. It needs a GPU."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from support import Calls
from test_activations import ACTIVATIONS, TOLERANCE, reference

import planish
import torch

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"
#: Rows in warps, blocks and clusters, few columns, and the channels of images.
SHAPES = [((9, 1000), (1,)), ((7, 5, 24), (2,)), ((5, 2048), (1,)), ((3, 24, 9, 7), (1,))]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_an_activation_is_a_pass_of_its_own(rms: bool, dtype: torch.dtype, activation: str) -> None:
    norm = planish.rms_norm if rms else planish.layer_norm
    for shape, dims in SHAPES:
        torch.manual_seed(len(shape))
        sizes = [shape[axis] for axis in dims]
        given = [torch.randn(size, dtype=torch.float64) for size in (shape, sizes, sizes)]
        given = [t.to("cuda", dtype).requires_grad_() for t in given]
        exact = [t.detach().double().requires_grad_() for t in given]
        calls = Calls()
        y = norm(given[0], dims, given[1], given[2], activation=activation)
        dy = torch.randn(shape, dtype=torch.float64).to("cuda", dtype)
        got = torch.autograd.grad(y, given, dy)
        torch.cuda.synchronize()
        assert calls.on_planish(FORWARD) == 1 and calls.on_planish(BACKWARD) == 1
        wanted = reference(*exact, dims, rms, activation)
        gradients = torch.autograd.grad(wanted, exact, dy.double())
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(y.double(), wanted, rtol=limit, atol=limit)
        for name, one, other in zip(["x", "weight", "bias"], got, gradients, strict=True):
            scale = float(other.abs().max())
            error = float((one.double() - other).abs().max())
            assert error <= limit * max(scale, 1), (name, shape, error)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu6", "hardswish"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_activation_behind_groups_is_a_pass_of_its_own(
    dtype: torch.dtype, activation: str
) -> None:
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(3)
        x = torch.randn(3, 32, 14, 15, device="cuda").contiguous(memory_format=memory_format)
        weight, bias = (torch.randn(32, device="cuda") for _ in range(2))
        given = [t.to(dtype).requires_grad_() for t in (x, weight, bias)]
        exact = [t.detach().double().requires_grad_() for t in given]
        calls = Calls()
        y = planish.group_norm(given[0], 8, given[1], given[2], activation=activation)
        got = torch.autograd.grad(y.sum(), given)
        torch.cuda.synchronize()
        assert calls.on_planish(FORWARD) == 1 and calls.on_planish(BACKWARD) == 1
        z = F.group_norm(exact[0], 8, exact[1], exact[2])
        wanted = ACTIVATIONS[activation](z)
        gradients = torch.autograd.grad(wanted.sum(), exact)
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(y.double(), wanted, rtol=limit, atol=limit)
        for one, other in zip(got, gradients, strict=True):
            error = float((one.double() - other).abs().max())
            assert error <= limit * max(float(other.abs().max()), 1)


def test_long_rows_and_rows_of_strangers_have_no_way() -> None:
    """Where no fast kernel knows of an activation, torch's own runs behind the norm."""
    weight = torch.randn(9000, device="cuda")
    long = torch.randn(5, 9000, device="cuda")
    y = planish.layer_norm(long, 1, weight, activation="silu")
    torch.testing.assert_close(y, F.silu(F.layer_norm(long, [9000], weight)), rtol=1e-5, atol=1e-5)
    apart = torch.randn(40, 6, 30, device="cuda")
    y = planish.layer_norm(apart, 0, weight[:40], activation="gelu")
    wanted = F.gelu(F.layer_norm(apart.permute(1, 2, 0), [40], weight[:40])).permute(2, 0, 1)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
