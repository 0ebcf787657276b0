"""The norms with stages that run in one call: results and gradients against the composition, and
against float64; dtypes, layouts, dropout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import FLOATS, HALVES, Calls

import planish
import torch
from planish.operators import formulas, norms, pairs, quantized_calls, stage_calls
from torch import Tensor

pytestmark = pytest.mark.usefixtures("in_one_call")

FORWARD = "planish::norm_forward (stages)"
BACKWARD = "planish::norm_backward (stages)"
#: Of queries and keys.
PAIR, PAIR_BACKWARD = "planish::norm_pair", "planish::norm_pair_backward"


@contextmanager
def composed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it every function is the composition that it is without kernels."""
    with monkeypatch.context() as patch:
        patch.setattr(stage_calls, "norm", lambda *_, **__: None)
        for module in (stage_calls, norms):
            patch.setattr(module, "known", lambda *_: (None, None))
        patch.setattr(quantized_calls, "quantized", lambda *_, **__: None)
        for name in ("known", "norms"):
            patch.setattr(pairs, name, lambda *_: None)
        patch.setattr(quantized_calls, "norm_into", lambda *_, **__: False)
        yield


def is_fused(calls: Calls) -> bool:
    """Whether a norm's forward and backward ran with what stands around it."""
    forward = calls.on_planish(FORWARD) + calls.on_planish(PAIR)
    return forward > 0 and calls.on_planish(BACKWARD) + calls.on_planish(PAIR_BACKWARD) > 0


def tensors(dtype: torch.dtype, other: torch.dtype, *shape: int) -> dict[str, Tensor]:
    """x and what may stand around it, x and what is as large of one dtype, the rest of another."""
    columns = shape[-1]
    made = {
        "x": torch.randn(shape).to(dtype),
        "residual": (torch.randn(shape) * 2).to(dtype),
        "gate": torch.randn(shape).to(dtype),
        "weight": torch.randn(columns).to(other),
        "bias": torch.randn(columns).to(other),
        "column": torch.randn(columns).to(other),
        "scale": torch.randn(shape[0], *(1,) * (len(shape) - 2), columns).to(other),
        "shift": torch.randn(shape[0], *(1,) * (len(shape) - 2), columns).to(other),
    }
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


Call = Callable[[dict[str, Tensor]], Any]
ROW = torch.tensor([[1.25, 0.0, 1.25], [0.0, 1.25, 1.25]])

#: Each function with all that it takes.
CASES: dict[str, Call] = {
    "add_layer_norm": lambda t: planish.add_layer_norm(
        t["x"], t["residual"], t["weight"], t["bias"]
    ),
    "add_rms_norm, offset": lambda t: planish.add_rms_norm(
        t["x"], t["residual"], t["weight"], weight_offset=1.0
    ),
    "add_rms_norm, another offset": lambda t: planish.add_rms_norm(
        t["x"], t["residual"], t["weight"], weight_offset=0.5
    ),
    "add_rms_norm, f32 sum": lambda t: planish.add_rms_norm(
        t["x"], t["residual"], t["weight"], sum_dtype=torch.float32, out_dtype=torch.float32
    ),
    "add_layer_norm, scales": lambda t: planish.add_layer_norm(
        t["x"],
        t["residual"],
        t["weight"],
        t["bias"],
        row_scale=ROW.to(t["x"].dtype),
        column_scale=t["column"],
    ),
    "modulated_layer_norm": lambda t: planish.modulated_layer_norm(
        t["x"], t["scale"], t["shift"], t["weight"], t["bias"]
    ),
    "modulated_rms_norm, residual, gate": lambda t: planish.modulated_rms_norm(
        t["x"], t["scale"], None, t["weight"], residual=t["residual"], gate=t["shift"]
    ),
    "modulated_layer_norm, two shapes": lambda t: planish.modulated_layer_norm(
        t["x"], t["scale"], t["bias"]
    ),
    "gated_layer_norm": lambda t: planish.gated_layer_norm(
        t["x"], t["gate"], t["weight"], t["bias"]
    ),
    "gated_rms_norm, before": lambda t: planish.gated_rms_norm(
        t["x"], t["gate"], t["weight"], norm_before_gate=False
    ),
    "gated_layer_norm, groups before": lambda t: planish.gated_layer_norm(
        t["x"], t["gate"], t["weight"], t["bias"], norm_before_gate=False, group_size=8
    ),
    "gated_rms_norm, groups": lambda t: planish.gated_rms_norm(
        t["x"], t["gate"], t["weight"], group_size=8
    ),
    "layer_norm, offset": lambda t: planish.layer_norm(
        t["x"], -1, t["weight"], t["bias"], weight_offset=1.0
    ),
    "rms_norm, f64 result": lambda t: planish.rms_norm(
        t["x"], -1, t["weight"], weight_offset=1.0, out_dtype=torch.float64
    ),
    "layer_norm, offset, gelu": lambda t: planish.layer_norm(
        t["x"], -1, t["weight"], t["bias"], weight_offset=1.0, activation="gelu"
    ),
    "group_norm, offset": lambda t: planish.group_norm(
        t["x"].movedim(-1, 1), 4, t["weight"], t["bias"], weight_offset=1.0
    ),
    "qk_norm, offset": lambda t: planish.qk_norm(
        t["x"], t["gate"], t["weight"], None, 1e-6, weight_offset=1.0
    ),
}


def results_of(case: Call, given: dict[str, Tensor]) -> list[Tensor | None]:
    """The results and, of a sum that weighs each element otherwise, the gradients."""
    ys = case(given)
    ys = ys if isinstance(ys, tuple) else (ys,)
    torch.manual_seed(5)
    total = torch.stack(
        [(y.double() * torch.randn(y.shape).double().to(y.device)).sum() for y in ys]
    ).sum()
    return [*ys, *torch.autograd.grad(total, list(given.values()), allow_unused=True)]


def near(ours: list[Tensor | None], exact: list[Tensor | None], dtype: torch.dtype) -> None:
    """Within some roundings of ``dtype`` of the largest element."""
    allowed = 24 * torch.finfo(dtype).eps
    for i, (one, other) in enumerate(zip(ours, exact, strict=True)):
        assert (one is None) == (other is None)
        if one is None or other is None:
            continue
        wrong = (one.double() - other.double()).abs().max()
        assert wrong <= allowed * (1 + other.double().abs().max()), f"{i}: {wrong}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("other", [torch.float32, None], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_fused_norm_is_not_its_formula(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, other: torch.dtype | None
) -> None:
    given = tensors(dtype, other or dtype, 2, 3, 32)
    exact = {key: t.detach().double().requires_grad_() for key, t in given.items()}
    calls = Calls()
    ours = results_of(CASES[name], given)
    assert is_fused(calls)
    assert all(
        t is None or t.dtype == given[key].dtype
        for key, t in zip(given, ours[-len(given) :], strict=True)
    )
    with composed(monkeypatch):
        calls = Calls()
        wanted = results_of(CASES[name], exact)
        assert calls.on_planish(FORWARD) == calls.on_planish(PAIR) == 0
        near(ours, wanted, dtype if dtype in HALVES else torch.float32)
        same = results_of(CASES[name], given)
    assert [None if t is None else (t.shape, t.dtype) for t in ours] == [
        None if t is None else (t.shape, t.dtype) for t in same
    ]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rms", [False, True])
def test_a_residual_is_rounded_otherwise_than_in_an_addition(
    monkeypatch: pytest.MonkeyPatch, rms: bool, dtype: torch.dtype
) -> None:
    for other, shape in itertools.product((dtype, torch.float32), ((3, 5, 40), (1, 4096), (7, 1))):
        given = tensors(dtype, other, *shape)
        x, residual, weight = given["x"], given["residual"].detach().to(other), given["weight"]
        norm: Any = planish.add_rms_norm if rms else planish.add_layer_norm
        ours = norm(x, residual, weight)
        with composed(monkeypatch):
            theirs = norm(x, residual, weight)
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rms", [False, True])
def test_xhat_is_rounded_elsewhere_than_in_torchs_product(
    monkeypatch: pytest.MonkeyPatch, rms: bool, dtype: torch.dtype
) -> None:
    given = tensors(dtype, dtype, 9, 130)
    norm: Any = planish.rms_norm if rms else planish.layer_norm
    for bias in (None, given["bias"]):
        calls = Calls()
        ours = norm(given["x"], -1, given["weight"], bias, cast="xhat")
        assert calls.on_planish(FORWARD) == 1
        with composed(monkeypatch):
            assert torch.equal(ours, norm(given["x"], -1, given["weight"], bias, cast="xhat"))
    calls = Calls()
    norm(given["x"], -1, given["weight"].float(), cast="xhat")  # a product that is not rounded
    assert calls.on_planish(FORWARD) == 0


def layouts(x: Tensor) -> dict[str, Tensor]:
    wide = torch.randn(*x.shape[:-1], 2 * x.shape[-1]).to(x.dtype)
    wide[..., : x.shape[-1]] = x
    every = torch.stack([x, x], -1)
    return {
        "a slice of columns": wide[..., : x.shape[-1]],
        "every other column": every[..., 0],
        "rows in another order": x.transpose(0, 1).contiguous().transpose(0, 1),
        "columns first": x.movedim(-1, 0).contiguous().movedim(0, -1),
        "one row for all": x[:1, :1].expand(x.shape),
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("place", list(layouts(torch.zeros(2, 3, 4))))
def test_a_layout_is_misread(name: str, place: str) -> None:
    given = tensors(torch.float32, torch.float32, 2, 3, 32)
    for key in ("x", "residual", "gate"):
        given[key] = layouts(given[key].detach())[place].requires_grad_()
    dense = {key: t.detach().contiguous().requires_grad_() for key, t in given.items()}
    near(results_of(CASES[name], given), results_of(CASES[name], dense), torch.float32)


# ---- Dropout ------------------------------------------------------------------------------------


def test_philox_is_not_the_one_of_its_paper() -> None:
    """The counters and keys of Random123's known answers."""

    def drawn(counter: list[int], key: list[int]) -> list[int]:
        # The first element whose index, offset and seed are these; only blocks from 0 on can be
        # drawn, so that the answers with a counter of 0 are held against.
        rng = torch.tensor(
            [key[0] | key[1] << 32, counter[2] | counter[3] << 32], dtype=torch.int64
        )
        words = []
        for place in range(4):
            low, high = 0, 2**32
            while high - low > 1:  # the word, by the probabilities at which it is kept
                middle = (low + high) // 2
                kept = bool(formulas.keep_of(rng, (4,), middle / 2**32)[place])
                low, high = (middle, high) if kept else (low, middle)
            words.append(low)
        return words

    assert drawn([0, 0, 0, 0], [0, 0]) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("shape", [(5, 7, 33), (4, 1000), (1, 3)], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_a_mask_is_not_philox_of_seed_offset_and_place(shape: tuple[int, ...], p: float) -> None:
    x, zeros = torch.ones(shape, requires_grad=True), torch.zeros(shape)
    torch.manual_seed(11)
    rng = torch.randint(2**63 - 1, (2,))
    state = torch.get_rng_state()
    torch.manual_seed(11)
    total = planish.add_layer_norm(x, zeros, dropout_p=p)[1]
    assert torch.equal(torch.get_rng_state(), state)
    keep = formulas.keep_of(rng, shape, p)
    assert torch.equal(total != 0, keep)
    assert torch.equal(total, keep * torch.tensor(1 / (1 - p)).float())
    (dx,) = torch.autograd.grad(total.sum(), x)
    assert torch.equal(dx, total)
    turned = torch.ones(shape).transpose(0, 1).contiguous().transpose(0, 1)
    torch.manual_seed(11)
    assert torch.equal(planish.add_rms_norm(turned, zeros, dropout_p=p)[1], total)
    again = planish.add_rms_norm(x, zeros, dropout_p=p)[1]
    assert x.numel() < 100 or p > 0.9 or not torch.equal(again, total)


def test_something_that_is_dropped_leaves_a_trace() -> None:
    x, residual = torch.full((64, 32), float("nan")), torch.randn(64, 32)
    total = planish.add_rms_norm(x, residual, dropout_p=0.5)[1]
    kept = total.isnan()
    assert 0.4 < kept.double().mean() < 0.6 and torch.equal(total[~kept], residual[~kept])


@pytest.mark.parametrize("large", [False, True])
def test_large_columns_first_are_copied_to_rows(large: bool) -> None:
    """Smaller ones go to the general kernels as they are."""
    x, r = (torch.randn(256, 256 if large else 64).t().requires_grad_() for _ in range(2))
    calls = Calls()
    y, total = planish.add_rms_norm(x, r)
    assert calls.on_planish(FORWARD) == 1
    assert y.is_contiguous() == total.is_contiguous() == large
    assert torch.equal(total, x + r)
    dy = torch.randn(y.shape)
    dx, dr = torch.autograd.grad(y, (x, r), dy)
    s = total.detach().double().requires_grad_()
    (ds,) = torch.autograd.grad(planish.rms_norm(s, -1), s, dy.double())
    near([dx, dr], [ds, ds], torch.float32)
    near([y], [planish.rms_norm(total.double(), -1)], torch.float32)
