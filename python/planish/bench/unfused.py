"""`planish bench unfused`: LayerNorm before 2019, one operator after the other, beside the fused.

Prints what torch's profiler counts in the backward of each: the operators, how often each ran and
how long; then the times of forward and backward by turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from planish.library.dtypes import BY_NAME

from .apex import measure
from .program import Row, launch, parser, print_rows
from .variants import Make, Way, usable

SIZES = (4096, 1024)
SMALL = (512, 256)
LINES = 14
SHOWN = ("torch", "unfused", "planish-enable")


@dataclass(frozen=True)
class Profile:
    """What one backward consists of."""

    way: str
    table: str
    operators: int  # of aten and planish, those that others called included


def profile(call: Callable[[], object], device: str) -> tuple[str, int]:
    """torch's table of one call after another that warmed up, and how many operators it ran."""
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if device == "cuda" else [kinds.CPU]
    for _ in range(3):
        call()
    with torch.profiler.profile(activities=activities) as found:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
    averages: Any = found.key_averages()
    key = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    table: str = averages.table(sort_by=key, row_limit=LINES, max_name_column_width=40)
    count = sum(e.count for e in averages if e.key.startswith(("aten::", "planish::")))
    return table, count


def profiles(
    sizes: Sequence[int], dtype: torch.dtype, device: str, ways: dict[str, tuple[Way, Make | None]]
) -> list[Profile]:
    """The backward of each way."""
    from .apex import layer

    found = []
    for name, (way, make) in ways.items():
        norm = layer(sizes[-1:], dtype, device)
        module = norm if make is None else make(norm)
        x = torch.randn(*sizes, device=device, dtype=dtype, requires_grad=True)
        dy = torch.randn_like(x)
        with way.context():
            y = module(x)
            leaves = [x, *module.parameters()]

            def call(y: torch.Tensor = y, dy: torch.Tensor = dy, leaves: Any = leaves) -> object:
                return torch.autograd.grad(y, leaves, dy, retain_graph=True)

            found.append(Profile(name, *profile(call, device)))
    return found


def run(arguments: argparse.Namespace) -> list[Row]:
    """The profiles, then the times."""
    ways = usable(arguments.device)
    chosen = {name: way for name, way in ways.items() if name in SHOWN}
    sizes, dtype = SMALL if arguments.quick else SIZES, BY_NAME[arguments.dtype]
    text = []
    for found in profiles(sizes, dtype, arguments.device, chosen):
        text.append(f"backward of {found.way}, {' x '.join(map(str, sizes))} {arguments.dtype}:")
        text.append(f"{found.operators} operators\n{found.table}")
    print("\n" + "\n".join(text))
    path: Path = arguments.out / "unfused-profile.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n")
    rows = measure(sizes, sizes[-1:], dtype, arguments.device, chosen)
    print_rows(rows)
    return rows


def main(words: Sequence[str]) -> int:
    """Runs the bench."""
    p = parser("unfused", __doc__)
    p.add_argument("--dtype", choices=BY_NAME, default="f32")
    return launch("unfused", words, p.parse_args(words), run)
