"""Processes that share the statistics of a batch: neighbours by their ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

__all__ = ["group_of"]

_made: dict[int, Any] = {}


def group_of(size: int) -> Any:
    """This process's group of so many neighbours; None: it is alone. Every process must ask."""
    if size < 1:
        raise ValueError(f"the size of a group is {size}; wanted 1 or more")
    if size == 1:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(f"a group of {size} processes needs torch.distributed to be initialized")
    world = dist.get_world_size()
    if world % size:
        raise ValueError(f"the size of a group is {size}; wanted a divisor of {world} processes")
    if size not in _made:
        _made[size], _ = dist.new_subgroups(size)  # type: ignore[no-untyped-call]
    return _made[size]
