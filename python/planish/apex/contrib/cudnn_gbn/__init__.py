"""apex.contrib.cudnn_gbn."""

from __future__ import annotations

from planish.apex.contrib.cudnn_gbn.batch_norm import GroupBatchNorm2d

__all__ = ["GroupBatchNorm2d"]
