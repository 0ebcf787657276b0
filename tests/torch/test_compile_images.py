"""Norms of images in compiled graphs: what has the channels last is not copied, nor kept twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from compile_support import compiled, results_of, rows, uncached  # noqa: F401 (fixtures)
from torch._inductor import choices

import planish
import torch
from planish.compile import choice, neighbours, reading
from torch import Tensor, fx, nn

LAST = torch.channels_last


class Block(nn.Module):
    """As U-Nets of diffusers have it: on a GPU torch's group norm copies its input itself."""

    def __init__(self, shortcut: Any = None) -> None:
        super().__init__()
        self.before, self.inner = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norm, self.shortcut = nn.GroupNorm(4, 8), shortcut or nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        image = self.before(x)
        rows_ = image.contiguous()
        return self.inner(self.norm(rows_)) + self.shortcut(rows_)


class Twice(nn.Module):
    """What no convolution does."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def _graphs(model: nn.Module, mode: str = choice.FASTER) -> Any:
    """The graphs of a training step whose results are those of eager mode."""
    x = torch.randn(2, 8, 6, 4).to(memory_format=LAST)
    run, graphs = compiled(model, mode)
    for one, other in zip(results_of(run, model, x), results_of(model, model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    return graphs


def _read(graphs: Any, name: str, *places: int) -> list[tuple[int, ...]]:
    """The strides of what operators of this name read there."""
    return [
        node.args[place].meta["val"].stride()
        for module in graphs.modules
        for node in module.graph.nodes
        if name in str(node.target)
        for place in places
    ]


@pytest.mark.parametrize("speedups", ["forward", "backward", "forward backward"])
def test_a_graph_keeps_an_image_and_its_copy(speedups: str, rows: Any) -> None:  # noqa: F811
    def kept(graphs: Any) -> int:
        outputs = graphs.modules[0].graph.output_node().all_input_nodes
        return sum(node.meta["val"].shape == (2, 8, 6, 4) for node in outputs)

    rows(**dict.fromkeys(speedups.split(), 9.0))
    model = Block().to(memory_format=LAST)
    graphs = _graphs(model)
    assert kept(graphs) <= kept(_graphs(model, choice.NEVER))
    if speedups != "forward":  # else both are what inductor's backward reads
        assert graphs.counted()["aten::clone"] == 1 - ("forward" in speedups)


def test_a_gradient_lies_otherwise_than_its_image(rows: Any) -> None:  # noqa: F811
    rows(backward=9.0)
    graphs = _graphs(Block().to(memory_format=LAST))
    assert _read(graphs, "graph_backward", 0, 1) == [(192, 1, 32, 8)] * 2


def test_a_copy_that_others_read_is_spared(rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    graphs = _graphs(Block(Twice()).to(memory_format=LAST))
    assert graphs.counted()["aten::clone"] == 1


def test_a_convolution_of_other_results_reads_the_image(rows: Any) -> None:  # noqa: F811
    """With a weight whose channels are not last the copy decides how its result lies."""
    rows(forward=9.0, backward=9.0)
    model = Block(nn.Conv2d(8, 8, 3, padding=1))
    for one in (model.before, model.inner):
        one.to(memory_format=LAST)
    graphs = _graphs(model)
    assert sorted(_read(graphs, "aten.convolution.", 0)).count((192, 24, 4, 1)) == 1


def test_a_convolution_is_fused_with_the_norm_that_it_reads() -> None:
    """Of one with a bias inductor adds that itself, on a GPU; what it adds it to no norm makes."""
    graph = fx.Graph()
    x, weight, bias = (graph.placeholder(name) for name in ("x", "weight", "bias"))
    norm = graph.call_function(torch.ops.aten.cos.default, (x,))
    more = (weight, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    made = graph.call_function(torch.ops.aten.convolution.default, (norm, *more))
    behind = graph.call_function(torch.ops.aten.relu.default, (norm,))
    made.meta["val"] = behind.meta["val"] = SimpleNamespace(is_cuda=True)
    assert not neighbours._is_fused(made, norm)
    assert neighbours._is_fused(behind, norm)
    assert neighbours._is_made(made)


@pytest.mark.parametrize("groups", [32, 256, 264, 4096])
@pytest.mark.parametrize("elements", [40, 8192, 8200, 40960])
def test_inductor_splits_other_sums(
    groups: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups on a device of 132 multiprocessors, than this package says."""
    device = SimpleNamespace(
        major=9,
        multi_processor_count=132,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        warp_size_or_default=32,
    )
    monkeypatch.setattr(choices.DeviceProperties, "create", lambda _: device)
    split = choices.InductorChoices().reduction_split_factor(
        torch.device("cuda"), elements, groups, True
    )
    assert neighbours.splits_sums(groups, elements, 132) == (split > 1)


# ---- Images by channel, seen with their channels last -------------------------------------------


class Seen(nn.Module):
    """As transformers of U-Nets and ConvNeXts see an image of 12 x 12 by channel."""

    def __init__(self, flat: bool = True, back: bool = False) -> None:
        super().__init__()
        self.flat, self.back = flat, back
        self.before, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm(8)
        self.behind = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        image = self.before(x)
        seen = image.flatten(2).transpose(1, 2) if self.flat else image.permute(0, 2, 3, 1)
        rows_ = self.norm(seen)
        if not self.back:
            return self.behind(rows_)
        return (rows_.transpose(1, 2) if self.flat else rows_.permute(0, 3, 1, 2)).contiguous()


def _of_seen(model: nn.Module, side: int = 12, mode: str = choice.FASTER) -> Any:
    x = torch.randn(2, 3, side, side)
    run, graphs = compiled(model, mode)
    for one, other in zip(results_of(run, model, x), results_of(model, model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    return graphs


def _taken(graphs: Any) -> tuple[int, int]:
    names = graphs.counted()
    return names["planish::graph_forward"], names["planish::graph_backward"]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("back", [True, False])
def test_an_image_by_channel_is_left(flat: bool, back: bool, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    graphs = _of_seen(Seen(flat, back))
    assert _taken(graphs) == (1, 1)
    gradient, x = _read(graphs, "graph_backward", 0, 1)
    assert gradient == x == ((1152, 1, 144) if flat else (1152, 12, 1, 144))


def test_an_image_of_few_pixels_is_taken(rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    assert _taken(_of_seen(Seen(), side=8)) == (0, 0)


@pytest.mark.parametrize(("speedup", "taken"), [(2.3, 0), (2.5, 1)])
def test_a_copied_gradient_costs_nothing(speedup: float, taken: int, rows: Any) -> None:  # noqa: F811
    """Two passes of three, and two that the rows of channels had in inductor's way."""
    rows(backward=speedup)
    assert _taken(_of_seen(Seen()))[1] == taken


class Stream(nn.Module):
    """A residual stream that begins with an image by channel: its sums lie as that, and their
    gradients go into products."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.place = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.behind = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x).flatten(2).transpose(1, 2)
        x = x + self.place(x)
        for norm, product in zip(self.norms, self.behind, strict=True):
            x = x + product(norm(x))
        return x


@pytest.mark.parametrize("mode", [choice.FASTER, choice.ALWAYS])
def test_a_stream_by_channel_is_wrong(mode: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    _of_seen(Stream(), mode=mode)


@pytest.mark.parametrize("lies", ["whole", "part", "pixels apart", "rows", "two axes"])
def test_another_layout_is_by_channel(lies: str) -> None:
    """A part of the channels of an image still is; what has pixels apart, or no image, is not."""
    image = torch.empty(2, 16, 12, 12)
    seen = {
        "whole": image.permute(0, 2, 3, 1),
        "part": image[:, 4:12].permute(0, 2, 3, 1),
        "pixels apart": image[..., ::2].permute(0, 2, 3, 1),
        "rows": image,
        "two axes": image[0].flatten(1).T,
    }
    assert reading.is_by_channel(seen[lies]) == (lies in ("whole", "part"))


@pytest.mark.parametrize(
    ("last", "speedups", "taken"),
    [
        (False, {"forward": 1.5, "backward": 2.0}, (0, 0)),
        (False, {"forward": 1.6, "backward": 2.1}, (1, 1)),
        (True, {"forward": 1.1, "backward": 1.1}, (1, 1)),
    ],
)
def test_rows_of_channels_were_measured_of_one_layout(
    last: bool,
    speedups: dict[str, float],
    taken: tuple[int, int],
    rows: Any,  # noqa: F811
) -> None:
    """Inductor's way had a copy there, and results with their channels last; an image that has
    these is rows."""
    rows(**speedups)

    def model(x: Tensor) -> Tensor:
        return planish.layer_norm(x, dims=1)

    x = torch.randn(2, 8, 12, 12)
    x = x.to(memory_format=LAST) if last else x
    run, graphs = compiled(model, choice.FASTER)
    for one, other in zip(results_of(run, model, x), results_of(model, model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert _taken(graphs) == taken
