"""Norms over any axes in torch's own functions: how planish's functions answer where torch's rules
are wanted, be it for a transform of torch.func, a forward-mode derivative, a subclass of Tensor,
TorchScript or ONNX.

Where planish is enabled these functions of torch come back to planish's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F

import torch
from planish.operators import layer_norm as _layer_norm
from planish.operators.call import Norm
from torch import Tensor

__all__ = ["activate", "computed_in", "group_norm", "layer_norm", "norm", "statistics"]


def computed_in(*tensors: Tensor | None) -> torch.dtype:
    """f32, or f64 where a tensor has it."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _is_mixed(x: Tensor, *parameters: Tensor | None) -> bool:
    return any(parameter is not None and parameter.dtype != x.dtype for parameter in parameters)


def _to(dtype: torch.dtype, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    problem: Norm,
) -> Tensor:
    """As planish's general operator, but for the activation; dtypes that torch's functions refuse
    to mix are mixed in f32 or f64, and the result is rounded once."""
    reduce, affine, eps, rms = list(problem.reduce), problem.affine, problem.eps, problem.rms
    if problem.l2:
        return _normalize(x, weight, bias, problem)
    kept = [axis for axis in range(x.dim()) if axis not in reduce]
    order = kept + reduce
    at_end = order == sorted(order)
    inside = affine == problem.reduce and not (rms and bias is not None)
    wide = x
    if _is_mixed(x, weight, bias) or not (inside or weight is None is bias):
        dtype = computed_in(x, weight, bias)
        wide, weight, bias = x.to(dtype), _to(dtype, weight), _to(dtype, bias)
    rows = wide if at_end else wide.permute(order)
    shape = [x.size(axis) for axis in reduce]
    scale, shift = (weight, bias) if inside else (None, None)
    if scale is not None and scale.dim() != len(shape):
        scale = scale.reshape(shape)
    if shift is not None and shift.dim() != len(shape):
        shift = shift.reshape(shape)
    y = F.rms_norm(rows, shape, scale, eps) if rms else layer_norm(rows, shape, scale, shift, eps)
    if not at_end:
        y = y.permute([order.index(axis) for axis in range(x.dim())])
    if not inside:
        along = [size if axis in affine else 1 for axis, size in enumerate(x.shape)]
        y = y if weight is None else y * weight.reshape(along)
        y = y if bias is None else y + bias.reshape(along)
    return y.to(x.dtype)


def _normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, problem: Norm) -> Tensor:
    """An L2 norm, as torch.nn.functional.normalize has it, with weight and bias."""
    wide = x.to(computed_in(x, weight, bias))
    length: Tensor = torch.linalg.vector_norm(wide, 2, problem.reduce, keepdim=True)
    y: Tensor = wide / length.clamp_min(problem.eps)
    along = [size if axis in problem.affine else 1 for axis, size in enumerate(x.shape)]
    y = y if weight is None else y * weight.reshape(along)
    y = y if bias is None else y + bias.reshape(along)
    return y.to(x.dtype)


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """torch's, over the last axes; in elementary operators where derivatives would be wrong."""
    composes = _layer_norm.needs_composition(x, weight, bias)
    if composes and tuple(x.shape[x.dim() - len(shape) :]) == tuple(shape):
        return _layer_norm.composed(x, shape, weight, bias, eps)
    return F.layer_norm(x, list(shape), weight, bias, eps)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """torch's, for dtypes that torch refuses to mix as well."""
    if not _is_mixed(x, weight, bias):
        return F.group_norm(x, groups, weight, bias, eps)
    dtype = computed_in(x, weight, bias)
    y = F.group_norm(x.to(dtype), groups, _to(dtype, weight), _to(dtype, bias), eps)
    return y.to(x.dtype)


def activate(y: Tensor, activation: str | None) -> Tensor:
    """That of y, by its name in torch.nn.functional (gelu_tanh: gelu's tanh form); y itself for
    None."""
    if activation == "gelu_tanh":
        return F.gelu(y, approximate="tanh")
    return getattr(F, activation)(y) if activation else y


def statistics(x: Tensor, reduce: list[int]) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squares of what is left beside it, over these axes, kept with size 1."""
    wide = x.to(computed_in(x))
    mean = wide.mean(reduce, keepdim=True)
    return mean, (wide - mean).square().sum(reduce, keepdim=True)
