"""apex.parallel: SyncBatchNorm and what converts models to it. Its DistributedDataParallel is not
here; torch has one.

Example:

>>> from torch import nn
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
>>> type(planish.apex.parallel.convert_syncbn_model(model)[1]).__name__
'SyncBatchNorm'
"""

from __future__ import annotations

from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from planish.modules import batch_modules
from torch import Tensor, nn

__all__ = ["SyncBatchNorm", "convert_syncbn_model"]


class SyncBatchNorm(batch_modules.SyncBatchNorm):
    """Apex's, on planish.SyncBatchNorm: ``channel_last=True`` for x of (N, ..., C), with the
    channels as its last axis; ``fuse_relu=True`` for a ReLU of the result, with ``z`` of x's shape
    added before it.

    Example:

    >>> planish.apex.parallel.SyncBatchNorm(8, channel_last=True)(torch.randn(2, 4, 4, 8)).shape
    torch.Size([2, 4, 4, 8])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            process_group,
            activation="relu" if fuse_relu else None,
        )
        self.channel_last, self.fuse_relu = channel_last, fuse_relu

    def forward(self, input: Tensor, z: Tensor | None = None) -> Tensor:
        """The norm of ``input``, plus ``z``, with the ReLU."""
        if not self.channel_last or input.dim() == 2:
            return super().forward(input, z)
        addend = None if z is None else z.movedim(-1, 1)
        return super().forward(input.movedim(-1, 1), addend).movedim(1, -1)


def convert_syncbn_model(
    module: nn.Module, process_group: Any = None, channel_last: bool = False
) -> nn.Module:
    """The model with a SyncBatchNorm for each BatchNorm of torch's and planish's, as Apex's
    function of this name makes it; InstanceNorm stays."""
    made = module
    instances = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    if isinstance(module, instances):
        return module
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        made = batch_modules.synchronized(SyncBatchNorm, module, process_group)
        made.channel_last = channel_last
    for name, child in module.named_children():
        made.add_module(name, convert_syncbn_model(child, process_group, channel_last))
    return made
