"""Every norm of planish's public surface in graphs of which inductor keeps, or planish takes, all
that the table has rows for: values and gradients are those of the same call in eager mode."""

from __future__ import annotations

from typing import Any

import pytest
from compile_support import compiled, results_of, rows, uncached  # noqa: F401 (fixtures)
from surface import NAMES, case_of

import torch
from planish.compile import choice

SPEEDUPS = {"inductor": 0.5, "planish": 9.0}


@pytest.mark.parametrize("who", SPEEDUPS)
@pytest.mark.parametrize("name", [name for name in NAMES if "quantized" not in name])
def test_a_graph_has_another_value(name: str, who: str, rows: Any) -> None:  # noqa: F811
    """Quantised norms, which have no gradient, are test_compile_quantised.py's."""
    rows(forward=SPEEDUPS[who], backward=SPEEDUPS[who])
    case = case_of(name)
    other = case_of(name).model
    other.load_state_dict(case.model.state_dict())
    x = torch.randn(case.shape(batch=3, length=5, height=4, width=6))
    wanted = results_of(case.model, case.model, x)
    run, _ = compiled(other, choice.FASTER, fullgraph=False)
    found = results_of(run, other, x)
    assert len(found) == len(wanted)
    for one, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            one, right, rtol=1e-4, atol=1e-4 * (1 + float(right.abs().max()))
        )
