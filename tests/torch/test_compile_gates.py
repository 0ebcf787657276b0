"""A SiLU gate that a model writes behind a norm: it becomes a part of the norm's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import compiled, results_of, rows, uncached  # noqa: F401 (fixtures)
from test_compile_joins import SPEEDUPS, close, found_forward, given_to

import torch
from planish.compile import choice
from torch import Tensor


def plain(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (16,), w, 1e-6)


def next_(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """As Qwen3-Next has it."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    y = w * wide.to(x.dtype)
    y = y * F.silu(z.to(torch.float32))
    return y.to(x.dtype)


GATED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "rms": lambda x, z, w: plain(x, w) * F.silu(z),
    "in front": lambda x, z, w: F.silu(z) * plain(x, w),
    "layer": lambda x, z, w: F.layer_norm(x, (16,), w, w) * F.silu(z),
    "Qwen3-Next": next_,
    "in f32": lambda x, z, w: (plain(x, w).float() * F.silu(z.float())).to(x.dtype),
    "the gate is read": lambda x, z, w: (plain(x, w) * (g := F.silu(z)), g.sin()),
    "wider": lambda x, z, w: plain(x, w).float() * F.silu(z.float()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("speedups", SPEEDUPS)
@pytest.mark.parametrize("name", GATED)
def test_a_gate_is_a_pass_of_its_own(
    name: str,
    speedups: str,
    dtype: torch.dtype,
    rows: Any,  # noqa: F811
) -> None:
    rows(**SPEEDUPS[speedups])
    torch.manual_seed(0)
    model, inputs = GATED[name], [t.to(dtype) for t in (*torch.randn(2, 4, 3, 16), torch.randn(16))]
    run, graphs = compiled(model, choice.FASTER)
    wanted = results_of(model, model, *inputs)
    close(results_of(run, model, *inputs), wanted, 1e-4 if dtype == torch.float32 else 0.06)
    for direction, found in given_to(graphs).items():
        assert len(found) == (direction in SPEEDUPS[speedups]), (direction, found)
        assert all("gate" in names for names in found), found


#: What is no such gate, or is read by others, too.
APART: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "another reads the norm": lambda x, z, w: (y := plain(x, w)) * F.silu(z) + y,
    "a sigmoid": lambda x, z, w: plain(x, w) * z.sigmoid(),
    "a gate of rows": lambda x, z, w: plain(x, w) * F.silu(z[..., :1]),
    "a larger result": lambda x, z, w: plain(x[:1], w) * F.silu(z),
    "of itself": lambda x, z, w: (y := plain(x, w)) * F.silu(y),
    "a sum": lambda x, z, w: plain(x, w) + F.silu(z),
    "by two axes": lambda x, z, w: F.rms_norm(x, (3, 16)) * F.silu(z),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_no_gate_is_joined(name: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    model, inputs = APART[name], (*torch.randn(2, 4, 3, 16), torch.randn(16))
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    assert not any("gate" in names for names in found_forward(graphs))


def test_a_gate_is_asked_of_the_table_of_norms_alone(rows: Any, monkeypatch: Any) -> None:  # noqa: F811
    """A norm with a gate has the rows of norms with stages."""
    rows(forward=9.0, backward=9.0)
    from planish.compile import table

    alone = [row for row in table.rows() if "stages" not in row.layout]
    monkeypatch.setattr(table, "rows", lambda: alone)
    run, graphs = compiled(GATED["rms"], choice.FASTER)
    results_of(run, None, *torch.randn(2, 4, 3, 16), torch.randn(16))
    assert not any("gate" in names for names in found_forward(graphs))
