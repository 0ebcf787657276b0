"""layer_norm and rms_norm over any axes, and the standardization of weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from planish.library import quick, switch, torch_calls
from planish.library.seen import is_jit_tracing
from planish.library.torch_calls import short
from planish.operators import composite, kept, norms, steps
from planish.operators import options as _options
from planish.operators.arguments import (
    DEVICES,
    DTYPES,
    activates,
    affine_of,
    check_activation,
    check_cast,
    check_optional,
    check_tensor,
    compute_dtype,
    eps_of,
    given_axes,
    number_of,
    rounds_xhat,
)
from planish.operators.arguments import axes_of as _axes
from planish.operators.arguments import check_parameter as _check
from planish.operators.arguments import device_type as _device_type
from planish.operators.arguments import with_offset as _with_offset
from planish.operators.call import Norm
from planish.operators.ways import Way, may_be_torchs, way_of
from torch import Tensor, fx

__all__ = ["layer_norm", "rms_norm", "weight_standardize"]


def _check_x(function: str, x: Tensor, name: str = "x") -> None:
    """A dtype and a device there are kernels for, of what is a tensor."""
    if x.dtype not in DTYPES:
        raise NotImplementedError(f"{function}: not implemented for {name} of {x.dtype}")
    if _device_type(x) not in DEVICES:
        raise NotImplementedError(
            f"{function}: planish has no kernel for {x.device}; it runs on {', '.join(DEVICES)}"
        )


def axes_of_both(
    function: str,
    x: Tensor,
    dims: int | Iterable[int],
    affine_dims: int | Iterable[int] | None,
    name: str = "dims",
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of x that are normalized, one at least, and those of its parameters."""
    reduce = tuple(_axes(dims, x.dim(), f"{function}, {name}"))
    if not reduce:
        raise RuntimeError(
            f"{function}: Expected {name} to have at least one element, but got none"
        )
    if affine_dims is None:
        return reduce, reduce
    return reduce, tuple(_axes(affine_dims, x.dim(), f"{function}, affine_dims"))


def _norm(
    function: str,
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    affine_dims: int | Iterable[int] | None,
    keep: bool = False,
    weight_offset: float = 0.0,
    cast: str = "once",
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``keep``: the result is laid out as x. Otherwise it is dense."""
    if isinstance(x, fx.Proxy):
        public = rms_norm if function == "rms_norm" else layer_norm
        given = {"dims": dims, "weight": weight, "bias": bias, "eps": eps}
        given |= {"affine_dims": affine_dims, "weight_offset": weight_offset, "cast": cast}
        return _node(public, x, **given, activation=activation, out_dtype=out_dtype)
    active = switch.active()
    if type(dims) is not int:
        dims = given_axes(function, "dims", dims)
    if affine_dims is not None:
        affine_dims = given_axes(function, "affine_dims", affine_dims)
    options = dims, affine_dims, eps, weight_offset, cast, activation, out_dtype, keep
    known, key = norms.known((function, active, *options), x, weight, bias)
    if known is not None:
        return known
    way = way_of(x, weight, bias)
    if way is not Way.PLAIN or x is None:
        check_tensor(function, "x", x)
        check_optional(function, weight=weight, bias=bias)
    _check_x(function, x)
    check_activation(function, activation)
    _options.check_out_dtype(function, out_dtype)
    check_cast(function, cast)
    rms = function == "rms_norm"
    if type(eps) is not float:
        eps = eps_of(function, eps, rms, x.dtype)
    if weight_offset:
        weight_offset = number_of(function, "weight_offset", weight_offset)
    reduce, affine = axes_of_both(function, x, dims, affine_dims)
    if way is not Way.TORCH or not (is_jit_tracing() or x.is_nested):
        _check(x, weight, affine, function, "weight")
        _check(x, bias, affine, function, "bias")
    norm = Norm(reduce, affine, eps, rms, keep, activation)
    asked = _options.Options(x, weight, bias, weight_offset, cast, out_dtype, activation)
    if asked.are_there() and keep:
        fused = _options.norm_with(way, x, weight, bias, norm, asked, key=key)
        if fused is not None:
            return fused
    if asked.out_dtype is not None:
        wide = x if asked.rounds else x.to(compute_dtype(x.dtype, asked.out_dtype))
        rest = affine, keep, weight_offset, cast, activation
        return _norm(function, wide, reduce, weight, bias, eps, *rest).to(asked.out_dtype)
    if weight_offset and weight is not None:
        weight, key = _with_offset(weight, weight_offset), None
    if cast == "xhat" and rounds_xhat(x.dtype, weight, bias):
        xhat = _norm(function, x, reduce, None, None, eps, None, keep)
        return composite.activate(affine_of(xhat, weight, bias, affine), activation)
    return by_way(way, x, weight, bias, norm, key=key)


def by_way(
    way: Way,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm: Norm,
    *,
    key: Any = None,
) -> Tensor:
    """layer_norm or rms_norm of what was checked. ``key``: what the call is kept under."""
    if norm.activation:
        if activates(x, norm.reduce, norm.affine):
            return norms.norm(way, x, weight, bias, norm, key=key)
        y = by_way(way, x, weight, bias, norm._replace(activation=None))
        return composite.activate(y, norm.activation)
    if (
        (way is Way.PLAIN or may_be_torchs(way, x, weight, bias))
        and torch_calls.is_possible(norm.kind, x)
        and _torch_can(x, weight, bias, norm)
        and not (norm.keep and _is_permuted(x))
    ):
        by_torch = norms.ByTorch(norm.kind, x.shape[norm.reduce[0] :], norm.eps)
        kept.keep(key, by_torch)
        if may_be_torchs(way, x, weight, bias):
            return by_torch.run(x, weight, bias)
        key = None
    return norms.norm(way, x, weight, bias, norm, key=key)


def _is_permuted(x: Tensor) -> bool:
    """Whether a result laid out as x is not dense in the order of its axes."""
    return any(one < other for one, other in itertools.pairwise(x.stride()))


def _torch_can(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm) -> bool:
    """Whether torch's operator says the same: planish is then one step closer through it."""
    if norm.rms and bias is not None:
        return False
    reduce = norm.reduce
    if reduce != tuple(range(x.dim() - len(reduce), x.dim())) or norm.affine != reduce:
        return False
    return all(
        parameter is None or (parameter.dtype == x.dtype and parameter.dim() == len(reduce))
        for parameter in (weight, bias)
    )


def _node(function: Any, x: fx.Proxy, **arguments: Any) -> Any:
    """The call as a node of the graph that torch.fx traces."""
    return x.tracer.create_proxy("call_function", function, (x,), arguments)


def layer_norm(
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    affine_dims: int | Iterable[int] | None = None,
    *,
    weight_offset: float = 0.0,
    cast: str = "once",
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Layer normalization over any axes.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``, with mean and (biased) variance over
    ``dims``. ``weight`` and ``bias`` vary along ``affine_dims`` (by default ``dims``): they have
    the sizes of those axes in x's order, or x's rank with 1 everywhere else. Dtypes: f16, bf16, f32
    and f64, each tensor its own; the result has x's and is laid out as x. Differentiable any number
    of times, forward mode included.

    ``layer_norm(x, 1, weight, bias)`` is the channel norm of an NCHW tensor without a permute.

    ``weight_offset``: y is made with ``weight_offset + weight``, a sum in float (Gemma's 1 + w). No
    effect without a weight.

    ``cast="once"``: everything between x and y is in float (f64 for f64) and y is rounded once.
    ``cast="xhat"``: xhat is rounded to x's dtype first; ``weight * xhat + bias`` are torch's own
    operators, and the result has the dtype that they promote to. That is the order of rounding of
    Llama's RMSNorm in Transformers.

    ``out_dtype``: the result's dtype where it is not x's; y is rounded to it once.

    ``activation="silu"``, ``"relu"``, ``"gelu"`` (with erf), ``"gelu_tanh"``, ``"relu6"`` or
    ``"hardswish"`` returns that of y.
    It is fused: y is not rounded before it, there is no pass over memory of its own, and nothing
    kept for the backward but what the norm keeps. Behind ``cast="xhat"``, and on a GPU for rows of
    more than 16 KiB or whose elements are no neighbours (but the channels of images), torch's own
    runs on the result.

    Raises what torch raises: TypeError for what is no tensor, no axis or no number, IndexError for
    an axis out of range, RuntimeError for shapes that do not fit, NotImplementedError for another
    dtype, layout or device; and ValueError for another ``cast`` or activation.

    Example:

    >>> x = torch.randn(2, 96, 14, 14)
    >>> y = planish.layer_norm(x, 1, torch.ones(96), torch.zeros(96))
    >>> torch.allclose(y.mean(1), torch.zeros(2, 14, 14), atol=1e-5)
    True
    >>> planish.layer_norm(x, [2, 3], torch.ones(96), affine_dims=1).shape
    torch.Size([2, 96, 14, 14])
    >>> planish.layer_norm(x, 4)
    Traceback (most recent call last):
    IndexError: ...
    """
    if (type(dims) is int and dims == -1 and affine_dims is None) and steps.is_bare(
        x, eps, weight_offset, cast, activation, out_dtype
    ):
        y = short(quick.LAYER_NORM, x, None, weight, bias, eps)
        if y is not None:
            return y
    options = weight_offset, cast, activation, out_dtype
    return _norm("layer_norm", x, dims, weight, bias, eps, affine_dims, True, *options)


def rms_norm(
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
    affine_dims: int | Iterable[int] | None = None,
    *,
    weight_offset: float = 0.0,
    cast: str = "once",
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Root-mean-square normalization over any axes.

    ``y = x / sqrt(mean(x^2) + eps) * weight + bias``; everything else as :func:`layer_norm`, but
    that ``eps`` may be None, which is what torch.nn.RMSNorm takes by default: the distance of 1 to
    the next number of the arithmetic, f64 for f64 and else f32.

    Example:

    >>> x, weight = torch.tensor([[3.0, 4.0]]), torch.zeros(2)
    >>> planish.rms_norm(x, -1, eps=0.0) * 12.5**0.5
    tensor([[3., 4.]])
    >>> y = planish.rms_norm(x, -1, weight, weight_offset=1)  # Gemma's 1 + weight
    >>> torch.equal(y, planish.rms_norm(x, -1))
    True
    """
    if (type(dims) is int and dims == -1 and affine_dims is None) and steps.is_bare(
        x, eps, weight_offset, cast, activation, out_dtype
    ):
        y = short(quick.RMS_NORM, x, None, weight, bias, eps)
        if y is not None:
            return y
    options = weight_offset, cast, activation, out_dtype
    return _norm("rms_norm", x, dims, weight, bias, eps, affine_dims, True, *options)


# ---- Channels ---------------------------------------------------------------------------------


def channel_norm(
    way: Way,
    function: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    channels_last: bool = False,
    *,
    key: Any = None,
) -> Tensor:
    """layer_norm or rms_norm over the channels of (N, C, H, W), laid out as x, of a dtype and on a
    device that planish runs, and not by torch's way. ``channels_last``: on a GPU it is laid out
    so, whatever x is. ``key``: as by_way has it, for an x that is row-major."""
    _check(x, weight, [1], function, "weight")
    _check(x, bias, [1], function, "bias")
    rms = function == "rms_norm"
    graph = torch.is_grad_enabled() and x.requires_grad
    if channels_last and x.is_cuda:
        # The first norm of a model pays for the copy; what convolutions make of it is laid out so.
        x, key = x.contiguous(memory_format=torch.channels_last), None
    if graph or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        # With a graph no view, see group_norm.
        return by_way(way, x, weight, bias, Norm((1,), (1,), eps, rms, True), key=key)
    # channels last: rows, and while enabled torch's own operator, which costs less to call
    rows = by_way(way, x.permute(0, 2, 3, 1), weight, bias, Norm((3,), (3,), eps, rms))
    return rows.permute(0, 3, 1, 2)


def weight_standardize(w: Tensor, eps: float = 1e-5) -> Tensor:
    """Weight standardization (Qiao et al. 2019) of w (out, in, ...): the weights of each output get
    mean 0 and variance 1, ``(w - mean) / sqrt(var + eps)`` with the biased variance, over all axes
    but the first. Laid out as w; differentiable any number of times.

    Raises RuntimeError for fewer than two axes, NotImplementedError for another dtype or device.

    Example:

    >>> w = planish.weight_standardize(torch.randn(8, 4, 3, 3))
    >>> torch.allclose(w.var((1, 2, 3), unbiased=False), torch.ones(8), atol=1e-3)
    True
    """
    if isinstance(w, fx.Proxy):
        return _node(weight_standardize, w, eps=eps)
    check_tensor("weight_standardize", "w", w)
    if w.dim() < 2:
        raise RuntimeError(
            f"weight_standardize: Expected w to have 2 dimensions or more, but got {w.dim()}"
        )
    _check_x("weight_standardize", w, "w")
    eps = number_of("weight_standardize", "eps", eps)
    return _norm("layer_norm", w, range(1, w.dim()), None, None, eps, None, keep=True)
