"""fp8 and int8 behind norms of inference graphs: one call of planish's where the model writes what
planish's quantised norms do, and the model's own operators where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import compiled, rows, uncached  # noqa: F401 (fixtures)
from torch._inductor.utils import run_and_get_code

import planish
import torch
from planish.compile import choice, quantising
from torch import Tensor

FP8, WIDE_FP8, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
LARGEST = {FP8: 448.0, WIDE_FP8: 57344.0, INT8: 127.0}
NAME = "planish::quantized_norm"


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "_pays", lambda norm: True)


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms(x: Tensor, w: Tensor, _: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * wide.to(x.dtype)


def torchs_rms(x: Tensor, w: Tensor, _: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


NORMS = {"layer": layer, "rms": rms, "torch's rms": torchs_rms}


def static(y: Tensor, s: Tensor, dtype: torch.dtype = FP8) -> Tensor:
    value = y.float() / s
    value = value.round() if dtype == INT8 else value
    return value.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def per_row(y: Tensor, dtype: torch.dtype = FP8, late: bool = False) -> tuple[Tensor, Tensor]:
    amax = y.abs().amax(-1, keepdim=True).float() if late else y.float().abs().amax(-1, True)
    s = (amax / LARGEST[dtype]).clamp(min=1e-9) if late else amax.clamp(min=1e-6) / LARGEST[dtype]
    return static(y, s, dtype), s


#: (norm, x, residual, weight, bias, scale) -> the results.
JOINED: dict[str, Callable[..., Any]] = {
    "static": lambda n, x, r, w, b, s: static(n(x, w, b), s),
    "static, of no axis": lambda n, x, r, w, b, s: static(n(x, w, b), s[0]),
    "static, int8": lambda n, x, r, w, b, s: static(n(x, w, b), s, INT8),
    "static, sum": lambda n, x, r, w, b, s: (static(n(t := x + r, w, b), s), t),
    "row": lambda n, x, r, w, b, s: per_row(n(x, w, b)),
    "row, int8": lambda n, x, r, w, b, s: per_row(n(x, w, b), INT8),
    "row, e5m2": lambda n, x, r, w, b, s: per_row(n(x, w, b), WIDE_FP8),
    "row, floor behind": lambda n, x, r, w, b, s: per_row(n(x, w, b), late=True),
    "row, sum": lambda n, x, r, w, b, s: (*per_row(n(t := x + r, w, b)), t),
    "row, planish's sum": lambda n, x, r, w, b, s: (
        *per_row((both := planish.add_rms_norm(x, r, w))[0]),
        both[1],
    ),
    "row, the scale is read": lambda n, x, r, w, b, s: (*(p := per_row(n(x, w, b))), 1 / p[1]),
}


def given(dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    x, residual = torch.randn(2, 4, 6, 32).to(dtype)
    x[0, 0] = 0  # a row whose scale is the least one
    return x, residual, torch.randn(32).to(dtype), torch.randn(32).to(dtype), torch.rand(1) + 0.1


def alike(one: Any, other: Any) -> None:
    ones, others = ([t] if isinstance(t, Tensor) else list(t) for t in (one, other))
    assert len(ones) == len(others)
    for a, b in zip(ones, others, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
        step = 0.26 if a.dtype == WIDE_FP8 else 0.13  # of two neighbours
        least = 1.0 if a.dtype == INT8 else 1e-3 * float(b.float().abs().max())
        a, b = a.float(), b.float()
        assert bool(((a - b).abs() <= step * b.abs() + least).all()), (a, b)
        assert float((a - b).abs().mean()) <= 0.01 * float(b.abs().mean()), (a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", JOINED)
@torch.no_grad()
def test_a_quantisation_is_a_pass_of_its_own(
    name: str,
    norm: str,
    dtype: torch.dtype,
    rows: Any,  # noqa: F811
) -> None:
    rows(forward=9.0)
    tensors = given(dtype)

    def model(*tensors: Tensor) -> Any:
        return JOINED[name](NORMS[norm], *tensors)

    run, graphs = compiled(model, choice.FASTER)
    alike(run(*tensors), model(*tensors))
    names = graphs.counted()
    assert names[NAME] == 1, names
    others = ("amax", "clamp", "graph_forward", "aten::add")
    assert not any(other in op for op in names for other in others), names


def _clamped(y: Tensor, s: Tensor, low: float, high: float, dtype: torch.dtype) -> Tensor:
    return (y.float() / s).clamp(low, high).to(dtype)


#: What planish's call does otherwise, or what another reads, too.
APART: dict[str, Callable[..., Any]] = {
    "an L2 norm": lambda n, x, r, w, b, s: static(planish.normalize(x, weight=w, dim=-1), s),
    "y is read": lambda n, x, r, w, b, s: (static(y := n(x, w, b), s), y),
    "y in f32 is read": lambda n, x, r, w, b, s: (static(y := n(x, w, b).float(), s), y.sin()),
    "no bounds": lambda n, x, r, w, b, s: (n(x, w, b).float() / s).to(FP8),
    "other bounds": lambda n, x, r, w, b, s: _clamped(n(x, w, b), s, -448, 440, FP8),
    "bounds of another": lambda n, x, r, w, b, s: _clamped(n(x, w, b), s, -448, 448, WIDE_FP8),
    "int8 by truncation": lambda n, x, r, w, b, s: _clamped(n(x, w, b), s, -127, 127, INT8),
    "a scale for each column": lambda n, x, r, w, b, s: static(n(x, w, b), w.float().abs() + 0.1),
    "no least scale": lambda n, x, r, w, b, s: static(
        y := n(x, w, b) + 1, y.float().abs().amax(-1, True) / 448
    ),
    "amax of a tensor": lambda n, x, r, w, b, s: static(
        y := n(x, w, b), y.float().abs().amax().clamp(min=1e-6) / 448
    ),
    "amax of columns": lambda n, x, r, w, b, s: static(
        y := n(x, w, b), y.float().abs().amax(1, True).clamp(min=1e-6) / 448
    ),
    "the largest without its sign": lambda n, x, r, w, b, s: static(
        y := n(x, w, b), y.float().abs().clamp(min=1e-6).amax(-1, True) / 448
    ),
    "amax of something else": lambda n, x, r, w, b, s: static(
        n(x, w, b), r.float().abs().amax(-1, True).clamp(min=1e-6) / 448
    ),
    "amax is read": lambda n, x, r, w, b, s: (
        static(y := n(x, w, b), (a := y.float().abs().amax(-1, True)).clamp(min=1e-6) / 448),
        a,
    ),
    "another largest": lambda n, x, r, w, b, s: static(
        y := n(x, w, b), y.float().abs().amax(-1, True).clamp(min=1e-6) / 440
    ),
    "the scale waits for the norm": lambda n, x, r, w, b, s: static(
        y := n(x, w, b), y.float().mean().abs() + 1
    ),
    "the scale waits for the sum": lambda n, x, r, w, b, s: (
        static(n(t := x + r, w, b), t.float().mean().abs() + 1),
        t,
    ),
    "the scale waits for planish's sum": lambda n, x, r, w, b, s: (
        static((both := planish.add_layer_norm(x, r, w, b))[0], both[1].float().mean().abs() + 1),
        both[1],
    ),
    "y is read beside scales of rows": lambda n, x, r, w, b, s: (*per_row(y := n(x, w, b)), y),
    "scales of rows are not what divides": lambda n, x, r, w, b, s: (
        static(y := n(x, w, b), s),
        y.float().abs().amax(-1, True).clamp(min=1e-6) / 448,
    ),
    "an activation between": lambda n, x, r, w, b, s: static(F.silu(n(x, w, b)), s),
    "multiplied": lambda n, x, r, w, b, s: (n(x, w, b).float() * s).clamp(-448, 448).to(FP8),
    "turned rows": lambda n, x, r, w, b, s: static(n(x.transpose(0, 1), w, b), s),
}


def check(joined: Any, tensors: tuple[Tensor, ...], taken: int) -> None:
    """That a compiled model has the eager one's results, and so many quantised calls."""

    def model(*tensors: Tensor) -> Any:
        return joined(layer, *tensors)

    run, graphs = compiled(model, choice.FASTER)
    alike(run(*tensors), model(*tensors))
    assert graphs.counted()[NAME] == taken


@pytest.mark.parametrize("name", APART)
@torch.no_grad()
def test_what_planish_does_otherwise_is_joined(name: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0)
    check(APART[name], given(torch.float32), 0)


@pytest.mark.parametrize(("speedup", "taken"), [(1.02, 0), (1.04, 1)])
@torch.no_grad()
def test_the_table_is_not_asked(speedup: float, taken: int, rows: Any) -> None:  # noqa: F811
    """What is quantised costs planish no pass, so that its own margin is enough."""
    rows(forward=speedup)
    tensors = given(torch.bfloat16)
    run, graphs = compiled(lambda *t: per_row(layer(t[0], t[2], t[3])), choice.FASTER)
    alike(run(*tensors), per_row(layer(tensors[0], *tensors[2:4])))
    assert graphs.counted()[NAME] == taken


@pytest.mark.parametrize(
    ("name", "taken"), [("row", 1), ("row, sum", 0), ("row, planish's sum", 0)]
)
@torch.no_grad()
def test_a_cpu_has_sums_quantised(name: str, taken: int, rows: Any, monkeypatch: Any) -> None:  # noqa: F811
    monkeypatch.undo()
    rows(forward=1.5)
    check(JOINED[name], given(torch.float32), taken)


def test_a_gradient_is_asked_of_a_quantised_norm(rows: Any) -> None:  # noqa: F811
    """Training has the norm's backward, and y as a tensor."""
    rows(forward=9.0, backward=9.0)
    x, _, w, b, s = given(torch.float32)
    w.requires_grad_()

    def model(x: Tensor) -> Any:
        y = layer(x, w, b)
        return y.sum(), static(y.detach(), s)

    run, graphs = compiled(model, choice.FASTER)
    total, q = run(x)
    total.backward()
    assert graphs.counted()[NAME] == 0 and q.dtype == FP8


@pytest.mark.parametrize("static_", [True, False], ids=["static", "row"])
@torch.no_grad()
def test_the_written_code_says_another(static_: bool, rows: Any) -> None:  # noqa: F811
    """Of sizes that change."""
    rows(forward=9.0)
    tensors = given(torch.bfloat16)

    def model(x: Tensor, r: Tensor, w: Tensor, b: Tensor, s: Tensor) -> Any:
        y = layer(t := x + r, w, b).float()
        s = s if static_ else y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
        return (y / s).clamp(-448, 448).to(FP8), s, t

    torch._dynamo.reset()
    run = torch.compile(model, backend="planish", fullgraph=True, dynamic=True)
    found, codes = run_and_get_code(run, *tensors)
    alike(found, model(*tensors))
    assert "\n".join(codes).count("torch.ops.planish.quantized_norm.default(") == 1
    more = [torch.cat([t, t]) if t.dim() == 3 else t for t in tensors]
    alike(run(*more), model(*more))
