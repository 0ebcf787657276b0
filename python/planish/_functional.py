"""layer_norm and rms_norm over any axes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from planish import _enable, _ops
from planish._library import library
from torch import Tensor

__all__ = ["layer_norm", "rms_norm"]

#: Device types there are operators for.
DEVICES = ("cpu", "meta") if library().cuda_is_missing() else ("cpu", "meta", "cuda")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _axes(dims: int | Iterable[int], ndim: int, name: str) -> list[int]:
    """Sorted axes that are not negative; torch's exceptions for what is none."""
    given = [dims] if isinstance(dims, int) else list(dims)
    axes: set[int] = set()
    for dim in given:
        if not -ndim <= dim < ndim:
            raise IndexError(
                f"{name}: Dimension out of range (expected to be in range of "
                f"[{-ndim}, {ndim - 1}], but got {dim})"
            )
        if dim % ndim in axes:
            raise RuntimeError(
                f"{name}: dim {dim % ndim} appears multiple times in the list of dims"
            )
        axes.add(dim % ndim)
    return sorted(axes)


def _check(
    x: Tensor, parameter: Tensor | None, affine: list[int], function: str, name: str
) -> None:
    if parameter is None:
        return
    short = [x.shape[axis] for axis in affine]
    full = [size if axis in affine else 1 for axis, size in enumerate(x.shape)]
    if list(parameter.shape) not in (short, full):
        raise RuntimeError(
            f"{function}: Expected {name} to have the sizes {short} of the affine dims "
            f"(or {full}), but got {name} of shape {list(parameter.shape)}"
        )
    if parameter.dtype not in _DTYPES:
        raise NotImplementedError(f"{function}: not implemented for {name} of {parameter.dtype}")
    if parameter.device != x.device:
        raise RuntimeError(
            f"{function}: Expected {name} on {x.device}, like x, but got it on {parameter.device}"
        )


def _norm(
    function: str,
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    affine_dims: int | Iterable[int] | None,
) -> Tensor:
    if x.dtype not in _DTYPES:
        raise NotImplementedError(f"{function}: not implemented for x of {x.dtype}")
    if x.device.type not in DEVICES:
        raise NotImplementedError(
            f"{function}: planish has no kernel for {x.device}; it runs on {', '.join(DEVICES)}"
        )
    reduce = _axes(dims, x.dim(), f"{function}, dims")
    if not reduce:
        raise RuntimeError(f"{function}: Expected dims to have at least one element, but got none")
    affine = (
        reduce if affine_dims is None else _axes(affine_dims, x.dim(), f"{function}, affine_dims")
    )
    _check(x, weight, affine, function, "weight")
    _check(x, bias, affine, function, "bias")
    rms = function == "rms_norm"
    if _torch_can(x, weight, bias, reduce, affine, rms) and _enable.is_enabled(
        function, x.device.type
    ):
        shape = x.shape[reduce[0] :]
        if rms:
            return torch.rms_norm(x, shape, weight, eps)
        return torch.layer_norm(x, shape, weight, bias, eps)
    return _ops.norm(x, weight, bias, reduce, affine, eps, rms)


def _torch_can(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    rms: bool,
) -> bool:
    """Whether torch's operator says the same: planish is then one step closer through it."""
    if rms and bias is not None:
        return False
    if reduce != list(range(x.dim() - len(reduce), x.dim())) or affine != reduce:
        return False
    return all(
        parameter is None or (parameter.dtype == x.dtype and parameter.dim() == len(reduce))
        for parameter in (weight, bias)
    )


def layer_norm(
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    affine_dims: int | Iterable[int] | None = None,
) -> Tensor:
    """Layer normalization over any axes.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``, with mean and (biased) variance over
    ``dims``. ``weight`` and ``bias`` vary along ``affine_dims`` (by default ``dims``): they have
    the sizes of those axes in x's order, or x's rank with 1 everywhere else. Dtypes: f16, bf16, f32
    and f64, each tensor its own; the result has x's and is dense. Differentiable twice.

    ``layer_norm(x, 1, weight, bias)`` is the channel norm of an NCHW tensor without a permute.

    Raises what torch raises: IndexError for an axis out of range, RuntimeError for shapes that do
    not fit, NotImplementedError for another dtype or device.
    """
    return _norm("layer_norm", x, dims, weight, bias, eps, affine_dims)


def rms_norm(
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    affine_dims: int | Iterable[int] | None = None,
) -> Tensor:
    """Root-mean-square normalization over any axes.

    ``y = x / sqrt(mean(x^2) + eps) * weight + bias``; everything else as :func:`layer_norm`.
    """
    return _norm("rms_norm", x, dims, weight, bias, eps, affine_dims)
