"""The names of NVIDIA Apex's normalization layers, on planish, on the CPU and on CUDA.

    import planish.apex

    planish.apex.install()                      # where Apex is missing
    from apex.normalization import FusedLayerNorm   # unchanged code works

    planish.apex.FusedLayerNorm(1024)           # or by planish's own name

There are apex.normalization, apex.parallel with SyncBatchNorm alone, apex.contrib.layer_norm,
group_norm, groupbn and cudnn_gbn, apex._autocast_utils and the extension modules
fused_layer_norm_cuda and fast_layer_norm. Nothing else of Apex is there.

Importing planish.apex imports no torch; the first use of a name does.
docs/guide/apex.md is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from planish.apex._install import install, installed, uninstall

if TYPE_CHECKING:
    from planish.apex import parallel as parallel
    from planish.apex.contrib.cudnn_gbn import GroupBatchNorm2d as GroupBatchNorm2d
    from planish.apex.contrib.group_norm import GroupNorm as GroupNorm
    from planish.apex.contrib.groupbn import BatchNorm2d_NHWC as BatchNorm2d_NHWC
    from planish.apex.contrib.layer_norm import FastLayerNorm as FastLayerNorm
    from planish.apex.normalization import FusedLayerNorm as FusedLayerNorm
    from planish.apex.normalization import FusedRMSNorm as FusedRMSNorm
    from planish.apex.normalization import MixedFusedLayerNorm as MixedFusedLayerNorm
    from planish.apex.normalization import MixedFusedRMSNorm as MixedFusedRMSNorm

__all__ = [
    "BatchNorm2d_NHWC",
    "FastLayerNorm",
    "FusedLayerNorm",
    "FusedRMSNorm",
    "GroupBatchNorm2d",
    "GroupNorm",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "install",
    "installed",
    "parallel",
    "uninstall",
]

_HOMES = {
    "BatchNorm2d_NHWC": "planish.apex.contrib.groupbn",
    "GroupBatchNorm2d": "planish.apex.contrib.cudnn_gbn",
    "FastLayerNorm": "planish.apex.contrib.layer_norm",
    "FusedLayerNorm": "planish.apex.normalization",
    "FusedRMSNorm": "planish.apex.normalization",
    "GroupNorm": "planish.apex.contrib.group_norm",
    "MixedFusedLayerNorm": "planish.apex.normalization",
    "MixedFusedRMSNorm": "planish.apex.normalization",
}


def __getattr__(name: str) -> object:
    if name == "parallel":  # it imports torch
        return importlib.import_module("planish.apex.parallel")
    if name not in _HOMES:
        raise AttributeError(f"module 'planish.apex' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__file__"})
