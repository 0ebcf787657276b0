"""planish: fused normalization layers at the speed of memory, under PyTorch's own operators.

    import planish

    planish.enable()               # F.layer_norm, F.rms_norm and the modules now run on planish
    with planish.enabled(): ...    # the same, for a block
    model = planish.replace(model) # or: swap the modules of one model
    planish.layer_norm(x, dims=1)  # what torch lacks: any axes
    planish.stats()                # what ran on planish, what went to torch, and why

Importing planish imports neither torch nor the library; the first use of either does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planish._enable import disable as disable
    from planish._enable import enable as enable
    from planish._enable import enabled as enabled
    from planish._enable import stats as stats
    from planish._functional import layer_norm as layer_norm
    from planish._functional import rms_norm as rms_norm
    from planish._modules import LayerNorm as LayerNorm
    from planish._modules import RMSNorm as RMSNorm
    from planish._modules import replace as replace

__version__ = "0.1.0"

_HOMES = {
    "enable": "planish._enable",
    "disable": "planish._enable",
    "enabled": "planish._enable",
    "stats": "planish._enable",
    "layer_norm": "planish._functional",
    "rms_norm": "planish._functional",
    "LayerNorm": "planish._modules",
    "RMSNorm": "planish._modules",
    "replace": "planish._modules",
}

__all__ = [
    "LayerNorm",
    "RMSNorm",
    "__version__",
    "disable",
    "enable",
    "enabled",
    "layer_norm",
    "replace",
    "rms_norm",
    "stats",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'planish' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
