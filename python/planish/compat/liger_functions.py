"""The functions of Liger's norms on planish; liger.py has the modules, and says what differs."""

from __future__ import annotations

import math

from planish.functions import stage_norms, stages
from planish.functions.functional import layer_norm, rms_norm
from planish.functions.groups import group_norm
from planish.operators.arguments import check_optional, check_tensor
from torch import Tensor

__all__ = [
    "liger_fused_add_rms_norm",
    "liger_group_norm",
    "liger_layer_norm",
    "liger_modulated_rms_norm",
    "liger_poly_norm",
    "liger_rms_norm",
]

#: By name and by Liger's number for it.
_CASTS = {"llama": "xhat", "gemma": "once", "none": "once", 0: "xhat", 1: "once", -1: "once"}


def _cast(casting_mode: str | int) -> str:
    if not isinstance(casting_mode, str | int) or casting_mode not in _CASTS:
        raise AssertionError(
            f"Invalid casting mode: {casting_mode}; known are 'llama', 'gemma' and 'none'"
        )
    return _CASTS[casting_mode]


def _check_columns(function: str, X: Tensor, W: Tensor | None) -> None:
    stages.check_x(function, X, "X")
    check_optional(function, W=W)
    if W is not None and X.shape[-1:] != W.shape:
        raise AssertionError(
            f"Incompatible hidden size: X has {X.shape[-1]} columns, the weight is of shape "
            f"{list(W.shape)}"
        )


# ---- Functions ----------------------------------------------------------------------------------


def liger_rms_norm(
    X: Tensor,
    W: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> Tensor:
    """RMS norm over the last axis times (offset + W), in X's dtype.

    Example:

    >>> planish.compat.liger.liger_rms_norm(torch.randn(4, 64), torch.ones(64), 1e-6).shape
    torch.Size([4, 64])
    """
    cast = _cast(casting_mode)
    _check_columns("liger_rms_norm", X, W)
    return rms_norm(X, -1, W, eps=eps, weight_offset=offset, cast=cast).to(X.dtype)


def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
    """Layer norm over the last axis. ValueError for a weight of another size, as in Liger.

    Example:

    >>> planish.compat.liger.liger_layer_norm(
    ...     torch.randn(4, 64), torch.ones(64), torch.zeros(64), 1e-6
    ... ).shape
    torch.Size([4, 64])
    """
    stages.check_x("liger_layer_norm", X, "X")
    check_tensor("liger_layer_norm", "W", W)
    check_tensor("liger_layer_norm", "B", B)
    if X.shape[-1:] != W.shape:
        raise ValueError(
            f"Incompatible dimensions: input feature size (X.shape[-1]={X.shape[-1]}) must match "
            f"weight size (W.shape={list(W.shape)})"
        )
    return layer_norm(X, -1, W, B, eps)


def liger_group_norm(
    X: Tensor,
    affine_scaling_weight: Tensor,
    affine_shifting_bias: Tensor,
    num_channels: int,
    num_groups: int,
    eps: float,
) -> Tensor:
    """Group norm of (N, C, ...). ``num_channels`` is X's: another is an AssertionError.

    Example:

    >>> x = torch.randn(2, 64, 4)
    >>> planish.compat.liger.liger_group_norm(x, torch.ones(64), torch.zeros(64), 64, 8, 1e-6).shape
    torch.Size([2, 64, 4])
    """
    for name, tensor in (
        ("X", X),
        ("affine_scaling_weight", affine_scaling_weight),
        ("affine_shifting_bias", affine_shifting_bias),
    ):
        check_tensor("liger_group_norm", name, tensor)
    if X.dim() > 1 and X.shape[1] != num_channels:
        raise AssertionError(
            f"Input tensor must have {num_channels} channels, but got {X.shape[1]}"
        )
    return group_norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps)


def liger_fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> tuple[Tensor, Tensor]:
    """(RMS norm of S, S) with S = X + R, both in X's dtype.

    Example:

    >>> x, residual = torch.randn(4, 64), torch.randn(4, 64)
    >>> y, total = planish.compat.liger.liger_fused_add_rms_norm(x, residual, torch.ones(64), 1e-6)
    >>> torch.equal(total, x + residual)
    True
    """
    cast = _cast(casting_mode)
    check_tensor("liger_fused_add_rms_norm", "W", W)
    _check_columns("liger_fused_add_rms_norm", X, W)
    stages.check_like_x("liger_fused_add_rms_norm", "R", R, X, optional=False)
    if cast == "once":
        return stage_norms.add_rms_norm(X, R, W, eps, sum_dtype=X.dtype, weight_offset=offset)
    S = stages.sum_with(X, R, X.dtype)
    return rms_norm(S, -1, W, eps=eps, weight_offset=offset, cast=cast).to(X.dtype), S


def _modulation(name: str, tensor: Tensor, X: Tensor) -> Tensor:
    """(rows, columns) as Liger takes them, N / rows neighbouring rows of X to each, with X's rank
    of axes or as (rows, 1, columns) beside X seen as (rows, N / rows, columns)."""
    check_tensor("liger_modulated_rms_norm", name, tensor)
    stages.check_float("liger_modulated_rms_norm", name, tensor.dtype)
    columns = X.shape[-1]
    if not columns or tensor.numel() % columns or not tensor.numel():
        raise AssertionError(
            f"{name} of {tensor.numel()} elements must have a multiple of the hidden size {columns}"
        )
    rows = tensor.numel() // columns
    if math.prod(X.shape[:-1]) % rows:
        raise AssertionError(
            f"{name} has {rows} rows, which do not divide the {math.prod(X.shape[:-1])} rows of X"
        )
    return tensor.reshape(rows, 1, columns)


def liger_modulated_rms_norm(
    X: Tensor,
    W: Tensor | None,
    scale: Tensor,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> Tensor:
    """(1 + scale) * RMS norm + shift.

    ``scale`` has rows of X's columns, whose number divides that of X's rows: each is for so many
    neighbouring rows of X, and ``shift`` has as many. With "llama" the norm's result is rounded to
    X's dtype before the modulation, which is in float.

    Example:

    >>> planish.compat.liger.liger_modulated_rms_norm(
    ...     torch.randn(4, 64), torch.ones(64), torch.zeros(64)
    ... ).shape
    torch.Size([4, 64])
    """
    cast = _cast(casting_mode)
    _check_columns("liger_modulated_rms_norm", X, W)
    rows = _modulation("scale", scale, X)
    shifts = None if shift is None else _modulation("shift", shift, X)
    if shifts is not None and shifts.shape != rows.shape:
        raise AssertionError(
            f"shift must have the {rows.shape[0]} rows of scale, but has {shifts.shape[0]}"
        )
    seen = X.reshape(rows.shape[0], -1, X.shape[-1])
    if cast == "once":
        y = stage_norms.modulated_rms_norm(seen, rows, shifts, W, eps=eps, weight_offset=offset)
        assert isinstance(y, Tensor)
        return y.reshape(X.shape)
    z = rms_norm(seen, -1, W, eps=eps, weight_offset=offset, cast=cast).to(X.dtype)
    wide = stages.compute_dtype(X.dtype)
    m = z.to(wide) * (1 + rows.to(wide))
    if shifts is not None:
        m = m + shifts.to(wide)
    return m.to(X.dtype).reshape(X.shape)


def liger_poly_norm(
    X: Tensor, W: Tensor, B: Tensor, eps: float = 1e-6, in_place: bool = True
) -> Tensor:
    """W[0] * norm(X^3) + W[1] * norm(X^2) + W[2] * norm(X) + B, norm being RMS norm without a
    weight over the last axis. In float, rounded once; powers, products and sums are torch's.

    Example:

    >>> planish.compat.liger.liger_poly_norm(
    ...     torch.randn(4, 64), torch.ones(3) / 3, torch.ones(1)
    ... ).shape
    torch.Size([4, 64])
    """
    stages.check_x("liger_poly_norm", X, "X")
    for name, tensor in (("W", W), ("B", B)):
        check_tensor("liger_poly_norm", name, tensor)
        stages.check_float("liger_poly_norm", name, tensor.dtype)
    if W.shape != (3,):
        raise AssertionError(f"Weight tensor must have shape (3,), but got {list(W.shape)}")
    if B.numel() != 1:
        raise AssertionError(f"Bias must be a scalar, but has {B.numel()} elements")
    wide = stages.compute_dtype(X.dtype)
    x, w = X.to(wide), W.to(wide)
    square = x * x
    parts = (rms_norm(power, -1, eps=eps) for power in (square * x, square, x))
    total = B.to(wide).reshape(())
    for factor, part in zip(w, parts, strict=True):
        total = total + factor * part
    return total.to(X.dtype)
