"""torchvision beside a torch that it was not built for: a CPU build of torch, for which there is
none. timm imports it, and transformers where it is installed.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

__all__ = ["mend_torchvision"]

#: What torchvision's Python looks for of its compiled extension while it is imported.
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []


def mend_torchvision() -> None:
    """Imports torchvision; where its extension does not load, the operators' schemas are defined,
    so that the next import gets through.

    Only then: an extension that loads defines them itself, and torch ends the process where they
    are there already.
    """
    if _libraries or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        if hasattr(torch.ops.torchvision, "nms"):  # the extension is there, something else is not
            return
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        _libraries.append(library)  # the schemas live as long as it does
        for schema in _SCHEMAS:
            library.define(schema)
