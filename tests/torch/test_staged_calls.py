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
    from planish import _staged

    x, r, w = torch.randn(1, 4096), torch.randn(1, 4096), torch.randn(4096)

    def best(count: int = 300) -> float:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            planish.add_rms_norm(x, r, w)
            times.append(time.perf_counter() - start)
        return min(times)

    with torch.no_grad():
        best(50)
        fused = best()
        with monkeypatch.context() as patch:
            patch.setattr(_staged, "norm", lambda *_, **__: None)
            best(50)
            unfused = best()
    assert fused < 1.15 * unfused, f"{fused * 1e6:.1f} us against {unfused * 1e6:.1f} us"
