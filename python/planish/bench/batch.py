"""`planish bench batch`: F.batch_norm in training and in eval, torch's own and planish's under it.

The shapes are those of ResNet-50 and of smaller images that stay in a CPU's cache, in both memory
formats. What is timed is what a model calls: the forward of a training step, the forward of an
inference, and a forward with a backward through it. A copy of x beside the forwards says what any
of them takes that reads its input once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch.nn import functional

import torch
from planish.commands.command_lines import words
from planish.library.dtypes import BY_NAME

from .program import Row, clock_of, launch, parser, print_rows, rows_of
from .providers.planish_torch import enabled, switched_off
from .switch import Outputs, error, is_wrong, under
from .timing import Effort, Timed, interleave

EFFORT = Effort(trials=9, trial_seconds=0.01, case_seconds=2.0)
EPS, MOMENTUM = 1e-5, 0.1
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
PASSES = ("training", "eval", "both")  # both: forward in training and backward

# Images, channels, and height and width alike.
SIZES = (
    (32, 64, 112),
    (32, 256, 56),
    (32, 512, 28),
    (32, 1024, 14),
    (32, 2048, 7),
    (64, 128, 28),
    (8, 64, 56),
    (16, 256, 14),
    (32, 512, 7),
)
QUICK = ((8, 64, 56), (16, 256, 14))


class Work(NamedTuple):
    """What is timed."""

    images: int
    channels: int
    side: int
    layout: str
    dtype: str
    direction: str

    def label(self) -> str:
        return (
            f"{self.images} x {self.channels} x {self.side} x {self.side} {self.layout} "
            f"{self.dtype}"
        )


class Operands(NamedTuple):
    """The tensors of a batch norm."""

    x: torch.Tensor
    dy: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    mean: torch.Tensor  # running
    var: torch.Tensor


def operands(work: Work, device: str) -> Operands:
    """The same for the same work; parameters and running statistics are f32."""
    generator = torch.Generator(device).manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    shape = work.images, work.channels, work.side, work.side
    x, dy = (
        normal(*shape).to(BY_NAME[work.dtype]).to(memory_format=LAYOUTS[work.layout])
        for _ in range(2)
    )
    weight, bias, mean, deviation = (normal(work.channels) for _ in range(4))
    return Operands(x, dy, weight, bias, mean / 8, 1 + deviation.abs() / 4)


def call_of(direction: str, o: Operands) -> Callable[[], Outputs]:
    """What a model calls; returns its outputs."""
    if direction == "both":
        leaves = [t.detach().requires_grad_() for t in (o.x, o.weight, o.bias)]

        def both() -> Outputs:
            y = functional.batch_norm(
                leaves[0], o.mean, o.var, leaves[1], leaves[2], True, MOMENTUM, EPS
            )
            return (y.detach(), *torch.autograd.grad(y, leaves, o.dy))

        return both

    def forward() -> Outputs:
        with torch.no_grad():
            training = direction == "training"
            return (
                functional.batch_norm(
                    o.x, o.mean, o.var, o.weight, o.bias, training, MOMENTUM, EPS
                ),
            )

    return forward


def measure(work: Work, device: str) -> list[Row]:
    """Checks and times torch's and planish's, by turns."""
    made = operands(work, device)
    wanted = call_of(work.direction, Operands(*(t.double() for t in made)))()
    call = call_of(work.direction, made)
    errors: dict[str, float] = {}
    works: dict[str, Timed] = {}
    for name, context in (("torch", switched_off), ("planish", enabled)):
        with context():
            errors[name] = error(call(), wanted)
        works[name] = under(context, call, clock_of(device)(call))
    if is_wrong(errors["planish"], errors["torch"]):
        raise RuntimeError(f"planish bench batch: {work}: planish is {errors['planish']:.3g} off")
    del wanted
    if work.direction != "both":
        works["copy"] = under(switched_off, made.x.clone, clock_of(device)(made.x.clone))
    return rows_of(work.label(), work.direction, interleave(works, EFFORT, alike=True))


def run(arguments: argparse.Namespace) -> list[Row]:
    """A table for each layout, dtype and pass."""
    rows: list[Row] = []
    for layout in words(arguments.layout, list(LAYOUTS), "--layout"):
        for dtype in words(arguments.dtype, list(BY_NAME), "--dtype"):
            for direction in words(arguments.direction, PASSES, "--direction"):
                group: list[Row] = []
                for size in QUICK if arguments.quick else SIZES:
                    work = Work(*size, layout, dtype, direction)
                    if arguments.only in work.label():
                        group += measure(work, arguments.device)
                print_rows(group)
                rows += group
    return rows


def main(given: Sequence[str]) -> int:
    """Runs the bench."""
    p = parser("batch", __doc__)
    p.add_argument("--layout", default="nchw,nhwc", help="nhwc: channels last")
    p.add_argument("--dtype", default="f32,bf16")
    p.add_argument("--direction", default=",".join(PASSES), help="both: forward and backward")
    p.add_argument("--only", default="", help="shapes whose label has this in it")
    return launch("batch", given, p.parse_args(given), run)
