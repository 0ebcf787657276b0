"""`planish bench apex`: the two benchmarks that Apex's LayerNorm is compared with torch's by.

By module, through autograd, as a model calls it: 2048 rows of 128 to 1024 in f16, and the images of
64 x 16 x 224 x 224 normalized over all but the batch. Apex itself where it is installed, and its
names on planish.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from planish.library.dtypes import BY_NAME
from torch import nn

from .program import Row, clock_of, launch, parser, print_rows, rows_of
from .timing import Effort, Timed, interleave
from .variants import Make, Way, usable

WIDTHS = (128, 256, 512, 1024)
IMAGES = (64, 16, 224, 224)
EFFORT = Effort(trials=9, trial_seconds=0.01, case_seconds=3.0)


def layer(shape: Sequence[int], dtype: torch.dtype, device: str) -> nn.LayerNorm:
    """torch's module with weights that are not 1."""
    torch.manual_seed(3)
    norm = nn.LayerNorm(list(shape), device=device, dtype=dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.uniform_(-0.5, 0.5)
    return norm


def timed_in(way: Way, call: Callable[[], object], device: str) -> Timed:
    """Within the way's block, which is entered outside the clock."""
    clock = clock_of(device)(call)

    def timed(count: int) -> float:
        with way.context():
            return clock(count)

    return timed


def measure(
    sizes: Sequence[int],
    normalized: Sequence[int],
    dtype: torch.dtype,
    device: str,
    ways: dict[str, tuple[Way, Make | None]],
) -> list[Row]:
    """Forward with a graph, and backward through it, of every way by turns."""
    norm = layer(normalized, dtype, device)
    x = torch.randn(*sizes, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn_like(x)
    forwards: dict[str, Timed] = {}
    backwards: dict[str, Timed] = {}
    wanted: torch.Tensor | None = None
    for name, (way, make) in ways.items():
        module = layer(normalized, dtype, device) if make is None else make(norm)
        module.requires_grad_(True)

        def forward(module: nn.Module = module) -> torch.Tensor:
            y: torch.Tensor = module(x)
            return y

        with way.context():
            y = forward()
        if wanted is None:
            wanted = y.detach().double()
        gap = float((y.detach().double() - wanted).abs().max() / wanted.abs().max())
        if not gap <= 64 * torch.finfo(dtype).eps:
            raise RuntimeError(f"planish bench apex: {name} is {gap:.3g} off torch's result")
        leaves = [x, *module.parameters()]

        def backward(
            y: torch.Tensor = y, leaves: list[torch.Tensor] = leaves
        ) -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(y, leaves, dy, retain_graph=True)

        forwards[name] = timed_in(way, forward, device)
        backwards[name] = timed_in(way, backward, device)
    work = " x ".join(map(str, sizes))
    rows = rows_of(work, "forward", interleave(forwards, EFFORT, alike=True))
    return rows + rows_of(work, "backward", interleave(backwards, EFFORT, alike=True))


def run(arguments: argparse.Namespace) -> list[Row]:
    """Both tables."""
    ways = usable(arguments.device)
    dtype = BY_NAME[arguments.dtype]
    rows: list[Row] = []
    for width in WIDTHS[::3] if arguments.quick else WIDTHS:
        rows += measure((2048, width), (width,), dtype, arguments.device, ways)
    print_rows(rows)
    batch = 2 if arguments.quick else (64 if arguments.device == "cuda" else 8)
    sizes = (batch, *IMAGES[1:])
    images = measure(sizes, sizes[1:], BY_NAME[arguments.image_dtype], arguments.device, ways)
    print_rows(images)
    return rows + images


def main(words: Sequence[str]) -> int:
    """Runs the bench."""
    p = parser("apex", __doc__)
    p.add_argument("--dtype", choices=BY_NAME, default="f16", help="of the rows")
    p.add_argument("--image-dtype", choices=BY_NAME, default="f32", help="of the images")
    return launch("apex", words, p.parse_args(words), run)
