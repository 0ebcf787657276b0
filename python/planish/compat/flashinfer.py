"""The norms of flashinfer (and sgl_kernel, which has the first four under the same names) on
planish, for inference: results are written to the tensors that are given for them.

Signatures and what is in place are flashinfer's. They run on the CPU, too, for any number of axes;
``enable_pdl`` is taken and has no effect. The differences: the norm reads the sum as it was rounded
to the residual's dtype, and quantised values are ``y / scale`` to the nearest, saturating. Nothing
is differentiable. TypeError for what is no tensor and for a dtype of ``out`` that is not fp8 (int8
is taken, too), RuntimeError for shapes and devices that do not fit, ValueError for a scale that is
not positive.
"""

from __future__ import annotations

from typing import Any

import torch
from planish.functions import functional, quantized, stages
from planish.operators import quantized_calls
from planish.operators.arguments import check_tensor, number_of
from torch import Tensor

__all__ = [
    "fused_add_rmsnorm",
    "fused_add_rmsnorm_quant",
    "gemma_fused_add_rmsnorm",
    "gemma_rmsnorm",
    "layernorm",
    "layernorm_quant",
    "rmsnorm",
    "rmsnorm_quant",
]


def _check_input(function: str, input: Tensor, weight: Tensor, name: str = "weight") -> None:
    stages.check_x(function, input, "input")
    check_tensor(function, name, weight)
    stages.check_parameter(function, name, weight, input, "input")


def _check_out(function: str, out: Tensor, input: Tensor) -> None:
    check_tensor(function, "out", out)
    if out.shape != input.shape or out.device != input.device:
        raise RuntimeError(
            f"{function}: Expected out of shape {list(input.shape)} on {input.device}, like input, "
            f"but got {list(out.shape)} on {out.device}"
        )


def _rms(
    function: str, input: Tensor, weight: Tensor, eps: float, out: Tensor | None, offset: float
) -> Tensor:
    _check_input(function, input, weight)
    eps = number_of(function, "eps", eps)
    dtype = input.dtype
    if out is not None:
        _check_out(function, out, input)
        stages.check_float(function, "out", out.dtype)
        dtype = out.dtype
    if out is not None and quantized_calls.norm_into(
        out, input, None, weight, None, eps, True, weight_offset=offset
    ):
        return out
    y = stages.norm_last(True, input, weight, None, eps, offset, dtype)
    return y if out is None else out.copy_(y)


def _add(
    function: str, input: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> None:
    _check_input(function, input, weight)
    stages.check_like_x(function, "residual", residual, input, optional=False)
    eps = number_of(function, "eps", eps)
    if quantized_calls.norm_into(
        input, input, residual, weight, None, eps, True, weight_offset=offset, total=residual
    ):
        return
    residual.copy_(stages.sum_with(input, residual, residual.dtype))
    input.copy_(stages.norm_last(True, residual, weight, None, eps, offset, input.dtype))


@torch.no_grad()
def rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Tensor:
    """RMS norm over the last axis times weight, in ``out`` if that is given, which is returned.

    Example:

    >>> planish.compat.flashinfer.rmsnorm(torch.randn(4, 64), torch.ones(64)).shape
    torch.Size([4, 64])
    """
    return _rms("rmsnorm", input, weight, eps, out, 0.0)


@torch.no_grad()
def gemma_rmsnorm(
    input: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    out: Tensor | None = None,
    enable_pdl: bool | None = None,
) -> Tensor:
    """:func:`rmsnorm` times (1 + weight).

    Example:

    >>> planish.compat.flashinfer.gemma_rmsnorm(torch.randn(4, 64), torch.zeros(64)).shape
    torch.Size([4, 64])
    """
    return _rms("gemma_rmsnorm", input, weight, eps, out, 1.0)


@torch.no_grad()
def fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """In place: residual += input, then input = RMS norm of residual times weight.

    Example:

    >>> x, residual = torch.randn(4, 64), torch.randn(4, 64)
    >>> wanted = x + residual
    >>> planish.compat.flashinfer.fused_add_rmsnorm(x, residual, torch.ones(64))
    >>> torch.equal(residual, wanted)
    True
    """
    _add("fused_add_rmsnorm", input, residual, weight, eps, 0.0)


@torch.no_grad()
def gemma_fused_add_rmsnorm(
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """:func:`fused_add_rmsnorm` times (1 + weight).

    Example:

    >>> x, residual = torch.randn(4, 64), torch.randn(4, 64)
    >>> planish.compat.flashinfer.gemma_fused_add_rmsnorm(x, residual, torch.zeros(64))
    """
    _add("gemma_fused_add_rmsnorm", input, residual, weight, eps, 1.0)


def _scale(function: str, scale: float | Tensor, input: Tensor) -> Tensor:
    """One float32, as flashinfer takes it: a number, or a tensor of one element."""
    if isinstance(scale, Tensor):
        check_tensor(function, "scale", scale)
        return scale.to(torch.float32).reshape(-1)
    scale = number_of(function, "scale", scale)
    return torch.tensor([scale], dtype=torch.float32, device=input.device)


def _quantize(
    function: str,
    out: Tensor,
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    scale: float | Tensor,
    eps: float,
    adds: bool = False,
    weights: str = "weight",
) -> None:
    """out = the norm of input, or with ``adds`` of residual += input, divided by the scale; with
    weights called "gemma" that is a layer norm, which has a bias."""
    rms = weights == "weight"
    _check_input(function, input, weight, weights)
    _check_out(function, out, input)
    if not rms:
        check_tensor(function, "beta", bias)
    stages.check_parameter(function, "beta", bias, input, "input")
    if adds:
        stages.check_like_x(function, "residual", residual, input, optional=False)
    eps = number_of(function, "eps", eps)
    number = _scale(function, scale, input)
    given_dtype = out.dtype, "tensor", number, "f32", False, 1e-10, None
    quantized.check(function, *given_dtype, input, dtype_name="out's dtype")
    one = number.reshape(())
    if quantized_calls.norm_into(
        out, input, residual, weight, bias, eps, rms, y_scale=one, total=residual
    ):
        return
    given: dict[str, Any] = {
        "dtype": out.dtype,
        "per": "tensor",
        "scale": number,
        "residual": residual,
    }
    results = (
        quantized.quantized_rms_norm(input, weight, eps, **given)
        if rms
        else quantized.quantized_layer_norm(input, weight, bias, eps, **given)
    )
    if residual is not None:
        residual.copy_(results[2])
    out.copy_(results[0])


@torch.no_grad()
def rmsnorm_quant(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    scale: float | Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """out = RMS norm times weight, divided by the scale, in out's fp8 dtype.

    Example:

    >>> out = torch.empty(4, 64, dtype=torch.float8_e4m3fn)
    >>> planish.compat.flashinfer.rmsnorm_quant(out, torch.randn(4, 64), torch.ones(64), 0.01)
    """
    _quantize("rmsnorm_quant", out, input, None, weight, None, scale, eps)


@torch.no_grad()
def fused_add_rmsnorm_quant(
    out: Tensor,
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    scale: float | Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """residual += input in place, then :func:`rmsnorm_quant` of it; input is left as it is.

    Example:

    >>> out = torch.empty(4, 64, dtype=torch.float8_e4m3fn)
    >>> x, residual = torch.randn(4, 64), torch.randn(4, 64)
    >>> planish.compat.flashinfer.fused_add_rmsnorm_quant(out, x, residual, torch.ones(64), 0.01)
    """
    _quantize("fused_add_rmsnorm_quant", out, input, residual, weight, None, scale, eps, adds=True)


@torch.no_grad()
def layernorm(input: Tensor, gemma: Tensor, beta: Tensor, eps: float = 1e-6) -> Tensor:
    """Layer norm over the last axis times ``gemma`` plus ``beta``, in input's dtype. In flashinfer
    these are float32; here of any dtype.

    Example:

    >>> planish.compat.flashinfer.layernorm(
    ...     torch.randn(4, 64), torch.ones(64), torch.zeros(64)
    ... ).shape
    torch.Size([4, 64])
    """
    _check_input("layernorm", input, gemma, "gemma")
    check_tensor("layernorm", "beta", beta)
    stages.check_parameter("layernorm", "beta", beta, input, "input")
    eps = number_of("layernorm", "eps", eps)
    return functional.layer_norm(input, -1, gemma, beta, eps)


@torch.no_grad()
def layernorm_quant(
    out: Tensor,
    input: Tensor,
    gemma: Tensor,
    beta: Tensor,
    scale: float | Tensor,
    eps: float = 1e-6,
) -> None:
    """out = :func:`layernorm` divided by the scale, in out's fp8 dtype.

    Example:

    >>> out = torch.empty(4, 64, dtype=torch.float8_e4m3fn)
    >>> planish.compat.flashinfer.layernorm_quant(
    ...     out, torch.randn(4, 64), torch.ones(64), torch.zeros(64), 0.01
    ... )
    """
    _quantize("layernorm_quant", out, input, None, gemma, beta, scale, eps, weights="gemma")
