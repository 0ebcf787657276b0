"""What test_channels.py, test_channel_functions.py share."""

from __future__ import annotations

import torch
from torch import Tensor

LAST = torch.channels_last


def layouts(x: Tensor) -> dict[str, Tensor]:
    return {
        "dense": x,
        "channels last": x.contiguous(memory_format=LAST),
        "sliced": torch.cat([x, x], -1)[..., : x.shape[-1]],
        "samples last": x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
        "expanded": x[:1].expand(x.shape),
        "one pixel": x[:, :, :1, :1].contiguous(memory_format=LAST),
    }


def is_laid_out_as(y: Tensor, x: Tensor) -> bool:
    """In strides of axes that have more than one element."""
    model = torch.empty_like(x).stride()
    return all(
        size == 1 or one == other
        for size, one, other in zip(x.shape, y.stride(), model, strict=True)
    )
