"""apex.contrib.groupbn."""

from __future__ import annotations

from planish.apex.contrib.groupbn.batch_norm import BatchNorm2d_NHWC

__all__ = ["BatchNorm2d_NHWC"]
