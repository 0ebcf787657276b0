"""planish.compat.transformer_engine: arguments, states, values, dtypes, errors."""

from __future__ import annotations

from typing import Any

import pytest
from torch.autograd import gradcheck

import planish
import torch
from planish.compat.transformer_engine import LayerNorm, RMSNorm
from torch import Tensor


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("shape", [(7, 2), (32,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_are_not_the_formulas(
    dtype: torch.dtype, shape: tuple[int, ...], centered: bool
) -> None:
    x, weight, bias = torch.randn(5, *shape).to(dtype), torch.randn(shape), torch.randn(shape)
    for cls in (LayerNorm, RMSNorm):
        norm = cls(shape, eps=1e-3, zero_centered_gamma=centered, dtype=dtype)
        first = 0.0 if centered else 1.0
        assert torch.equal(norm.weight, torch.full(shape, first, dtype=dtype))
        state = {"weight": weight, "bias": bias}
        norm.load_state_dict({name: state[name] for name in norm.state_dict()})
        used = norm.weight.double() + float(centered)
        s = x.double().flatten(1)
        if cls is LayerNorm:
            s = s - s.mean(-1, keepdim=True)
        y = (s * (s.square().mean(-1, keepdim=True) + 1e-3).rsqrt()).reshape(x.shape) * used
        y = y + norm.bias.double() if isinstance(norm, LayerNorm) else y
        assert norm(x).dtype == dtype
        torch.testing.assert_close(norm(x), y.to(dtype))


def test_states_have_other_names() -> None:
    assert list(LayerNorm(4).state_dict()) == ["weight", "bias"]
    assert list(RMSNorm(4).state_dict()) == ["weight"]
    norm = LayerNorm(4, sequence_parallel=True)
    assert norm.weight.sequence_parallel and norm.bias.sequence_parallel  # type: ignore[attr-defined]
    assert not hasattr(RMSNorm(4).weight, "sequence_parallel")


def test_margins_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = LayerNorm(4, sm_margin=3)
    assert (norm.fwd_ln_sm_margin, norm.bwd_ln_sm_margin, norm.inf_ln_sm_margin) == (3, 3, 3)
    norm.bwd_ln_sm_margin = 5
    assert norm.bwd_ln_sm_margin == 5 and norm.fwd_ln_sm_margin == 3
    monkeypatch.setenv("NVTE_FWD_LAYERNORM_SM_MARGIN", "7")
    rms = RMSNorm(4, sm_margin={"backward": 2})
    assert (rms.fwd_rmsnorm_sm_margin, rms.bwd_rmsnorm_sm_margin) == (7, 2)


@pytest.mark.parametrize("cls", [LayerNorm, RMSNorm])
def test_the_dtype_is_not_the_weights_or_autocasts(cls: Any) -> None:
    x = torch.randn(3, 8)
    norm = cls(8, params_dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16
    plain = cls(8)
    with torch.autocast("cpu", torch.float16):
        assert plain(x).dtype == torch.float16
    assert plain(x.half()).dtype == torch.float32


@pytest.mark.parametrize("cls", [LayerNorm, RMSNorm])
def test_deprecated_arguments_are_not_taken(cls: Any) -> None:
    with pytest.warns(DeprecationWarning, match="normalized_shape"):
        assert cls(hidden_size=6).normalized_shape == (6,)
    with pytest.raises(RuntimeError, match="Neither `normalized_shape` nor `hidden_size`"):
        cls()
    with pytest.raises(RuntimeError, match="Both `normalized_shape` and `hidden_size`"):
        cls(6, hidden_size=6)
    with pytest.raises(RuntimeError, match="Both `dtype` and `params_dtype`"):
        cls(6, dtype=torch.half, params_dtype=torch.half)
    norm = cls(6)
    with torch.no_grad():
        norm.weight.zero_()
    with pytest.warns(DeprecationWarning, match="defer_init"):
        norm.reset_parameters(defer_init=True)
    assert not norm.weight.any()
    norm.reset_parameters()
    assert norm.weight.all()
    with pytest.raises(ValueError, match=r"last axes are \[6\], .* got input of shape \[2, 5\]"):
        norm(torch.randn(2, 5))


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("cls", [LayerNorm, RMSNorm])
def test_gradients_are_wrong(cls: Any, centered: bool) -> None:
    norm = cls((2, 3), dtype=torch.float64, zero_centered_gamma=centered)

    def run(x: Tensor, weight: Tensor) -> Any:
        given = {"weight": weight}
        if cls is LayerNorm:
            given["bias"] = weight * 2
        return torch.func.functional_call(norm, given, (x,))

    leaves = [torch.randn(s).double().requires_grad_() for s in ((4, 2, 3), (2, 3))]
    assert gradcheck(run, leaves)
    x = torch.randn(4, 2, 3)
    if cls is LayerNorm:
        wanted = planish.layer_norm(x, (1, 2), torch.ones(2, 3), torch.zeros(2, 3))
    else:
        wanted = planish.rms_norm(x, (1, 2), torch.ones(2, 3))
    assert torch.equal(cls((2, 3))(x), wanted)
