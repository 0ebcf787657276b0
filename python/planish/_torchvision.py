"""torchvision beside a torch that it was not built for, such as a CPU build: its compiled extension
does not load, and its Python does not import without the operators of that. timm imports it, and
transformers where it is installed.

The Makefile copies this file into an environment where that is so, hence nothing of planish is used
here, and torch only when it is needed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["mend_torchvision", "mend_when_imported"]

#: What torchvision's Python looks for of its compiled extension while it is imported.
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []


def _extension_loads(package: Path) -> bool:
    for path in package.glob("_C*.so"):
        try:
            ctypes.CDLL(str(path))
        except OSError:
            return False
    return True  # or there is none, and torchvision knows


def _mend(spec: ModuleSpec | None) -> None:
    if _libraries or spec is None or not spec.origin or "torchvision" in sys.modules:
        return
    import torch

    if _extension_loads(Path(spec.origin).parent) or hasattr(torch.ops.torchvision, "nms"):
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _libraries.append(library)  # the schemas live as long as it does
    for schema in _SCHEMAS:
        library.define(schema)


def mend_torchvision() -> None:
    """Where torchvision's extension does not load, defines its operators' schemas, so that the
    import gets through.

    Only then: an extension that loads defines them itself, and torch ends the process where they
    are there already.
    """
    _mend(importlib.util.find_spec("torchvision"))


class _WaitsForTorchvision:
    """A finder of modules that finds none: it sees torchvision's import begin."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _mend(PathFinder.find_spec(name))
        return None


def mend_when_imported() -> None:
    """The same as soon as somebody imports torchvision; until then nothing, not even torch."""
    sys.meta_path.insert(0, _WaitsForTorchvision())
