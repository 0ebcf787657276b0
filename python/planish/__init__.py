"""planish: fused normalization layers at the speed of memory, under PyTorch's own operators.

    import planish

    planish.enable()               # F.layer_norm, F.batch_norm and so on now run on planish
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
    torch.compile(model, backend="planish")  # norms of compiled graphs, where planish is faster
    planish.apex.install()         # `from apex.normalization import FusedLayerNorm` works
    planish.hf.register()          # Transformers' use_kernels=True runs planish
    planish.composer.FusedLayerNorm()  # an algorithm for Composer's Trainer
    planish.distributed.rms_norm(x, weight, group=group)  # rows that are spread over ranks

Importing planish does not import torch, and without it not the library either. Once torch is
imported, before or after, planish's operators are registered with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from planish.library import register

if TYPE_CHECKING:
    from planish import apex as apex
    from planish import compat as compat
    from planish import compile as compile
    from planish import composer as composer
    from planish import distributed as distributed
    from planish import hf as hf
    from planish.commands.pack import load_pack as load_pack
    from planish.functions.batch import batch_norm as batch_norm
    from planish.functions.functional import layer_norm as layer_norm
    from planish.functions.functional import rms_norm as rms_norm
    from planish.functions.functional import weight_standardize as weight_standardize
    from planish.functions.gated import gated_layer_norm as gated_layer_norm
    from planish.functions.gated import gated_rms_norm as gated_rms_norm
    from planish.functions.groups import group_norm as group_norm
    from planish.functions.heads import qk_norm as qk_norm
    from planish.functions.normalize import normalize as normalize
    from planish.functions.quantized import quantized_layer_norm as quantized_layer_norm
    from planish.functions.quantized import quantized_rms_norm as quantized_rms_norm
    from planish.functions.response import global_response_norm as global_response_norm
    from planish.functions.stage_norms import add_layer_norm as add_layer_norm
    from planish.functions.stage_norms import add_rms_norm as add_rms_norm
    from planish.functions.stage_norms import modulated_layer_norm as modulated_layer_norm
    from planish.functions.stage_norms import modulated_rms_norm as modulated_rms_norm
    from planish.library.available import is_available as is_available
    from planish.library.counts import reset_stats as reset_stats
    from planish.library.counts import stats as stats
    from planish.library.switch import disable as disable
    from planish.library.switch import enable as enable
    from planish.library.switch import enabled as enabled
    from planish.modules.batch_modules import BatchNorm1d as BatchNorm1d
    from planish.modules.batch_modules import BatchNorm2d as BatchNorm2d
    from planish.modules.batch_modules import BatchNorm3d as BatchNorm3d
    from planish.modules.batch_modules import SyncBatchNorm as SyncBatchNorm
    from planish.modules.channel_modules import GroupNorm as GroupNorm
    from planish.modules.channel_modules import LayerNorm2d as LayerNorm2d
    from planish.modules.channel_modules import RMSNorm2d as RMSNorm2d
    from planish.modules.instance_modules import EvoNorm2dS0 as EvoNorm2dS0
    from planish.modules.instance_modules import GlobalResponseNorm as GlobalResponseNorm
    from planish.modules.instance_modules import InstanceNorm1d as InstanceNorm1d
    from planish.modules.instance_modules import InstanceNorm2d as InstanceNorm2d
    from planish.modules.instance_modules import InstanceNorm3d as InstanceNorm3d
    from planish.modules.norm_modules import LayerNorm as LayerNorm
    from planish.modules.norm_modules import RMSNorm as RMSNorm
    from planish.modules.stage_modules import AddLayerNorm as AddLayerNorm
    from planish.modules.stage_modules import AddRMSNorm as AddRMSNorm
    from planish.modules.stage_modules import GatedRMSNorm as GatedRMSNorm
    from planish.modules.stage_modules import ModulatedLayerNorm as ModulatedLayerNorm
    from planish.replacing import replace as replace
    from planish.replacing import replaced as replaced
    from planish.replacing import restore as restore

__version__ = "0.1.0"

_HOMES = {
    "BatchNorm1d": "planish.modules.batch_modules",
    "BatchNorm2d": "planish.modules.batch_modules",
    "BatchNorm3d": "planish.modules.batch_modules",
    "SyncBatchNorm": "planish.modules.batch_modules",
    "batch_norm": "planish.functions.batch",
    "EvoNorm2dS0": "planish.modules.instance_modules",
    "GlobalResponseNorm": "planish.modules.instance_modules",
    "GroupNorm": "planish.modules.channel_modules",
    "InstanceNorm1d": "planish.modules.instance_modules",
    "InstanceNorm2d": "planish.modules.instance_modules",
    "InstanceNorm3d": "planish.modules.instance_modules",
    "LayerNorm2d": "planish.modules.channel_modules",
    "RMSNorm2d": "planish.modules.channel_modules",
    "is_available": "planish.library.available",
    "disable": "planish.library.switch",
    "enable": "planish.library.switch",
    "enabled": "planish.library.switch",
    "reset_stats": "planish.library.counts",
    "stats": "planish.library.counts",
    "global_response_norm": "planish.functions.response",
    "group_norm": "planish.functions.groups",
    "layer_norm": "planish.functions.functional",
    "rms_norm": "planish.functions.functional",
    "weight_standardize": "planish.functions.functional",
    "add_layer_norm": "planish.functions.stage_norms",
    "add_rms_norm": "planish.functions.stage_norms",
    "gated_layer_norm": "planish.functions.gated",
    "gated_rms_norm": "planish.functions.gated",
    "modulated_layer_norm": "planish.functions.stage_norms",
    "modulated_rms_norm": "planish.functions.stage_norms",
    "normalize": "planish.functions.normalize",
    "qk_norm": "planish.functions.heads",
    "AddLayerNorm": "planish.modules.stage_modules",
    "AddRMSNorm": "planish.modules.stage_modules",
    "GatedRMSNorm": "planish.modules.stage_modules",
    "ModulatedLayerNorm": "planish.modules.stage_modules",
    "LayerNorm": "planish.modules.norm_modules",
    "RMSNorm": "planish.modules.norm_modules",
    "quantized_layer_norm": "planish.functions.quantized",
    "quantized_rms_norm": "planish.functions.quantized",
    "load_pack": "planish.commands.pack",
    "replace": "planish.replacing",
    "replaced": "planish.replacing",
    "restore": "planish.replacing",
}

#: Modules of what other packages look for, imported when they are asked for.
_MODULES = ("apex", "compat", "compile", "composer", "distributed", "hf")

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "EvoNorm2dS0",
    "GatedRMSNorm",
    "GlobalResponseNorm",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LayerNorm2d",
    "ModulatedLayerNorm",
    "RMSNorm",
    "RMSNorm2d",
    "SyncBatchNorm",
    "__version__",
    "add_layer_norm",
    "add_rms_norm",
    "batch_norm",
    "disable",
    "enable",
    "enabled",
    "gated_layer_norm",
    "gated_rms_norm",
    "global_response_norm",
    "group_norm",
    "is_available",
    "layer_norm",
    "load_pack",
    "modulated_layer_norm",
    "modulated_rms_norm",
    "normalize",
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


register.register_with_torch()  # last: it may import other modules of the package
