"""What the norms of planish.distributed check of their arguments."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import torch
from planish.operators.arguments import DEVICES, DTYPES, check_tensor, device_type, whole_of
from torch import Tensor

__all__ = ["check_part", "pieces_of"]


def check_part(function: str, name: str, x: Any) -> None:
    """Raises where x is not a tensor of this rank's part that planish has kernels for."""
    check_tensor(function, name, x)
    if type(x) not in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling():
        raise TypeError(
            f"{function}: Expected {name} to be this rank's part as a plain tensor, but got "
            f"{type(x).__name__}: planish's other functions take a DTensor as it is"
        )
    if x.dtype not in DTYPES:
        raise NotImplementedError(f"{function}: not implemented for {name} of {x.dtype}")
    if device_type(x) not in DEVICES:
        raise NotImplementedError(
            f"{function}: planish has no kernel for {x.device}; it runs on {', '.join(DEVICES)}"
        )


def pieces_of(function: str, shards: Any, group: dist.ProcessGroup, size: int) -> int:
    """Into how many pieces a part of this size is seen, so that all parts make ``shards``."""
    if shards is None:
        return 1
    count = whole_of(function, "reproducible_shards", shards)
    if count <= 0 or count % group.size():
        raise ValueError(
            f"{function}: reproducible_shards is {count}; wanted a multiple of the group's "
            f"{group.size()} ranks"
        )
    pieces = count // group.size()
    if size == 0 or size % pieces:
        raise ValueError(
            f"{function}: reproducible_shards is {count}, {pieces} for each rank, which do not "
            f"divide this rank's size of {size}"
        )
    return pieces
