"""The same bits every time, on a GPU: the cases of check_stages.py again and again under load.

As check_repeats.py: each case, with its outputs poisoned before and compared with their first bits
after, guards too, on two streams at the same time in orders of their own, call by call and then as
one graph a stream, while a third stream multiplies matrices. Cases whose outputs lie over inputs
are left out: their inputs are gone after the first run. Prints every case that ever differed and
ends with 1 where there is one.

    python check_stage_repeats.py [--repeats 100]
"""

from __future__ import annotations

import argparse
import random
import sys

from c_api import Library, PlanishError
from repeating import repeat
from stage_backward import BackwardCase
from stage_backward_cases import backward_cases
from stage_forward import ForwardCase
from stage_forward_cases import forward_cases
from stage_reference import FILL

import torch

Case = ForwardCase | BackwardCase


class Repeated:
    """One case on the device, the bits its outputs had first, and how many runs had others."""

    def __init__(self, case: Case, library: Library) -> None:
        self.case, self.library = case, library
        given = case.inputs()
        self.tensors, buffers = case.place("cuda", given)
        self.outputs = [b.whole for name, b in buffers.items() if name not in given]
        self.kept: list[object] = []
        library.run(case.op(), case.passed, self.tensors)
        self.first = [whole.clone() for whole in self.outputs]
        self.failures = torch.zeros((), dtype=torch.int64, device="cuda")

    def queue(self) -> None:
        """Poisons, runs and compares, on the current stream."""
        for whole in self.outputs:
            whole.fill_(FILL)
        self.kept = [self.library.queue(self.case.op(), self.case.passed, self.tensors)]
        for whole, first in zip(self.outputs, self.first, strict=True):
            self.failures += (whole != first).any()


def main() -> int:
    """Runs it all; the exit status is 1 where anything differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=100, help="on each of two streams")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth case from the Ith on")
    arguments = parser.parse_args()
    first, step = map(int, arguments.share.split("/"))
    found: list[Case] = [*forward_cases(True), *backward_cases()]
    found = [c for c in found[first::step] if not getattr(c, "alias", None)]
    library = Library()
    streams = [(torch.cuda.Stream(), list[Repeated]()) for _ in range(2)]
    refused = 0
    for case in found:
        try:
            for _, works in streams:
                works.append(Repeated(case, library))
        except PlanishError as e:
            refused += 1
            print(f"REFUSED {case.name()}: {e}")
    for seed, (_, works) in enumerate(streams):
        random.Random(seed).shuffle(works)
    repeat(streams, arguments.repeats)
    differed = [(w.case.name(), int(w.failures)) for _, works in streams for w in works]
    differed = [(name, failures) for name, failures in differed if failures]
    for name, failures in differed:
        print(f"DIFFERS {name}: {failures} times")
    print(
        f"{len(found)} cases with stages, {arguments.repeats} times on each of two streams: "
        f"{len(differed)} differed, {refused} refused"
    )
    return 1 if differed or refused else 0


if __name__ == "__main__":
    sys.exit(main())
