"""`planish model`: the demo under its command's name. See demo.py."""

from __future__ import annotations

from .demo import main

__all__ = ["main"]
