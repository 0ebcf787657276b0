"""Which group norms go to torch's own kernel by what was timed on a Zen 4 alone, some of them with
two threads or more alone (src/torch/group_faster.c). The environment says that this is one: the
rules are the same wherever the tests run. Those of every CPU are in test_group_norm.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

BOTH, TEAM, NEVER = "whatever the threads", "two threads", "never"


class Call(NamedTuple):
    """A group norm, and when its forward and its backward are torch's."""

    shape: tuple[int, ...]
    groups: int
    dtype: str
    last: bool
    forward: str
    backward: str


CALLS = (
    # Channels last, half a line of each of many pixels.
    Call((1, 256, 128, 128), 32, "float32", True, BOTH, BOTH),
    Call((1, 256, 96, 96), 32, "float32", True, BOTH, NEVER),  # no more pixels than that
    Call((1, 160, 128, 128), 32, "float32", True, BOTH, NEVER),  # 20 bytes
    # Channels last, few pixels.
    Call((1, 512, 7, 7), 32, "float32", True, TEAM, TEAM),
    Call((1, 512, 3, 6), 32, "float32", True, NEVER, NEVER),  # few elements
    Call((2, 1280, 8, 8), 32, "float32", True, BOTH, BOTH),
    Call((1, 2048, 7, 7), 32, "bfloat16", True, BOTH, TEAM),
    Call((2, 1280, 8, 8), 40, "bfloat16", True, BOTH, TEAM),
    Call((2, 1280, 8, 8), 32, "bfloat16", True, BOTH, NEVER),  # 80 bytes: no whole vectors
    Call((1, 1024, 14, 14), 32, "bfloat16", True, BOTH, TEAM),
    Call((4, 1024, 14, 14), 32, "bfloat16", True, BOTH, NEVER),
    # Fewer groups than threads.
    Call((1, 96, 56, 56), 1, "bfloat16", True, BOTH, TEAM),
    # Dense.
    Call((2, 1280, 16, 16), 32, "float32", False, NEVER, TEAM),
    Call((1, 1280, 16, 16), 32, "float32", False, NEVER, NEVER),
    Call((2, 1280, 16, 16), 32, "bfloat16", False, NEVER, NEVER),
    # Dense, few pixels.
    Call((2, 1920, 2, 2), 60, "float32", False, TEAM, NEVER),
    Call((2, 1920, 2, 2), 60, "bfloat16", False, TEAM, BOTH),
    Call((1, 512, 2, 2), 16, "float32", False, NEVER, NEVER),  # few elements
    Call((2, 1280, 8, 8), 40, "bfloat16", False, NEVER, TEAM),
    Call((1, 512, 7, 7), 32, "float32", False, TEAM, TEAM),
    Call((8, 256, 14, 14), 32, "float32", False, NEVER, TEAM),
    Call((2, 640, 32, 32), 32, "float32", False, NEVER, NEVER),  # many pixels
    Call((1, 128, 512, 512), 32, "bfloat16", True, TEAM, NEVER),
)  # fmt: skip

PROGRAM = """
import json, sys
import planish, torch
from torch.nn import functional

def handed_on():
    counts = planish.stats()
    return [sum(counts[name]["torch"].values())
            for name in ("native_group_norm", "native_group_norm_backward")]

found = []
for shape, groups, dtype, last, *_ in json.loads(sys.argv[1]):
    for threads in (1, 2):
        torch.set_num_threads(threads)
        x = torch.randn(shape, dtype=getattr(torch, dtype))
        x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
        before = handed_on()
        with planish.enabled():
            y = functional.group_norm(x, groups)
            torch.autograd.grad(y, x, torch.ones_like(y))
        found.append([after - b for after, b in zip(handed_on(), before, strict=True)])
print(json.dumps(found))
"""


def run_as(cpu: str) -> list[list[int]]:
    """Of each call, on one thread and on two: whether forward and backward were handed on."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CALLS)],
        env={**os.environ, "PLANISH_CPU": cpu},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def on_zen4() -> list[list[int]]:
    return run_as("zen4")


@pytest.mark.parametrize("index", range(len(CALLS)), ids=[str(call) for call in CALLS])
def test_a_zen_4_runs_what_torch_is_faster_at(index: int, on_zen4: list[list[int]]) -> None:
    call = CALLS[index]
    one, two = on_zen4[2 * index : 2 * index + 2]
    wanted_of_one = [int(when == BOTH) for when in (call.forward, call.backward)]
    wanted_of_two = [int(when != NEVER) for when in (call.forward, call.backward)]
    assert (one, two) == (wanted_of_one, wanted_of_two)


def test_another_cpu_goes_by_a_zen_4() -> None:
    """The same calls, on a CPU on which none of the rules of threads was timed."""
    found = run_as("intel_avx512")
    for index, call in enumerate(CALLS):
        if call.backward == TEAM and call.groups > 1:
            assert [handed[1] for handed in found[2 * index : 2 * index + 2]] == [0, 0], call
