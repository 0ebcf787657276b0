"""layer_norm and rms_norm over any axes, group_norm, and the standardization of weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from planish import _composite, _enable, _norms, _ops
from planish._library import library
from planish._ways import Way, is_jit_tracing, may_be_torchs, way_of
from torch import Tensor, fx

__all__ = ["group_norm", "layer_norm", "rms_norm", "weight_standardize"]

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


def _device_type(x: Tensor) -> str:
    return "cpu" if x.is_cpu else x.device.type


def _check(
    x: Tensor, parameter: Tensor | None, affine: list[int], function: str, name: str
) -> None:
    if parameter is None:
        return
    shape, given = x.shape, list(parameter.shape)
    short = [shape[axis] for axis in affine]
    if given != short:
        full = [size if axis in affine else 1 for axis, size in enumerate(shape)]
        if given != full:
            raise RuntimeError(
                f"{function}: Expected {name} to have the sizes {short} of the affine dims "
                f"(or {full}), but got {name} of shape {given}"
            )
    if parameter.dtype not in _DTYPES:
        raise NotImplementedError(f"{function}: not implemented for {name} of {parameter.dtype}")
    if parameter.device != x.device:
        raise RuntimeError(
            f"{function}: Expected {name} on {x.device}, like x, but got it on {parameter.device}"
        )


def _check_x(function: str, x: Tensor) -> None:
    if x.dtype not in _DTYPES:
        raise NotImplementedError(f"{function}: not implemented for x of {x.dtype}")
    if _device_type(x) not in DEVICES:
        raise NotImplementedError(
            f"{function}: planish has no kernel for {x.device}; it runs on {', '.join(DEVICES)}"
        )


def _norm(
    function: str,
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    affine_dims: int | Iterable[int] | None,
    keep: bool = False,
    weight_offset: float = 0.0,
    cast: str = "once",
) -> Tensor:
    """``keep``: the result is laid out as x. Otherwise it is dense."""
    _check_x(function, x)
    if cast not in CASTS:
        raise ValueError(f"{function}: cast is {cast!r}; known are {', '.join(map(repr, CASTS))}")
    reduce = _axes(dims, x.dim(), f"{function}, dims")
    if not reduce:
        raise RuntimeError(f"{function}: Expected dims to have at least one element, but got none")
    affine = (
        reduce if affine_dims is None else _axes(affine_dims, x.dim(), f"{function}, affine_dims")
    )
    way = way_of(x, weight, bias)
    if way is not Way.TORCH or not (is_jit_tracing() or x.is_nested):
        _check(x, weight, affine, function, "weight")
        _check(x, bias, affine, function, "bias")
    if weight_offset and weight is not None:
        weight = _with_offset(weight, weight_offset)
    if cast == "xhat" and _rounds_xhat(x, weight, bias):
        xhat = _norm(function, x, reduce, None, None, eps, None, keep)
        return _affine(xhat, weight, bias, affine)
    return by_way(way, function, x, weight, bias, reduce, affine, eps, keep)


def by_way(
    way: Way,
    function: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    keep: bool,
) -> Tensor:
    """layer_norm or rms_norm of what was checked; axes are sorted and not negative."""
    rms = function == "rms_norm"
    if (
        may_be_torchs(way, x, weight, bias)
        and _enable.is_enabled(function, _device_type(x))
        and _torch_can(x, weight, bias, reduce, affine, rms)
        and not (keep and _is_permuted(x))
    ):
        shape = x.shape[reduce[0] :]
        if rms:
            return torch.rms_norm(x, shape, weight, eps)
        return torch.layer_norm(x, shape, weight, bias, eps)
    return _norms.norm(way, x, weight, bias, reduce, affine, eps, rms, keep)


def _is_permuted(x: Tensor) -> bool:
    """Whether a result laid out as x is not dense in the order of its axes."""
    return any(one < other for one, other in itertools.pairwise(x.stride()))


#: Orders of rounding; see layer_norm.
CASTS = ("once", "xhat")


def _with_offset(weight: Tensor, offset: float) -> Tensor:
    """In float at least: 1 + w of bf16 would lose w's digits."""
    return (weight if weight.dtype == torch.float64 else weight.float()) + offset


def _rounds_xhat(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether rounding xhat to x's dtype before weight and bias is another result."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    others = (parameter for parameter in (weight, bias) if parameter is not None)
    return any(half or parameter.dtype != x.dtype for parameter in others)


def _affine(xhat: Tensor, weight: Tensor | None, bias: Tensor | None, affine: list[int]) -> Tensor:
    """weight * xhat + bias in torch's own operators and by its promotion of dtypes."""
    sizes = [size if axis in affine else 1 for axis, size in enumerate(xhat.shape)]
    y = xhat if weight is None else weight.reshape(sizes) * xhat
    return y if bias is None else y + bias.reshape(sizes)


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

    Raises what torch raises: IndexError for an axis out of range, RuntimeError for shapes that do
    not fit, NotImplementedError for another dtype or device; and ValueError for another ``cast``.
    """
    if isinstance(x, fx.Proxy):
        rest = {"affine_dims": affine_dims, "weight_offset": weight_offset, "cast": cast}
        return _node(layer_norm, x, dims=dims, weight=weight, bias=bias, eps=eps, **rest)
    return _norm("layer_norm", x, dims, weight, bias, eps, affine_dims, True, weight_offset, cast)


def rms_norm(
    x: Tensor,
    dims: int | Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    affine_dims: int | Iterable[int] | None = None,
    *,
    weight_offset: float = 0.0,
    cast: str = "once",
) -> Tensor:
    """Root-mean-square normalization over any axes.

    ``y = x / sqrt(mean(x^2) + eps) * weight + bias``; everything else as :func:`layer_norm`.
    """
    if isinstance(x, fx.Proxy):
        rest = {"affine_dims": affine_dims, "weight_offset": weight_offset, "cast": cast}
        return _node(rms_norm, x, dims=dims, weight=weight, bias=bias, eps=eps, **rest)
    return _norm("rms_norm", x, dims, weight, bias, eps, affine_dims, True, weight_offset, cast)


# ---- Channels ---------------------------------------------------------------------------------


def channel_norm(
    way: Way,
    function: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    channels_last: bool = False,
) -> Tensor:
    """layer_norm or rms_norm over the channels of (N, C, H, W), laid out as x, of a dtype and on a
    device that planish runs, and not by torch's way. ``channels_last``: on a GPU it is laid out
    so, whatever x is."""
    _check(x, weight, [1], function, "weight")
    _check(x, bias, [1], function, "bias")
    graph = torch.is_grad_enabled() and x.requires_grad
    if channels_last and x.is_cuda:
        # The first norm of a model pays for the copy; what convolutions make of it is laid out so.
        x = x.contiguous(memory_format=torch.channels_last)
    if graph or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        # With a graph no view, see group_norm.
        return by_way(way, function, x, weight, bias, [1], [1], eps, keep=True)
    # channels last: rows, and while enabled torch's own operator, which costs less to call
    rows = by_way(way, function, x.permute(0, 2, 3, 1), weight, bias, [3], [3], eps, keep=False)
    return rows.permute(0, 3, 1, 2)


def _torch_can_group(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether torch's operator says the same, x's layout in the result included."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    last_3d = x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)
    small = x.device.type == "cpu" and x.numel() <= _TORCH_PIXELS_ELEMENTS
    if not (x.is_contiguous() or (small and (last or last_3d))):
        return False
    dtypes = {parameter.dtype for parameter in (weight, bias) if parameter is not None}
    half = x.dtype in (torch.float16, torch.bfloat16) and x.device.type == "cpu"
    return dtypes <= {x.dtype} or (half and dtypes == {torch.float32})


#: Channels last: of more elements than these planish under torch's operator may hand the call to
#: torch's kernel (src/torch/group_faster.c), which a module of planish's does not where planish is
#: disabled.
_TORCH_PIXELS_ELEMENTS = 32768

#: Images of fewer pixels have no kernels of their own (planish.h, planish_norm).
_FUSED_PIXELS = 4
#: With fewer elements a pass over them costs less than what a call of planish's own costs the host
#: beyond one of torch's operators.
_FUSED_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 23}


def _is_worth_a_call(x: Tensor) -> bool:
    if x.numel() >= _FUSED_ELEMENTS[x.device.type]:
        return True
    on_gpu = x.device.type == "cuda" and not torch.compiler.is_compiling()
    return on_gpu and torch.cuda.is_current_stream_capturing()


def check_activation(function: str, activation: str | None) -> None:
    """Raises ValueError for one that is not known."""
    if activation not in _ops.ACTIVATIONS:
        known = ", ".join(map(repr, _ops.ACTIVATIONS))
        raise ValueError(f"{function}: activation is {activation!r}; known are {known}")


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    activation: str | None = None,
) -> Tensor:
    """Group normalization of x (N, C, ...): mean and variance over each of ``num_groups`` groups of
    neighbouring channels and all axes after them; ``weight`` and ``bias`` of C elements.

    The result is laid out as x, channels last included. Dtypes: f16, bf16, f32 and f64, each tensor
    its own. Differentiable any number of times, forward mode included.

    ``activation="silu"`` or ``"relu"`` returns that of y. It is fused: no pass over memory of its
    own, and nothing kept for the backward but what the norm keeps. For images of less than four
    pixels, and while planish is enabled for less than 65536 elements (on a GPU 2^23, but for calls
    that a CUDA graph records), torch's own runs on the result.

    Raises what torch raises: RuntimeError for shapes that do not fit, NotImplementedError for
    another dtype or device; and ValueError for another activation.
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
        )
    check_activation("group_norm", activation)
    way = way_of(x, weight, bias)
    return group_by_way(way, x, num_groups, weight, bias, eps, activation)


def group_by_way(
    way: Way,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
) -> Tensor:
    """group_norm of an activation that is known."""
    _check_x("group_norm", x)
    if way is Way.TORCH and is_jit_tracing():  # sizes are not numbers there
        return _norms.group_norm(way, x, num_groups, weight, bias, eps, activation)
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
    if way is Way.TORCH:
        return _norms.group_norm(way, x, num_groups, weight, bias, eps, activation)
    through_torch = (
        may_be_torchs(way, x, weight, bias)
        and _enable.is_enabled("group_norm", _device_type(x))
        and _torch_can_group(x, weight, bias)
    )
    fuses = x.shape[2:].numel() >= _FUSED_PIXELS
    if activation and fuses and (not through_torch or _is_worth_a_call(x)):
        return _norms.group_norm(way, x, num_groups, weight, bias, eps, activation)
    if through_torch:
        y = torch.group_norm(x, num_groups, weight, bias, eps)
    else:
        y = _norms.group_norm(way, x, num_groups, weight, bias, eps)
    return _composite.activate(y, activation)


def weight_standardize(w: Tensor, eps: float = 1e-5) -> Tensor:
    """Weight standardization (Qiao et al. 2019) of w (out, in, ...): the weights of each output get
    mean 0 and variance 1, ``(w - mean) / sqrt(var + eps)`` with the biased variance, over all axes
    but the first. Laid out as w; differentiable any number of times.

    Raises RuntimeError for fewer than two axes, NotImplementedError for another dtype or device.
    """
    if isinstance(w, fx.Proxy):
        return _node(weight_standardize, w, eps=eps)
    if w.dim() < 2:
        raise RuntimeError(f"weight_standardize: Expected 2 dimensions or more, but got {w.dim()}")
    return _norm("layer_norm", w, range(1, w.dim()), None, None, eps, None, keep=True)
