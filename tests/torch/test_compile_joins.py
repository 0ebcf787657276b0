"""What stands beside a norm in a model and becomes part of planish's call: values and gradients are
those of the model, and what another reads, too, stays a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import Graphs, compiled, results_of, rows, uncached  # noqa: F401 (fixtures)

import torch
from planish.compile import choice, forms
from planish.operators import call
from planish.operators.call import Tensors
from planish.operators.formulas import Given
from torch import Tensor, nn

FORWARD, BACKWARD = "planish::graph_forward", "planish::graph_backward"
SPEEDUPS = {
    "both": {"forward": 9.0, "backward": 9.0},
    "forward alone": {"forward": 9.0},
    "backward alone": {"backward": 9.0},
}


def close(one: list[Tensor], other: list[Tensor], rtol: float = 1e-4) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)


def given_to(graphs: Graphs) -> dict[str, list[set[str]]]:
    """The names of the tensors that each of planish's calls has, by its pass."""
    found: dict[str, list[set[str]]] = {"forward": [], "backward": []}
    for module in graphs.modules:
        for node in module.graph.nodes:
            if not forms.is_form(node.target):
                continue
            backward = "backward" in str(node.target)
            fields = Given._fields if backward else Tensors._fields
            given: Any = node.args[-5 if backward else -6]
            there = {name for at, name in enumerate(fields) if given >> at & 1}
            found["backward" if backward else "forward"].append(there)
    return found


def activations(graphs: Graphs) -> list[int]:
    """The activation of each of planish's forwards."""
    return [
        call.activation_in(node.args[-4])
        for module in graphs.modules
        for node in module.graph.nodes
        if forms.is_form(node.target) and "forward" in str(node.target)
    ]


# ---- Behind a norm -------------------------------------------------------------------------------


def plain(x: Tensor) -> Tensor:
    return F.layer_norm(x, (16,), eps=1e-6)


def rms(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


#: Each with scale and shift of (B, D); x is (B, S, D).
MODULATED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "diffusers": lambda x, a, b: plain(x) * (1 + a[:, None]) + b[:, None],
    "unsqueezed": lambda x, a, b: plain(x) * (1 + a.unsqueeze(1)) + b.unsqueeze(1),
    "unsqueezed behind": lambda x, a, b: (a + 1).unsqueeze(1) * plain(x) + b.unsqueeze(1),
    "viewed": lambda x, a, b: b.view(4, 1, 16) + plain(x).mul(a.add(1).view(4, 1, 16)),
    "for all rows": lambda x, a, b: plain(x) * (1 + a[0]) + b[0],
    "for each row": lambda x, a, b: (
        plain(x) * (1 + a[:, None].repeat(1, 3, 1)) + b[:, None].repeat(1, 3, 1)
    ),
    "scale alone": lambda x, a, b: plain(x) * (1 + a[:, None] * b[:, None]),
    "weighed": lambda x, a, b: F.layer_norm(x, (16,), a[0], b[0]) * (1 + a[:, None]) + b[:, None],
    "rms": lambda x, a, b: rms(x) * (1 + a[:, None]) + b[:, None],
    "torch's rms": lambda x, a, b: F.rms_norm(x, (16,), a[1]) * (1 + a[:, None]) + b[:, None],
}


@pytest.mark.parametrize("speedups", SPEEDUPS)
@pytest.mark.parametrize("name", MODULATED)
def test_a_modulation_is_a_pass_of_its_own(name: str, speedups: str, rows: Any) -> None:  # noqa: F811
    rows(**SPEEDUPS[speedups])
    model = MODULATED[name]
    inputs = torch.randn(4, 3, 16), torch.randn(4, 16), torch.randn(4, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    for direction, found in given_to(graphs).items():
        assert len(found) == (direction in SPEEDUPS[speedups]), (direction, found)
        assert all("scale" in names for names in found), found
    if "forward" in SPEEDUPS[speedups]:
        assert all(("shift" in names) == (name != "scale alone") for names in found_forward(graphs))


def found_forward(graphs: Graphs) -> list[set[str]]:
    return given_to(graphs)["forward"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_modulation_has_another_dtype(dtype: torch.dtype, rows: Any) -> None:  # noqa: F811
    """The scale and the shift may be f32 beside 16 bits: so is the result then."""
    rows(forward=9.0, backward=9.0)
    for model in (MODULATED["diffusers"], MODULATED["rms"]):
        for wide in (dtype, torch.float32):
            inputs = torch.randn(4, 3, 16).to(dtype), *torch.randn(2, 4, 16).to(wide)
            run, graphs = compiled(model, choice.FASTER)
            wanted = results_of(model, model, *inputs)
            close(results_of(run, model, *inputs), wanted, 1e-4 if dtype.itemsize == 8 else 0.03)
            narrows = model is MODULATED["rms"] and dtype == torch.float64  # it computes in f32
            assert ("scale" in found_forward(graphs)[0]) != narrows


#: What is no modulation, or is read by others, too.
APART: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "another reads the norm": lambda x, a, b: (y := plain(x)) * (1 + a[:, None]) + y,
    "another reads the product": lambda x, a, b: (
        (m := plain(x) * (1 + a[:, None])) + b[:, None],
        m.sin(),
    ),
    "a factor": lambda x, a, b: plain(x) * a[:, None] + b[:, None],
    "two and a scale": lambda x, a, b: plain(x) * (2 + a[:, None]) + b[:, None],
    "a scale of rows": lambda x, a, b: plain(x) * (1 + a[:, None, :1]) + b[:, None],
    "a shift along other axes": lambda x, a, b: plain(x) * (1 + a[:, None]) + b[0],
    "a number behind": lambda x, a, b: plain(x) * (1 + a[:, None]) + 2 * b.sum(),
    "a larger result": lambda x, a, b: plain(x[:1]) * (1 + a[:, None]) + b[:, None],
}
SCALE_ALONE = ("another reads the product", "a shift along other axes", "a number behind")


@pytest.mark.parametrize("name", APART)
def test_what_is_no_modulation_is_joined(name: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    model = APART[name]
    inputs = torch.randn(4, 3, 16), torch.randn(4, 16), torch.randn(4, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    joined = {"scale", "shift"} & set().union(*found_forward(graphs))
    assert joined == ({"scale"} if name in SCALE_ALONE else set()), joined


ACTIVATED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "silu": lambda x, a, b: F.silu(F.layer_norm(x, (16,), a[0], b[0])),
    "relu": lambda x, a, b: F.layer_norm(x, (16,), a[0], b[0]).relu(),
    "gelu": lambda x, a, b: F.gelu(F.layer_norm(x, (16,), a[0], b[0])),
    "gelu_tanh": lambda x, a, b: F.gelu(F.rms_norm(x, (16,), a[0]), approximate="tanh") + b[0],
    "modulated": lambda x, a, b: F.silu(plain(x) * (1 + a[:, None]) + b[:, None]),
}


@pytest.mark.parametrize("speedups", SPEEDUPS)
@pytest.mark.parametrize("name", ACTIVATED)
def test_an_activation_is_a_pass_of_its_own(name: str, speedups: str, rows: Any) -> None:  # noqa: F811
    rows(**SPEEDUPS[speedups])
    model = ACTIVATED[name]
    inputs = torch.randn(4, 3, 16), torch.randn(4, 16), torch.randn(4, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    for direction, found in given_to(graphs).items():
        assert len(found) == (direction in SPEEDUPS[speedups]), (direction, found)
    wanted = call.ACTIVATIONS["silu" if name == "modulated" else name]
    assert all(code == wanted for code in activations(graphs))


@pytest.mark.parametrize("model", [*MODULATED.values(), *ACTIVATED.values()])
def test_always_joins_what_the_model_writes_apart(model: Any) -> None:
    """Its bits are those of eager calls."""
    inputs = torch.randn(4, 3, 16), torch.randn(4, 16), torch.randn(4, 16)
    run, graphs = compiled(model)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    assert not {"scale", "shift"} & set().union(*found_forward(graphs))
    assert activations(graphs) == [0]


# ---- In front of a norm --------------------------------------------------------------------------


class Blocks(nn.Module):
    """Blocks of a transformer with LayerScale, or with the modulations and gates of a diffusion
    transformer."""

    def __init__(self, kind: str, count: int = 2, frozen: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.products = nn.ModuleList(nn.Linear(16, 16) for _ in range(2 * count))
        self.weights = nn.Parameter(torch.randn(2 * count, 16))
        self.scales = nn.Parameter(torch.randn(2 * count, 16), requires_grad=not frozen)

    def norm(self, x: Tensor, at: int, scale: Tensor, shift: Tensor) -> Tensor:
        if self.kind == "modulated":
            return plain(x) * (1 + scale[:, None]) + shift[:, None]
        if self.kind == "rms":
            return rms(x) * self.weights[at]
        return F.layer_norm(x, (16,), self.weights[at], self.weights[at] + 1)

    def forward(self, x: Tensor, conditions: Tensor) -> Tensor:
        gate, scale, shift = conditions.chunk(3, -1)
        for at, product in enumerate(self.products):
            branch = product(self.norm(x, at, scale, shift))
            scaled = gate.unsqueeze(1) * branch if self.kind == "modulated" else None
            x = x + (branch * self.scales[at] if scaled is None else scaled)
        return x


@pytest.mark.parametrize("speedups", SPEEDUPS)
@pytest.mark.parametrize("kind", ["layer", "rms", "modulated"])
def test_a_scaled_branch_is_a_pass_of_its_own(kind: str, speedups: str, rows: Any) -> None:  # noqa: F811
    rows(**SPEEDUPS[speedups])
    model, inputs = Blocks(kind), (torch.randn(4, 3, 16), torch.randn(4, 48))
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    found = given_to(graphs)
    joined = {"x", "residual", "column_scale"}
    if "forward" in SPEEDUPS[speedups]:  # in front of the first there is no sum
        assert [joined <= names for names in found["forward"]] == [False, True, True, True]
    if "backward" in SPEEDUPS[speedups]:  # the last to run is that of the first
        joined = {"dsum", "branch", "column_scale"}
        assert sorted(joined <= names for names in found["backward"]) == [False, True, True, True]


def test_the_gradient_of_a_frozen_scale_is_made(rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    model, inputs = Blocks("layer", frozen=True), (torch.randn(4, 3, 16), torch.randn(4, 48))
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    found = given_to(graphs)["backward"]
    assert sum("column_scale" in names for names in found) == 3
    assert not any("branch" in names for names in found)


#: What the call must not take, as it would be missed or is no scale: x, y (B, S, D), a (B, D).
SUMS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "the product is read": lambda x, y, a: (plain(x + (p := y * a[0])), p.sin()),
    "a product of two": lambda x, y, a: plain(x + y * y.sin()),
    "a scale of rows": lambda x, y, a: plain(x + y * a[:, None, :1]),
    "a weight of the sum": lambda x, y, a: F.layer_norm((s := x + y * a[0]), (16,), s[0, 0]),
    "the sum is read": lambda x, y, a: (plain(s := x + y * a[0]), s.sin()),
    "both are scaled": lambda x, y, a: plain(x * a[1] + y * a[0]),
    "one tensor twice": lambda x, y, a: plain(y + y * a[0]),
    "a scale for each sample": lambda x, y, a: plain(y * a[:, None] + x).exp(),
    "a batch of one": lambda x, y, a: plain(y[:1] * a[:1, None] + x[:1]),
}
SCALED = {"the sum is read", "both are scaled", "one tensor twice", "a scale for each sample"}
SCALED |= {"a batch of one"}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_joined_that_others_read(name: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    model = SUMS[name]
    inputs = torch.randn(4, 3, 16), torch.randn(4, 3, 16), torch.randn(4, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    (names,) = given_to(graphs)["forward"]
    assert ("column_scale" in names) == (name in SCALED), names
    assert ("residual" in names) == (name != "a weight of the sum"), names


@pytest.mark.parametrize("kind", ["layer", "rms", "modulated"])
def test_always_scales_a_branch(kind: str) -> None:
    model, inputs = Blocks(kind), (torch.randn(4, 3, 16), torch.randn(4, 48))
    run, graphs = compiled(model)
    close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    names = set().union(*given_to(graphs)["forward"], *given_to(graphs)["backward"])
    assert not {"residual", "column_scale", "scale", "dsum"} & names, names


@pytest.mark.parametrize("kind", ["layer", "modulated"])
def test_another_length_is_another_graph(kind: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    model = Blocks(kind)
    run, graphs = compiled(model, choice.FASTER, dynamic=True)
    for batch, length in ((4, 3), (5, 7), (2, 9)):
        inputs = torch.randn(batch, length, 16), torch.randn(batch, 48)
        close(results_of(run, model, *inputs), results_of(model, model, *inputs))
    assert len(graphs.modules) == 2, "a forward and a backward"
    assert sum("column_scale" in names for names in found_forward(graphs)) == 3


# ---- Models of other libraries -------------------------------------------------------------------


def diffusion_transformer() -> tuple[nn.Module, dict[str, Any]]:
    diffusers = pytest.importorskip("diffusers")
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
    model = diffusers.DiTTransformer2DModel(in_channels=4, out_channels=4, sample_size=8, **sizes)
    labels = torch.tensor([3, 4])
    inputs = {"hidden_states": torch.randn(2, 4, 8, 8), "timestep": labels, "class_labels": labels}
    return model.eval(), inputs | {"return_dict": False}  # training draws which labels are dropped


def vision_transformer() -> tuple[nn.Module, dict[str, Any]]:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("deit3_small_patch16_224", num_classes=3, **sizes)
    return model, {"x": torch.randn(2, 3, 32, 32)}


#: The model, and how many of its norms have each of these, forward and backward. The first norm of
#: the DiT is of a permuted image, so that the sum behind it is of two layouts.
WHOLE: dict[str, tuple[Callable[[], Any], dict[str, tuple[int, int]]]] = {
    "DiT": (diffusion_transformer, {"scale": (4, 4), "residual": (3, 0), "column_scale": (3, 4)}),
    "ViT": (vision_transformer, {"residual": (4, 0), "column_scale": (4, 4)}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_of_another_library_has_passes_beside_its_norms(name: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    torch.manual_seed(0)
    (model, inputs), wanted = WHOLE[name][0](), WHOLE[name][1]
    parameters = list(model.parameters())
    for parameter in parameters:  # LayerScale begins at 1e-5 or so, modulations at 0
        nn.init.normal_(parameter, std=0.1)

    def gradients(run: Any) -> list[Tensor]:
        found = run(**inputs)
        found = found[0] if isinstance(found, tuple) else found
        given = torch.autograd.grad(found.sin().sum(), parameters, allow_unused=True)
        return [found.detach(), *(g for g in given if g is not None)]

    run, graphs = compiled(model, choice.FASTER, fullgraph=False)
    close(gradients(run), gradients(model), 1e-3)
    forwards, backwards = given_to(graphs).values()
    for tensor, counts in wanted.items():
        have = [sum(tensor in names for names in found) for found in (forwards, backwards)]
        assert tuple(have) == counts, (tensor, have)
