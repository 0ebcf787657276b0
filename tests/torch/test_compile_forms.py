"""planish::graph_forward and graph_backward are norm_forward and norm_backward in another form."""

from __future__ import annotations

from typing import Any

import pytest

import torch
from planish.compile import forms
from planish.operators import call, ops
from planish.operators.call import Tensors
from planish.operators.formulas import Given
from torch import Tensor

forms.register()


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def whole_call(name: str) -> tuple[list[Tensor | None], call.Call]:
    """The tensors of a forward, and its numbers."""
    half = torch.bfloat16
    none = None
    rows = call.make_call([1], [1], eps=1e-5, rms=False)
    cases: dict[str, tuple[list[Tensor | None], call.Call]] = {
        "layer": ([randn(6, 40), *[none] * 4, randn(40), randn(40), *[none] * 3], rows),
        "rms without weight": (
            [randn(6, 40), *[none] * 9],
            call.make_call([1], eps=1e-6, rms=True),
        ),
        "statistics not kept": (
            [randn(6, 40), *[none] * 4, randn(40), *[none] * 4],
            call.make_call([1], [1], eps=1e-6, rms=True, save=False),
        ),
        "sum": (
            [*(randn(6, 40, dtype=half) for _ in range(2)), *[none] * 3, randn(40, dtype=half)]
            + [none] * 4,
            call.make_call([1], [1], eps=1e-6, rms=True, dtype=half, sum_dtype=half),
        ),
        "groups, activated": (
            [randn(2, 12, 5, 5), *[none] * 4, randn(12), randn(12), *[none] * 3],
            call.make_call([2, 3, 4], [1, 2], split=4, eps=1e-5, rms=False, activation=1),
        ),
        "modulated": (
            [randn(2, 6, 40), *[none] * 6, randn(2, 1, 40), randn(2, 1, 40), none],
            call.make_call([2], modulation=[0, 2], eps=1e-5, rms=False),
        ),
        "gated": (
            [randn(6, 40), *[none] * 4, randn(40), *[none] * 3, randn(6, 40)],
            call.make_call([1], [1], eps=1e-5, rms=True),
        ),
        "dropped": (
            [randn(6, 40), randn(6, 40), none, randn(40), torch.tensor([3, 4]), randn(40)]
            + [none] * 4,
            call.make_call(
                [1], [1], [1], eps=1e-5, rms=True, dropout_p=0.3, sum_dtype=torch.float32
            ),
        ),
    }
    return cases[name]


CASES = (
    *("layer", "rms without weight", "statistics not kept", "sum", "groups, activated"),
    *("modulated", "gated", "dropped"),
)


def run_form(name: str, tensors: list[Tensor | None], numbers: Any, results: int) -> Any:
    there = [t for t in tensors if t is not None]
    overload = forms.form(name, len(there), results)
    arguments = (*there, forms.given_bits(tensors), *numbers)
    torch.library.opcheck(overload, arguments, test_utils=("test_schema", "test_faketensor"))
    found = overload(*arguments)
    return found if isinstance(found, tuple) else (found,)


def forward(name: str) -> tuple[list[Tensor | None], call.Call, Any]:
    tensors, made = whole_call(name)
    with torch.no_grad():
        return tensors, made, ops.FORWARD(*tensors, *made)


@pytest.mark.parametrize("name", CASES)
def test_forward_has_other_bits_than_the_operator(name: str) -> None:
    tensors, made, whole = forward(name)
    wanted = [t for t in whole if t is not None]
    found = run_form(forms.FORWARD, tensors, made, len(wanted))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


@pytest.mark.parametrize("wanted", [0b1, 0b101, 0b11111111])
@pytest.mark.parametrize("name", [case for case in CASES if case != "statistics not kept"])
def test_backward_has_other_bits_than_the_operator(name: str, wanted: int) -> None:
    tensors, made, (y, total, mean, rstd) = forward(name)
    x, residual, rows, column, rng, weight, bias, scale, shift, gate = tensors
    there = [True, residual is not None, weight is not None, bias is not None]
    there += [t is not None for t in (column, scale, shift, gate)]
    wanted &= sum(1 << place for place, is_there in enumerate(there) if is_there)
    assert x is not None
    s = x if total is None else total
    dsum = None if total is None else torch.randn_like(s)
    reads_bias = bool(call.activation_in(made.options)) or scale is not None
    bias = bias if reads_bias else None
    given: list[Tensor | None] = [torch.randn_like(y), s, rstd, mean, dsum]
    branch = x if wanted >> 4 & 1 else None
    given += [branch, rows, column, rng, weight, bias, scale, shift, gate]
    options = call.backward_options(made.options, wanted, x.dtype, x.dtype)
    numbers = made.axes, options, made.split, made.dropout_p
    whole = ops.BACKWARD(*given, *numbers)
    expected = [t for t in whole if t is not None]
    found = run_form(forms.BACKWARD, given, numbers, len(expected))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_every_number_of_tensors_has_a_form() -> None:
    for name, least, most, results in (
        (forms.FORWARD, 1, len(Tensors._fields), 4),
        (forms.BACKWARD, 3, len(Given._fields), 8),
    ):
        for tensors in range(least, most + 1):
            for count in range(1, results + 1):
                assert forms.is_form(forms.form(name, tensors, count))


@pytest.mark.parametrize(
    ("given", "results", "said"),
    [
        (0b1, 3, "number of bits than there are tensors"),
        (1 << 20 | 0b1, 3, "number of bits than there are tensors"),
        (0b100001, 2, "number of results than this form has"),
    ],
)
def test_a_form_that_does_not_fit_is_no_error(given: int, results: int, said: str) -> None:
    x, weight = randn(4, 8), randn(8)
    made = call.make_call([1], [1], eps=1e-5, rms=False)
    with pytest.raises(RuntimeError, match=said):
        forms.form(forms.FORWARD, 2, results)(x, weight, given, *made)


def test_bad_shapes_are_no_error() -> None:
    made = call.make_call([1], [1], eps=1e-5, rms=False)
    with pytest.raises(RuntimeError, match="weight"):
        forms.form(forms.FORWARD, 2, 3)(randn(4, 8), randn(9), 0b100001, *made)
