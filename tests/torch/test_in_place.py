"""Tensors that are written in place between the forward and the backward: where the composition of
torch's operators trains, planish's functions train, with the same gradients.

Each case is a function of planish's beside what one writes with torch's operators. Every tensor of
it, given or returned, is written to after the forward, for several choices of what has a gradient.
What a fused backward reads again is refused by autograd, where torch's operators would have kept
what they made of it: never a wrong gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch.nn.functional as F

import planish
import torch
from torch import Tensor

B, S, D = 3, 4, 16
X, ROW, COLUMN, EACH = (B, S, D), (B, S, 1), (D,), (B, 1, D)
Given = dict[str, Tensor]


class Case(NamedTuple):
    shapes: dict[str, tuple[int, ...]]
    run: Callable[[Given], Any]
    composed: Callable[[Given], Any]
    #: Without a gradient in any choice.
    constant: tuple[str, ...] = ()


def layer(t: Given, s: Tensor, offset: float = 0.0) -> Tensor:
    weight = t.get("weight")
    return F.layer_norm(s, (D,), offset + weight if offset else weight, t.get("bias"), 1e-5)


class Holds(torch.autograd.Function):
    """y, whose backward wants to see what torch's RMS norm keeps on a GPU; on the CPU it is many
    operators, of which some keep less."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *tensors: Tensor) -> Tensor:
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        assert len(ctx.saved_tensors) == ctx.count
        return dy, *(None,) * ctx.count


def rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    held = (x,) if weight is None else (x, weight)
    y: Tensor = Holds.apply(F.rms_norm(x, x.shape[-1:], weight, 1e-5), *held)  # type: ignore[no-untyped-call]
    return y


def in_groups(t: Given) -> Tensor:
    x, weight = t["x"], t["weight"]
    xhat = F.rms_norm(x.view(B, S, 2, D // 2), (D // 2,), None, 1e-5).view(X)
    y: Tensor = Holds.apply(xhat * weight, x, weight)  # type: ignore[no-untyped-call]
    return y


def rms(t: Given, s: Tensor, offset: float = 0.0) -> Tensor:
    weight = t.get("weight")
    return rms_norm(s, weight if weight is None or not offset else offset + weight)


def total(t: Given) -> Tensor:
    u = t["x"]
    for name in ("column_scale", "row_scale"):
        u = u * t[name] if name in t else u
    return u + t["residual"]


def added(norm: Callable[..., Tensor], offset: float = 0.0) -> Callable[[Given], Any]:
    def run(t: Given) -> tuple[Tensor, Tensor]:
        s = total(t)
        return norm(t, s, offset), s

    return run


def modulated(t: Given, norm: Callable[..., Tensor] = layer) -> Any:
    gated = t["x"] * t["gate"] if "gate" in t else t["x"]
    s = t["residual"] + gated if "residual" in t else gated
    y = norm(t, s)
    y = y * (1 + t["scale"]) if "scale" in t else y
    y = y + t["shift"] if "shift" in t else y
    return (y, s) if "residual" in t else y


def call_modulated(t: Given) -> Any:
    rest = {name: t[name] for name in ("residual", "gate", "weight", "bias") if name in t}
    return planish.modulated_layer_norm(t["x"], t.get("scale"), t.get("shift"), eps=1e-5, **rest)


def groups(t: Given) -> Tensor:
    return F.group_norm(t["x"], 2, t["weight"], t["bias"], 1e-5)


#: What the backward of a fused norm may read again; a residual, a shift, a row_scale and results
#: other than the sum (result 1) are not among it.
READ_AGAIN = ("result 1", "x", "k", "weight", "k_weight", "bias", "scale", "gate", "column_scale")

NORM = {"x": X, "weight": COLUMN, "bias": COLUMN}
SUM = {"x": X, "residual": X, "weight": COLUMN, "bias": COLUMN}
IMAGE = {"x": (2, 4, 3, 2), "weight": (4,), "bias": (4,)}

CASES: dict[str, Case] = {
    "layer_norm": Case(
        NORM,
        lambda t: planish.layer_norm(t["x"], -1, t["weight"], t["bias"]),
        lambda t: layer(t, t["x"]),
    ),
    "layer_norm and silu": Case(
        NORM,
        lambda t: planish.layer_norm(t["x"], -1, t["weight"], t["bias"], activation="silu"),
        lambda t: F.silu(layer(t, t["x"])),
    ),
    "layer_norm, 1 + w": Case(
        NORM,
        lambda t: planish.layer_norm(t["x"], -1, t["weight"], t["bias"], weight_offset=1),
        lambda t: layer(t, t["x"], 1),
    ),
    "layer_norm, 1 + w and gelu": Case(
        NORM,
        lambda t: planish.layer_norm(
            t["x"], -1, t["weight"], t["bias"], weight_offset=1, activation="gelu"
        ),
        lambda t: F.gelu(layer(t, t["x"], 1)),
    ),
    "rms_norm, 1 + w": Case(
        {"x": X, "weight": COLUMN},
        lambda t: planish.rms_norm(t["x"], -1, t["weight"], weight_offset=1),
        lambda t: rms(t, t["x"], 1),
    ),
    "group_norm": Case(
        IMAGE, lambda t: planish.group_norm(t["x"], 2, t["weight"], t["bias"]), groups
    ),
    "group_norm and silu": Case(
        IMAGE,
        lambda t: planish.group_norm(t["x"], 2, t["weight"], t["bias"], activation="silu"),
        lambda t: F.silu(groups(t)),
    ),
    "add_layer_norm": Case(
        SUM,
        lambda t: planish.add_layer_norm(t["x"], t["residual"], t["weight"], t["bias"]),
        added(layer),
    ),
    "add_layer_norm, 1 + w": Case(
        SUM,
        lambda t: planish.add_layer_norm(
            t["x"], t["residual"], t["weight"], t["bias"], weight_offset=1
        ),
        added(layer, 1),
    ),
    "add_rms_norm": Case(
        {"x": X, "residual": X, "weight": COLUMN},
        lambda t: planish.add_rms_norm(t["x"], t["residual"], t["weight"]),
        added(rms),
    ),
    "add_layer_norm, scales": Case(
        SUM | {"column_scale": COLUMN, "row_scale": ROW},
        lambda t: planish.add_layer_norm(
            t["x"],
            t["residual"],
            t["weight"],
            t["bias"],
            column_scale=t["column_scale"],
            row_scale=t["row_scale"],
        ),
        added(layer),
        ("row_scale",),
    ),
    "add_rms_norm, column_scale": Case(
        {"x": X, "residual": X, "column_scale": COLUMN},
        lambda t: planish.add_rms_norm(t["x"], t["residual"], column_scale=t["column_scale"]),
        added(rms),
    ),
    "modulated": Case({"x": X, "scale": EACH, "shift": EACH}, call_modulated, modulated),
    "modulated, of each element": Case({"x": X, "scale": X, "shift": X}, call_modulated, modulated),
    "modulated, scale alone": Case({"x": X, "scale": EACH}, call_modulated, modulated),
    "modulated, shift alone": Case(NORM | {"shift": EACH}, call_modulated, modulated),
    "modulated, shift of each": Case(NORM | {"shift": X}, call_modulated, modulated),
    "modulated, affine": Case(NORM | {"scale": EACH, "shift": EACH}, call_modulated, modulated),
    "modulated, sum": Case(
        {"x": X, "residual": X, "scale": EACH, "shift": EACH}, call_modulated, modulated
    ),
    "modulated, gated sum": Case(
        SUM | {"gate": EACH, "scale": EACH, "shift": EACH}, call_modulated, modulated
    ),
    "modulated rms": Case(
        {"x": X, "scale": EACH, "weight": COLUMN},
        lambda t: planish.modulated_rms_norm(t["x"], t["scale"], None, t["weight"], eps=1e-5),
        lambda t: modulated(t, rms),
    ),
    "gated": Case(
        {"x": X, "gate": X, "weight": COLUMN},
        lambda t: planish.gated_rms_norm(t["x"], t["gate"], t["weight"]),
        lambda t: rms(t, t["x"]) * F.silu(t["gate"]),
    ),
    "gated layer": Case(
        NORM | {"gate": X},
        lambda t: planish.gated_layer_norm(t["x"], t["gate"], t["weight"], t["bias"]),
        lambda t: layer(t, t["x"]) * F.silu(t["gate"]),
    ),
    "gated before": Case(
        {"x": X, "gate": X, "weight": COLUMN},
        lambda t: planish.gated_rms_norm(t["x"], t["gate"], t["weight"], norm_before_gate=False),
        lambda t: rms(t, t["x"] * F.silu(t["gate"])),
    ),
    "gated, groups": Case(
        {"x": X, "gate": X, "weight": COLUMN},
        lambda t: planish.gated_rms_norm(t["x"], t["gate"], t["weight"], group_size=8),
        lambda t: in_groups(t) * F.silu(t["gate"]),
    ),
    "qk_norm": Case(
        {"x": X, "k": X, "weight": COLUMN, "k_weight": COLUMN},
        lambda t: planish.qk_norm(t["x"], t["k"], t["weight"], t["k_weight"], 1e-5),
        lambda t: (rms(t, t["x"]), rms_norm(t["k"], t["k_weight"])),
    ),
    "qk_norm, 1 + w": Case(
        {"x": X, "k": X, "weight": COLUMN, "k_weight": COLUMN},
        lambda t: planish.qk_norm(
            t["x"], t["k"], t["weight"], t["k_weight"], 1e-5, weight_offset=1
        ),
        lambda t: (rms(t, t["x"], 1), rms_norm(t["k"], 1 + t["k_weight"])),
    ),
}


@pytest.fixture(params=[False, True], ids=["off", "enabled"], autouse=True)
def _switch(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param:
        with planish.enabled():
            yield
    else:
        yield


def made(case: Case, wanted: tuple[str, ...]) -> Given:
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in case.shapes.items():
        tensor = torch.randn(shape, generator=generator)
        found[name] = tensor.requires_grad_(name in wanted)
    return found


def outputs(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def gradients(
    function: Callable[[Given], Any], case: Case, wanted: tuple[str, ...], written: str | None
) -> list[Tensor] | None:
    """None: autograd refuses, as something that it needs was written."""
    given = made(case, wanted)
    results = outputs(function(given))
    if not any(y.requires_grad for y in results):
        return None
    loss: Any = sum(
        (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(i))).sum()
        for i, y in enumerate(results)
        if y.requires_grad
    )
    if written is not None:
        places = {f"result {i}": y for i, y in enumerate(results)} | given
        with torch.no_grad():
            places[written].mul_(3).add_(1)
    asked = [given[name] for name in wanted]
    try:
        found = torch.autograd.grad(loss, asked, allow_unused=True)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return None
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, asked, strict=True)]


def choices(case: Case) -> list[tuple[str, ...]]:
    names = [name for name in case.shapes if name not in case.constant]
    counts = {1, 2, len(names) - 1, len(names)}
    return [one for count in sorted(counts) for one in itertools.combinations(names, count)]


@pytest.mark.parametrize("name", CASES)
def test_code_that_trains_with_torch_raises_or_trains_wrong(name: str) -> None:
    case = CASES[name]
    trained = 0
    for wanted in choices(case):
        count = len(outputs(case.run(made(case, wanted))))
        for written in [*case.shapes, *(f"result {i}" for i in range(count))]:
            found = gradients(case.composed, case, wanted, written)
            if found is None:
                continue
            trained += 1
            mine = gradients(case.run, case, wanted, written)
            if mine is None:
                assert written in READ_AGAIN, f"{written} cannot be written with {wanted} learned"
                continue
            for one, other, tensor in zip(mine, found, wanted, strict=True):
                message = f"of {tensor}, {written} being written and {wanted} learned"
                torch.testing.assert_close(
                    one, other, rtol=1e-4, atol=1e-4, msg=lambda m, said=message: f"{said}: {m}"
                )
    assert trained > len(case.shapes)


def second(function: Callable[[Given], Any], case: Case, wanted: tuple[str, ...]) -> list[Tensor]:
    given = {n: t.detach().double() for n, t in made(case, wanted).items()}
    asked = [given[name].requires_grad_() for name in wanted]
    loss: Any = sum(y.sin().sum() for y in outputs(function(given)) if y.requires_grad)
    first = torch.autograd.grad(loss, asked, create_graph=True)
    again: Any = sum(gradient.square().sum() for gradient in first if gradient.requires_grad)
    found = torch.autograd.grad(again, asked, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, asked, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_a_copy_cuts_second_derivatives(name: str) -> None:
    case = CASES[name]
    for wanted in choices(case):
        if wanted in (("bias",), ("shift",), ("residual",)):
            continue  # the gradient is a constant, or hangs from nothing else
        pairs = zip(
            second(case.run, case, wanted), second(case.composed, case, wanted), strict=True
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", [(3, 4, 16), (8, 64, 128)], ids=str)
@pytest.mark.parametrize("has_rows", [False, True], ids=["", "row_scale"])
def test_dropout_of_an_x_without_a_gradient_raises(shape: tuple[int, ...], has_rows: bool) -> None:
    names = ("x", "residual", "weight", "bias", "column_scale")
    for count in (1, 2, 4, 5):
        for wanted in itertools.combinations(names, count):
            t = {
                name: torch.randn(
                    shape if name in ("x", "residual") else shape[-1:], requires_grad=name in wanted
                )
                for name in names
            }
            row = torch.rand(shape[:-1]) + 0.5 if has_rows else None
            y, s = planish.add_layer_norm(**t, row_scale=row, dropout_p=0.4)
            u = t["x"] * t["column_scale"] * (1 if row is None else row[..., None])
            with torch.no_grad():
                mask = ((s - t["residual"]).abs() > u.abs() / 2) / 0.6
            right = u * mask + t["residual"]
            normed = F.layer_norm(right, shape[-1:], t["weight"], t["bias"])
            dy, ds = torch.randn(shape), torch.randn(shape)

            def loss(
                y: Tensor,
                s: Tensor,
                dy: Tensor = dy,
                ds: Tensor = ds,
                has_sum: bool = s.requires_grad,
            ) -> Tensor:
                return (y * dy).sum() + ((s * ds).sum() if has_sum else 0)

            asked = [t[name] for name in wanted]
            found = torch.autograd.grad(loss(y, s), asked)
            for one, other in zip(
                found, torch.autograd.grad(loss(normed, right), asked), strict=True
            ):
                scale = other.abs().max().item()
                torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * scale)
