"""planish try: your model before and after, and what a step gains.

    planish try mine:make       make() of mine.py returns (model, arguments of its forward)
    planish try bert            or a name that `planish coverage` knows

The forward and the training step (without an optimizer) run by turns, with planish under the model
(planish.replace() and planish.enable()) and without, for about a minute. Beside the times: what ran
on planish, what did not and why, and how far the results moved.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import planish
import torch
from planish import coverage, distance, reach, zoo
from planish.bench import timing
from planish.zoo import named
from torch import nn

__all__ = ["main"]

BEFORE, AFTER = "without", "planish"
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
    dtype = coverage.DTYPES[arguments.dtype]
    model, inputs = named.resolve(arguments.model, dtype)()
    model = model.to(arguments.device)
    inputs = zoo.mapped(inputs, lambda tensor: tensor.to(arguments.device))
    cuda = arguments.device.startswith("cuda")
    subject = _Subject(model, inputs, arguments.mode, arguments.activations, cuda, arguments.fuse)
    print(f"{arguments.model}, {arguments.dtype}, {arguments.device}", flush=True)
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
    print(_moved(subject), flush=True)
    for line in _time(subject, arguments.seconds):
        print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 2 for a model that is not known."""
    parser = argparse.ArgumentParser(
        prog="planish try",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="module:function, or a name")
    parser.add_argument("--dtype", choices=coverage.DTYPES, default="f32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--mode", choices=reach.MODES, default="both")
    parser.add_argument("--activations", action="store_true", help="replace(activations=True)")
    parser.add_argument("--fuse", action="store_true", help="replace(fuse=True)")
    parser.add_argument("--seconds", type=float, default=50.0, help="to measure for")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    try:
        _run(arguments)
    except named.UnknownModel as error:
        print(f"planish try: {error}", file=sys.stderr)
        return 2
    return 0
