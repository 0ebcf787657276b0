"""Apex's batch norms: apex.parallel.SyncBatchNorm, groupbn.BatchNorm2d_NHWC, cudnn_gbn."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F

import planish
import torch
from planish.apex import BatchNorm2d_NHWC, GroupBatchNorm2d, parallel
from torch import Tensor, nn

X, Z = torch.randn(2, 6, 4, 5), torch.randn(2, 6, 4, 5)


def nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def expected(x: Tensor, z: Tensor | None = None, relu: bool = False) -> Tensor:
    y = F.batch_norm(x, None, None, torch.ones(6), torch.zeros(6), training=True)
    y = y if z is None else y + z
    return F.relu(y) if relu else y


def test_sync_batch_norm_differs() -> None:
    torch.testing.assert_close(parallel.SyncBatchNorm(6)(X), expected(X))
    norm = parallel.SyncBatchNorm(6, fuse_relu=True)
    torch.testing.assert_close(norm(X, Z), expected(X, Z, True))
    last = parallel.SyncBatchNorm(6, channel_last=True, fuse_relu=True)
    torch.testing.assert_close(last(nhwc(X), nhwc(Z)), nhwc(expected(X, Z, True)))
    torch.testing.assert_close(last(X[:, :, 0, 0]), expected(X[:, :, 0, 0], relu=True))
    for mine, other in zip(norm.buffers(), last.buffers(), strict=True):
        assert mine.shape == other.shape


def test_conversion_loses_a_norm() -> None:
    model = nn.Sequential(nn.BatchNorm2d(6), nn.InstanceNorm2d(6), planish.BatchNorm2d(6))
    keys = list(model.state_dict())
    made: Any = parallel.convert_syncbn_model(model, channel_last=True)
    assert [type(one) for one in made] == [
        *(parallel.SyncBatchNorm, nn.InstanceNorm2d, parallel.SyncBatchNorm)
    ]
    assert made[0].channel_last
    assert list(made.state_dict()) == keys


def test_group_norms_differ() -> None:
    norm = BatchNorm2d_NHWC(6, fuse_relu=True)
    torch.testing.assert_close(norm(nhwc(X), nhwc(Z)), nhwc(expected(X, Z, True)))
    assert {"minibatch_mean", "minibatch_riv"} <= set(norm.state_dict())
    with pytest.raises(AssertionError):
        BatchNorm2d_NHWC(6)(nhwc(X), nhwc(Z))
    last = X.contiguous(memory_format=torch.channels_last)
    y = GroupBatchNorm2d(6, group_size=1)(last)
    torch.testing.assert_close(y, expected(X))
    assert y.stride() == last.stride()
    with pytest.raises(ValueError, match=r"expected 4D input \(got 3D input\)"):
        GroupBatchNorm2d(6, group_size=1)(X[0])
    with pytest.raises(RuntimeError, match=r"a group of 2 processes needs torch\.distributed"):
        GroupBatchNorm2d(6, group_size=2)


def test_names_are_missing() -> None:
    planish.apex.install()
    try:
        if not planish.apex.installed():
            pytest.skip("another apex is installed")
        import apex  # type: ignore[import-not-found]
        from apex.contrib.cudnn_gbn import GroupBatchNorm2d as Group  # type: ignore[import-not-found]
        from apex.contrib.groupbn.batch_norm import (  # type: ignore[import-not-found]
            BatchNorm2d_NHWC as Nhwc,
        )

        assert apex.parallel.SyncBatchNorm is parallel.SyncBatchNorm
        assert (Group, Nhwc) == (GroupBatchNorm2d, BatchNorm2d_NHWC)
    finally:
        planish.apex.uninstall()
