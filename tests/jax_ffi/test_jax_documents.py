"""Every block of docs/guide/jax.md and every example of the docstrings runs."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/jax.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block(block: str) -> None:
    ran = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "module", ["batch_functions", "functions", "linen", "nnx", "patching", "stage_functions"]
)
def test_examples(module: str) -> None:
    failed, run = doctest.testmod(importlib.import_module(f"planish.jax.{module}"))
    assert run > 0 and failed == 0


def test_torch_is_not_imported() -> None:
    words = "import sys, planish.jax; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0


def test_every_function_is_on_the_page() -> None:
    names = ["layer_norm", "rms_norm", "group_norm", "batch_norm"]
    names += importlib.import_module("planish.jax.stage_functions").__all__
    assert len(BLOCKS) == 3
    assert [name for name in names if f"`{name}`" not in PAGE] == []
