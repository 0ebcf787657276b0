"""Several norms of one input, as blocks have them whose attention and MLP are side by side: each
adds the others' gradient of that input to its own, and all are planish's or all inductor's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
from compile_support import Graphs, compiled, results_of, rows, uncached  # noqa: F401 (fixtures)

import planish.compile
import torch
from planish.compile import choice, forms, table
from planish.operators.formulas import Given
from torch import Tensor, nn

DSUM = 1 << Given._fields.index("dsum")


class Written(nn.Module):
    """An RMS norm as language models write it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def added(terms: list[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)


#: What is around the norms' results m and x.
AROUND: dict[str, Callable[[list[Tensor], Tensor, Tensor], Tensor]] = {
    "behind": lambda m, x, _: added([*m, x]),
    "in front": lambda m, x, _: x + added(m),
    "by turns": lambda m, x, _: added([m[0], x, *m[1:]]),
    "none": lambda m, x, _: added(m),
    "scaled before": lambda m, _, scaled: added([*m, scaled]),
}


class Side(nn.Module):
    """Blocks of norms side by side."""

    def __init__(self, kind: Callable[[int], nn.Module], count: int, around: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(kind(16) for _ in range(count))
        self.ways = nn.ModuleList(nn.Linear(16, 16) for _ in range(count))
        self.ends = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.around = AROUND[around]

    def forward(self, x: Tensor) -> Tensor:
        x = self.ends[0](x)
        for _ in range(2):
            scaled = x * 1.5
            pairs = zip(self.norms, self.ways, strict=True)
            x = self.around([way(norm(x)) for norm, way in pairs], x, scaled)
        return self.ends[1](x)  # type: ignore[no-any-return]


KINDS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "written": Written,
}


def close(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def of_pass(graphs: Graphs, backward: bool) -> list[Any]:
    nodes = [node for module in graphs.modules for node in module.graph.nodes]
    found = [node for node in nodes if forms.is_form(node.target)]
    return [node for node in found if ("backward" in str(node.target)) == backward]


def sums_of_rows(graphs: Graphs) -> int:
    """In the backward, of tensors of the input's size."""
    return sum(
        node.target is torch.ops.aten.add.Tensor and node.meta["val"].dim() == 3
        for node in graphs.modules[1].graph.nodes
    )


#: With so many sums left: where the residual stream's gradient comes last.
LEFT = {"scaled before": 2}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_of_one_input_is_added_by_a_pass(
    kind: str,
    count: int,
    around: str,
    rows: Any,  # noqa: F811
) -> None:
    rows(forward=9.0, backward=9.0)
    torch.manual_seed(0)
    model, x = Side(KINDS[kind], count, around), torch.randn(4, 3, 16)
    run, graphs = compiled(model, choice.FASTER)
    close(results_of(run, model, x), results_of(model, model, x))
    assert len(of_pass(graphs, False)) == 2 * count
    backwards = of_pass(graphs, True)
    assert len(backwards) == 2 * count
    given = [bool(node.args[-5] & DSUM) for node in backwards]
    alone = 2 if around in ("none", "scaled before") else 0
    assert given.count(False) == alone, given
    assert sums_of_rows(graphs) == LEFT.get(around, 0)


#: What planish's calls of a group read and write, for what inductor's one kernel is taken to.
WANTED = {
    ("forward", "none", 2): 4 / 3,
    ("forward", "none", 3): 6 / 4,
    ("backward", "behind", 2): 8 / 6,
    ("backward", "behind", 3): 12 / 8,
    ("backward", "none", 2): 7 / 5,
}


def chosen(direction: str, before: int) -> list[tuple[str, float]]:
    entries = [e for e in planish.compile.report()[before:] if e.direction == direction]
    return [(entry.chosen, float(entry.why.rpartition("wanted ")[2])) for entry in entries]


@pytest.mark.parametrize("case", WANTED, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_norms_of_one_input_are_asked_for_one_by_one(
    case: tuple[str, str, int],
    share: float,
    rows: Any,  # noqa: F811
) -> None:
    """All are taken where their sum is faster, and none where it is not."""
    direction, around, count = case
    wanted = table.MARGIN * WANTED[case]
    rows(**{direction: share * wanted})
    model, x = Side(nn.LayerNorm, count, around), torch.randn(4, 3, 16)
    before = len(planish.compile.report())
    run, _ = compiled(model, choice.FASTER)
    close(results_of(run, model, x), results_of(model, model, x))
    found = chosen(direction, before)
    groups = [found[at : at + count] for at in range(0, len(found), count)]
    for group in groups:
        assert len({who for who, _ in group}) == 1, "one of them alone"
    # Of the other block something else is fused with its norms.
    who, figure = groups[0 if direction == "forward" else -1][0]
    assert math.isclose(figure, wanted, abs_tol=6e-3), groups
    assert who == ("planish" if share > 1 else "inductor"), groups


def test_a_norm_behind_another_is_none_beside_it(rows: Any) -> None:  # noqa: F811
    """Of the same input, but its other tensors wait for the first one."""
    rows(forward=1.1)
    weigh, norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def model(x: Tensor) -> Tensor:
        weight = weigh(norm(x)).tanh()[0, 0]
        return torch.nn.functional.layer_norm(x, (16,), weight)

    run, graphs = compiled(model, choice.FASTER)
    x = torch.randn(4, 3, 16)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
    assert len(of_pass(graphs, False)) == 2


@pytest.mark.parametrize("name", ["GPTNeoX", "Falcon"])
def test_a_parallel_model_sums_gradients_by_itself(name: str, rows: Any) -> None:  # noqa: F811
    transformers = pytest.importorskip("transformers")
    rows(forward=9.0, backward=9.0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
    more = {"intermediate_size": 64} if name == "GPTNeoX" else {"new_decoder_architecture": True}
    config = getattr(transformers, f"{name}Config")(**sizes, **more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).train()
    ids = torch.randint(0, 64, (2, 12))
    parameters = list(model.parameters())

    def gradients(run: Any) -> list[Tensor]:
        loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        return [loss.detach(), *torch.autograd.grad(loss, parameters)]

    run, graphs = compiled(model, choice.FASTER, fullgraph=False)
    close(gradients(run), gradients(model))
    backwards = of_pass(graphs, True)
    assert len(backwards) == 5
    assert sum(bool(node.args[-5] & DSUM) for node in backwards) == 4, "all but the last norm"
