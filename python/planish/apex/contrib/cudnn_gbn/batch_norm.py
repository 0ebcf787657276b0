"""apex.contrib.cudnn_gbn.batch_norm: batch norm by the statistics of a group of processes."""

from __future__ import annotations

from planish.apex.contrib import _groups
from planish.modules import batch_modules
from torch import Tensor

__all__ = ["GroupBatchNorm2d"]


class GroupBatchNorm2d(batch_modules.SyncBatchNorm):
    """Apex's, on planish: the batch norm of x (N, C, H, W) by the statistics of ``group_size``
    processes, neighbours by their ranks; in any memory format, any dtype of planish's and any
    number of channels, on the CPU, too.

    Example:

    >>> from planish.apex.contrib.cudnn_gbn import GroupBatchNorm2d
    >>> GroupBatchNorm2d(8, group_size=1)(torch.randn(2, 8, 4, 4)).shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(
        self,
        num_features: int,
        group_size: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        group = _groups.group_of(group_size)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, group)
        self.group_size = group_size

    def _alone(self) -> bool:
        return self.group_size == 1

    def _check_input_dim(self, input: Tensor) -> None:
        """As Apex's."""
        if input.dim() != 4:
            raise ValueError(f"expected 4D input (got {input.dim()}D input)")
