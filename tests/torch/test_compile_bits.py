"""compile="always": every norm of a compiled model has the bits that the same norm has in eager
mode while planish is enabled, forward and backward, for what came to it."""

from __future__ import annotations

import operator

import pytest
from bits_support import DTYPES, MODELS, check, compare
from compile_support import uncached  # noqa: F401 (a fixture)

import torch
from planish.compile import forms
from planish.operators import call


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_norm_of_a_compiled_model_has_other_bits(name: str, dtype: str) -> None:
    compare(name, DTYPES[dtype], "cpu")


def test_the_comparison_sees_no_other_bit() -> None:
    x, weight = torch.randn(6, 16), torch.randn(16)
    made = call.make_call([1], [1], eps=1e-5, rms=False)
    run = forms.form(forms.FORWARD, 2, 3)
    arguments = (x, weight, 0b100001, *made)
    y, *statistics = run(*arguments)
    y.view(-1)[3] = operator.add(float(y.view(-1)[3]), 1e-6)
    with pytest.raises(AssertionError, match="forward"):
        check((run, arguments, (y, *statistics)), [])
