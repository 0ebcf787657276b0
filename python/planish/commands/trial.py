"""planish try: your model before and after, and what a step gains.

Its options are in command_lines.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import planish
import torch
from planish import zoo
from planish.bench import timing
from planish.commands import command_lines, coverage, distance, reach
from planish.library.dtypes import BY_NAME
from planish.zoo import named
from torch import nn

__all__ = ["main"]

BEFORE, AFTER = "without", "planish"


def _doing(what: str) -> None:
    """Tells on stderr what goes on; stdout has the result alone."""
    print(f"planish try: {what} ...", file=sys.stderr, flush=True)


_PATIENCE = 2.0
_EFFORT = timing.Effort(trials=15, trial_seconds=0.05, patience=_PATIENCE)


@dataclasses.dataclass
class _Subject:
    """A model that is switched between the two."""

    model: nn.Module
    inputs: dict[str, Any]
    mode: str
    activations: bool
    cuda: bool
    fuse: bool = False

    @contextlib.contextmanager
    def under(self, name: str) -> Iterator[None]:
        """The model as it was, or with planish under it."""
        if name == BEFORE:
            yield
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change = reach.apply(self.mode, self.model, self.activations, self.fuse)
        try:
            with change:
                yield
        finally:
            planish.restore(self.model)

    def forward(self) -> None:
        """One forward without a graph."""
        with torch.no_grad():
            self.model(**self.inputs)
        self.wait()

    def training_step(self) -> None:
        """Forward and backward."""
        outputs = zoo.tensors_of(self.model(**self.inputs))
        loss: Any = torch.stack([output.float().mean() for output in outputs]).sum()
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        self.wait()

    def wait(self) -> None:
        """Until a GPU is done."""
        if self.cuda:
            torch.cuda.synchronize()

    def timed(self, name: str, step: Callable[[], None]) -> timing.Timed:
        """Times a step; the switch is not under the clock. With one thread by the seconds that it
        had a core, so that whoever else wants the core does not count."""
        alone = not self.cuda and torch.get_num_threads() == 1
        clock = timing.loop(step, clock="cpu" if alone else None)

        def run(count: int) -> float:
            with self.under(name):
                return clock(count)

        return run


def _time(
    subject: _Subject, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[str]:
    """A line for the forward and one for the training step, both in so many seconds: the second has
    what the first did not need."""
    lines = []
    end = clock() + seconds
    for share, title, step in (
        (2, "forward", subject.forward),
        (1, "training step", subject.training_step),
    ):
        left = max(end - clock(), 0.0) / share
        _doing(f"timing the {title} by turns, for up to {left:.0f} s")
        try:
            samples = timing.interleave(
                {name: subject.timed(name, step) for name in (BEFORE, AFTER)},
                dataclasses.replace(_EFFORT, case_seconds=left / _PATIENCE),
                clock,
                timing.ratio_settled(BEFORE, AFTER),
                alike=True,
                deadline=clock() + left,
            )
        except timing.OutOfTimeError:
            lines.append(f"  {title:14} left out: {left:.0f} s are too few for it (--seconds)")
            continue
        before, after = samples[BEFORE], samples[AFTER]
        found = timing.ratio(before, after)
        times = f"{before.median * 1e3:9.2f} ms -> {after.median * 1e3:9.2f} ms"
        if found.noisy:
            lines.append(f"  {title:14} {timing.TOO_NOISY}: other work had the cores")
        else:
            lines.append(
                f"  {title:14} {times}  {found}  (95%: {found.low:.2f} to {found.high:.2f})"
            )
    return lines


def _moved(subject: _Subject) -> str:
    """How far the results with planish are from those without; in training this needs a model
    without dropout."""
    results = []
    for name in (BEFORE, AFTER):
        with subject.under(name), torch.random.fork_rng():
            torch.manual_seed(0)
            results.append(distance.step(subject.model, subject.inputs))
    before, after = results
    outputs = distance.apart(after[0], before[0])
    names = [name for name in before[1] if name in after[1]]
    gradients = distance.apart(*([one[1][name] for name in names] for one in (after, before)))
    return f"  outputs moved by {outputs:.1e} of their largest value, gradients by {gradients:.1e}"


def _run(arguments: argparse.Namespace) -> None:
    dtype = BY_NAME[arguments.dtype]
    _doing("building the model")
    model, inputs = named.resolve(arguments.model, dtype)()
    model = model.to(arguments.device)
    inputs = zoo.mapped(inputs, lambda tensor: tensor.to(arguments.device))
    cuda = arguments.device.startswith("cuda")
    subject = _Subject(model, inputs, arguments.mode, arguments.activations, cuda, arguments.fuse)
    print(f"{arguments.model}, {arguments.dtype}, {arguments.device}", flush=True)
    _doing("counting its norm calls")
    with subject.under(AFTER), torch.no_grad():
        if arguments.mode != "enable":
            print(f"  {planish.replaced(model)}".replace("\n", "\n  "))
        model(**inputs)
        found = reach.look(model, lambda: model(**inputs), coverage.ROUNDS)
    print(
        f"  {found.on_planish} of {found.calls} norm calls of a forward ran on planish; "
        f"{coverage.norms_take(found, 'it')}"
    )
    for one, calls in found.classes.items():
        for why, count in calls.elsewhere.items():
            print(f"  not on planish: {count} x {one}: {why}")
    for line in coverage.not_planishs(found):
        print(line)
    _doing("comparing its results")
    print(_moved(subject), flush=True)
    for line in _time(subject, arguments.seconds):
        print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    arguments = command_lines.parse("try", argv)
    command_lines.check_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    _run(arguments)
    return 0
