"""Large results are made in huge pages where their memory is new."""

import os
import pathlib
import subprocess
import sys

import pytest

import planish
import torch

SMAPS = pathlib.Path("/proc/self/smaps")
HUGE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = [
    pytest.mark.skipif(not HUGE.exists(), reason="this kernel has no transparent huge pages"),
    pytest.mark.skipif(
        not (SMAPS.exists() and "VmFlags" in SMAPS.read_text()),
        reason="this kernel does not tell the flags of a mapping",
    ),
]


def flags(address):
    """Those of the mapping in which an address lies, as /proc/self/smaps has them."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        first, _, _ = line.partition(" ")
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping holds {address:#x}")


def middle(tensor):
    return tensor.data_ptr() + tensor.numel() * tensor.element_size() // 2


def results(rows):
    """y and dx of a norm under planish, of rows of 4 KB."""
    x = torch.randn(rows, 1024, requires_grad=True)
    with planish.enabled():
        y = torch.nn.functional.layer_norm(x, (1024,))
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y, dx


def in_a_new_process(condition, **environment):
    """Asserts the condition where malloc has kept no memory: there 48 MB are mapped anew."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from test_pages import flags, middle, results\n"
            f"assert {condition}, [flags(middle(r)) for r in results(12 << 10)]",
        ],
        cwd=pathlib.Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr


def test_large_results_have_huge_pages():
    in_a_new_process("all('hg' in flags(middle(r)) for r in results(12 << 10))")


def test_small_results_are_left_alone():
    in_a_new_process("not any('hg' in flags(middle(r)) for r in results(16))")


def test_they_are_right():
    y, _ = results(12 << 10)
    assert torch.allclose(y.var(-1, unbiased=False), torch.ones(len(y)), atol=1e-3)


def test_the_environment_turns_it_off():
    in_a_new_process(
        "not any('hg' in flags(middle(r)) for r in results(12 << 10))", PLANISH_HUGE_PAGES="0"
    )
