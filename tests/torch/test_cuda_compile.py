"""Graphs of planish's backend on a GPU, plain and as CUDA graphs: sums of products in place among
them, and the bits of every norm in mode "always". It needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from bits_support import DTYPES, MODELS, compare
from compile_support import Heads, results_of, rows, uncached  # noqa: F401 (fixtures)
from torch._inductor.utils import run_and_get_code

import torch
from planish.compile import table

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def rows_of_this_gpu(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    there = [row._replace(device=table.device_kind(GPU)) for row in table.rows()]
    monkeypatch.setattr(table, "rows", lambda: there)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("after", [False, True])
def test_a_compiled_step_differs(after: bool, mode: str | None) -> None:
    torch._dynamo.reset()
    model, x = Heads(after, torch.cos).to(GPU), torch.randn(4, 8, 16, device=GPU)
    wanted = results_of(model, model, x)
    run = torch.compile(model, backend="planish", mode=mode, fullgraph=True, dynamic=False)
    _, codes = run_and_get_code(lambda: results_of(run, model, x))
    for _ in range(4):  # a CUDA graph is recorded at the second call
        torch.compiler.cudagraph_mark_step_begin()
        for one, other in zip(results_of(run, model, x), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert "\n".join(codes).count("Tensor.addmm_(") == 3
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_norm_of_a_compiled_model_has_other_bits(name: str, dtype: str) -> None:
    """Than in eager mode, for the same tensors and incoming gradients."""
    compare(name, DTYPES[dtype], "cuda")
