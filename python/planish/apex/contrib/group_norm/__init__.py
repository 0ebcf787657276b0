"""apex.contrib.group_norm."""

from __future__ import annotations

from planish.apex.contrib.group_norm.group_norm import GroupNorm

__all__ = ["GroupNorm"]
