"""planish.normalize: values and gradients of torch's own function, of all its ways to be called."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch.nn.functional as F
from support import NARROW, Calls
from test_any_axes import axes_of
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from torch import Tensor

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"


def formula(x: Tensor, dim: Any, eps: float, weight: Any = None, bias: Any = None) -> Tensor:
    """In float64. weight and bias are of x's rank."""
    wide = x.double()
    y = wide / torch.linalg.vector_norm(wide, 2, dim, keepdim=True).clamp_min(eps)
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()


def length_of(x: Tensor, dim: Any) -> float:
    """About half of the rows are shorter."""
    axes = [dim] if isinstance(dim, int) else dim
    return math.sqrt(math.prod(x.shape[axis] for axis in axes))


@pytest.mark.parametrize("dim", [*axes_of(3), 1, -1], ids=str)
def test_an_axis_gives_other_values_or_gradients_than_torch(dim: Any) -> None:
    x = torch.randn(5, 3, 8, requires_grad=True)
    axes = [dim] if isinstance(dim, int) else dim
    sizes = [size if axis - 3 in axes or axis in axes else 1 for axis, size in enumerate(x.shape)]
    weight, bias = (torch.randn(sizes, requires_grad=True) for _ in range(2))
    leaves, dy = [x, weight, bias], torch.randn(x.shape)
    for eps in (1e-12, length_of(x, dim)):
        calls = Calls()
        y = planish.normalize(x, dim=dim, eps=eps, weight=weight, bias=bias)
        found = [y, *torch.autograd.grad(y, leaves, dy)]
        right = formula(x, dim, eps, weight, bias)
        wanted = [right, *torch.autograd.grad(right, leaves, dy.double())]
        for mine, exact in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine.double(), exact.double(), rtol=1e-5, atol=1e-5)
        assert (calls.on_planish(FORWARD), calls.on_planish(BACKWARD)) == (1, 1)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (2, 64, 5, 5), (3, 4099)], ids=str)
def test_it_is_further_from_the_formula_than_torch(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape, dtype=dtype)
    for eps in (1e-12, length_of(x, 1)):
        exact = formula(x, 1, eps)
        ours, theirs = planish.normalize(x, eps=eps), F.normalize(x, eps=eps)
        assert ours.dtype == dtype
        off, torchs = ((y.double() - exact).abs().max() for y in (ours, theirs))
        assert off <= torchs + exact.abs().max() * torch.finfo(dtype).eps


def test_the_arguments_stand_elsewhere_than_in_torch() -> None:
    x = torch.randn(4, 6)
    torch.testing.assert_close(planish.normalize(x, 2.0, -1, 0.5), F.normalize(x, 2.0, -1, 0.5))
    torch.testing.assert_close(planish.normalize(x), F.normalize(x))
    for p in (1, 3.0, math.inf):
        assert torch.equal(planish.normalize(x, p, 0), F.normalize(x, p, 0))
    weight = torch.randn(6)
    y = planish.normalize(x, 1.0, 1, weight=weight)
    torch.testing.assert_close(y, F.normalize(x, 1.0, 1) * weight)


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-40])
def test_squares_leave_the_range(scale: float) -> None:
    x = torch.full((3, 16), scale)
    assert torch.equal(planish.normalize(x, eps=0.0), torch.full((3, 16), 0.25))
    torch.testing.assert_close(planish.normalize(x, eps=1e35), x / 1e35, rtol=1e-6, atol=0)


def test_a_row_of_zeros_has_another_result_or_gradient_than_in_torch() -> None:
    x = torch.zeros(2, 5, requires_grad=True)
    y = planish.normalize(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y, torch.zeros(2, 5)) and torch.equal(dx, torch.full((2, 5), 1e12))
    assert planish.normalize(x, eps=0.0).isnan().all()


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_is_another_than_torchs(dim: int) -> None:
    sizes = [6 if axis == dim else 1 for axis in range(3)]
    leaves = [torch.randn(6, 4, 6, requires_grad=True), torch.randn(sizes, requires_grad=True)]
    others = [axis for axis in range(3) if axis != dim]
    y = planish.normalize(leaves[0], dim=others, eps=0.0, weight=leaves[1], affine_dims=dim)
    wanted = torch._weight_norm(leaves[0], leaves[1], dim)
    torch.testing.assert_close(y, wanted)
    dy = torch.randn_like(y)
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, dy), torch.autograd.grad(wanted, leaves, dy), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_negative_eps_does_something() -> None:
    x = torch.randn(3, 9, requires_grad=True)
    y = planish.normalize(x, eps=-1.0)
    assert torch.equal(y, planish.normalize(x, eps=0.0))
    (dx,) = torch.autograd.grad(y[:, 0].sum(), x)
    (right,) = torch.autograd.grad(F.normalize(x)[:, 0].sum(), x)
    torch.testing.assert_close(dx, right)


@pytest.mark.parametrize("eps", [1e-12, 2.0])
def test_a_derivative_of_any_order_or_mode_is_wrong(eps: float) -> None:
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    lengths = x.detach().norm(dim=1)
    assert (lengths - 2).abs().min() > 1e-3  # no step of a finite difference passes the bend
    weight, bias = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return planish.normalize(x, eps=eps, weight=weight, bias=bias)

    assert gradcheck(run, (x, weight, bias), check_forward_ad=True)
    assert gradgradcheck(run, (x, weight, bias))


@pytest.mark.parametrize("layout", ["channels last", "permuted", "sliced"])
def test_the_layout_is_not_kept(layout: str) -> None:
    x = {
        "channels last": torch.randn(2, 8, 3, 3).contiguous(memory_format=torch.channels_last),
        "permuted": torch.randn(3, 8, 2, 3).permute(2, 1, 0, 3),
        "sliced": torch.randn(4, 16, 3, 3)[::2, ::2],
    }[layout]
    y = planish.normalize(x, dim=1, weight=torch.ones(8))
    assert y.stride() == torch.empty_like(x).stride()
    torch.testing.assert_close(y, F.normalize(x, dim=1))


def test_a_graph_has_other_values_or_gradients() -> None:
    def run(x: Tensor, weight: Tensor) -> Tensor:
        return planish.normalize(x, dim=-1, eps=3.0, weight=weight) * 2

    x, weight = (torch.randn(s, requires_grad=True) for s in ((6, 12), (12,)))
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(x, weight), run(x, weight)
    assert torch.equal(found, wanted)
    both = [torch.autograd.grad(y.sum(), (x, weight)) for y in (found, wanted)]
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    exported = torch.export.export(_Module(), (x.detach(), weight.detach()))
    assert torch.equal(exported.module()(x, weight), planish.normalize(x, weight=weight))


class _Module(torch.nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return planish.normalize(x, weight=weight)


def test_a_transform_has_other_values() -> None:
    x = torch.randn(3, 4, 5)
    mapped = torch.func.vmap(lambda row: planish.normalize(row, dim=-1))(x)
    torch.testing.assert_close(mapped, F.normalize(x, dim=-1))
    jacobian = torch.func.jacrev(lambda row: planish.normalize(row, dim=0))(x[0, 0])
    wanted = torch.func.jacrev(lambda row: F.normalize(row, dim=0))(x[0, 0])
    torch.testing.assert_close(jacobian, wanted)
    node = torch.fx.symbolic_trace(_Module()).graph
    assert any(n.target is planish.normalize for n in node.nodes)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dim": 2}, IndexError, "normalize, dim: Dimension out of range"),
        ({"dim": ()}, RuntimeError, "normalize: Expected dim to have at least one element"),
        ({"dim": 0.5}, TypeError, "normalize: Expected dim to be an axis"),
        ({"eps": "1"}, TypeError, "normalize: Expected eps to be a number"),
        ({"p": "2"}, TypeError, "normalize: Expected p to be a number"),
        ({"weight": torch.ones(3)}, RuntimeError, "weight"),
        ({"weight": [1.0]}, TypeError, "weight"),
    ],
    ids=str,
)
def test_a_bad_argument_is_taken(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        planish.normalize(torch.randn(2, 4), **arguments)


def test_no_tensor_is_taken() -> None:
    with pytest.raises(TypeError, match="normalize"):
        planish.normalize([1.0])  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="not implemented for x of"):
        planish.normalize(torch.ones(2, 2, dtype=torch.int64))
