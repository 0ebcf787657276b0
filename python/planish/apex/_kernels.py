"""The norms of Apex's extension modules, forward and backward, on planish's operators.

Everything that Apex computes comes to these two functions or to planish's own layer_norm, rms_norm
and group_norm. They know nothing of autograd; statistics are flat, one number a row, as Apex's are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from planish.apex import _recovery
from planish.apex._recovery import as_dtype
from planish.operators import ops
from planish.operators.arguments import DEVICES, DTYPES, check_floats, check_optional, check_tensor
from torch import Tensor

__all__ = ["as_dtype", "backward", "check_shape", "forward", "result_dtype", "runs"]


def check_shape(x: Tensor, shape: tuple[int, ...]) -> None:
    """Raises RuntimeError, as Apex does, where x does not end in ``shape``."""
    count = len(shape)
    if count < 1:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
            f"element, but got normalized_shape={list(shape)}"
        )
    if x.dim() < count or x.shape[x.dim() - count :] != shape:
        sizes = ", ".join(map(str, shape))
        raise RuntimeError(
            f"Given normalized_shape=[{sizes}], expected input with shape [*, {sizes}], but got "
            f"input of size{list(x.shape)}"
        )


def runs(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether planish has a kernel for these devices and dtypes."""
    device = x.device
    if x.dtype not in DTYPES or device.type not in DEVICES:
        return False
    if device.type == "cuda" and x.numel() == 0:
        return False
    return all(p is None or (p.dtype in DTYPES and p.device == device) for p in parameters)


def result_dtype(x: Tensor, weight: Tensor | None, mixed: bool) -> torch.dtype:
    """The "mixed" norms return the parameters' dtype, the others x's."""
    return weight.dtype if mixed and weight is not None else x.dtype


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
    eps: float,
    rms: bool,
    mixed: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """y, and mean and rstd of each row; an RMS norm has no mean."""
    function = "rms_forward" if rms else "forward"
    check_tensor(function, "input", x)
    check_optional(function, weight=weight, bias=bias)
    check_floats(function, input=x, weight=weight, bias=bias)
    shape = tuple(shape)
    check_shape(x, shape)
    dtype = result_dtype(x, weight, mixed)
    axes = list(range(x.dim() - len(shape), x.dim()))
    wide = as_dtype(x, torch.promote_types(x.dtype, dtype))
    y, mean, rstd = ops.plain_forward(wide, weight, bias, axes, axes, float(eps), rms, dense=True)
    return as_dtype(y, dtype), None if mean is None else mean.flatten(), rstd.flatten()


def backward(
    dy: Tensor,
    x_or_y: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: Sequence[int],
    rms: bool,
    from_y: bool,
    wanted: Sequence[bool] = (True, True, True),
    smallest: float = 0.0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dx, dweight, dbias, each where wanted. dx has the dtype of ``x_or_y``, the others that of
    their parameter. ``smallest``: see :func:`planish.apex._recovery.recovered`."""
    function = "rms_backward" if rms else "backward"
    for name, given in (("dout", dy), ("input_or_output", x_or_y), ("invvar", rstd)):
        check_tensor(function, name, given)
    check_optional(function, mean=mean, weight=weight, bias=bias)
    check_floats(function, dout=dy, input_or_output=x_or_y, invvar=rstd, weight=weight, bias=bias)
    shape = tuple(shape)
    check_shape(x_or_y, shape)
    rows = x_or_y.shape[: x_or_y.dim() - len(shape)]
    if rstd.numel() != math.prod(rows):
        raise RuntimeError(
            f"Expected one rstd for each of the {math.prod(rows)} rows, but got {rstd.numel()}"
        )
    kept = (*rows, *(1 for _ in shape))
    axes = list(range(len(rows), x_or_y.dim()))
    rstd = rstd.view(kept)
    x = x_or_y
    if from_y:
        x = _recovery.recovered(x_or_y, rstd, weight, bias, smallest)
        mean = torch.zeros_like(rstd)
    elif mean is not None and not rms:
        mean = mean.view(kept)
    dx, dweight, dbias = ops.plain_backward(
        dy, x, mean, rstd, weight, axes, axes, rms, list(wanted)
    )
    if dx is not None:
        dx = as_dtype(dx, x_or_y.dtype)
    if dbias is not None and bias is not None:
        dbias = as_dtype(dbias, bias.dtype)
    return dx, dweight, dbias
