"""planish.add_*, modulated_*, gated_*_norm, qk_norm and their modules: values, rounding, gradients,
arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import FLOATS
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from torch import Tensor

LAYER = [True, False]


def exact_norm(
    layer: bool,
    s: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float = 0.0,
) -> Tensor:
    """In float64, over the last axis."""
    s = s.double()
    if layer:
        s = s - s.mean(-1, keepdim=True)
    y = s * (s.square().mean(-1, keepdim=True) + eps).rsqrt()
    if weight is not None:
        y = y * (offset + weight.double())
    return y if bias is None else y + bias.double()


def close(ours: Tensor, exact: Tensor) -> None:
    """One rounding to a dtype of 16 bits, and some float (or double) roundings on the way."""
    half = torch.finfo(ours.dtype).eps / 2 if ours.dtype in (torch.float16, torch.bfloat16) else 0
    wide = torch.finfo(torch.float64 if ours.dtype == torch.float64 else torch.float32).eps
    wrong = (ours.double() - exact.double()).abs()
    allowed = half * exact.double().abs() + 32 * wide * exact.abs().max()
    assert (wrong <= allowed).all(), f"{wrong.max()} where {allowed[wrong > allowed]} was allowed"


def add_norm(layer: bool, *args: Any, **given: Any) -> tuple[Tensor, Tensor]:
    return (planish.add_layer_norm if layer else planish.add_rms_norm)(*args, **given)


# ---- The sum ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sums", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layer", LAYER)
def test_the_norm_reads_another_sum_than_it_returns(
    layer: bool, dtype: torch.dtype, sums: torch.dtype
) -> None:
    x, residual = torch.randn(6, 40, dtype=dtype), torch.randn(6, 40, dtype=sums) * 3
    weight, bias = torch.randn(40, dtype=dtype), torch.randn(40, dtype=dtype) if layer else None
    parameters = (weight, bias) if layer else (weight,)
    y, total = add_norm(layer, x, residual, *parameters, 1e-3)
    assert (y.dtype, total.dtype) == (dtype, sums)
    wanted = (x.double() + residual.double()).to(sums)
    if torch.float64 in (dtype, sums) and sums != torch.float64:
        assert torch.equal(total, wanted)
    else:
        close(total, wanted)
    close(y, exact_norm(layer, total, weight, bias, 1e-3))
    if dtype == sums:
        norm = planish.layer_norm if layer else planish.rms_norm
        assert torch.equal(total, x + residual)
        assert torch.equal(y, norm(x + residual, -1, weight, bias, 1e-3))


@pytest.mark.parametrize("layer", LAYER)
def test_sum_dtype_or_out_dtype_is_not_followed(layer: bool) -> None:
    x, residual = torch.randn(2, 5, 16).bfloat16(), torch.randn(2, 5, 16).bfloat16()
    y, total = add_norm(layer, x, residual, sum_dtype=torch.float32, out_dtype=torch.float32)
    assert (y.dtype, total.dtype) == (torch.float32, torch.float32)
    assert torch.equal(total, x.float() + residual.float())
    close(y, exact_norm(layer, total, None, None, 1e-5))


@pytest.mark.parametrize("layer", LAYER)
def test_scales_and_dropout_do_not_meet_the_formula(layer: bool) -> None:
    x, residual = torch.randn(4, 6, 32).bfloat16(), torch.randn(4, 6, 32)
    column, row = torch.randn(32), torch.randint(0, 2, (4, 6)) * 1.25
    y, total = add_norm(
        layer, x, residual, dropout_p=0.4, row_scale=row, column_scale=column, weight_offset=1.0
    )
    keep = (total != residual) | (row == 0)[..., None]
    assert 0.5 < keep[row != 0].double().mean() < 0.7
    wanted = x.double() * column * row[..., None] * keep / 0.6 + residual
    torch.testing.assert_close(total, wanted.float(), rtol=1e-6, atol=1e-6)
    close(y, exact_norm(layer, total, None, None, 1e-5))
    off = add_norm(layer, x, residual, dropout_p=0.4, training=False)
    assert torch.equal(off[1], x.float() + residual)
    assert torch.equal(
        add_norm(layer, x, residual, row_scale=row[..., None])[1][row == 0], residual[row == 0]
    )


@pytest.mark.parametrize("layer", LAYER)
def test_a_weight_per_head_or_an_offset_is_not_applied(layer: bool) -> None:
    x, residual = torch.randn(3, 4, 8), torch.randn(3, 4, 8)
    weight, bias = torch.randn(4, 8), torch.randn(8) if layer else None
    parameters = (weight, bias) if layer else (weight,)
    y, total = add_norm(layer, x, residual, *parameters, weight_offset=1.0)
    close(y, exact_norm(layer, total, weight, bias, 1e-5, 1.0))


@pytest.mark.parametrize("layer", LAYER)
def test_gradients_of_the_sum_are_wrong(layer: bool) -> None:
    def run(x: Tensor, residual: Tensor, weight: Tensor, column: Tensor, row: Tensor) -> Any:
        torch.manual_seed(1)
        bias = (weight * 2,) if layer else ()
        return add_norm(
            layer, x, residual, weight, *bias, dropout_p=0.3, column_scale=column, row_scale=row
        )

    shapes = [(3, 6), (3, 6), (6,), (6,), (3,)]
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert gradcheck(run, leaves)


# ---- Modulation and gates -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 1, 24), (2, 5, 24), (24,), (1, 5, 1)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layer", LAYER)
def test_a_modulation_is_not_along_its_axes(
    layer: bool, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    norm = planish.modulated_layer_norm if layer else planish.modulated_rms_norm
    x, weight = torch.randn(2, 5, 24, dtype=dtype), torch.randn(24)
    scale, shift, gate = (torch.randn(shape, dtype=dtype) for _ in range(3))
    residual = torch.randn(2, 5, 24)
    y = norm(x, scale, shift, weight)
    assert isinstance(y, Tensor) and y.dtype == dtype
    close(y, exact_norm(layer, x, weight, None, 1e-6) * (1 + scale.double()) + shift.double())
    pair = norm(x, scale, None, residual=residual, gate=gate)
    assert isinstance(pair, tuple)
    y, total = pair
    assert (y.dtype, total.dtype) == (dtype, torch.float32)
    close(total, residual + gate.double() * x.double())
    close(y, exact_norm(layer, total, None, None, 1e-6) * (1 + scale.double()))


@pytest.mark.parametrize("group", [None, 8, 24])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layer", LAYER)
def test_a_gate_is_on_the_wrong_side_of_the_norm(
    layer: bool, dtype: torch.dtype, before: bool, group: int | None
) -> None:
    x, gate, weight = torch.randn(3, 4, 24, dtype=dtype), torch.randn(3, 4, 24), torch.randn(24)
    bias = torch.randn(24)
    norm: Callable[..., Tensor] = planish.gated_layer_norm if layer else planish.gated_rms_norm
    y = norm(
        x, gate, weight, *((bias,) if layer else ()), norm_before_gate=before, group_size=group
    )
    assert y.dtype == dtype and y.shape == x.shape
    factor = gate.double() * gate.double().sigmoid()
    s = (x.double() if before else x.double() * factor).reshape(3, 4, -1, group or 24)
    wanted = exact_norm(layer, s, None, None, 1e-5).reshape(3, 4, 24) * weight.double()
    wanted = wanted + bias if layer else wanted
    close(y, wanted * factor if before else wanted)


def test_gradients_of_modulations_and_gates_are_wrong() -> None:
    shapes = [(2, 3, 6), (2, 1, 6), (2, 1, 6), (2, 3, 6), (2, 1, 6)]
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    for norm in (planish.modulated_layer_norm, planish.modulated_rms_norm):
        assert gradcheck(lambda x, a, b, r, g, f=norm: f(x, a, b, residual=r, gate=g), leaves)
    x, gate = leaves[0], leaves[3]
    for before in (True, False):
        for gated in (planish.gated_layer_norm, planish.gated_rms_norm):
            assert gradcheck(
                lambda x, g, b=before, f=gated: f(x, g, norm_before_gate=b, group_size=3), (x, gate)
            )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_queries_or_keys_of_a_packed_qkv_are_misread(kind: str, dtype: torch.dtype) -> None:
    qkv = torch.randn(2, 3, 8, 16, dtype=dtype)
    q, k = qkv[:, :, :4], qkv[:, :, 4:6]
    q_weight, k_weight = torch.randn(4, 16), torch.randn(16)
    ours = planish.qk_norm(q, k, q_weight, k_weight, 1e-6, kind=kind, weight_offset=1.0)
    for y, x, weight in zip(ours, (q, k), (q_weight, k_weight), strict=True):
        assert y.is_contiguous() and y.dtype == dtype
        close(y, exact_norm(kind == "layer", x, weight, None, 1e-6, 1.0))


# ---- Modules ------------------------------------------------------------------------------------


def test_modules_have_other_parameters_or_results_than_their_functions() -> None:
    x, residual, weight = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8)
    layer = planish.AddLayerNorm(8, dropout_p=0.5).eval()
    layer.load_state_dict({"weight": weight, "bias": weight + 1})
    for ours, theirs in zip(
        layer(x, residual), planish.add_layer_norm(x, residual, weight, weight + 1), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert not torch.equal(layer.train()(x, residual)[1], x + residual)
    rms = planish.AddRMSNorm(8, weight_offset=1.0)
    assert list(rms.state_dict()) == ["weight"] and not rms.weight.any()
    assert torch.equal(rms(x, residual)[0], planish.add_rms_norm(x, residual)[0])
    adaln = planish.ModulatedLayerNorm(8)
    assert not adaln.state_dict()
    assert torch.equal(adaln(x, weight, None), planish.modulated_layer_norm(x, weight, None))
    affine = planish.ModulatedLayerNorm(8, elementwise_affine=True)
    assert list(affine.state_dict()) == ["weight", "bias"]
    gated = planish.GatedRMSNorm(8, norm_before_gate=False, group_size=4)
    assert torch.equal(
        gated(x, residual),
        planish.gated_rms_norm(x, residual, gated.weight, norm_before_gate=False, group_size=4),
    )
    with pytest.raises(RuntimeError, match="Expected x with 8 columns, but got x of shape"):
        adaln(torch.randn(2, 7), weight[:7], None)


@pytest.mark.parametrize("name", ["AddLayerNorm", "AddRMSNorm", "GatedRMSNorm"])
def test_modules_do_not_compile_whole(name: str) -> None:
    module = getattr(planish, name)(16)
    x, other = torch.randn(4, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    results = []
    for run in (compiled, module):
        ys = run(x, other)
        ys = ys if isinstance(ys, tuple) else (ys,)
        total = torch.stack([(y * y).sum() for y in ys]).sum()
        results.append([*ys, *torch.autograd.grad(total, (x, other))])
    torch.testing.assert_close(*results)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add_layer_norm": lambda x, r, w: planish.add_layer_norm(x, r, w, w, column_scale=w),
    "add_rms_norm": lambda x, r, w: planish.add_rms_norm(x, r, w, weight_offset=1.0),
    "modulated_layer_norm": lambda x, r, w: planish.modulated_layer_norm(
        x, w, w, residual=r, gate=r
    ),
    "modulated_rms_norm": lambda x, r, w: planish.modulated_rms_norm(x, r, w),
    "gated_layer_norm": lambda x, r, w: planish.gated_layer_norm(x, r, w, w, group_size=4),
    "gated_rms_norm": lambda x, r, w: planish.gated_rms_norm(x, r, w, norm_before_gate=False),
    "qk_norm": lambda x, r, w: planish.qk_norm(x, r, w, None, 1e-5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_wrong(name: str) -> None:
    leaves = [torch.randn(s).double().requires_grad_() for s in ((2, 8), (2, 8), (8,))]
    assert gradgradcheck(FUNCTIONS[name], leaves)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_breaks_a_graph(name: str) -> None:
    leaves = [torch.randn(s).bfloat16().requires_grad_() for s in ((3, 8), (3, 8), (8,))]
    results = []
    for run in (
        FUNCTIONS[name],
        torch.compile(FUNCTIONS[name], backend="aot_eager", fullgraph=True),
    ):
        ys = run(*leaves)
        ys = ys if isinstance(ys, tuple) else (ys,)
        total = torch.stack([(y * y).sum() for y in ys]).sum()
        results.append([*ys, *torch.autograd.grad(total, leaves)])
    torch.testing.assert_close(*results)


# ---- What does not fit --------------------------------------------------------------------------

X = torch.randn(2, 3, 8)
WRONG: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("p above 1", lambda: planish.add_rms_norm(X, X, dropout_p=1.5), ValueError,
     r"add_rms_norm: dropout_p is 1.5; wanted a probability, from 0 to 1"),
    ("p of nan", lambda: planish.add_layer_norm(X, X, dropout_p=float("nan")), ValueError,
     "dropout_p is nan"),
    ("p below 0", lambda: planish.AddRMSNorm(8, dropout_p=-0.1), ValueError, "dropout_p is -0.1"),
    ("a residual of another shape", lambda: planish.add_layer_norm(X, X[:1]), RuntimeError,
     r"Expected residual to have x's shape \[2, 3, 8\], but got residual of shape \[1, 3, 8\]"),
    ("no residual", lambda: planish.add_layer_norm(X, None), TypeError,  # type: ignore[arg-type]
     "Expected residual to be a tensor, but got NoneType"),
    ("a weight of another size", lambda: planish.add_rms_norm(X, X, torch.ones(3)), RuntimeError,
     r"add_rms_norm: Expected weight to have .* but got weight of shape \[3\]"),
    ("an integer residual", lambda: planish.add_rms_norm(X, X.int()), NotImplementedError,
     "not implemented for residual of torch.int32"),
    ("an integer x", lambda: planish.gated_rms_norm(X.int(), X), NotImplementedError,
     "gated_rms_norm: not implemented for x of torch.int32"),
    ("a row scale of columns", lambda: planish.add_rms_norm(X, X, row_scale=torch.ones(8)),
     RuntimeError, r"Expected row_scale of shape \[2, 3\] or \[2, 3, 1\]"),
    ("an int8 sum", lambda: planish.add_rms_norm(X, X, sum_dtype=torch.int8), NotImplementedError,
     "not implemented for sum_dtype of torch.int8"),
    ("(B, D) as (1, B, D)", lambda: planish.modulated_layer_norm(X, X[0], None), RuntimeError,
     r"Expected scale to have 1 axis or the 3 axes of x, but got scale of shape \[3, 8\]"),
    ("a scale of other sizes",
     lambda: planish.modulated_rms_norm(X, torch.ones(2, 2, 8), None), RuntimeError,
     r"each axis of scale to have x's size or 1, but got scale of shape \[2, 2, 8\]"),
    ("a shift of other sizes",
     lambda: planish.modulated_rms_norm(X, X, torch.ones(4)), RuntimeError, "each axis of shift"),
    ("a gate of nothing", lambda: planish.modulated_rms_norm(X, X, X, gate=X), ValueError,
     "gate is given without a residual"),
    ("a gate of another shape", lambda: planish.gated_rms_norm(X, X[0]), RuntimeError,
     "Expected gate to have x's shape"),
    ("groups that do not divide", lambda: planish.gated_layer_norm(X, X, group_size=3), ValueError,
     "group_size is 3; wanted a divisor of x's last axis, which has 8 columns"),
    ("another kind", lambda: planish.qk_norm(X, X, None, None, 1e-5, kind="l2"), ValueError,
     "qk_norm: kind is 'l2'; known are 'rms' and 'layer'"),
    ("a scalar", lambda: planish.add_rms_norm(torch.ones(()), torch.ones(())), RuntimeError,
     "at least 1 dimension"),
    ("no device for it", lambda: planish.add_rms_norm(X, X.to("meta")), RuntimeError,
     "Expected residual on cpu, like x, but got it on meta"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "sentence"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_what_does_not_fit_has_no_sentence(
    call: Callable[[], Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        call()


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,)], ids=str)
def test_empty_tensors_are_not_taken(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    y, total = planish.add_layer_norm(x, x)
    assert y.shape == total.shape == x.shape
    assert planish.gated_rms_norm(x, x).shape == x.shape
    assert planish.modulated_rms_norm(x, x, x).shape == x.shape  # type: ignore[union-attr]
