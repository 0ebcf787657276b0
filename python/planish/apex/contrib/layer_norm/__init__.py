"""apex.contrib.layer_norm."""

from __future__ import annotations

from planish.apex.contrib.layer_norm.layer_norm import FastLayerNorm

__all__ = ["FastLayerNorm"]
