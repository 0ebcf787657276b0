"""Activations behind layer_norm, rms_norm and group_norm: results, derivatives, and what is
refused."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

import planish
import torch
from planish.operators.arguments import activates
from torch import Tensor

ACTIVATIONS = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "relu6": F.relu6,
    # torch's on CUDA has 1 / 6 in f32, of f64 as well
    "hardswish": lambda z: z * ((z + 3).clamp(0, 6) / 6),
}
#: x's shape, the axes of the norm: rows, rows of few columns, channels, channels and rows.
SHAPES = [((9, 1000), (1,)), ((7, 5, 24), (2,)), ((3, 24, 9, 7), (1,)), ((2, 6, 5, 4), (1, 3))]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SEED = 20261126


def arguments(
    shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(SEED)
    sizes = [shape[axis] for axis in dims]
    x = torch.randn(shape, dtype=torch.float64).add(3)
    weight, bias = torch.randn(sizes, dtype=torch.float64), torch.randn(sizes, dtype=torch.float64)
    return tuple(t.to(dtype).requires_grad_() for t in (x, weight, bias))  # type: ignore[return-value]


def reference(
    x: Tensor, weight: Tensor, bias: Tensor, dims: tuple[int, ...], rms: bool, activation: str
) -> Tensor:
    """In f64, of leaves of the same values."""
    along = [size if axis in dims else 1 for axis, size in enumerate(x.shape)]
    centred = x if rms else x - x.mean(dims, keepdim=True)
    xhat = centred * (centred.square().mean(dims, keepdim=True) + 1e-5).rsqrt()
    return ACTIVATIONS[activation](xhat * weight.reshape(along) + bias.reshape(along))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_result_and_gradients(rms: bool, dtype: torch.dtype, activation: str) -> None:
    norm = planish.rms_norm if rms else planish.layer_norm
    for shape, dims in SHAPES:
        given = arguments(shape, dims, dtype)
        exact = [t.detach().double().requires_grad_() for t in given]
        y = norm(given[0], dims, given[1], given[2], activation=activation)
        wanted = reference(*exact, dims, rms, activation)
        assert y.dtype == dtype
        assert y.stride() == given[0].stride()
        limit = TOLERANCE[dtype]
        torch.testing.assert_close(y.double(), wanted, rtol=limit, atol=limit)
        dy = torch.randn(shape, dtype=torch.float64).to(dtype)
        got = torch.autograd.grad(y, given, dy)
        gradients = torch.autograd.grad(wanted, exact, dy.double())
        for name, one, other in zip(["x", "weight", "bias"], got, gradients, strict=True):
            scale = float(other.abs().max())
            error = float((one.double() - other).abs().max())
            assert error <= limit * max(scale, 1), (name, shape, error)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_result_of_16_bits_is_rounded_once(activation: str) -> None:
    """y is not rounded before the activation: nearly every element is the exact one, rounded."""
    x, weight, bias = (t.detach() for t in arguments((64, 512), (1,), torch.bfloat16))
    y = planish.layer_norm(x, 1, weight, bias, activation=activation)
    exact = reference(x.double(), weight.double(), bias.double(), (1,), False, activation)
    assert (y != exact.to(torch.bfloat16)).sum() * 1000 <= y.numel()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_second_derivatives(rms: bool, activation: str) -> None:
    norm = planish.rms_norm if rms else planish.layer_norm
    x, weight, bias = arguments((3, 6), (1,), torch.float64)

    def run(*tensors: Tensor) -> Tensor:
        return norm(tensors[0], 1, tensors[1], tensors[2], activation=activation)

    assert torch.autograd.gradcheck(run, (x, weight, bias))
    if activation not in ("relu", "relu6", "hardswish"):  # their slopes jump
        assert torch.autograd.gradgradcheck(run, (x, weight, bias))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_group_norm(activation: str) -> None:
    torch.manual_seed(SEED)
    x = torch.randn(2, 12, 9, 7, requires_grad=True)
    weight, bias = torch.randn(12, requires_grad=True), torch.randn(12, requires_grad=True)
    wanted = ACTIVATIONS[activation](F.group_norm(x.double(), 4, weight.double(), bias.double()))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        seen = x.detach().contiguous(memory_format=memory_format).requires_grad_()
        y = planish.group_norm(seen, 4, weight, bias, activation=activation)
        torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
        got = torch.autograd.grad(y.sum(), [seen, weight, bias])
        gradients = torch.autograd.grad(wanted.sum(), [x, weight, bias], retain_graph=True)
        torch.testing.assert_close(got, gradients, rtol=1e-4, atol=1e-4)
    module = planish.GroupNorm(4, 12, activation=activation)
    scripted = torch.jit.script(module)
    torch.testing.assert_close(scripted(x), module(x), rtol=1e-5, atol=1e-5)


def test_while_planish_is_enabled() -> None:
    """An activation is part of the norm whether planish is enabled or not, however small x is."""
    for rows in (3, 300):
        x, weight, bias = arguments((rows, 512), (1,), torch.float32)
        alone = planish.layer_norm(x, 1, weight, bias, activation="silu")
        with planish.enabled():
            y = planish.layer_norm(x, 1, weight, bias, activation="silu")
        assert torch.equal(y, alone)


def test_behind_the_other_order_of_rounding() -> None:
    x, weight, _ = arguments((5, 64), (1,), torch.bfloat16)
    y = planish.rms_norm(x, 1, weight, cast="xhat", activation="relu")
    torch.testing.assert_close(y, planish.rms_norm(x, 1, weight, cast="xhat").relu())


def test_compiled() -> None:
    x, weight, bias = arguments((40, 96), (1,), torch.float32)

    def run(x: Tensor) -> Tensor:
        return planish.layer_norm(x, 1, weight, bias, activation="gelu")

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), run(x), rtol=0, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(run(x).sum(), x)
    )


def test_another_activation_is_refused() -> None:
    x = torch.randn(4, 8)
    known = "layer_norm: activation is 'tanh'; known are None, 'silu'"
    with pytest.raises(ValueError, match=known):
        planish.layer_norm(x, 1, activation="tanh")
    with pytest.raises(ValueError, match="rms_norm: activation is 'mish'"):
        planish.rms_norm(x, 1, activation="mish")


def test_which_layouts_have_kernels_for_an_activation() -> None:
    """On a GPU rows of neighbours that are not too long, and the channels of images; meta tensors
    stand for those of one here."""
    rows = torch.empty(4, 6, 128, device="meta")
    images = torch.empty(2, 24, 5, 5, device="meta")
    assert activates(rows, (2,), (2,)) and activates(rows, (1, 2), (1, 2))
    assert activates(rows[:, ::2], (2,), (2,)) and not activates(rows[:, ::2], (1, 2), (1, 2))
    assert not activates(rows[..., ::2], (2,), (2,)) and not activates(rows, (2,), (1, 2))
    assert activates(images, (1,), (1,)) and not activates(images.permute(0, 1, 3, 2), (1,), (1,))
    assert not activates(rows, (0,), (0,)) and not activates(rows, (0, 2), (0, 2))
    assert activates(torch.empty(2, 4096, device="meta"), (1,), (1,))
    assert not activates(torch.empty(2, 4097, device="meta"), (1,), (1,))
    assert activates(torch.empty(3, 5), (0,), (0,))
