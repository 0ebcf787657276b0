"""The Python that README and the guide show runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What the texts take for granted.
GIVEN = """
import torch, planish
model = torch.nn.Sequential(torch.nn.GroupNorm(4, 64))
x, w, eps = torch.randn(2, 64, 4, 4), torch.randn(8, 4, 3, 3), 1e-5
weight, bias, dims, affine_dims = torch.ones(64), torch.zeros(64), 1, 1
"""
# The same of norms over the last axis.
GIVEN_LAST = """
import torch, planish
model = torch.nn.Dropout()
x, residual, z = torch.randn(3, 2, 5, 64).unbind()
scale, shift, gate = torch.randn(3, 2, 1, 64).unbind()
weight, bias = torch.ones(64), torch.zeros(64)
q, k, _ = torch.randn(2, 5, 3, 4, 16).unbind(2)
q_weight, k_weight = torch.ones(16), torch.ones(16)
"""
# Functions over the last axis follow others over axis 1.
LAST = re.compile(r"(rms_norm\()x(, -1)")


@pytest.mark.parametrize("document", ["README.md", "docs/guide/pytorch.md", "docs/guide/fused.md"])
def test_python_of_documents_runs(document):
    blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        if 'devices="cuda"' in block:
            block = block.replace('devices="cuda"', 'devices="cpu"')
        if document.endswith("fused.md"):
            code = GIVEN_LAST + block
        else:
            code = GIVEN + LAST.sub(r"\1x.flatten(2).mT\2", block)
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ran.returncode == 0, f"{block}\n{ran.stderr}"
