"""Which norms of a graph become planish's, that the results stay the same, and what is said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import compiled, results_of, rows, uncached  # noqa: F401 (fixtures)

import planish
import planish.compile
import torch
from planish.commands import doctor
from planish.compile import choice, joint, table
from torch import Tensor, nn

FORWARD, BACKWARD = "planish::graph_forward", "planish::graph_backward"
NORMS = ("aten::native_layer_norm", "aten::native_group_norm", "aten::_fused_rms_norm")


class Layer(nn.Module):
    """torch's norms over the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.product(x))


class Written(nn.Module):
    """An RMS norm as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        wide = self.product(x).to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(16, 16), nn.RMSNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.product(x))


class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(16, 32), nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.product(x).view(-1, 8, 4)))


class Functions(nn.Module):
    """planish's own functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        y, total = planish.add_rms_norm(x, x.flip(0), self.weight, 1e-6)
        one, other = planish.qk_norm(y, total, self.weight, self.weight, 1e-6)
        gated = planish.gated_rms_norm(one, other, self.weight, 1e-6)
        moved = planish.modulated_layer_norm(gated, self.weight, self.weight.flip(0))
        return planish.layer_norm(moved.view(-1, 4, 4), dims=1).view(-1, 16)


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "layer": (Layer, 1),
    "written": (Written, 1),
    "rms": (Rms, 1),
    "groups": (Groups, 1),
    "functions": (Functions, 6),
}


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

    def forward(self, x: Tensor) -> Tensor:
        for norm, product in zip(self.norms, self.products, strict=True):
            x = x + product(norm(x))
        return x


def test_a_sum_beside_a_norm_is_a_pass_of_its_own(rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    model, x = Residual(), torch.randn(6, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, x), results_of(model, model, x))
    names = graphs.counted()
    assert (names[FORWARD], names[BACKWARD]) == (3, 3)
    assert names["aten::add"] == 1, names  # the last one, behind which there is no norm


def test_a_gradient_that_waits_for_products_costs_a_pass(rows: Any) -> None:  # noqa: F811
    """That of a residual stream is stored, for the products of the block before read it."""
    rows(forward=9.0, backward=1.1)
    run, graphs = compiled(Residual(), choice.FASTER)
    results_of(run, None, torch.randn(6, 16))
    assert graphs.counted()[BACKWARD] == 3


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


def test_autocast_changes_what_is_computed() -> None:
    model, x = Written(), torch.randn(6, 16)
    run, _ = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert run(x).dtype == model(x).dtype
        torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)


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


# ---- What is said --------------------------------------------------------------------------------


def test_the_report_lacks_a_norm(caplog: pytest.LogCaptureFixture) -> None:
    before = len(planish.compile.report())
    planish.reset_stats()
    run, _ = compiled(Layer())
    with caplog.at_level(logging.INFO, "planish.compile"):
        results_of(run, None, torch.randn(6, 16))
    found = planish.compile.report()[before:]
    assert [(e.direction, e.chosen, e.shape, e.dtype) for e in found] == [
        ("forward", "planish", (6, 16), "float32"),
        ("backward", "planish", (6, 16), "float32"),
    ]
    assert "every norm was asked for" in str(planish.compile.report())
    assert sum("every norm was asked for" in record.message for record in caplog.records) == 2
    assert planish.stats()["in compiled graphs (forward)"]["planish"] == 1


@pytest.mark.parametrize("mode", [choice.FASTER, choice.NEVER])
@pytest.mark.parametrize("name", ["layer", "written", "rms", "groups"])
def test_a_norm_that_is_left_is_not_said(name: str, mode: str, rows: Any) -> None:  # noqa: F811
    """Also of a norm that is taken apart before the graph is differentiated."""
    rows(forward=0.5)
    before = len(planish.compile.report())
    planish.reset_stats()
    run, _ = compiled(MODELS[name][0](), mode)
    results_of(run, None, torch.randn(6, 16))
    found = planish.compile.report()[before:]
    assert [(e.direction, e.chosen) for e in found] == [
        ("forward", "inductor"),
        ("backward", "inductor"),
    ]
    assert found[0].graph == found[1].graph
    if mode == choice.FASTER:
        assert "0.50 times as fast" in found[0].why and "no row" in found[1].why
    else:
        assert {e.why for e in found} == {choice.UNASKED}
    for direction in ("forward", "backward"):
        counted = planish.stats()[f"in compiled graphs ({direction})"]["torch"]
        assert sum(counted.values()) == 1, counted


def test_an_inference_that_is_left_has_a_backward(rows: Any) -> None:  # noqa: F811
    rows(forward=0.5)
    before = len(planish.compile.report())
    run, _ = compiled(Written(), choice.FASTER)
    with torch.no_grad():
        run(torch.randn(6, 16))
    assert [e.direction for e in planish.compile.report()[before:]] == ["forward"]


def test_autocast_is_not_said(rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    before = len(planish.compile.report())

    def norm(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    run, _ = compiled(norm, choice.FASTER)
    with torch.autocast("cpu", torch.bfloat16):
        run(torch.randn(6, 16).requires_grad_())
    found = planish.compile.report()[before:]
    assert [e.chosen for e in found] == ["inductor"] * 2
    assert all("autocast" in e.why for e in found)


def test_a_norm_without_an_operator_is_not_said() -> None:
    """planish's have 16 axes at most."""
    before = len(planish.compile.report())
    x = torch.randn([1] * 16 + [16])
    run, _ = compiled(lambda x: F.layer_norm(x, (16,)), choice.FASTER)
    results_of(run, None, x)
    found = planish.compile.report()[before:]
    assert [(e.direction, e.chosen) for e in found] == [
        ("forward", "inductor"),
        ("backward", "inductor"),
    ]
    assert {e.why for e in found} == {"planish has no operator for it"}
    assert found[0].shape == tuple(x.shape)


def test_stats_do_not_say_why(rows: Any) -> None:  # noqa: F811
    rows(forward=0.5)
    planish.reset_stats()
    run, _ = compiled(Layer(), choice.FASTER)
    run(torch.randn(6, 16))
    (why,) = planish.stats()["in compiled graphs (forward)"]["torch"]
    assert "0.50 times as fast" in why


def test_caches_do_not_know_the_choices(rows: Any) -> None:  # noqa: F811
    one = joint.NormPass(choice.FASTER, {}).uuid()
    assert one != joint.NormPass(choice.ALWAYS, {}).uuid()
    assert one == joint.NormPass(choice.FASTER, {}).uuid()


def test_the_table_is_out_of_order() -> None:
    assert table.rows()
    for row in table.rows():
        assert row.direction in (table.FORWARD, table.BACKWARD, table.ONE_KERNEL)
        assert row.speedup > 0
        for least, end in (row.columns, row.elements):
            assert least >= 0 and (end is None or end > least)


@pytest.mark.parametrize("given", ["fast", 3, None])
def test_an_unknown_mode_is_taken(given: Any) -> None:
    with pytest.raises(Exception, match=r"compile is .*known are 'faster', 'always'"):
        options = {"planish": given}
        torch.compile(Layer(), backend="planish", options=options)(torch.randn(6, 16))


def test_doctor_says_nothing_of_the_compiler() -> None:
    found = doctor.report()["compile"]
    assert found["whole norms in a graph"] == found["passes that caches know"] == "yes"
    assert any(name.startswith("table of choices, cpu") for name in found)
