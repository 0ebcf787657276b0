"""planish.compat.flashinfer and planish.compat.vllm: what is in place, what is not, registration.

vLLM is not installed here: a stand-in of vllm.ir's operators, with its checks of a provider's
schema and of supports_args, stands for it.
"""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from support import HALVES, NARROW
from torch.library import infer_schema

import planish
import torch
from planish.compat import flashinfer, vllm
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


# ---- flashinfer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(7, 32), (3, 4, 32)], ids=str)
def test_out_is_not_written_or_not_returned(
    shape: tuple[int, ...], dtype: torch.dtype, gemma: bool
) -> None:
    norm = flashinfer.gemma_rmsnorm if gemma else flashinfer.rmsnorm
    x, weight = torch.randn(shape).to(dtype), torch.randn(32).to(dtype)
    wanted = planish.rms_norm(x, -1, weight, eps=1e-6, weight_offset=float(gemma))
    y = norm(x, weight)
    assert torch.equal(y, wanted) and y.data_ptr() != x.data_ptr()
    out = torch.empty_like(x)
    assert norm(x, weight, out=out, enable_pdl=True) is out and torch.equal(out, wanted)
    assert norm(x, weight, 1e-6, x) is x and torch.equal(x, wanted)  # out may be the input


@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_sum_is_not_in_place_of_the_residual(dtype: torch.dtype, gemma: bool) -> None:
    norm = flashinfer.gemma_fused_add_rmsnorm if gemma else flashinfer.fused_add_rmsnorm
    x, residual = torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype)
    weight = torch.randn(48).to(dtype)
    total = x + residual
    wanted = planish.rms_norm(total, -1, weight, eps=1e-5, weight_offset=float(gemma))
    rows = x.data_ptr(), residual.data_ptr()
    assert norm(x, residual, weight, 1e-5) is None  # type: ignore[func-returns-value]
    assert torch.equal(residual, total) and torch.equal(x, wanted)
    assert (x.data_ptr(), residual.data_ptr()) == rows


def test_strided_rows_are_taken_for_dense_ones() -> None:
    whole, rest = torch.randn(6, 80).bfloat16(), torch.randn(6, 96).bfloat16()
    x, residual = whole[:, :48], rest[:, 48:]
    outside, total = whole[:, 48:].clone(), x + residual
    flashinfer.fused_add_rmsnorm(x, residual, torch.ones(48).bfloat16())
    assert torch.equal(rest[:, 48:], total) and torch.equal(whole[:, 48:], outside)
    assert torch.equal(whole[:, :48], planish.rms_norm(total, -1, eps=1e-6))


@pytest.mark.parametrize("dtype", [E4M3, E5M2, torch.int8], ids=str)
@pytest.mark.parametrize("scale", [0.02, torch.tensor([0.02]), torch.tensor(0.02)], ids=str)
def test_quantised_results_are_others(scale: float | Tensor, dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(4, 64).bfloat16(), torch.randn(64), torch.randn(64)
    residual = torch.randn(4, 64).bfloat16()
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max

    def quantised(y: Tensor) -> Tensor:
        value = (y / torch.tensor(0.02)).clamp(-largest, largest)
        return (value.round() if dtype == torch.int8 else value).to(dtype).float()

    out = torch.empty(4, 64).to(dtype)
    flashinfer.rmsnorm_quant(out, x, weight, scale)
    assert torch.equal(out.float(), quantised(planish.rms_norm(x.float(), -1, weight, eps=1e-6)))
    flashinfer.layernorm_quant(out, x, weight, bias, scale)
    wide = planish.layer_norm(x.float(), -1, weight, bias, 1e-6)
    assert torch.equal(out.float(), quantised(wide))
    before, total = x.clone(), x + residual
    flashinfer.fused_add_rmsnorm_quant(out, x, residual, weight, scale)
    assert torch.equal(x, before) and torch.equal(residual, total)
    wide = planish.rms_norm(total.float(), -1, weight, eps=1e-6)
    assert torch.equal(out.float(), quantised(wide))


def test_layernorm_is_not_with_float_parameters() -> None:
    x, weight, bias = torch.randn(4, 64).bfloat16(), torch.randn(64), torch.randn(64)
    y = flashinfer.layernorm(x, weight, bias)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, planish.layer_norm(x, -1, weight, bias, 1e-6))


X = torch.randn(4, 8)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (
            lambda: flashinfer.rmsnorm(X, X[0, :3]),
            RuntimeError,
            "rmsnorm: Expected weight .*3",
        ),
        (lambda: flashinfer.rmsnorm(X, X[0], out=X[:2]), RuntimeError, "Expected out of shape"),
        (
            lambda: flashinfer.rmsnorm(X, X[0], out=torch.empty(4, 8).to(E4M3)),
            NotImplementedError,
            "not implemented for out of torch.float8_e4m3fn",
        ),
        (lambda: flashinfer.fused_add_rmsnorm(X, X[:1], X[0]), RuntimeError, "residual to have"),
        (lambda: flashinfer.rmsnorm_quant(torch.empty(4, 8), X, X[0], 1.0), TypeError, "dtype is"),
        (
            lambda: flashinfer.rmsnorm_quant(torch.empty(4, 8).to(E4M3), X, X[0], 0.0),
            ValueError,
            "scale is 0.0; wanted a positive number",
        ),
    ],
)
def test_what_does_not_fit_is_not_said(call: Any, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        call()


# ---- vLLM ---------------------------------------------------------------------------------------


class Operator:
    """An operator of vllm.ir as a provider sees it: its schema, and what it demands of one."""

    def __init__(self, native: Callable[..., Any], more: bool) -> None:
        self.native, self.impls = native, {"native": (native, {})}
        self.schema = infer_schema(native, mutates_args=[])
        if more:
            self.register_impl = self._register_more  # type: ignore[method-assign]

    def register_impl(
        self,
        provider: str,
        *,
        supported: bool = True,
        supports_args: Callable[..., bool] | None = None,
        inplace: bool = False,
    ) -> Callable[[Callable[..., Any]], None]:
        assert provider not in self.impls and not inplace
        assert supports_args is not None
        count = len(inspect.signature(self.native).parameters)
        assert len(inspect.signature(supports_args).parameters) == count

        def put(run: Callable[..., Any]) -> None:
            if infer_schema(run, mutates_args=[]) != self.schema:
                raise ValueError("the schema does not match the native one")
            self.impls[provider] = (run, {"supported": supported, "supports": supports_args})

        return put

    def _register_more(self, provider: str, *, batch_invariant: bool = False, **given: Any) -> Any:
        assert batch_invariant
        return Operator.register_impl(self, provider, **given)


def native_rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    if weight is not None:
        wide = wide.to(weight.dtype) * weight
    return wide.to(x.dtype)


def native_fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    total = (x.float() + x_residual.float()).to(x.dtype)
    return native_rms_norm(total, weight, epsilon), total


def stand_in(more: bool = False) -> Any:
    ops = types.SimpleNamespace(
        rms_norm=Operator(native_rms_norm, more),
        fused_add_rms_norm=Operator(native_fused_add_rms_norm, more),
    )
    return types.SimpleNamespace(ops=ops)


@pytest.mark.parametrize("more", [False, True])
def test_a_provider_is_not_registered(more: bool) -> None:
    ir = stand_in(more)
    assert vllm.register(ir) and vllm.register(ir)  # a plugin may be loaded twice
    for name in ("rms_norm", "fused_add_rms_norm"):
        run, given = getattr(ir.ops, name).impls["planish"]
        assert run is getattr(vllm, name) and given["supported"] is True


def test_another_schema_keeps_vllm_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    ir = stand_in()
    ir.ops.rms_norm.schema = "(Tensor x) -> Tensor"
    with caplog.at_level(logging.WARNING, "planish"):
        assert not vllm.register(ir)
        assert not vllm.register(types.SimpleNamespace())
    assert "no provider of vLLM's norms: the schema does not match" in caplog.text


def test_no_vllm_is_an_error() -> None:
    try:
        import vllm as installed  # type: ignore[import-not-found]
    except ImportError:
        assert not vllm.register()
    else:
        pytest.skip(f"vLLM {installed.__version__} is installed")


@pytest.mark.parametrize("weights", ["none", "same", "float"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_provider_rounds_in_another_order(dtype: torch.dtype, weights: str) -> None:
    x, residual = torch.randn(64, 96).to(dtype), torch.randn(64, 96).to(dtype)
    weight = {"none": None, "same": torch.randn(96).to(dtype), "float": torch.randn(96)}[weights]
    before = x.clone(), residual.clone()
    for ours, theirs in zip(
        (vllm.rms_norm(x, weight, 1e-5), *vllm.fused_add_rms_norm(x, residual, weight, 1e-5)),
        (native_rms_norm(x, weight, 1e-5), *native_fused_add_rms_norm(x, residual, weight, 1e-5)),
        strict=True,
    ):
        assert ours.dtype == theirs.dtype
        if dtype in HALVES:
            assert (ours == theirs).float().mean() > 0.995
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


def test_supports_args_takes_what_does_not_run() -> None:
    x, weight = torch.randn(2, 8), torch.randn(8)
    assert vllm.rms_norm_supports(x, weight, 1e-6)
    assert vllm.rms_norm_supports(x, None, 1e-6)
    assert not vllm.rms_norm_supports(x, weight, 1e-6, 4)
    assert not vllm.rms_norm_supports(x.int(), weight, 1e-6)
    assert not vllm.rms_norm_supports(x, weight.to("meta"), 1e-6)
    assert vllm.fused_add_rms_norm_supports(x, x, weight, 1e-6)
    assert not vllm.fused_add_rms_norm_supports(x, x.int(), weight, 1e-6)
    with pytest.raises(ValueError, match="variance_size is 4"):
        vllm.rms_norm(x, weight, 1e-6, 4)


def test_the_entry_point_is_not_declared() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    line = '[project.entry-points."vllm.general_plugins"]\nplanish = "planish.compat.vllm:register"'
    assert line in project.read_text()
    for found in entry_points(group="vllm.general_plugins"):  # of an installed package
        if found.name == "planish":
            assert found.load() is vllm.register
