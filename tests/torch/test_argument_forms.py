"""The forms in which axes and numbers may be given, and what is refused: dims, eps, weight_offset.
test_bad_arguments.py is about tensors, test_argument_values.py about what is within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import FLOATS

import planish
import torch
from torch import Tensor, nn

X = torch.randn(4, 6, 8)
W = torch.randn(8)

# ---- dims ----------------------------------------------------------------------------------------

NORMS = [planish.layer_norm, planish.rms_norm]
NO_DIMS: dict[str, Any] = {
    "the weight": W,
    "a parameter of one element": nn.Parameter(torch.ones(1)),
    "a scalar": torch.tensor(1.0),
    "a matrix": torch.ones(2, 2, dtype=torch.int64),
    "booleans": torch.tensor([True]),
    "two axes and a weight": [1, W],
    "an array of floats": np.ones(2),
    "bytes": b"\x01\x02",
    "a string": "12",
    "a float": 1.0,
    "floats": (1.0, 2.0),
    "a boolean": True,
    "a boolean among axes": [2, True],
    "nothing": None,
    "none of a list": [None],
    "a mapping": {1: 2},
}


@pytest.mark.parametrize("name", ["dims", "affine_dims"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("wrong", NO_DIMS)
def test_what_is_no_axis_is_taken_for_one(norm: Any, wrong: str, name: str) -> None:
    if wrong == "nothing" and name == "affine_dims":
        return  # the default
    known = {"weight_offset": 1.0, "eps": 1e-5}
    norm(X, (1, 2), torch.randn(6, 8), **known)  # a known call must not let it pass
    norm(X, 1, torch.randn(6), **known)
    for options in ({}, known):
        given = {"dims": (1, 2), "weight": torch.randn(6, 8), **options, name: NO_DIMS[wrong]}
        with pytest.raises(TypeError, match=rf"{norm.__name__}: Expected {name} to be an axis"):
            norm(X, **given)


@pytest.mark.parametrize("norm", NORMS)
def test_a_weight_for_dims_is_not_told_where_it_goes(norm: Any) -> None:
    for weight in (W, nn.Parameter(torch.ones(1)), torch.tensor(2.0), np.ones(8)):
        with pytest.raises(TypeError, match=rf"planish\.{norm.__name__}\(x, dims, weight\)"):
            norm(X, weight)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "dims",
    [[1, 2], range(1, 3), {1, 2}, np.array([1, 2]), torch.tensor([1, 2]),
     (np.int64(1), np.int32(-1)), (torch.tensor(1), 2), torch.Size([1, 2])],
    ids=repr,
)  # fmt: skip
def test_axes_in_another_form_are_refused(norm: Any, dims: Any) -> None:
    assert torch.equal(norm(X, dims), norm(X, (1, 2)))
    assert torch.equal(norm(X, iter(dims)), norm(X, (1, 2)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dim", [np.int64(-1), torch.tensor(2), np.array(2), torch.tensor([2])])
def test_one_axis_in_another_form_is_refused(norm: Any, dim: Any) -> None:
    assert torch.equal(norm(X, dim, W), norm(X, -1, W))


@pytest.mark.parametrize("norm", NORMS)
def test_an_axis_of_a_scalar_is_no_index_error(norm: Any) -> None:
    with pytest.raises(IndexError, match="x has no dimensions"):
        norm(torch.tensor(1.0), -1)
    with pytest.raises(IndexError, match="out of range"):
        norm(X, 3)


# ---- eps -----------------------------------------------------------------------------------------

#: What has an RMS norm's eps, as a function of x and eps that gives y.
WITH_EPS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "rms_norm": lambda x, eps: planish.rms_norm(x, -1, eps=eps),
    "rms_norm, offset": lambda x, eps: planish.rms_norm(
        x, -1, torch.zeros(8, dtype=x.dtype), eps=eps, weight_offset=1.0
    ),
    "rms_norm, out_dtype": lambda x, eps: planish.rms_norm(
        x, -1, eps=eps, out_dtype=torch.float32 if x.dtype != torch.float32 else torch.bfloat16
    ).to(x.dtype),
    "add_rms_norm": lambda x, eps: planish.add_rms_norm(x, torch.zeros_like(x), eps=eps)[0],
    "modulated_rms_norm": lambda x, eps: planish.modulated_rms_norm(
        x, torch.zeros_like(x), None, eps=eps
    ),
    "gated_rms_norm": lambda x, eps: planish.gated_rms_norm(
        x, torch.full_like(x, 40.0), eps=eps) / 40.0,
    "qk_norm": lambda x, eps: planish.qk_norm(x, x, None, None, eps)[1],
    "qk_norm, xhat": lambda x, eps: planish.qk_norm(x, x, None, None, eps, cast="xhat")[0],
    "AddRMSNorm": lambda x, eps: planish.AddRMSNorm(8, eps)(x, torch.zeros_like(x))[0],
    "GatedRMSNorm": lambda x, eps: planish.GatedRMSNorm(8, eps)(x, torch.full_like(x, 40.0)) / 40.0,
    "RMSNorm": lambda x, eps: planish.RMSNorm(8, eps, elementwise_affine=False)(x),
    "RMSNorm2d": lambda x, eps: planish.RMSNorm2d(8, eps, elementwise_affine=False)(
        x.mT[..., None]
    )[..., 0].mT,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", WITH_EPS)
def test_no_eps_is_not_torchs(name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 5, 8) * 3e-4).to(dtype)  # where eps decides
    own = nn.RMSNorm(8, elementwise_affine=False)(x)
    for _ in range(2):  # the second is a known call
        y = WITH_EPS[name](x, None)
        between = torch.bfloat16 if "out_dtype" in name and dtype != torch.bfloat16 else dtype
        tolerance = 2 * torch.finfo(between).eps
        torch.testing.assert_close(y, own, rtol=tolerance, atol=tolerance * own.abs().max().item())


def test_no_eps_of_a_quantised_norm_is_not_torchs() -> None:
    x = torch.randn(3, 8) * 3e-4
    q, scale = planish.quantized_rms_norm(x, eps=None)
    wanted, wanted_scale = planish.quantized_rms_norm(x, eps=torch.finfo(torch.float32).eps)
    assert torch.equal(q.float(), wanted.float())
    assert torch.equal(scale, wanted_scale)


def test_no_eps_of_queries_and_keys_of_two_dtypes_is_one_eps() -> None:
    q, k = torch.randn(3, 8) * 3e-4, torch.randn(3, 8).double() * 3e-9
    for cast in ("once", "xhat"):
        ours = planish.qk_norm(q, k, None, None, None, cast=cast)
        for y, x in zip(ours, (q, k), strict=True):
            torch.testing.assert_close(y, nn.RMSNorm(8, elementwise_affine=False)(x))


#: A call with this eps and weight_offset.
NUMBERS: dict[str, Callable[..., Any]] = {
    "layer_norm": lambda **n: planish.layer_norm(X, -1, W, **n),
    "rms_norm": lambda **n: planish.rms_norm(X, -1, W, **n),
    "group_norm": lambda **n: planish.group_norm(X, 2, torch.ones(6), **n),
    "add_layer_norm": lambda **n: planish.add_layer_norm(X, X, W, **n),
    "add_rms_norm": lambda **n: planish.add_rms_norm(X, X, W, **n),
    "modulated_layer_norm": lambda **n: planish.modulated_layer_norm(X, X, None, W, **n),
    "gated_layer_norm": lambda **n: planish.gated_layer_norm(X, X, W, **n),
    "gated_rms_norm": lambda **n: planish.gated_rms_norm(X, X, W, **n),
    "qk_norm": lambda **n: planish.qk_norm(X, X, W, W, **{"eps": 1e-5, **n}),
    "quantized_rms_norm": lambda **n: planish.quantized_rms_norm(X, W, **n),
}


@pytest.mark.parametrize("wrong", ["1", [1.0], W, b"1", 1j, {}], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("option", ["eps", "weight_offset"])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_taken_for_one(name: str, option: str, wrong: Any) -> None:
    # no offset is what is false, and torch refuses to ask a tensor of many elements
    if not (isinstance(wrong, Tensor | dict) and option == "weight_offset"):
        NUMBERS[name](**{option: 1.0})
        with pytest.raises(TypeError, match=f"{name}: Expected {option} to be a number"):
            NUMBERS[name](**{option: wrong})


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_in_another_form_is_refused_or_kept(name: str) -> None:
    def first(**given: Any) -> Tensor:
        result = NUMBERS[name](weight_offset=1.0, **given)
        return (result if isinstance(result, Tensor) else result[0]).float()

    wanted = first(eps=0.5), first(eps=0.25)
    assert torch.equal(first(eps=np.float32(0.5)), wanted[0])
    eps = torch.tensor(0.5)
    assert torch.equal(first(eps=eps), wanted[0])
    eps.fill_(0.25)
    assert torch.equal(first(eps=eps), wanted[1])


@pytest.mark.parametrize("name", ["layer_norm", "add_layer_norm", "modulated_layer_norm"])
def test_no_eps_of_a_layer_norm_is_a_number(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: Expected eps to be a number, but got NoneType"):
        NUMBERS[name](eps=None)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_error_of_the_library_speaks_of_its_struct(name: str) -> None:
    with pytest.raises(RuntimeError, match="eps is inf; wanted a finite number") as caught:
        NUMBERS[name](eps=math.inf)
    assert "->" not in str(caught.value)
    assert "PLANISH_" not in str(caught.value)
