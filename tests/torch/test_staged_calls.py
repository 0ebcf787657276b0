"""Norms with stages that are written in place, and what a small call costs."""

from __future__ import annotations

import time

import pytest
from support import Calls

import planish
import torch
from planish.compat import flashinfer, vllm

INTO = "planish::norm_into"


# ---- In place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_norm_in_place_is_another_than_the_functional_one(dtype: torch.dtype) -> None:
    x, r, w = (torch.randn(s).to(dtype) for s in ((5, 64), (5, 64), (64,)))
    for offset, norm in ((0.0, flashinfer.fused_add_rmsnorm),
                         (1.0, flashinfer.gemma_fused_add_rmsnorm)):  # fmt: skip
        y, total = planish.add_rms_norm(x, r, w, 1e-6, weight_offset=offset)
        ours, residual, version = x.clone(), r.clone(), x._version
        calls = Calls()
        norm(ours, residual, w)
        assert calls.on_planish(INTO) == 1
        assert torch.equal(ours, y) and torch.equal(residual, total)
        assert ours._version > version
    out = torch.empty(5, 64, dtype=torch.float8_e4m3fn)
    residual = r.clone()
    flashinfer.fused_add_rmsnorm_quant(out, x, residual, w, 0.02)
    q, _, total = planish.quantized_rms_norm(
        x, w, 1e-6, per="tensor", scale=torch.tensor(0.02), residual=r
    )
    assert torch.equal(residual, total)
    assert torch.equal(out.view(torch.uint8), q.view(torch.uint8))
    y, total = vllm.fused_add_rms_norm(x, r, w, 1e-6)
    assert torch.equal(total, x + r) and torch.equal(y, vllm.rms_norm(x + r, w, 1e-6))


def test_memory_that_is_shared_otherwise_is_written_over() -> None:
    base, w = torch.randn(6, 8), torch.randn(8)
    x, r = base[:4], base[2:].clone()
    wanted = planish.add_rms_norm(x.clone(), r, w, 1e-6)
    flashinfer.fused_add_rmsnorm(x, r, w)
    torch.testing.assert_close((x, r), wanted)
    out = base[1:5]
    exact = planish.rms_norm(base[:4].clone(), -1, w, eps=1e-6)
    flashinfer.rmsnorm(base[:4], w, out=out)
    torch.testing.assert_close(out, exact)


# ---- Calls --------------------------------------------------------------------------------------


def test_a_small_call_costs_more_than_the_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    from planish.operators import stage_calls

    torch.set_num_threads(1)
    x, r, w = torch.randn(1, 4096), torch.randn(1, 4096), torch.randn(4096)

    def best() -> float:
        times = []
        for _ in range(100):
            start = time.perf_counter()
            planish.add_rms_norm(x, r, w)
            times.append(time.perf_counter() - start)
        return min(times)

    fused, unfused = [], []
    with torch.no_grad():
        for _ in range(20):  # by turns: a machine has other things to do
            fused.append(best())
            with monkeypatch.context() as patch:
                patch.setattr(stage_calls, "norm", lambda *_, **__: None)
                patch.setattr(stage_calls, "known", lambda *_: (None, None))
                unfused.append(best())
    ours, theirs = min(fused), min(unfused)
    assert ours < 1.15 * theirs, f"{ours * 1e6:.1f} us against {theirs * 1e6:.1f} us"


@pytest.mark.parametrize("scale_format", ["f32", "ue8m0", "e8m0"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
def test_a_quantised_norm_is_not_the_composition(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, scale_format: str
) -> None:
    from planish.operators import quantized_calls

    x, r, w = torch.randn(3, 5, 100), torch.randn(3, 5, 100), torch.randn(100)
    x[0, 0, 0], x[1, 1, 1], x[2, 2] = float("nan"), float("inf"), 0.0
    cases: list[dict[str, object]] = [
        {"per": 32, "scale_format": scale_format, "transposed_scales": turned}
        for turned in (False, True)
    ]
    cases += [{"scale_bound": 0.01}, {"amax_floor": 100.0, "residual": r}, {"scale": torch.ones(1)}]
    for given in cases:
        calls = Calls()
        ours = planish.quantized_rms_norm(x, w, dtype=dtype, weight_offset=1.0, **given)  # type: ignore[arg-type]
        assert calls.on_planish("planish::quantized_norm") == 1
        with monkeypatch.context() as patch:
            patch.setattr(quantized_calls, "quantized", lambda *_, **__: None)
            theirs = planish.quantized_rms_norm(x, w, dtype=dtype, weight_offset=1.0, **given)  # type: ignore[arg-type]
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype and one.stride() == other.stride()
            assert torch.equal(one.float().nan_to_num(7e7), other.float().nan_to_num(7e7)), given
        sizes = [result[1].untyped_storage().nbytes() for result in (ours, theirs)]
        assert sizes[0] == sizes[1]
        if given.get("transposed_scales"):
            padding = ours[1].untyped_storage()
            assert bytes(padding) == bytes(theirs[1].untyped_storage())
