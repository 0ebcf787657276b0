"""Which norms of a graph become planish's, and that the results stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import (  # noqa: F401 (fixtures)
    MODELS,
    Layer,
    Written,
    compiled,
    results_of,
    rows,
    uncached,
)

import planish
import planish.compile
import torch
from planish.compile import choice, table
from torch import Tensor, nn

FORWARD, BACKWARD = "planish::graph_forward", "planish::graph_backward"
NORMS = ("aten::native_layer_norm", "aten::native_group_norm", "aten::_fused_rms_norm")


def close(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_always_leaves_a_norm(name: str) -> None:
    make, count = MODELS[name]
    model, x = make(), torch.randn(6, 16)
    run, graphs = compiled(model)
    close(results_of(run, model, x), results_of(model, model, x))
    names = graphs.counted()
    assert (names[FORWARD], names[BACKWARD]) == (count, count), names
    assert not any(name in names for name in (*NORMS, "planish::norm_forward")), names


@pytest.mark.parametrize("name", MODELS)
def test_never_leaves_an_operator_that_inductor_cannot_fuse(name: str) -> None:
    make, _ = MODELS[name]
    model, x = make(), torch.randn(6, 16)
    run, graphs = compiled(model, choice.NEVER)
    close(results_of(run, model, x), results_of(model, model, x))
    names = graphs.counted()
    assert not any(op.startswith("planish::") or op in NORMS for op in names), names


@pytest.mark.parametrize(
    ("speedups", "forwards", "backwards"),
    [
        ({"forward": 3.0}, 1, 0),
        ({"backward": 3.0}, 0, 1),
        ({"forward": 0.9, "backward": 3.0}, 0, 1),
    ],
)
@pytest.mark.parametrize("name", ["layer", "written", "groups"])
def test_forward_and_backward_are_chosen_together(
    name: str,
    speedups: dict[str, float],
    forwards: int,
    backwards: int,
    rows: Any,  # noqa: F811
) -> None:
    rows(**speedups)
    model, x = MODELS[name][0](), torch.randn(6, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, x), results_of(model, model, x))
    names = graphs.counted()
    assert (names[FORWARD], names[BACKWARD]) == (forwards, backwards), names


def test_an_unknown_device_is_given_to_planish(rows: Any) -> None:  # noqa: F811
    rows()
    run, graphs = compiled(Layer(), choice.FASTER)
    run(torch.randn(6, 16))
    assert graphs.counted()[FORWARD] == 0


def test_what_is_little_faster_is_taken(rows: Any) -> None:  # noqa: F811
    rows(forward=(1 + table.MARGIN) / 2)
    run, graphs = compiled(Layer(), choice.FASTER)
    run(torch.randn(6, 16))
    assert graphs.counted()[FORWARD] == 0


class Residual(nn.Module):
    """Blocks of a transformer: each norm's input is a sum that the next block goes on with."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.products = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor, divisor: float | None = None) -> Tensor:
        for norm, product in zip(self.norms, self.products, strict=True):
            x = x + product(norm(x))
            if divisor is not None:
                x = x / divisor
        return x


@pytest.mark.parametrize("divisor", [None, 1.0, 2.0])
def test_a_sum_beside_a_norm_is_a_pass_of_its_own(divisor: float | None, rows: Any) -> None:  # noqa: F811
    """Also where it is divided by one, which blocks of diffusers do."""
    rows(forward=9.0, backward=9.0)
    model, x = Residual(), torch.randn(6, 16)

    def whole(x: Tensor) -> Tensor:
        return model(x, divisor)  # type: ignore[no-any-return]

    run, graphs = compiled(whole, choice.FASTER)
    close(results_of(run, model, x), results_of(whole, model, x))
    names = graphs.counted()
    assert (names[FORWARD], names[BACKWARD]) == (3, 3)
    if divisor == 2.0:
        assert names["aten::div"] > 0
    else:
        assert names["aten::add"] == 1, names  # the last one, behind which there is no norm
        assert names["aten::div"] == 0


def test_a_gradient_that_waits_for_products_costs_a_pass(rows: Any) -> None:  # noqa: F811
    """That of a residual stream is stored, for the products of the block before read it."""
    rows(forward=9.0, backward=1.1)
    run, graphs = compiled(Residual(), choice.FASTER)
    results_of(run, None, torch.randn(6, 16))
    assert graphs.counted()[BACKWARD] == 3


@pytest.mark.parametrize(("terms", "taken"), [(1, 0), (3, 1)])
def test_what_a_fused_norm_reads_more_is_not_counted(terms: int, taken: int, rows: Any) -> None:  # noqa: F811
    """Two passes of two are fused in front; of three terms inductor's norm reads two more."""
    rows(forward=1.7)

    def before(x: Tensor, *factors: Tensor) -> Tensor:
        made = (x @ factors[0]).sin()
        for factor in factors[1:terms]:
            made = made * (x @ factor)
        return F.layer_norm(made, (16,))

    run, graphs = compiled(before, choice.FASTER)
    run(torch.randn(6, 16), *(torch.randn(16, 16) for _ in range(3)))
    assert graphs.counted()[FORWARD] == taken


def test_an_operator_of_two_results_costs_nothing(rows: Any) -> None:  # noqa: F811
    def behind(x: Tensor) -> Tensor:
        y = F.layer_norm(x, (16,))
        return y.sin() * y.cos() + y

    rows(forward=1.5)
    run, graphs = compiled(behind, choice.FASTER)
    run(torch.randn(6, 16))
    assert graphs.counted()[FORWARD] == 0


def test_a_norm_without_its_sum_is_taken(rows: Any, monkeypatch: Any) -> None:  # noqa: F811
    """inductor fuses the sum: beside it a fast norm alone is slow."""
    rows(forward=9.0, backward=9.0)
    slow = [row._replace(speedup=0.9) if "stages" in row.layout else row for row in table.rows()]
    monkeypatch.setattr(table, "rows", lambda: slow)
    run, graphs = compiled(Residual(), choice.FASTER)
    results_of(run, None, torch.randn(6, 16))
    names = graphs.counted()
    assert (names[FORWARD], names[BACKWARD]) == (1, 0), "only the first forward has no sum"


def test_a_dropout_of_nothing_is_a_pass(rows: Any) -> None:  # noqa: F811
    rows(forward=1.1)

    def before(x: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x @ x.t(), 0.0), (6,))

    run, graphs = compiled(before, choice.FASTER)
    run(torch.randn(6, 6))
    assert graphs.counted()[FORWARD] == 1


@pytest.mark.parametrize(
    ("device", "layout", "rows_", "columns", "whole"),
    [
        ("sm_90", "rms rows", 5120, 1024, True),
        ("sm_90", "rms rows with stages", 16384, 8192, True),
        ("sm_90", "rms rows", 5119, 1024, False),
        ("sm_90", "rms rows", 16383, 8192, False),
        ("sm_90", "rms rows", 2560, 2048, False),
        ("sm_90", "layer channels", 16384, 1024, False),
        ("cpu avx2", "rms rows", 16384, 1024, False),
    ],
)
def test_inductors_other_backward(
    device: str, layout: str, rows_: int, columns: int, whole: bool
) -> None:
    direction = table.direction_of(device, layout, columns, rows_ * columns, True)
    assert direction == (table.ONE_KERNEL if whole else table.BACKWARD)
    assert table.direction_of(device, layout, columns, rows_ * columns, False) == table.FORWARD


def test_a_fused_neighbour_costs_nothing(rows: Any) -> None:  # noqa: F811
    def behind(x: Tensor) -> Tensor:
        return F.layer_norm(x, (16,)).sin()

    for speedup, taken in ((1.5, 0), (2.5, 1)):
        rows(forward=speedup)
        run, graphs = compiled(behind, choice.FASTER)
        run(torch.randn(6, 16))
        assert graphs.counted()[FORWARD] == taken, speedup


def test_dropout_is_drawn_by_inductor() -> None:
    def dropped(x: Tensor, residual: Tensor) -> Any:
        return planish.add_rms_norm(x, residual, dropout_p=0.5)

    run, graphs = compiled(dropped, choice.NEVER)
    run(torch.randn(6, 16), torch.randn(6, 16))
    assert graphs.counted()[FORWARD] == 1


def test_an_inference_keeps_statistics() -> None:
    run, graphs = compiled(Layer())
    with torch.no_grad():
        run(torch.randn(6, 16))
    (node,) = (
        n for n in graphs.modules[0].graph.nodes if FORWARD in str(n.target).replace(".", "::", 1)
    )
    assert isinstance(node.meta["val"], Tensor)


def test_a_checkpoint_computes_other_norms() -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = Layer(), torch.randn(6, 16)

    def part(x: Tensor) -> Any:
        return checkpoint(model, x, use_reentrant=False).sin()

    run, graphs = compiled(part)
    leaf = x.clone().requires_grad_()
    other = x.clone().requires_grad_()
    run(leaf).sum().backward()
    part(other).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)
    assert graphs.counted()[FORWARD] == 2, "the backward computes the forward again"
