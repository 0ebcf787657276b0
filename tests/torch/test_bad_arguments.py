"""What is no tensor, or is none that fits, where a tensor is wanted: every function and module says
which argument it is, with the type of exception that torch raises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import planish
import torch
from planish import apex
from planish.apex import fast_layer_norm, fused_layer_norm_cuda
from planish.apex.normalization import fused_layer_norm as apex_norms
from planish.compat import flash_attn, flashinfer, liger, quack, transformer_engine, vllm
from torch import Tensor

X = torch.randn(2, 3, 8)
IMAGE = torch.randn(2, 8, 3, 4)
ROWS = torch.randn(6, 8)
W, B = torch.ones(8), torch.zeros(8)
SCALE = torch.ones(())
OUT, FP8 = torch.empty(2, 3, 8), torch.empty(2, 3, 8, dtype=torch.float8_e4m3fn)
RSTD = torch.ones(6)

AROUND = {"residual": X, "row_scale": torch.ones(2, 3), "column_scale": W}
SUM = {"x": X, "weight": W, **AROUND}
MODULATED = {"x": X, "scale": X, "shift": W, "weight": W, "bias": B, "residual": X, "gate": W}
QUANTIZED = {"x": X, "weight": W, "residual": X, "scale": torch.ones(1)}
FLASH = {"x": X, "weight": W, "bias": B, "residual": X, "x1": X, "weight1": W, "bias1": B}

#: What is called with these arguments by name, all of which are tensors but those of OPTIONS.
Call = tuple[Callable[..., Any], dict[str, Any]]
FUNCTIONS: dict[str, Call] = {
    "layer_norm": (planish.layer_norm, {"x": X, "dims": -1, "weight": W, "bias": B}),
    "rms_norm": (planish.rms_norm, {"x": X, "dims": -1, "weight": W, "bias": B}),
    "rms_norm, xhat": (
        planish.rms_norm, {"x": X.bfloat16(), "dims": -1, "weight": W, "cast": "xhat"},
    ),
    "group_norm": (planish.group_norm, {"x": IMAGE, "num_groups": 2, "weight": W, "bias": B}),
    "group_norm, offset": (
        planish.group_norm,
        {"x": IMAGE, "num_groups": 2, "weight": W, "bias": B, "weight_offset": 1.0},
    ),
    "weight_standardize": (planish.weight_standardize, {"w": IMAGE}),
    "add_layer_norm": (planish.add_layer_norm, {**SUM, "bias": B}),
    "add_rms_norm": (planish.add_rms_norm, SUM),
    "modulated_layer_norm": (planish.modulated_layer_norm, MODULATED),
    "modulated_rms_norm": (planish.modulated_rms_norm, MODULATED),
    "gated_layer_norm": (planish.gated_layer_norm, {"x": X, "gate": X, "weight": W, "bias": B}),
    "gated_rms_norm": (planish.gated_rms_norm, {"x": X, "gate": X, "weight": W}),
    "qk_norm": (planish.qk_norm, {"q": X, "k": X, "q_weight": W, "k_weight": W, "eps": 1e-5}),
    "qk_norm, xhat": (
        planish.qk_norm,
        {"q": X, "k": X, "q_weight": W, "k_weight": W, "eps": 1e-5, "cast": "xhat"},
    ),
    "quantized_layer_norm": (planish.quantized_layer_norm, {**QUANTIZED, "bias": B}),
    "quantized_rms_norm": (planish.quantized_rms_norm, QUANTIZED),
}  # fmt: skip
MODULES: dict[str, Call] = {
    "LayerNorm": (planish.LayerNorm(8), {"input": X}),
    "RMSNorm": (planish.RMSNorm(8), {"x": X}),
    "LayerNorm2d": (planish.LayerNorm2d(8), {"input": IMAGE}),
    "RMSNorm2d": (planish.RMSNorm2d(8), {"x": IMAGE}),
    "GroupNorm": (planish.GroupNorm(2, 8), {"input": IMAGE}),
    "GroupNorm, silu": (planish.GroupNorm(2, 8, activation="silu"), {"input": IMAGE}),
    "InstanceNorm1d": (planish.InstanceNorm1d(3), {"input": X}),
    "InstanceNorm2d": (planish.InstanceNorm2d(8, affine=True), {"input": IMAGE}),
    "InstanceNorm3d": (planish.InstanceNorm3d(8), {"input": IMAGE[..., None]}),
    "EvoNorm2dS0": (planish.EvoNorm2dS0(8, 2), {"x": IMAGE}),
    "AddLayerNorm": (planish.AddLayerNorm(8), {"x": X, **AROUND}),
    "AddRMSNorm": (planish.AddRMSNorm(8), {"x": X, **AROUND}),
    "AddRMSNorm, no weight": (planish.AddRMSNorm(8, elementwise_affine=False), {"x": X, **AROUND}),
    "AddRMSNorm, two axes": (
        planish.AddRMSNorm((3, 8)),
        {"x": X, "residual": X, "row_scale": torch.ones(2), "column_scale": W},
    ),
    "ModulatedLayerNorm": (
        planish.ModulatedLayerNorm(8),
        {"x": X, "scale": X, "shift": W, "residual": X, "gate": W},
    ),
    "GatedRMSNorm": (planish.GatedRMSNorm(8), {"x": X, "gate": X}),
}
OTHERS: dict[str, Call] = {
    "flashinfer.rmsnorm": (flashinfer.rmsnorm, {"input": X, "weight": W, "out": OUT}),
    "flashinfer.gemma_rmsnorm": (flashinfer.gemma_rmsnorm, {"input": X, "weight": W}),
    "flashinfer.fused_add_rmsnorm": (
        flashinfer.fused_add_rmsnorm, {"input": X, "residual": X, "weight": W},
    ),
    "flashinfer.gemma_fused_add_rmsnorm": (
        flashinfer.gemma_fused_add_rmsnorm, {"input": X, "residual": X, "weight": W},
    ),
    "flashinfer.rmsnorm_quant": (
        flashinfer.rmsnorm_quant, {"out": FP8, "input": X, "weight": W, "scale": SCALE},
    ),
    "flashinfer.fused_add_rmsnorm_quant": (
        flashinfer.fused_add_rmsnorm_quant,
        {"out": FP8, "input": X, "residual": X, "weight": W, "scale": SCALE},
    ),
    "flashinfer.layernorm": (flashinfer.layernorm, {"input": X, "gemma": W, "beta": B}),
    "flashinfer.layernorm_quant": (
        flashinfer.layernorm_quant,
        {"out": FP8, "input": X, "gemma": W, "beta": B, "scale": SCALE},
    ),
    "flash_attn.layer_norm_fn": (flash_attn.layer_norm_fn, FLASH),
    "flash_attn.rms_norm_fn": (
        flash_attn.rms_norm_fn, {"x": X, "weight": W, "bias": B, "rowscale": torch.ones(2, 3)},
    ),
    "flash_attn.RMSNorm": (flash_attn.RMSNorm(8), {"x": X, "residual": X}),
    "flash_attn.layer_norm_linear_fn": (
        flash_attn.layer_norm_linear_fn,
        {"x": X, "norm_weight": W, "norm_bias": B, "linear_weight": torch.ones(5, 8),
         "linear_bias": torch.ones(5)},
    ),
    "liger.liger_rms_norm": (liger.liger_rms_norm, {"X": X, "W": W, "eps": 1e-5}),
    "liger.liger_layer_norm": (liger.liger_layer_norm, {"X": X, "W": W, "B": B, "eps": 1e-5}),
    "liger.liger_group_norm": (
        liger.liger_group_norm,
        {"X": IMAGE, "affine_scaling_weight": W, "affine_shifting_bias": B, "num_channels": 8,
         "num_groups": 2, "eps": 1e-5},
    ),
    "liger.liger_fused_add_rms_norm": (
        liger.liger_fused_add_rms_norm, {"X": X, "R": X, "W": W, "eps": 1e-5},
    ),
    "liger.liger_modulated_rms_norm": (
        liger.liger_modulated_rms_norm, {"X": X, "W": W, "scale": ROWS, "shift": ROWS},
    ),
    "liger.liger_poly_norm": (
        liger.liger_poly_norm, {"X": X, "W": torch.ones(3), "B": torch.ones(1)},
    ),
    "liger.LigerRMSNorm": (liger.LigerRMSNorm(8), {"hidden_states": X}),
    "liger.LigerFusedAddRMSNorm": (
        liger.LigerFusedAddRMSNorm(8), {"hidden_states": X, "residual": X},
    ),
    "liger.LigerModulatedRMSNorm": (
        liger.LigerModulatedRMSNorm(8), {"hidden_states": X, "scale": ROWS, "shift": ROWS},
    ),
    "liger.LigerLayerNorm": (liger.LigerLayerNorm(8), {"hidden_states": X}),
    "liger.LigerGroupNorm": (liger.LigerGroupNorm(8, 2), {"hidden_states": IMAGE}),
    "liger.LigerPolyNorm": (liger.LigerPolyNorm(), {"hidden_states": X}),
    "quack.rmsnorm": (quack.rmsnorm, {"x": X, "weight": W, "bias": B, "residual": X}),
    "quack.rmsnorm_fwd": (quack.rmsnorm_fwd, {"x": X, "weight": W, "bias": B, "residual": X}),
    "quack.rmsnorm_bwd": (
        quack.rmsnorm_bwd,
        {"x": ROWS, "weight": W, "dout": ROWS, "rstd": RSTD, "dresidual_out": ROWS},
    ),
    "quack.layernorm_fwd": (quack.layernorm_fwd, {"x": ROWS, "weight": W, "bias": B}),
    "quack.layernorm_bwd": (
        quack.layernorm_bwd, {"x": ROWS, "weight": W, "dout": ROWS, "rstd": RSTD, "mean": RSTD},
    ),
    "quack.QuackRMSNorm": (quack.QuackRMSNorm(8), {"x": X}),
    "transformer_engine.LayerNorm": (transformer_engine.LayerNorm(8), {"x": X}),
    "transformer_engine.RMSNorm": (transformer_engine.RMSNorm(8), {"x": X}),
    "vllm.rms_norm": (vllm.rms_norm, {"x": X, "weight": W, "epsilon": 1e-5}),
    "vllm.fused_add_rms_norm": (
        vllm.fused_add_rms_norm, {"x": X, "x_residual": X, "weight": W, "epsilon": 1e-5},
    ),
    "apex.FusedLayerNorm": (apex.FusedLayerNorm(8), {"input": X}),
    "apex.FusedRMSNorm": (apex.FusedRMSNorm(8), {"input": X}),
    "apex.MixedFusedLayerNorm": (apex.MixedFusedLayerNorm(8), {"input": X}),
    "apex.MixedFusedRMSNorm": (apex.MixedFusedRMSNorm(8), {"input": X}),
    "apex.FastLayerNorm": (apex.FastLayerNorm(8), {"x": X}),
    "apex.GroupNorm": (apex.GroupNorm(2, 8), {"input": IMAGE}),
    "apex.fused_layer_norm_affine": (
        apex_norms.fused_layer_norm_affine,
        {"input": X, "weight": W, "bias": B, "normalized_shape": (8,)},
    ),
    "apex.fused_layer_norm_affine, memory_efficient": (
        apex_norms.fused_layer_norm_affine,
        {"input": X, "weight": torch.ones(8, requires_grad=True), "bias": B,
         "normalized_shape": (8,), "memory_efficient": True},
    ),
    "apex.mixed_dtype_fused_rms_norm_affine": (
        apex_norms.mixed_dtype_fused_rms_norm_affine,
        {"input": X, "weight": W, "normalized_shape": (8,)},
    ),
    "apex.fused_layer_norm_cuda.forward_affine": (
        fused_layer_norm_cuda.forward_affine,
        {"input": X, "normalized_shape": (8,), "gamma": W, "beta": B, "epsilon": 1e-5},
    ),
    "apex.fast_layer_norm.ln_fwd": (
        fast_layer_norm.ln_fwd, {"x": ROWS, "gamma": W, "beta": B, "epsilon": 1e-5},
    ),
}  # fmt: skip
CALLS = {**FUNCTIONS, **MODULES, **OTHERS}

#: What an argument is called in the words of the function that a function calls, or of the library
#: whose names these are.
ALSO = {
    "x": ["input"],
    "X": ["input", "x"],
    "input": ["x"],
    "hidden_states": ["X", "input"],
    "W": ["weight"],
    "B": ["bias"],
    "R": ["residual"],
    "residual": ["R"],
    "gamma": ["weight"],
    "beta": ["bias"],
    "norm_weight": ["weight"],
    "norm_bias": ["bias"],
    "affine_scaling_weight": ["weight"],
    "affine_shifting_bias": ["bias"],
}

NO_TENSORS = {
    "None": lambda tensor: None,
    "a list": lambda tensor: tensor.tolist() if isinstance(tensor.tolist(), list) else [1.0],
    "an array": lambda tensor: tensor.detach().float().numpy(),
}
#: What torch's own norms say, to which modules of planish leave what it does not run.
TORCHS = ("not implemented for 'Int'", "mixed dtype (CPU)")

#: What torch raises for other mistakes; flash-attn, Liger and quack have AssertionError for some.
REFUSED = RuntimeError, IndexError, ValueError, AssertionError


def may_be_none(call: str, name: str) -> bool:
    """By the signature of the function or the module's forward."""
    function = CALLS[call][0]
    function = getattr(function, "forward", function)
    return "None" in str(inspect.signature(function).parameters[name].annotation)


def tensors() -> Iterator[tuple[str, str]]:
    for call, (_, given) in CALLS.items():
        for name, value in given.items():
            if isinstance(value, Tensor):
                yield call, name


def raised(call: str, **changed: Any) -> Exception:
    function, given = CALLS[call]
    with pytest.raises(Exception) as caught:
        function(**{**given, **changed})
    return caught.value


def names_it(error: Exception, name: str) -> bool:
    return any(
        re.search(rf"\b{known}\b", str(error), re.IGNORECASE)
        for known in (name, *ALSO.get(name, []))
    )


@pytest.mark.parametrize("call", CALLS)
def test_the_calls_of_this_file_do_not_run(call: str) -> None:
    function, given = CALLS[call]
    function(**{name: t.clone() if isinstance(t, Tensor) else t for name, t in given.items()})


@pytest.mark.parametrize("what", NO_TENSORS)
@pytest.mark.parametrize(("call", "name"), list(tensors()))
def test_what_is_no_tensor_has_no_sentence(call: str, name: str, what: str) -> None:
    if what == "None" and may_be_none(call, name):
        function, given = CALLS[call]
        without = {name: None, **({"gate": None} if name == "residual" and "gate" in given else {})}
        function(**{**given, **without})
        return
    error = raised(call, **{name: NO_TENSORS[what](CALLS[call][1][name])})
    assert isinstance(error, TypeError), repr(error)
    assert names_it(error, name), str(error)
    assert "has no attribute" not in str(error)


@pytest.mark.parametrize(("call", "name"), list(tensors()))
def test_a_sparse_tensor_is_read_as_a_dense_one(call: str, name: str) -> None:
    dense = CALLS[call][1][name].detach().float()
    error = raised(call, **{name: (dense if dense.dim() else dense.reshape(1)).to_sparse()})
    assert isinstance(error, RuntimeError), repr(error)


@pytest.mark.parametrize(("call", "name"), list(tensors()))
def test_a_scalar_is_taken_for_more(call: str, name: str) -> None:
    value = CALLS[call][1][name]
    if value.numel() == 1:
        return  # one number is what is wanted
    error = raised(call, **{name: torch.tensor(1.0, dtype=value.dtype)})
    assert isinstance(error, REFUSED), repr(error)
    assert names_it(error, name), str(error)


@pytest.mark.parametrize(("call", "name"), list(tensors()))
def test_whole_numbers_are_taken_for_floats(call: str, name: str) -> None:
    if call.startswith("flashinfer") and name == "scale":
        return  # a number of any kind
    error = raised(call, **{name: CALLS[call][1][name].detach().float().int()})
    known = (NotImplementedError, TypeError, RuntimeError, AssertionError)
    assert isinstance(error, known), repr(error)
    assert names_it(error, name) or any(words in str(error) for words in TORCHS), str(error)
