"""Small calls as torch's operators one after the other, while planish is under these: the bits are
the same, and their derivatives are C++, which costs the host a fraction of one in Python."""

from __future__ import annotations

import torch
from planish.library import switch
from planish.operators import layer_norm
from planish.operators.ways import is_hooked
from torch import Tensor

__all__ = ["are_better", "norm"]

#: With more elements a pass over them costs more than what the host saves.
_SMALL = {"cpu": 1 << 16, "cuda": 1 << 18}


def are_better(norm: str, x: Tensor) -> bool:
    """Whether the steps of a call on x cost less now; ``norm``: "layer_norm" or "rms_norm". What
    hooks save, such as those of a checkpoint, must not depend on the switch: they see one call."""
    device = "cuda" if x.is_cuda else "cpu"
    if x.numel() > _SMALL[device] or not switch.is_enabled(norm, device) or is_hooked():
        return False
    return device == "cpu" or not torch.cuda.is_current_stream_capturing()


def norm(norm: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Over the last axis, by torch's operator."""
    if norm == "rms_norm":
        return torch.rms_norm(x, x.shape[-1:], weight, eps)
    return layer_norm.through_torch(x, x.shape[-1:], weight, bias, eps)
