"""The norms of ``flash_attn.ops.triton.layer_norm`` on planish: layer_norm_fn, rms_norm_fn,
RMSNorm and layer_norm_linear_fn.

Signatures, defaults, dtypes and the order of results are flash-attn's; so is AssertionError for
shapes that do not fit. They run on the CPU, too, and for rows of any length. The differences:

- The norm reads the sum as it was rounded to its dtype (flash-attn: before that rounding).
- Dropout is drawn from torch's generator, not from seeds of rows: other masks for a seed.
- ``residual_out`` is written wherever it is given (flash-attn forgets it: it then returns x).
- The reference functions of its tests (layer_norm_ref, rms_norm_ref) are not here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from planish.functions import stages
from planish.operators.arguments import check_optional, check_tensor, eps_of
from torch import Tensor, nn

__all__ = ["RMSNorm", "layer_norm_fn", "layer_norm_linear_fn", "rms_norm_fn"]


def _expect(holds: bool, function: str, sentence: str) -> None:
    """AssertionError, as flash-attn has it; also under ``python -O``."""
    if not holds:
        raise AssertionError(f"{function}: {sentence}")


def _check(
    function: str,
    x: Tensor,
    like_x: dict[str, Tensor | None],
    columns: dict[str, Tensor | None],
    rowscale: Tensor | None,
    dropout_p: float,
) -> None:
    stages.check_x(function, x)
    check_optional(function, **like_x, **columns, rowscale=rowscale)
    check_tensor(function, "weight", columns["weight"])
    for name, tensor in (*like_x.items(), *columns.items(), ("rowscale", rowscale)):
        stages.check_float(function, name, None if tensor is None else tensor.dtype)
    for name, tensor in like_x.items():
        if tensor is not None:
            _expect(
                tensor.numel() == x.numel() and tensor.shape[-1:] == x.shape[-1:]
                if name in ("out", "residual_out")
                else tensor.shape == x.shape,
                function,
                f"Expected {name} to have x's shape {list(x.shape)}, but got {list(tensor.shape)}",
            )
    for name, tensor in columns.items():
        if tensor is not None:
            _expect(
                tensor.shape == x.shape[-1:],
                function,
                f"Expected {name} of shape {list(x.shape[-1:])}, but got {list(tensor.shape)}",
            )
    if rowscale is not None:
        _expect(
            like_x["x1"] is None,
            function,
            "rowscale is not supported with parallel LayerNorm (x1)",
        )
        _expect(
            rowscale.numel() == math.prod(x.shape[:-1]),
            function,
            f"Expected rowscale with a value for each of {math.prod(x.shape[:-1])} rows, but got "
            f"{rowscale.numel()}",
        )
    stages.check_probability(function, dropout_p)


def _written(result: Tensor, place: Tensor | None) -> Tensor:
    """The result, in the tensor that the caller gave for it if there is one."""
    if place is None:
        return result
    return place.copy_(result.reshape(place.shape)).reshape(result.shape)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """Dropout, sum with a residual and layer (or RMS) norm over the last axis.

        sum = rowscale * dropout(x) [+ dropout(x1)] [+ residual]
        y   = norm(sum) * weight + bias           (zero_centered_weight: * (1 + weight))
        y1  = norm(sum) * weight1 + bias1         with weight1

    Returns y [, y1] [, sum with prenorm] [, mask, mask1 with return_dropout_mask]; one of these
    alone is no tuple. The masks are bool, and None where nothing was dropped. y has x's dtype or
    ``out_dtype``, or is written to ``out``. The sum has the residual's dtype; without one x's, or
    float32 with ``residual_in_fp32``; it is also written to ``residual_out``. Where nothing is
    added, dropped, scaled or cast, it is x itself. Differentiable twice.

    Example:

    >>> from planish.compat.flash_attn import layer_norm_fn
    >>> x, residual = torch.randn(4, 64), torch.randn(4, 64)
    >>> y, total = layer_norm_fn(x, torch.ones(64), torch.zeros(64), residual, prenorm=True)
    >>> torch.equal(total, x + residual)
    True
    """
    function = "rms_norm_fn" if is_rms_norm else "layer_norm_fn"
    _check(
        function,
        x,
        {"residual": residual, "x1": x1, "out": out, "residual_out": residual_out},
        {"weight": weight, "bias": bias, "weight1": weight1, "bias1": bias1},
        rowscale,
        dropout_p,
    )
    stages.check_float(function, "out_dtype", out_dtype)
    wide = stages.compute_dtype(x.dtype, x.dtype if residual is None else residual.dtype)
    rows = None if rowscale is None else rowscale.reshape(*x.shape[:-1], 1)
    u = stages.scaled(x, wide, rows)
    mask = mask1 = None
    if dropout_p:
        u, mask = stages.drop(u.to(wide), dropout_p)
    if x1 is not None:
        u1 = x1.to(wide)
        if dropout_p:
            u1, mask1 = stages.drop(u1, dropout_p)
        u = u.to(wide) + u1
    without = torch.float32 if residual_in_fp32 else x.dtype
    total = stages.sum_with(u, residual, without if residual is None else residual.dtype)
    dtype = (out_dtype or x.dtype) if out is None else out.dtype
    eps = eps_of(function, eps, is_rms_norm, total.dtype)
    offset = 1.0 if zero_centered_weight else 0.0
    results = [stages.norm_last(is_rms_norm, total, weight, bias, eps, offset, dtype)]
    if weight1 is not None:
        results.append(stages.norm_last(is_rms_norm, total, weight1, bias1, eps, offset, dtype))
    results[0] = _written(results[0], out)
    total = _written(total, residual_out)
    everything: list[Any] = [*results, *([total] if prenorm else [])]
    if return_dropout_mask:
        everything += [mask, mask1]
    return everything[0] if len(everything) == 1 else tuple(everything)


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """:func:`layer_norm_fn` with ``is_rms_norm=True``.

    Example:

    >>> from planish.compat.flash_attn import rms_norm_fn
    >>> rms_norm_fn(torch.randn(4, 64), torch.ones(64), None).shape
    torch.Size([4, 64])
    """
    return layer_norm_fn(
        x,
        weight,
        bias,
        residual,
        x1,
        weight1,
        bias1,
        eps,
        dropout_p,
        rowscale,
        prenorm,
        residual_in_fp32,
        zero_centered_weight,
        True,
        return_dropout_mask,
        out_dtype,
        out,
        residual_out,
    )


class RMSNorm(nn.Module):
    """flash-attn's RMSNorm: ``weight`` of ``hidden_size``, no bias, dropout of x before the sum.

    ``forward(x, residual=None, prenorm=False, residual_in_fp32=False)`` is :func:`rms_norm_fn`.

    Example:

    >>> from planish.compat.flash_attn import RMSNorm
    >>> RMSNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:
        """The norm of ``x`` with this module's parameters: what :func:`rms_norm_fn` returns."""
        return rms_norm_fn(
            x,
            self.weight,
            None,
            residual=residual,
            eps=self.eps,
            dropout_p=self.drop.p if self.drop is not None and self.training else 0.0,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
            zero_centered_weight=self.zero_centered_weight,
        )


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """:func:`layer_norm_fn` and ``F.linear`` behind it, in autocast's dtype where autocast is on.

    Returns the linear layer's result, with ``prenorm`` and the sum. flash-attn makes y again in
    the backward to save memory; here it is kept for it.

    Example:

    >>> from planish.compat.flash_attn import layer_norm_linear_fn
    >>> linear = torch.randn(8, 64)
    >>> layer_norm_linear_fn(torch.randn(4, 64), torch.ones(64), None, linear, None).shape
    torch.Size([4, 8])
    """
    function = "layer_norm_linear_fn"
    check_tensor(function, "x", x)
    check_tensor(function, "linear_weight", linear_weight)
    check_optional(function, linear_bias=linear_bias)
    _expect(
        linear_weight.dim() == 2 and linear_weight.shape[-1:] == x.shape[-1:],
        function,
        f"Expected linear_weight of two axes with {list(x.shape[-1:])} columns, like x, but got "
        f"{list(linear_weight.shape)}",
    )
    stages.check_float(function, "linear_weight", linear_weight.dtype)
    if linear_bias is not None:
        stages.check_float(function, "linear_bias", linear_bias.dtype)
        _expect(
            linear_bias.shape == linear_weight.shape[:1],
            function,
            f"Expected linear_bias of shape {list(linear_weight.shape[:1])}, but got "
            f"{list(linear_bias.shape)}",
        )
    kind = x.device.type
    auto = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    y, *rest = layer_norm_fn(
        x,
        norm_weight,
        norm_bias,
        residual,
        eps=eps,
        prenorm=True,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
        out_dtype=auto,
    )
    dtype = y.dtype if auto is None else auto
    bias = None if linear_bias is None else linear_bias.to(dtype)
    result = nn.functional.linear(y.to(dtype), linear_weight.to(dtype), bias)
    return (result, *rest) if prenorm else result
