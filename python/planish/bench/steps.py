"""Whole models in several ways: forward and training steps by turns, and the table of them.

Knows nothing of norms: a way is a model with its batch (models.Workload) and a block to run it in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from planish.commands.models import Workload

from .program import clock_of
from .timing import TOO_NOISY, Effort, Timed, interleave, ratio


@dataclass(frozen=True)
class StepRow:
    """One kind of step of one model in one way."""

    work: str
    direction: str
    way: str
    milliseconds: float | None  # None: too noisy
    items_per_s: float | None
    times: float | None  # how many times as fast as the first way
    trials: int
    loss: float


@dataclass(frozen=True)
class WayOfModel:
    """A model with its batch, and the block in which its steps run."""

    workload: Workload
    context: Callable[[], AbstractContextManager[object]]


def _timed(
    step: Callable[[], torch.Tensor], way: WayOfModel, losses: dict[str, float], name: str
) -> Timed:
    device = next(way.workload.model.parameters()).device.type
    clock = clock_of(device, warm=False)(step)

    def timed(count: int) -> float:
        with way.context():
            if name not in losses:  # every step has the same
                losses[name] = float(step())
            return clock(count)

    return timed


def steps_by_turns(work: str, ways: Mapping[str, WayOfModel], effort: Effort) -> list[StepRow]:
    """Inference and training steps of each way; prints a line for each."""
    rows: list[StepRow] = []
    first = next(iter(ways))
    for direction in ("inference", "training"):
        losses: dict[str, float] = {}
        works = {}
        for name, way in ways.items():
            load = way.workload
            step = load.infer if direction == "inference" else load.train
            works[name] = _timed(step, way, losses, name)
        samples = interleave(works, effort, alike=True)
        print()
        for name, sample in samples.items():
            times = ratio(samples[first], sample)
            batch = ways[name].workload.batch
            row = StepRow(
                work,
                direction,
                name,
                None if sample.noisy else sample.median * 1e3,
                None if sample.noisy else batch / sample.median,
                None if times.noisy else times.value,
                len(sample.seconds),
                losses[name],
            )
            rows.append(row)
            step_time = TOO_NOISY if sample.noisy else f"{sample.median * 1e3:.1f} ms"
            speed = "" if sample.noisy else f"{batch / sample.median:.1f}/s"
            print(
                f"{work:46} {direction:10} {name:18}{step_time:>14}{speed:>12}{times!s:>11}"
                f"  loss {losses[name]:.5f}",
                flush=True,
            )
    return rows
