"""apex.contrib.groupbn.batch_norm: batch norm of (N, H, W, C), with a residual and a ReLU."""

from __future__ import annotations

import torch
from planish.apex.contrib import _groups
from planish.modules import batch_modules
from torch import Tensor

__all__ = ["BatchNorm2d_NHWC"]


class BatchNorm2d_NHWC(batch_modules.SyncBatchNorm):
    """Apex's, on planish: the batch norm of x (N, H, W, C), any dtype of planish's and any number
    of channels, on the CPU, too. ``fuse_relu``: with a ReLU, and ``z`` of x's shape before it.
    ``bn_group``: that many processes, neighbours by their ranks, share statistics. The other
    arguments are how Apex's kernel is launched, and say nothing here.

    Example:

    >>> from planish.apex.contrib.groupbn import BatchNorm2d_NHWC
    >>> x = torch.randn(2, 4, 4, 8)
    >>> BatchNorm2d_NHWC(8, fuse_relu=True)(x, z=x).shape
    torch.Size([2, 4, 4, 8])
    """

    def __init__(
        self,
        num_features: int,
        fuse_relu: bool = False,
        bn_group: int = 1,
        max_cta_per_sm: int = 2,
        cta_launch_margin: int = 12,
        multi_stream: bool = False,
    ) -> None:
        group = _groups.group_of(bn_group)
        super().__init__(
            num_features, process_group=group, activation="relu" if fuse_relu else None
        )
        self.fuse_relu, self.bn_group = fuse_relu, bn_group
        self.max_cta_per_sm, self.cta_launch_margin = max_cta_per_sm, cta_launch_margin
        self.multi_stream = multi_stream
        for name in ("minibatch_mean", "minibatch_riv"):  # of Apex's state_dict
            self.register_buffer(name, torch.zeros(num_features))

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """The norm of ``x``, plus ``z``, with the ReLU. Raises AssertionError for a ``z`` without
        ``fuse_relu``, as Apex's."""
        if z is not None:
            assert self.fuse_relu
            z = z.permute(0, 3, 1, 2)
        return super().forward(x.permute(0, 3, 1, 2), z).permute(0, 2, 3, 1)

    def _alone(self) -> bool:
        return self.bn_group == 1
