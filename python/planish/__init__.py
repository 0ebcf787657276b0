"""planish: fused normalization layers at the speed of memory, under PyTorch's own operators.

    import planish

    planish.enable()               # F.layer_norm, F.group_norm, F.rms_norm now run on planish
    with planish.enabled(): ...    # the same, for a block
    model = planish.replace(model) # or: swap the modules of one model
    planish.replaced(model)        # what it took, what it left, and why
    planish.restore(model)         # as it was
    planish.layer_norm(x, dims=1)  # what torch lacks: any axes
    planish.LayerNorm2d(96)        # channels first without a permute
    planish.stats()                # what ran on planish, what went to torch, and why
    planish.load_pack("gpu.pack")  # GPU kernels compiled ahead of time, by `planish pack`

Importing planish imports neither torch nor the library; the first use of either does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planish._channels import EvoNorm2dS0 as EvoNorm2dS0
    from planish._channels import GroupNorm as GroupNorm
    from planish._channels import InstanceNorm1d as InstanceNorm1d
    from planish._channels import InstanceNorm2d as InstanceNorm2d
    from planish._channels import InstanceNorm3d as InstanceNorm3d
    from planish._channels import LayerNorm2d as LayerNorm2d
    from planish._channels import RMSNorm2d as RMSNorm2d
    from planish._enable import disable as disable
    from planish._enable import enable as enable
    from planish._enable import enabled as enabled
    from planish._enable import stats as stats
    from planish._functional import group_norm as group_norm
    from planish._functional import layer_norm as layer_norm
    from planish._functional import rms_norm as rms_norm
    from planish._functional import weight_standardize as weight_standardize
    from planish._modules import LayerNorm as LayerNorm
    from planish._modules import RMSNorm as RMSNorm
    from planish.pack import load_pack as load_pack
    from planish.replacing import replace as replace
    from planish.replacing import replaced as replaced
    from planish.replacing import restore as restore

__version__ = "0.1.0"

_HOMES = {
    "enable": "planish._enable",
    "disable": "planish._enable",
    "enabled": "planish._enable",
    "stats": "planish._enable",
    "layer_norm": "planish._functional",
    "rms_norm": "planish._functional",
    "group_norm": "planish._functional",
    "weight_standardize": "planish._functional",
    "EvoNorm2dS0": "planish._channels",
    "GroupNorm": "planish._channels",
    "InstanceNorm1d": "planish._channels",
    "InstanceNorm2d": "planish._channels",
    "InstanceNorm3d": "planish._channels",
    "LayerNorm2d": "planish._channels",
    "RMSNorm2d": "planish._channels",
    "LayerNorm": "planish._modules",
    "RMSNorm": "planish._modules",
    "replace": "planish.replacing",
    "replaced": "planish.replacing",
    "restore": "planish.replacing",
    "load_pack": "planish.pack",
}

__all__ = [
    "EvoNorm2dS0",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LayerNorm2d",
    "RMSNorm",
    "RMSNorm2d",
    "__version__",
    "disable",
    "enable",
    "enabled",
    "group_norm",
    "layer_norm",
    "load_pack",
    "replace",
    "replaced",
    "restore",
    "rms_norm",
    "stats",
    "weight_standardize",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'planish' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
