"""Composer's Fused LayerNorm, on planish.

    from planish.composer import FusedLayerNorm
    trainer = composer.Trainer(model=model, algorithms=[FusedLayerNorm()], ...)

or, without a Trainer, ``apply_fused_layernorm(model)``. Composer had an algorithm of this name on
Apex and removed it. The low-precision norms that it has today call torch's operators, so they run
on planish after ``planish.enable()`` and need nothing of this file.

Composer is imported when FusedLayerNorm is asked for; the function does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planish.composer.function import apply_fused_layernorm as apply_fused_layernorm

if TYPE_CHECKING:
    from planish.composer.algorithm import FusedLayerNorm as FusedLayerNorm

__all__ = ["FusedLayerNorm", "apply_fused_layernorm"]


def __getattr__(name: str) -> object:
    if name != "FusedLayerNorm":
        raise AttributeError(f"module 'planish.composer' has no attribute {name!r}")
    try:
        from planish.composer.algorithm import FusedLayerNorm
    except ModuleNotFoundError as error:
        raise ImportError(
            f"planish.composer.FusedLayerNorm needs Composer (pip install mosaicml), but {error}"
        ) from error
    globals()[name] = FusedLayerNorm
    return FusedLayerNorm


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__file__"})
