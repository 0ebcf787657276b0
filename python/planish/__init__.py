"""planish: fused normalization layers at the speed of memory, under PyTorch's own operators.

    import planish

    planish.enable()               # F.layer_norm, F.group_norm, F.rms_norm now run on planish
    with planish.enabled(): ...    # the same, for a block
    model = planish.replace(model) # or: swap the modules of one model, Llama's and timm's included
    planish.replaced(model)        # what it took, what it left, and why
    planish.restore(model)         # as it was
    planish.layer_norm(x, dims=1)  # what torch lacks: any axes
    planish.LayerNorm2d(96)        # channels first without a permute
    planish.add_rms_norm(x, residual, weight)  # what stands around a norm
    planish.is_available("cuda")   # whether planish's kernels can run there
    print(planish.stats())         # what ran on planish, what went to torch, and why
    planish.reset_stats()          # which then counts anew
    planish.load_pack("gpu.pack")  # GPU kernels compiled ahead of time, by `planish pack`
    planish.apex.install()         # `from apex.normalization import FusedLayerNorm` works
    planish.hf.register()          # Transformers' use_kernels=True runs planish
    planish.composer.FusedLayerNorm()  # an algorithm for Composer's Trainer

Importing planish does not import torch, and without it not the library either. Once torch is
imported, before or after, planish's operators are registered with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from planish import _register

if TYPE_CHECKING:
    from planish import apex as apex
    from planish import compat as compat
    from planish import composer as composer
    from planish import hf as hf
    from planish._available import is_available as is_available
    from planish._channels import GroupNorm as GroupNorm
    from planish._channels import LayerNorm2d as LayerNorm2d
    from planish._channels import RMSNorm2d as RMSNorm2d
    from planish._counts import reset_stats as reset_stats
    from planish._counts import stats as stats
    from planish._enable import disable as disable
    from planish._enable import enable as enable
    from planish._enable import enabled as enabled
    from planish._functional import layer_norm as layer_norm
    from planish._functional import rms_norm as rms_norm
    from planish._functional import weight_standardize as weight_standardize
    from planish._fused import add_layer_norm as add_layer_norm
    from planish._fused import add_rms_norm as add_rms_norm
    from planish._fused import modulated_layer_norm as modulated_layer_norm
    from planish._fused import modulated_rms_norm as modulated_rms_norm
    from planish._fused_modules import AddLayerNorm as AddLayerNorm
    from planish._fused_modules import AddRMSNorm as AddRMSNorm
    from planish._fused_modules import GatedRMSNorm as GatedRMSNorm
    from planish._fused_modules import ModulatedLayerNorm as ModulatedLayerNorm
    from planish._gated import gated_layer_norm as gated_layer_norm
    from planish._gated import gated_rms_norm as gated_rms_norm
    from planish._groups import group_norm as group_norm
    from planish._heads import qk_norm as qk_norm
    from planish._instances import EvoNorm2dS0 as EvoNorm2dS0
    from planish._instances import InstanceNorm1d as InstanceNorm1d
    from planish._instances import InstanceNorm2d as InstanceNorm2d
    from planish._instances import InstanceNorm3d as InstanceNorm3d
    from planish._modules import LayerNorm as LayerNorm
    from planish._modules import RMSNorm as RMSNorm
    from planish._quantized import quantized_layer_norm as quantized_layer_norm
    from planish._quantized import quantized_rms_norm as quantized_rms_norm
    from planish.pack import load_pack as load_pack
    from planish.replacing import replace as replace
    from planish.replacing import replaced as replaced
    from planish.replacing import restore as restore

__version__ = "0.1.0"

_HOMES = {
    "EvoNorm2dS0": "planish._instances",
    "GroupNorm": "planish._channels",
    "InstanceNorm1d": "planish._instances",
    "InstanceNorm2d": "planish._instances",
    "InstanceNorm3d": "planish._instances",
    "LayerNorm2d": "planish._channels",
    "RMSNorm2d": "planish._channels",
    "is_available": "planish._available",
    "disable": "planish._enable",
    "enable": "planish._enable",
    "enabled": "planish._enable",
    "reset_stats": "planish._counts",
    "stats": "planish._counts",
    "group_norm": "planish._groups",
    "layer_norm": "planish._functional",
    "rms_norm": "planish._functional",
    "weight_standardize": "planish._functional",
    "add_layer_norm": "planish._fused",
    "add_rms_norm": "planish._fused",
    "gated_layer_norm": "planish._gated",
    "gated_rms_norm": "planish._gated",
    "modulated_layer_norm": "planish._fused",
    "modulated_rms_norm": "planish._fused",
    "qk_norm": "planish._heads",
    "AddLayerNorm": "planish._fused_modules",
    "AddRMSNorm": "planish._fused_modules",
    "GatedRMSNorm": "planish._fused_modules",
    "ModulatedLayerNorm": "planish._fused_modules",
    "LayerNorm": "planish._modules",
    "RMSNorm": "planish._modules",
    "quantized_layer_norm": "planish._quantized",
    "quantized_rms_norm": "planish._quantized",
    "load_pack": "planish.pack",
    "replace": "planish.replacing",
    "replaced": "planish.replacing",
    "restore": "planish.replacing",
}

#: Modules of what other packages look for, imported when they are asked for.
_MODULES = ("apex", "compat", "composer", "hf")

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "EvoNorm2dS0",
    "GatedRMSNorm",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LayerNorm2d",
    "ModulatedLayerNorm",
    "RMSNorm",
    "RMSNorm2d",
    "__version__",
    "add_layer_norm",
    "add_rms_norm",
    "disable",
    "enable",
    "enabled",
    "gated_layer_norm",
    "gated_rms_norm",
    "group_norm",
    "is_available",
    "layer_norm",
    "load_pack",
    "modulated_layer_norm",
    "modulated_rms_norm",
    "qk_norm",
    "quantized_layer_norm",
    "quantized_rms_norm",
    "replace",
    "replaced",
    "reset_stats",
    "restore",
    "rms_norm",
    "stats",
    "weight_standardize",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"planish.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'planish' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"planish.{name} needs PyTorch 2.10 or newer, and there is none: pip install torch"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__doc__", "__file__"})


_register.register_with_torch()  # last: it may import other modules of the package
