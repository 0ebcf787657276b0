"""apex._autocast_utils: what Apex's norms do under autocast.

They take every tensor, weights too, in the dtype of autocast, where torch's own norms take float32.
Here that holds for CPU autocast as well, which Apex does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["_cast_if_autocast_enabled"]

#: Kinds of devices whose autocast is looked at.
DEVICES = ("cuda", "cpu")


def _get_autocast_dtypes() -> list[torch.dtype]:
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
        return [torch.half, torch.bfloat16]
    return [torch.half]


def _get_current_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32


def cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    """Floating point tensors of that kind of device, but those of float64, in this dtype; tuples,
    lists and dicts of them likewise; anything else as it is."""
    if isinstance(value, Tensor):
        takes = value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if takes and value.device.type == device else value
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, dict):
        return {key: cast(item, device, dtype) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(cast(item, device, dtype) for item in value)
    return value


def off(device: str) -> Any:
    """Without autocast, at less cost than torch.autocast(enabled=False)."""
    if torch.compiler.is_compiling():
        return torch.autocast(device, enabled=False)
    return torch._C._DisableAutocast()


def _cast_if_autocast_enabled(*args: Any) -> tuple[Any, ...]:
    for device in DEVICES:
        if torch.is_autocast_enabled(device):
            args = cast(args, device, torch.get_autocast_dtype(device))
    return args
