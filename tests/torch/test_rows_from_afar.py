"""Rows from beyond a core's own cache: how they are taken is a CPU's row of numbers (cpu/tuning.c),
and no bit of a gradient may depend on it. Speed is for `planish bench switch`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Of Zen 4 rows go one by one, of Zen 3 in steps or alone; of Zen 5 they are asked for elsewhere.
CPUS = ("zen4", "zen3", "zen5")
#: Whole vectors and not, whole lines and not; dx in the shared cache and past it.
SHAPES = (
    (3000, 130), (4001, 160), (3137, 200), (3000, 255), (3136, 256), (7000, 96), (9001, 72),
    (30011, 80), (25088, 128), (22000, 100), (13000, 256),
)  # fmt: skip

PROGRAM = """
import hashlib, sys
import planish, torch
from torch.nn import functional

def gradients(rows, columns):
    torch.manual_seed(rows)
    x, dy = torch.randn(rows, columns) * 3 + 1, torch.randn(rows, columns)
    dy[rows // 2] *= 1e30  # constants out of range: such a row goes a way of its own
    weight, bias = torch.randn(columns), torch.randn(columns)
    layer = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = functional.layer_norm(layer[0], (columns,), layer[1], layer[2])
    yield from torch.autograd.grad(y, layer, dy)
    rms = [t.clone().requires_grad_() for t in (x, weight)]
    yield from torch.autograd.grad(functional.rms_norm(rms[0], (columns,), rms[1], 1e-5), rms, dy)

with planish.enabled():
    for size in sys.argv[1:]:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sha = hashlib.sha256()
            for gradient in gradients(*map(int, size.split("x"))):
                assert not gradient.isnan().any()
                sha.update(gradient.numpy().tobytes())
            print(sha.hexdigest())
for operator in ("native_layer_norm_backward", "_fused_rms_norm_backward"):
    assert planish.stats()[operator]["planish"] == 2 * len(sys.argv[1:]), planish.stats()
"""


@pytest.fixture(scope="module")
def hashes() -> dict[str, list[str]]:
    """Of both norms' gradients by each CPU's numbers, each in a process of its own: for every
    shape that on one thread and that on two."""
    found = {}
    for cpu in CPUS:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *(f"{rows}x{columns}" for rows, columns in SHAPES)],
            env={**os.environ, "PLANISH_CPU": cpu},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found[cpu] = done.stdout.split()
    return found


@pytest.mark.parametrize("index", range(len(SHAPES)), ids=[str(shape) for shape in SHAPES])
def test_a_bit_of_a_gradient_depends_on_the_cpus_numbers(
    index: int, hashes: dict[str, list[str]]
) -> None:
    found = {cpu: lines[2 * index : 2 * index + 2] for cpu, lines in hashes.items()}
    assert len({line for lines in found.values() for line in lines}) == 1, found
