"""What the tests of batch norm share."""

from __future__ import annotations

import numpy as np
from support import Exact, wide

import torch
from torch import Tensor

aten = torch.ops.aten
NATIVE, NATIVE_BACKWARD = "native_batch_norm", "native_batch_norm_backward"
LEGIT, NO_STATS = "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats"
UPDATE, UPDATE_BACKWARD = "_batch_norm_with_update", "batch_norm_backward"
LAST, LAST_3D = torch.channels_last, torch.channels_last_3d


def along(vector: Exact, ndim: int) -> Exact:
    return vector.reshape(-1, *(1,) * (ndim - 2))


def exact_batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    dy: Tensor | None = None,
    running: tuple[Tensor, Tensor] | None = None,
    eps: float = 1e-5,
) -> list[Exact]:
    """y, mean and variance, and with dy dx, dweight and dbias, in long double; by the running
    statistics where they are given."""
    values, ndim = wide(x), x.dim()
    axes = tuple(axis for axis in range(ndim) if axis != 1)
    ones = np.ones(x.shape[1], np.longdouble)
    w = along(ones if weight is None else wide(weight), ndim)
    if running is None:
        mean = values.mean(axes)
        var = ((values - along(mean, ndim)) ** 2).mean(axes)
    else:
        mean, var = (wide(t) for t in running)
    rstd = along(1 / np.sqrt(var + np.longdouble(eps)), ndim)
    xhat = (values - along(mean, ndim)) * rstd
    y = xhat * w + (0 if bias is None else along(wide(bias), ndim))
    if dy is None:
        return [y, mean, var]
    gradient = wide(dy)
    dbias, dweight = gradient.sum(axes), (gradient * xhat).sum(axes)
    count = x.numel() // x.shape[1]
    dx = gradient
    if running is None:
        dx = gradient - along(dbias / count, ndim) - xhat * along(dweight / count, ndim)
    return [y, mean, var, dx * w * rstd, dweight, dbias]
