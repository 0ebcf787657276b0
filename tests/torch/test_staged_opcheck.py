"""The operators of norms with stages by themselves: what torch.library.opcheck finds, and forward
mode, which they do not have."""

from __future__ import annotations

from typing import Any

import pytest
from support import leaf

import torch
from planish.operators import call as _call
from planish.operators import ops
from torch import Tensor


def arguments(dtype: torch.dtype, **stages: Any) -> tuple[Any, ...]:
    """What FORWARD is called with, of x (2, 3, 8)."""
    names = (
        *("residual", "row_scale", "column_scale", "rng", "weight"),
        *("bias", "scale", "shift", "gate"),
    )
    given = [stages.get(name) for name in names]
    rms, p = stages.get("rms", False), 0.25 if stages.get("rng") is not None else 0.0
    column = [2] if stages.get("column_scale") is not None else []
    modulation = [0, 2] if stages.get("scale") is not None else []
    sums = stages.get("sum_dtype")
    options = {
        "activation": stages.get("activation", 0),
        "gate_before": stages.get("gate_before", False),
        "weight_offset": 1,
        "dtype": dtype,
        "sum_dtype": sums,
    }
    call = _call.make_call([2], [2], column, modulation, eps=1e-5, dropout_p=p, rms=rms, **options)
    return leaf(2, 3, 8, dtype=dtype), *given, *call


def stages(dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    def made(*shape: int) -> Tensor:
        return leaf(*shape, dtype=dtype)

    rng = torch.tensor([7, 11])
    return {
        "residual": arguments(dtype, residual=made(2, 3, 8), sum_dtype=torch.float32),
        "scales and dropout": arguments(
            dtype,
            residual=made(2, 3, 8),
            row_scale=torch.rand(2, 3, dtype=dtype),
            column_scale=made(8),
            rng=rng,
            weight=made(8),
            sum_dtype=dtype,
        ),
        "modulation": arguments(dtype, weight=made(8), scale=made(2, 1, 8), shift=made(2, 1, 8)),
        "gate": arguments(dtype, weight=made(8), bias=made(8), gate=made(2, 3, 8), activation=3),
        "gate before": arguments(dtype, gate=made(2, 3, 8), gate_before=True, rms=True),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", stages(torch.float32))
def test_operators_fail_opcheck(name: str, dtype: torch.dtype) -> None:
    given = stages(dtype)[name]
    torch.library.opcheck(ops.FORWARD, given)
    y, total, mean, rstd = ops.FORWARD(*given)
    x, residual, row_scale, column, rng, weight, bias, scale, shift, gate = given[:10]
    call = _call.Call(*given[10:])
    s = x if total is None else total
    bias = bias if scale is not None or gate is not None else None
    wanted = [
        True,
        residual is not None,
        weight is not None,
        bias is not None,
        column is not None,
        scale is not None,
        shift is not None,
        gate is not None,
    ]
    back = (
        *(torch.randn_like(y).requires_grad_(), s.detach().requires_grad_(), rstd, mean),
        *(None if total is None else torch.randn_like(total), x if column is not None else None),
        *(row_scale, column, rng, weight, bias, scale, shift, gate),
        call.axes,
        _call.backward_options(
            call.options, sum(w << i for i, w in enumerate(wanted)), dtype, dtype
        ),
        *(call.split, call.dropout_p),
    )
    torch.library.opcheck(ops.BACKWARD, back)


@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_quantised_operator_fails_opcheck(block: int, transposed: bool) -> None:
    x, w = torch.randn(2, 4, 8), torch.randn(8)  # eight rows: transposed scales without padding
    more = _call.TRANSPOSED if transposed and block else 0
    axes, rest = _call.pack_axes([2], [2]), (1e-5, block, 0.0, 0.0)
    for scale, sums in ((None, None), (torch.tensor(0.5), torch.float32)):
        residual = None if sums is None else torch.randn(2, 4, 8)
        options = _call.pack_options(
            rms=True, save=False, dtype=torch.int8, sum_dtype=sums, more=more
        )
        given = x, residual, w, None, scale, axes, options, *rest
        torch.library.opcheck(ops.QUANTIZED, given)


def test_the_operator_in_place_fails_opcheck() -> None:
    x, w = torch.randn(3, 8), torch.randn(8)
    options = _call.pack_options(rms=True, save=False)
    given = (x, torch.randn(3, 8), w, None, None, _call.pack_axes([1], [1]), options, 1e-5)
    torch.library.opcheck(ops.INTO, (*given, torch.empty(3, 8), torch.empty(3, 8)))


def test_the_operators_alone_have_silent_tangents() -> None:
    given = stages(torch.float64)["residual"]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given[0].detach(), torch.randn(2, 3, 8).double())
        with pytest.raises(NotImplementedError, match=r"norm_forward.*forward-mode"):
            ops.FORWARD(dual, *given[1:])
