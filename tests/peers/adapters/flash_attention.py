"""flash-attn's tests/ops/triton/test_layer_norm.py over planish.compat.flash_attn.

The reference functions that the tests compare with are taken from the checkout's own
flash_attn/ops/triton/layer_norm.py, by name and without importing it, since it needs Triton.
"""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path

import torch
from planish.compat import flash_attn as ours

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: Rows of each of 8 samples. The suite's 512 take some 10 s a case on a CPU.
ROWS = 512 if DEVICE == "cuda" else 64

TESTS = {
    "tests/ops/triton/test_layer_norm.py": [
        ('torch.cuda.get_device_capability("cuda")[0] >= 8', "True"),
        ('device = "cuda"', f'device = "{DEVICE}"'),
        ("seqlen = 512", f"seqlen = {ROWS}"),
        ('device_type="cuda"', f'device_type="{DEVICE}"'),
        ("from einops import rearrange, repeat\n", ""),  # imported and not used
    ]
}

NOT_APPLICABLE: list[tuple[str, str]] = []

REFERENCES = ("layer_norm_ref", "rms_norm_ref")


def install(folder: Path) -> None:
    path = folder / "flash_attn/ops/triton/layer_norm.py"
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in REFERENCES
    ]
    module = types.ModuleType("flash_attn.ops.triton.layer_norm")
    module.__dict__.update(torch=torch, F=torch.nn.functional)
    exec(compile(tree, str(path), "exec"), module.__dict__)
    for name in ours.__all__:
        setattr(module, name, getattr(ours, name))
    parts = module.__name__.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[module.__name__] = module
