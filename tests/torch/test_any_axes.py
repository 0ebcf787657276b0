"""planish.layer_norm and rms_norm: what torch has no operator for."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch.nn.functional as F
from support import LAYER, RMS, Calls
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from planish.operators import call as _call
from planish.operators import ops
from torch import Tensor

FORWARD, BACKWARD = "planish::norm_forward", "planish::norm_backward"
X = torch.randn(2, 3, 4, 5)
NORMS = {"layer_norm": planish.layer_norm, "rms_norm": planish.rms_norm}


def formula(
    name: str,
    x: Tensor,
    reduce: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    affine: list[int],
    eps: float,
) -> Tensor:
    """In float64, by torch's plain operators."""
    wide = x.double()
    if name == "layer_norm":
        wide = wide - wide.mean(reduce, keepdim=True)
    y = wide * (wide.square().mean(reduce, keepdim=True) + eps).rsqrt()
    along = [size if axis in affine else 1 for axis, size in enumerate(x.shape)]
    if weight is not None:
        y = y * weight.double().reshape(along)
    return y if bias is None else y + bias.double().reshape(along)


def axes_of(ndim: int) -> list[list[int]]:
    return [list(c) for n in range(1, ndim + 1) for c in itertools.combinations(range(ndim), n)]


@pytest.mark.parametrize("reduce", axes_of(4), ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_some_axes_give_other_values_or_gradients(name: str, reduce: list[int]) -> None:
    for affine in (reduce, [1], [0, 3]):
        sizes = [X.shape[axis] for axis in affine]
        leaves = [X.clone(), torch.randn(sizes), torch.randn(sizes)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        dy = torch.randn(X.shape)
        calls = Calls()
        y = NORMS[name](leaves[0], reduce, leaves[1], leaves[2], 1e-3, affine)
        ours = [y, *torch.autograd.grad(y, leaves, dy)]
        right = formula(name, leaves[0], reduce, leaves[1], leaves[2], affine, 1e-3)
        wanted = [right, *torch.autograd.grad(right, leaves, dy.double())]
        for mine, exact in zip(ours, wanted, strict=True):
            assert mine.is_contiguous()
            torch.testing.assert_close(mine, exact.float(), rtol=1e-5, atol=1e-5)
        assert (calls.on_planish(FORWARD), calls.on_planish(BACKWARD)) == (1, 1)


def test_a_filter_response_norm_is_no_rms_norm_over_pixels() -> None:
    leaves = [torch.randn(2, 5, 4, 3), torch.randn(5), torch.randn(5)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    x, weight, bias = leaves
    y = planish.rms_norm(x, [2, 3], weight, bias, 1e-6, affine_dims=1)
    scaled = x / (x.square().mean([2, 3], keepdim=True) + 1e-6).sqrt()
    wanted = scaled * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)
    torch.testing.assert_close(y, wanted)
    dy = torch.randn_like(y)
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, dy), torch.autograd.grad(wanted, leaves, dy), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("layout", ["channels last", "permuted", "expanded", "sliced"])
def test_strided_input_is_read_as_dense(layout: str) -> None:
    x = {
        "channels last": X.contiguous(memory_format=torch.channels_last),
        "permuted": X.permute(3, 1, 0, 2),
        "expanded": torch.randn(2, 1, 4, 1).expand(2, 3, 4, 5),
        "sliced": torch.randn(4, 3, 4, 10)[::2, :, :, ::2],
    }[layout]
    y = planish.layer_norm(x, 1)
    wanted = formula("layer_norm", x, [1], None, None, [1], 1e-5)
    torch.testing.assert_close(y, wanted.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strided", ["x", "dy", "mean", "rstd", "weight"])
def test_backward_reads_each_tensor_by_its_strides(strided: str) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    _, mean, rstd = ops.plain_forward(x, weight, None, [1], [1], 1e-5, False, dense=True)
    tensors = {"dy": torch.randn(3, 8), "x": x, "mean": mean, "rstd": rstd, "weight": weight}

    def gradients() -> list[Tensor]:
        return list(ops.plain_backward(*tensors.values(), [1], [1], False))

    dense = gradients()
    apart = torch.full((*tensors[strided].shape, 2), torch.nan)
    apart[..., 0] = tensors[strided]
    tensors[strided] = apart[..., 0]
    for mine, wanted in zip(gradients(), dense, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("parameter", [torch.float32, torch.bfloat16], ids=str)
def test_a_mix_of_dtypes_is_refused_or_rounded_early(
    dtype: torch.dtype, parameter: torch.dtype
) -> None:
    x = X.to(dtype).requires_grad_()
    weight = torch.randn(3).to(parameter).requires_grad_()
    y = planish.layer_norm(x, 1, weight)
    wanted = formula("layer_norm", x, [1], weight, None, [1], 1e-5)
    dx, dweight = torch.autograd.grad(y.sum(), [x, weight])
    assert (y.dtype, dx.dtype, dweight.dtype) == (dtype, dtype, parameter)
    torch.testing.assert_close(y, wanted.to(dtype))


@pytest.mark.parametrize("weight_rank", ["short", "full"])
def test_weights_of_full_rank_are_refused(weight_rank: str) -> None:
    weight = torch.randn(3 if weight_rank == "short" else (1, 3, 1, 1), requires_grad=True)
    y = planish.layer_norm(X, (1, 2, 3), weight, affine_dims=1)
    (gradient,) = torch.autograd.grad(y.pow(2).sum(), weight)
    assert gradient.shape == weight.shape
    right = formula("layer_norm", X, [1, 2, 3], weight, None, [1], 1e-5)
    torch.testing.assert_close(y, right.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_either_order_are_wrong(name: str, check: Callable[..., bool]) -> None:
    def leaf(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)

    norm = NORMS[name]
    x = leaf(2, 3, 4)
    assert check(lambda x: norm(x, 1), [x])
    assert check(lambda x, w, b: norm(x, 0, w, b), [x, leaf(2), leaf(2)])
    assert check(lambda x, w: norm(x, (0, 2), w, affine_dims=1), [x, leaf(3)])
    assert check(
        lambda x, w, b: norm(x, (1, 2), w, b, affine_dims=(0, 1)), [x, leaf(2, 3), leaf(2, 3)]
    )


def test_trailing_axes_pass_torchs_operator_by_while_enabled() -> None:
    weight = torch.randn(5)
    calls = Calls()
    bare = [planish.layer_norm(X, -1, weight), planish.rms_norm(X, -1, weight)]
    assert calls.on_planish(FORWARD) == 2
    with planish.enabled():
        inside = [planish.layer_norm(X, -1, weight), planish.rms_norm(X, -1, weight)]
    assert (calls.on_planish(LAYER), calls.on_planish(RMS)) == (1, 1)
    for one, other in zip(bare, inside, strict=True):
        assert torch.equal(one, other)


ELSEWHERE = torch.ones(3, device="meta")
MISTAKES: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (IndexError, "Dimension out of range", lambda: planish.layer_norm(X, 4)),
    (IndexError, "Dimension out of range", lambda: planish.rms_norm(X, (0, -5))),
    (IndexError, "affine_dims: Dimension", lambda: planish.layer_norm(X, 1, affine_dims=9)),
    (RuntimeError, "appears multiple times", lambda: planish.layer_norm(X, (1, -3))),
    (RuntimeError, "at least one", lambda: planish.layer_norm(X, ())),
    (RuntimeError, "Expected weight to have", lambda: planish.layer_norm(X, 1, torch.ones(4))),
    (RuntimeError, "Expected bias to have", lambda: planish.layer_norm(X, 1, None, torch.ones(4))),
    (
        RuntimeError,
        "Expected weight on cpu",
        lambda: planish.rms_norm(X, 1, ELSEWHERE),
    ),
    (NotImplementedError, "torch.int32", lambda: planish.layer_norm(X.int(), 1)),
    (NotImplementedError, "torch.int64", lambda: planish.layer_norm(X, 1, torch.ones(3).long())),
    (RuntimeError, "eps", lambda: planish.layer_norm(X, 1, eps=float("nan"))),
]


@pytest.mark.parametrize(("kind", "words", "call"), MISTAKES, ids=[m[1] for m in MISTAKES])
def test_a_mistake_raises_something_else_or_nothing(
    kind: type[Exception], words: str, call: Callable[[], object]
) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert type(caught.value) is kind


def test_operators_break_graphs_or_have_wrong_fakes() -> None:
    x = X.clone().requires_grad_()
    weight = torch.randn(3, requires_grad=True)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return planish.rms_norm(planish.layer_norm(x, 1, weight) * 2, (0, 2))

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    ours, native = compiled(x, weight), function(x, weight)
    torch.testing.assert_close(ours, native)
    for one, other in zip(
        torch.autograd.grad(ours.pow(2).sum(), [x, weight]),
        torch.autograd.grad(native.pow(2).sum(), [x, weight]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    call = _call.make_call([1], [1], eps=1e-5, rms=False, dense=True)
    arguments = (*_call.Tensors(X, weight=torch.randn(3), bias=torch.randn(3)), *call)
    torch.library.opcheck(
        torch.ops.planish.norm_forward, arguments, test_utils=("test_schema", "test_faketensor")
    )


def test_vmap_of_any_axes_differs() -> None:
    ours = torch.func.vmap(lambda x: planish.layer_norm(x, 0))(X)
    torch.testing.assert_close(ours, planish.layer_norm(X, 1))


def test_meta_tensors_have_other_shapes() -> None:
    y = planish.layer_norm(X.to("meta"), 1)
    assert (y.shape, y.dtype, y.stride()) == (X.shape, X.dtype, X.stride())


def test_torch_and_planish_differ_on_channels() -> None:
    weight, bias = torch.randn(3), torch.randn(3)
    torchs = F.layer_norm(X.permute(0, 2, 3, 1), (3,), weight, bias).permute(0, 3, 1, 2)
    torch.testing.assert_close(planish.layer_norm(X, 1, weight, bias), torchs.contiguous())
