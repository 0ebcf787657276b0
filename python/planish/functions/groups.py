"""Group norm, with what may follow it and how it is rounded."""

from __future__ import annotations

import math
from typing import Any

import torch
from planish.functions.functional import _check_x, _node
from planish.library import quick, switch, torch_calls
from planish.library.seen import is_jit_tracing
from planish.library.torch_calls import short
from planish.operators import composite, kept, limits, norms, steps
from planish.operators import options as _options
from planish.operators.arguments import (
    HALF,
    affine_of,
    check_activation,
    check_cast,
    check_optional,
    check_tensor,
    compute_dtype,
    number_of,
    rounds_xhat,
    whole_of,
)
from planish.operators.arguments import check_parameter as _check
from planish.operators.arguments import with_offset as _with_offset
from planish.operators.ways import Way, may_be_torchs, way_of
from torch import Tensor, fx

__all__ = ["group_by_way", "group_norm"]


def _torch_can_group(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether torch's operator says the same, x's layout in the result included."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    last_3d = x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)
    small = x.device.type == "cpu" and x.numel() <= limits.FEW_ELEMENTS
    if not (x.is_contiguous() or (small and (last or last_3d))):
        return False
    dtypes = {parameter.dtype for parameter in (weight, bias) if parameter is not None}
    half = x.dtype in HALF and x.device.type == "cpu"
    return dtypes <= {x.dtype} or (half and dtypes == {torch.float32})


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
    *,
    weight_offset: float = 0.0,
    cast: str = "once",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Group normalization of x (N, C, ...): mean and variance over each of ``num_groups`` groups of
    neighbouring channels and all axes after them; ``weight`` and ``bias`` of C elements.

    The result is laid out as x, channels last included. Dtypes: f16, bf16, f32 and f64, each tensor
    its own. Differentiable any number of times, forward mode included.

    ``activation="silu"``, ``"relu"``, ``"gelu"`` (with erf), ``"gelu_tanh"``, ``"relu6"`` or
    ``"hardswish"`` returns that of y.
    It is fused: no pass over memory of its own, and nothing kept for the backward but what the norm
    keeps. For images of less than four pixels torch's own runs on the result.

    ``weight_offset``, ``cast`` and ``out_dtype`` as :func:`layer_norm` has them.

    Raises what torch raises: TypeError for what is no tensor or no number, RuntimeError for shapes
    that do not fit, NotImplementedError for another dtype, layout or device; and ValueError for
    another ``cast`` or activation.

    Example:

    >>> x = torch.randn(2, 64, 8, 8)
    >>> y = planish.group_norm(x, 32, torch.ones(64), torch.zeros(64), activation="silu")
    >>> torch.allclose(y, torch.nn.functional.silu(torch.group_norm(x, 32)), atol=1e-5)
    True
    """
    if isinstance(x, fx.Proxy):
        return _node(
            group_norm,
            x,
            num_groups=num_groups,
            weight=weight,
            bias=bias,
            eps=eps,
            activation=activation,
            weight_offset=weight_offset,
            cast=cast,
            out_dtype=out_dtype,
        )
    key = None
    if type(num_groups) is int:
        if steps.is_bare(x, eps, weight_offset, cast, activation, out_dtype):
            y = short(quick.GROUP_NORM, x, num_groups, weight, bias, eps)
            if y is not None:
                return y
        options = num_groups, eps, activation, weight_offset, cast, out_dtype
        known, key = norms.known(("group_norm", switch.active(), *options), x, weight, bias)
        if known is not None:
            return known
    check_activation("group_norm", activation)
    check_cast("group_norm", cast)
    _options.check_out_dtype("group_norm", out_dtype)
    way = way_of(x, weight, bias)
    if way is not Way.PLAIN or x is None:
        check_tensor("group_norm", "x", x)
        check_optional("group_norm", weight=weight, bias=bias)
    if type(num_groups) is not int:
        num_groups = whole_of("group_norm", "num_groups", num_groups)
    if type(eps) is not float:
        eps = number_of("group_norm", "eps", eps)
    if weight_offset:
        weight_offset = number_of("group_norm", "weight_offset", weight_offset)
    asked = _options.Options(x, weight, bias, weight_offset, cast, out_dtype, activation)
    if asked.are_there():
        return _group_norm_with(asked, way, x, num_groups, weight, bias, eps, cast)
    return group_by_way(way, x, num_groups, weight, bias, eps, activation, key=key)


def _group_norm_with(
    options: _options.Options,
    way: Way,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    cast: str,
) -> Tensor:
    """group_norm with options, in one call of the kernels or composed."""
    _check_x("group_norm", x)
    _check_groups(x, num_groups, weight, bias)
    fused = _options.group_norm_with(way, x, num_groups, weight, bias, eps, options)
    if fused is not None:
        return fused
    if options.weight_offset and weight is not None:
        weight = _with_offset(weight, options.weight_offset)
    if cast == "xhat" and rounds_xhat(x.dtype, weight, bias):
        xhat = group_by_way(way, x, num_groups, None, None, eps, None)
        y = composite.activate(affine_of(xhat, weight, bias, [1]), options.activation)
    else:
        wide = x
        if options.out_dtype is not None:
            wide = x.to(compute_dtype(x.dtype, options.out_dtype))
        way = way_of(wide, weight, bias)
        y = group_by_way(way, wide, num_groups, weight, bias, eps, options.activation)
    return y if options.out_dtype is None else y.to(options.out_dtype)


def _check_groups(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> None:
    if x.dim() < 2:
        raise RuntimeError(
            f"group_norm: Expected at least 2 dimensions for input tensor but received {x.dim()}"
        )
    channels = x.shape[1]
    if num_groups <= 0 or channels % num_groups:
        raise RuntimeError(
            "group_norm: Expected number of channels in input to be divisible by num_groups, but "
            f"got input of shape {list(x.shape)} and num_groups={num_groups}"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and parameter.dim() != 1:
            raise RuntimeError(
                f"group_norm: Expected {name} to be a vector of size {channels}, but got "
                f"{name} of shape {list(parameter.shape)}"
            )
        _check(x, parameter, [1], "group_norm", name)


def group_by_way(
    way: Way,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
    *,
    key: Any = None,
) -> Tensor:
    """group_norm of an activation that is known. ``key``: what the call is kept under."""
    _check_x("group_norm", x)
    if way is Way.TORCH and is_jit_tracing():  # sizes are not numbers there
        return norms.group_norm(way, x, num_groups, weight, bias, eps, activation)
    _check_groups(x, num_groups, weight, bias)
    if way is Way.TORCH:
        return norms.group_norm(way, x, num_groups, weight, bias, eps, activation)
    is_torchs = (
        (way is Way.PLAIN or may_be_torchs(way, x, weight, bias))
        and torch_calls.is_possible("group_norm", x)
        and _torch_can_group(x, weight, bias)
    )
    if activation and math.prod(x.shape[2:]) >= limits.IMAGE_PIXELS:
        return norms.group_norm(way, x, num_groups, weight, bias, eps, activation, key=key)
    own = None if activation else key
    if is_torchs:
        by_torch = norms.ByTorch("group_norm", num_groups, eps)
        kept.keep(own, by_torch)
        if may_be_torchs(way, x, weight, bias):
            return composite.activate(by_torch.run(x, weight, bias), activation)
        own = None
    y = norms.group_norm(way, x, num_groups, weight, bias, eps, key=own)
    return composite.activate(y, activation)
