"""A torchvision of another build than torch keeps timm and Transformers from being imported."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planish import _torchvision as torchvision

needed = [
    name for name in ("torchvision", "timm", "transformers") if not importlib.util.find_spec(name)
]
pytestmark = pytest.mark.skipif(bool(needed), reason=f"not installed: {', '.join(needed)}")

PLAIN = "import timm, transformers; from transformers import BertModel, LlamaForCausalLM"
#: What the Makefile's file of the environment does when Python starts.
AT_START = (
    "import mend_torchvision, sys; mend_torchvision.mend_when_imported()\n"
    "assert 'torch' not in sys.modules\n"
)


def ran(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(torchvision.__file__, folder / "mend_torchvision.py")
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )


def test_what_the_makefile_leaves_is_not_importable(tmp_path: Path) -> None:
    done = ran(tmp_path, f"{AT_START}{PLAIN}\nassert 'planish' not in sys.modules\nprint('fine')")
    assert done.stdout == "fine\n", done.stderr


def test_an_extension_that_loads_is_mended(tmp_path: Path) -> None:
    """Defined here and then by the extension itself, operators end the process."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code = f"{AT_START}import torchvision, torch\nprint(hasattr(torch.ops.torchvision, 'nms'))"
    assert ran(tmp_path, code).stdout == "False\n"  # there is no extension at all
    (package / "_C.so").write_bytes(b"no library")
    assert ran(tmp_path, code).stdout == "True\n"
