"""Gradients that are sums of matrix products, in front of a norm's backward."""

from __future__ import annotations

from typing import Any

import pytest
from compile_support import Heads, compiled, results_of, rows, uncached  # noqa: F401 (fixtures)
from torch._inductor.utils import run_and_get_code

import torch
from planish.compile import choice, sums
from torch import Tensor, nn

ADDED = "aten::addmm"


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_pays", lambda x: True)


def _sums(model: nn.Module) -> tuple[int, int]:
    """How many products are added to something by their call, and how many sums are left beside the
    two that the model has behind them."""
    x = torch.randn(2, 6, 16)
    run, graphs = compiled(model, choice.FASTER)
    for one, other in zip(results_of(run, model, x), results_of(model, model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    backward = graphs.modules[1].graph.nodes
    names = [n.target.name().split(".")[0] for n in backward if hasattr(n.target, "name")]
    return names.count(ADDED), names.count("aten::add")


@pytest.mark.parametrize("after", [False, True])
def test_a_sum_is_a_pass_of_its_own(after: bool, rows: Any) -> None:  # noqa: F811
    """The gradient of what goes round the products is a term of the sum where the norm's result
    does (``after``), but what comes from outside is not written over."""
    rows(backward=9.0)
    assert _sums(Heads(after)) == (2, int(after))


def test_a_term_that_others_read_is_written_over(rows: Any) -> None:  # noqa: F811
    rows(backward=9.0)
    assert _sums(Heads(more=torch.cos)) == (3, 0)
    assert _sums(Heads(True, more=torch.cos)) == (3, 1), "two terms are a new one"


def test_a_long_product_is_added_to_something(rows: Any, monkeypatch: Any) -> None:  # noqa: F811
    rows(backward=9.0)
    monkeypatch.setattr(sums, "_LONGEST", 8)
    assert _sums(Heads()) == (0, 2)


def test_the_rule_counts_a_sum_that_is_none(rows: Any) -> None:  # noqa: F811
    rows(backward=1.6)  # one pass of four is fused behind; two more would ask for 1.72
    assert _sums(Heads()) == (2, 0)


def test_other_modes_round_the_sum(rows: Any) -> None:  # noqa: F811
    _, graphs = run = compiled(Heads(), choice.ALWAYS)
    results_of(run[0], None, torch.randn(2, 6, 16))
    assert graphs.counted()[ADDED] == 0


class Behind(nn.Module):
    """Blocks with the norm behind the sum, as BERT has them: what goes round the product is read by
    the gradients of a weight and a bias before it is written over."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.ways = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, way in zip(self.norms, self.ways, strict=True):
            x = norm(way(x) + x)
        return x


@pytest.mark.parametrize("model", [Heads(True), Behind()], ids=["heads", "behind"])
def test_the_compiled_sum_is_another(model: Any, rows: Any) -> None:  # noqa: F811
    """By the code that inductor writes, with a product of the model's own beside it."""
    rows(backward=9.0)
    x = torch.randn(2, 6, 16)

    def whole(x: Tensor) -> Tensor:
        return torch.addmm(x[0], x[1], model.ways[0].weight.t()).tanh() + model(x)

    torch._dynamo.reset()
    run = torch.compile(whole, backend="planish", fullgraph=True, dynamic=False)
    wanted = results_of(whole, model, x)
    found, codes = run_and_get_code(lambda: results_of(run, model, x))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert "\n".join(codes).count("Tensor.addmm_(") == 2
