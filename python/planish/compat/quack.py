"""quack's norms on planish: rmsnorm, rmsnorm_fwd, rmsnorm_bwd, layernorm_fwd, layernorm_bwd,
QuackRMSNorm.

Signatures, defaults, order of results and the types of exceptions are quack's (AssertionError for a
dtype it has not, float64 among them, ValueError for a weight that does not fit). They run on the
CPU, too. The difference: the norm reads the sum as it was rounded to ``residual_dtype``. Its
autotuned variants, configurations and compile caches have no counterpart here.
"""

from __future__ import annotations

from typing import Any

import torch
from planish.functions import stages
from planish.operators import ops
from planish.operators.arguments import HALF, check_floats, check_optional, check_tensor, eps_of
from torch import Tensor, nn

__all__ = [
    "QuackRMSNorm",
    "layernorm_bwd",
    "layernorm_fwd",
    "rmsnorm",
    "rmsnorm_bwd",
    "rmsnorm_fwd",
]

_DTYPES = (*HALF, torch.float32)


def _expect(holds: bool, sentence: str) -> None:
    """AssertionError, as quack has it; also under ``python -O``."""
    if not holds:
        raise AssertionError(sentence)


def _check_dtypes(
    function: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    check_tensor(function, "x", x)
    check_optional(function, weight=weight, bias=bias, residual=residual)
    _expect(x.dtype in _DTYPES, f"Unsupported dtype: x is of {x.dtype}")
    _expect(
        weight is None or weight.dtype in _DTYPES,
        "Weight must be float32, float16 or bfloat16"
        + (f", but is {weight.dtype}" if weight is not None else ""),
    )
    _expect(
        bias is None or bias.dtype in _DTYPES,
        "Bias must be float32, float16 or bfloat16"
        + (f", but is {bias.dtype}" if bias is not None else ""),
    )
    _expect(
        residual is None or residual.dtype in _DTYPES,
        "Residual must be float16, bfloat16, or float32"
        + (f", but is {residual.dtype}" if residual is not None else ""),
    )


def _check_sizes(x: Tensor, **parameters: Tensor | None) -> None:
    for name, parameter in parameters.items():
        if parameter is None:
            continue
        count = parameter.dim()
        if not 1 <= count <= min(2, x.dim()) or parameter.shape != x.shape[x.dim() - count :]:
            raise ValueError(
                f"Mismatched {name}.shape {list(parameter.shape)}: wanted the last axis of x of "
                f"shape {list(x.shape)}, or (heads, columns)"
            )


def _sum(x: Tensor, residual: Tensor | None, dtype: torch.dtype | None) -> Tensor:
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"Mismatched residual.shape {list(residual.shape)}: wanted x's, {list(x.shape)}"
        )
    if residual is None:
        return x if dtype is None else x.to(dtype)
    return stages.sum_with(x, residual, dtype or residual.dtype)


def rmsnorm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    weight_offset: float = 0.0,
) -> Any:
    """RMS norm over the last axis of x + residual: y, or ``(y, residual_out)`` with ``prenorm``.

    ``weight`` and ``bias`` of (N,), or (H, N) for each head of x (..., H, N); y is
    ``xhat * (weight + weight_offset) + bias`` in ``out_dtype`` (x's). ``residual_out`` is the sum
    in ``residual_dtype`` (the residual's); without a residual x, or x in ``residual_dtype``.
    Differentiable.

    Example:

    >>> y, total = planish.compat.quack.rmsnorm(
    ...     torch.randn(4, 64), torch.ones(64), residual=torch.randn(4, 64), prenorm=True
    ... )
    """
    _check_dtypes("rmsnorm", x, weight, bias, residual)
    eps = eps_of("rmsnorm", eps, True, torch.float32)
    _check_sizes(x, weight=weight, bias=bias)
    _expect(weight is not None or not weight_offset, "weight_offset requires a weight")
    total = _sum(x, residual, residual_dtype)
    # x as it was is read, where nothing is added to it
    read = x if residual is None else total
    y = stages.norm_last(True, read, weight, bias, eps, weight_offset, out_dtype or x.dtype)
    return (y, total) if prenorm else y


def _forward(
    rms: bool,
    read: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    weight_offset: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """y, mean (None of RMS) and rstd of the last axis, without a graph."""
    wide = read if read.dtype == dtype else read.float()
    last = [read.dim() - 1]
    affine = last if weight is None else list(range(read.dim() - weight.dim(), read.dim()))
    if weight is not None and weight_offset:
        weight = weight.float() + weight_offset
    shape = [size if axis in affine else 1 for axis, size in enumerate(read.shape)]
    if bias is not None and weight is not None and bias.shape != weight.shape:
        bias = bias.expand(weight.shape)  # (N,) beside (H, N); the other way there is no such case
    y, mean, rstd = ops.plain_forward(
        wide,
        None if weight is None else weight.reshape(shape),
        None if bias is None else bias.reshape(shape),
        last,
        affine,
        eps,
        rms,
        dense=True,
    )
    return y.to(dtype), mean, rstd


@torch.no_grad()
def rmsnorm_fwd(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    eps: float = 1e-6,
    store_rstd: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``(out, residual_out, rstd)`` of :func:`rmsnorm`, without a graph. ``rstd`` is float32 with
    x's shape without the last axis, or None without ``store_rstd``; ``residual_out`` is x itself
    where nothing is added or cast.

    Example:

    >>> y, total, rstd = planish.compat.quack.rmsnorm_fwd(
    ...     torch.randn(4, 64), torch.ones(64), store_rstd=True
    ... )
    >>> rstd.shape
    torch.Size([4])
    """
    _check_dtypes("rmsnorm_fwd", x, weight, bias, residual)
    eps = eps_of("rmsnorm_fwd", eps, True, torch.float32)
    _check_sizes(x, weight=weight, bias=bias)
    _expect(weight is not None or not weight_offset, "weight_offset requires a weight")
    total = _sum(x, residual, residual_dtype)
    read = x if residual is None else total
    y, _, rstd = _forward(True, read, weight, bias, eps, weight_offset, out_dtype or x.dtype)
    return y, total, rstd.squeeze(-1) if store_rstd else None


def _backward(
    rms: bool,
    x: Tensor,
    weight: Tensor | None,
    dout: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    has_bias: bool,
    weight_offset: float,
    wide: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx (``wide``: in float), dweight and dbias in the weight's dtype."""
    last = [x.dim() - 1]
    # one weight for each head where x has three axes
    affine = last if x.dim() < 3 or (weight is not None and weight.dim() == 1) else [1, 2]
    shifted = weight.float() + weight_offset if weight is not None and weight_offset else weight
    dx, dweight, dbias = ops.plain_backward(
        dout,
        x.float() if wide else x,
        None if mean is None else mean.unsqueeze(-1),
        rstd.unsqueeze(-1),
        shifted,
        last,
        affine,
        rms,
        [True, weight is not None, has_bias],
    )
    assert dx is not None
    if dweight is not None and weight is not None:
        dweight = dweight.to(weight.dtype)
    if dbias is not None:
        dbias = dbias.to(x.dtype if weight is None else weight.dtype)
    return dx, dweight, dbias


@torch.no_grad()
def rmsnorm_bwd(
    x: Tensor,
    weight: Tensor | None,
    dout: Tensor,
    rstd: Tensor,
    dresidual_out: Tensor | None = None,
    has_bias: bool = False,
    has_residual: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """``(dx, dw, db, dresidual)``; x is what the forward normalised, ``residual_out`` of it.

    ``dresidual_out``, the gradient that reaches the sum by the residual stream, is added to dx in
    float before that is rounded. ``dresidual`` is dx itself with ``has_residual``, but for a
    ``dresidual_out`` of another dtype than x: then it is the same gradient in that dtype.

    Example:

    >>> x, weight = torch.randn(4, 64), torch.ones(64)
    >>> y, total, rstd = planish.compat.quack.rmsnorm_fwd(x, weight, store_rstd=True)
    >>> dx, dw, db, dresidual = planish.compat.quack.rmsnorm_bwd(x, weight, y, rstd)
    """
    _check_dtypes("rmsnorm_bwd", x, weight)
    for name, given in (("dout", dout), ("rstd", rstd)):
        check_tensor("rmsnorm_bwd", name, given)
    check_optional("rmsnorm_bwd", dresidual_out=dresidual_out)
    check_floats("rmsnorm_bwd", rstd=rstd, dresidual_out=dresidual_out)
    _check_statistics("rmsnorm_bwd", x, dout, rstd=rstd)
    _expect(x.dim() in (2, 3), f"Input must be 2D or 3D, but is {x.dim()}D")
    _expect(
        dresidual_out is None or dresidual_out.shape == x.shape,
        f"dresidual_out must have x's shape {list(x.shape)}"
        + (f", but has {list(dresidual_out.shape)}" if dresidual_out is not None else ""),
    )
    _check_sizes(x, weight=weight)
    dx, dweight, dbias = _backward(
        True, x, weight, dout, None, rstd, has_bias, weight_offset, dresidual_out is not None
    )
    dresidual = None
    if dresidual_out is not None:
        whole = dx + dresidual_out
        dx = whole.to(x.dtype)
        if dresidual_out.dtype != x.dtype:
            dresidual = whole.to(dresidual_out.dtype)
    if has_residual and dresidual is None:
        dresidual = dx
    return dx, dweight, dbias, dresidual


def _check_statistics(function: str, x: Tensor, dout: Tensor, **statistics: Tensor) -> None:
    """What the backward is given: dout like x, and one number for each row."""
    stages.check_like_x(function, "dout", dout, x, optional=False)
    for name, given in statistics.items():
        if given.shape != x.shape[:-1]:
            raise ValueError(
                f"Mismatched {name}.shape {list(given.shape)}: wanted {list(x.shape[:-1])}, one "
                "number for each row of x"
            )


def _check_layer(function: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_tensor(function, "x", x)
    check_tensor(function, "weight", weight)
    check_optional(function, bias=bias)
    _expect(x.dim() == 2, f"Input must be 2D, but is {x.dim()}D")
    _expect(weight.dim() == 1, f"Weight must be 1D, but is {weight.dim()}D")
    _expect(x.dtype in _DTYPES, f"Unsupported dtype: x is of {x.dtype}")
    _expect(weight.dtype == torch.float32, f"Weight must be float32, but is {weight.dtype}")
    if bias is not None:
        _expect(bias.dim() == 1, f"Bias must be 1D, but is {bias.dim()}D")
        _expect(bias.dtype == torch.float32, f"Bias must be float32, but is {bias.dtype}")
    _check_sizes(x, weight=weight, bias=bias)


@torch.no_grad()
def layernorm_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    return_rstd: bool = False,
    return_mean: bool = False,
) -> Any:
    """Layer norm of x (M, N) with float32 parameters, without a graph: out [, rstd] [, mean], the
    statistics being float32 of M elements.

    Example:

    >>> y, rstd, mean = planish.compat.quack.layernorm_fwd(
    ...     torch.randn(4, 64), torch.ones(64), return_rstd=True, return_mean=True
    ... )
    >>> rstd.shape
    torch.Size([4])
    """
    _check_layer("layernorm_fwd", x, weight, bias)
    eps = eps_of("layernorm_fwd", eps, False, torch.float32)
    y, mean, rstd = _forward(False, x, weight, bias, eps, 0.0, x.dtype)
    results = [y]
    if return_rstd:
        results.append(rstd.squeeze(-1))
    if return_mean and mean is not None:
        results.append(mean.squeeze(-1))
    return y if len(results) == 1 else tuple(results)


@torch.no_grad()
def layernorm_bwd(
    x: Tensor, weight: Tensor, dout: Tensor, rstd: Tensor, mean: Tensor, has_bias: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``(dx, dw, db)`` of :func:`layernorm_fwd`; db is None without ``has_bias``.

    Example:

    >>> x, weight = torch.randn(4, 64), torch.ones(64)
    >>> y, rstd, mean = planish.compat.quack.layernorm_fwd(x, weight, None, 1e-6, True, True)
    >>> dx, dw, db = planish.compat.quack.layernorm_bwd(x, weight, y, rstd, mean)
    """
    _check_layer("layernorm_bwd", x, weight, None)
    for name, given in (("dout", dout), ("rstd", rstd), ("mean", mean)):
        check_tensor("layernorm_bwd", name, given)
    check_floats("layernorm_bwd", rstd=rstd, mean=mean)
    _check_statistics("layernorm_bwd", x, dout, rstd=rstd, mean=mean)
    dx, dweight, dbias = _backward(False, x, weight, dout, mean, rstd, has_bias, 0.0, False)
    assert dweight is not None
    return dx, dweight, dbias


class QuackRMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm with eps 1e-6 by default, run by :func:`rmsnorm`.

    Example:

    >>> planish.compat.quack.QuackRMSNorm(64)(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dim, eps, elementwise_affine, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x`` with this module's parameters: :func:`rmsnorm`."""
        eps = 1e-6 if self.eps is None else self.eps
        y: Tensor = rmsnorm(x, self.weight, eps=eps)
        return y


assert ops  # defines the operators that are called by name
