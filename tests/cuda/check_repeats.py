"""The same bits every time, on a GPU: every case of check_device.py again and again under load.

Each case and a slice of it at another alignment are run, each output poisoned before and compared
with its first bits after, guards too: on two streams at the same time in orders of their own,
first call by call, then as one graph a stream, while a third stream multiplies matrices. Prints
every case that ever differed and ends with 1 where there is one.

    python check_repeats.py [--repeats 100] [--processes JOBS]
"""

from __future__ import annotations

import argparse
import math
import random
import sys

from axes_cases import AnyCase, any_cases
from check_device import prepare_all
from device_buffers import Placed
from gpu_shim import ShimError
from image_cases import image_cases
from repeating import repeat
from row_cases import Case, cooperative_cases
from row_tables import cases

import torch

# check_device.py has larger ones; here what counts is how often.
LARGEST = 4 << 20


class Repeated:
    """One placed plan, the bits its outputs had first, and how many comparisons failed since."""

    def __init__(self, name: str, placed: Placed) -> None:
        self.name, self.placed = name, placed
        placed.run()
        self.first = {r: placed.buffers[r].bits().clone() for r in placed.outputs}
        self.failures = torch.zeros((), dtype=torch.int64, device="cuda")

    def queue(self) -> None:
        """Poisons, runs and compares, on the current stream."""
        for r in self.placed.outputs:
            self.placed.buffers[r].whole.fill_(math.nan)
        self.placed.queue()
        for r, bits in self.first.items():
            self.failures += (self.placed.buffers[r].bits() != bits).any()


def elements(case: Case | AnyCase) -> int:
    """How many elements x has."""
    return case.rows * case.cols if isinstance(case, Case) else math.prod(case.shape)


def repeated(case: Case | AnyCase) -> list[Repeated]:
    """The case, and a slice of it where it has one, which must agree with the whole."""
    d = case.inputs()
    out = [Repeated(case.name(), case.whole(d))]
    if part := case.part(d):
        out.append(Repeated(case.name() + ", a slice", part[0]))
        whole, sliced = out[0].placed.buffers, part[0].buffers
        for r in ("y", "mean", "rstd", "m2", "dx"):
            if r in out[0].first and not torch.equal(whole[r].view[part[1]], sliced[r].view):
                out[1].failures += 1
    return out


def main() -> int:
    """Runs it all; the exit status is 1 where anything differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=100, help="on each of two streams")
    parser.add_argument("--processes", type=int, default=0, help="compile ahead in parallel")
    arguments = parser.parse_args()
    found = [*cases(False), *any_cases(False), *cooperative_cases(False), *image_cases(False)]
    found = [c for c in found if elements(c) <= LARGEST]
    if arguments.processes:
        prepare_all(found, arguments.processes)
    streams = [(torch.cuda.Stream(), list[Repeated]()) for _ in range(2)]
    refused = 0
    for case in found:
        try:
            for _, works in streams:
                works += repeated(case)
        except ShimError as e:
            refused += 1
            print(f"REFUSED {case.name()}: {e}")
    for seed, (_, works) in enumerate(streams):
        random.Random(seed).shuffle(works)
    repeat(streams, arguments.repeats)
    differed = [(w.name, int(w.failures)) for _, works in streams for w in works if w.failures]
    for name, failures in differed:
        print(f"DIFFERS {name}: {failures} times")
    count = len(streams[0][1])
    print(
        f"{len(found)} cases, {count} with their slices, {arguments.repeats} times on each of two "
        f"streams: {len(differed)} differed, {refused} refused"
    )
    return 1 if differed or refused else 0


if __name__ == "__main__":
    sys.exit(main())
