"""planish's own operators, for axes that torch's cannot express.

C defines them and runs them on real tensors (src/torch/any_axes.c); this file adds what torch asks
of Python: shapes for fake tensors, and derivatives.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from planish._library import library
from torch import Tensor

__all__ = [
    "ACTIVATIONS",
    "group_norm",
    "norm",
    "norm_and_statistics",
    "split_channels",
    "statistics",
]

#: What may follow a norm: planish_activation of planish.h.
ACTIVATIONS = {None: 0, "silu": 1, "relu": 2}


def _statistics_dtype(x: Tensor, activation: int = 0) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 or activation else torch.float32


def _statistics_shape(x: Tensor, reduce: list[int]) -> list[int]:
    return [1 if axis in reduce else size for axis, size in enumerate(x.shape)]


def _dense(x: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=x.device)


def _forward_fake(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    keep: bool,
    activation: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    shape, dtype = _statistics_shape(x, reduce), _statistics_dtype(x, activation)
    mean = _dense(x, [0] if rms else shape, dtype)
    y = torch.empty_like(x) if keep else _dense(x, x.shape, x.dtype)
    return y, mean, _dense(x, shape, dtype)


def _backward_fake(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    reduce: list[int],
    affine: list[int],
    rms: bool,
    wanted: list[bool],
    bias: Tensor | None = None,
    activation: int = 0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    shape = [x.shape[axis] for axis in affine]
    dtype = x.dtype if weight is None else weight.dtype
    return (
        torch.empty_like(x) if wanted[0] else None,
        _dense(x, shape, dtype) if wanted[1] else None,
        _dense(x, shape, dtype) if wanted[2] else None,
    )


def _statistics_fake(x: Tensor, reduce: list[int]) -> tuple[Tensor, Tensor]:
    shape, dtype = _statistics_shape(x, reduce), _statistics_dtype(x)
    return _dense(x, shape, dtype), _dense(x, shape, dtype)


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, reduce, affine, _, rms, _, activation = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, weight, bias if activation else None, mean, rstd)
    ctx.reduce, ctx.affine, ctx.rms, ctx.activation = reduce, affine, rms, activation
    ctx.weight_shape = None if weight is None else weight.shape
    ctx.bias_shape = None if bias is None else bias.shape
    ctx.bias_dtype = None if bias is None else bias.dtype


def _differentiate_forward(
    ctx: Any, dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None
) -> tuple[Any, ...]:
    nothing = (None,) * 6
    if dy is None:
        return None, None, None, *nothing
    x, weight, bias, mean, rstd = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:3])
    axes = ctx.reduce, ctx.affine, ctx.rms
    dx, dweight, dbias = torch.ops.planish.norm_backward(
        dy, x, mean, rstd, weight, *axes, needed, bias, ctx.activation
    )
    if dweight is not None:
        dweight = dweight.reshape(ctx.weight_shape)
    if dbias is not None:
        dbias = dbias.reshape(ctx.bias_shape).to(ctx.bias_dtype)
    return dx, dweight, dbias, *nothing


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    dy, x, _, rstd, weight, reduce, affine, rms, wanted, bias, activation = inputs
    ctx.save_for_backward(dy, x, rstd, weight, bias)
    ctx.reduce, ctx.affine, ctx.rms, ctx.wanted = reduce, affine, rms, wanted
    ctx.activation = activation


def _slope(activation: int, z: Tensor) -> Tensor:
    if activation == ACTIVATIONS["relu"]:
        return (~(z <= 0)).to(z.dtype)
    s = z.sigmoid()
    return s * (1 + z * (1 - s))


def _differentiate_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    """Double backward: the backward formula in torch's own operators, differentiated by torch."""
    saved_dy, saved_x, rstd, saved_weight, saved_bias = ctx.saved_tensors
    reduce, affine = list(ctx.reduce), list(ctx.affine)
    others = [axis for axis in range(saved_x.dim()) if axis not in affine]
    with torch.enable_grad():
        dtype = rstd.dtype
        dy, x = saved_dy.detach().requires_grad_(), saved_x.detach().requires_grad_()
        inputs = [dy, x]
        wide_dy, wide_x = dy.to(dtype), x.to(dtype)
        along = [size if axis in affine else 1 for axis, size in enumerate(x.shape)]
        scale: Tensor | float = 1.0
        shift: Tensor | float = 0.0
        if saved_weight is not None:
            weight = saved_weight.detach().requires_grad_()
            inputs.append(weight)
            scale = weight.to(dtype).reshape(along)
        if saved_bias is not None:
            bias = saved_bias.detach().requires_grad_()
            inputs.append(bias)
            shift = bias.to(dtype).reshape(along)
        centred = wide_x if ctx.rms else wide_x - wide_x.mean(reduce, keepdim=True)
        variance = centred.square().mean(reduce, keepdim=True)
        eps = (rstd.pow(-2) - variance).detach()
        xhat = centred * (variance + eps).rsqrt()
        if ctx.activation:
            wide_dy = wide_dy * _slope(ctx.activation, xhat * scale + shift)
        g = wide_dy * scale
        inner = g - xhat * (g * xhat).mean(reduce, keepdim=True)
        if not ctx.rms:
            inner = inner - g.mean(reduce, keepdim=True)
        results = [
            (variance + eps).rsqrt() * inner,
            (wide_dy * xhat).sum(others) if others else wide_dy * xhat,
            wide_dy.sum(others) if others else wide_dy,
        ]
        pairs = [
            (result, gradient.to(dtype))
            for result, gradient, wanted in zip(results, gradients, ctx.wanted, strict=True)
            if wanted and gradient is not None
        ]
        if not pairs:
            return (None,) * 11
        ddy, dx, *parameters = torch.autograd.grad(
            [result for result, _ in pairs],
            inputs,
            [gradient.reshape(result.shape) for result, gradient in pairs],
            allow_unused=True,
        )
    dweight = parameters.pop(0) if saved_weight is not None else None
    dbias = parameters.pop(0) if saved_bias is not None else None
    return ddy, dx, None, None, dweight, None, None, None, None, dbias, None


def _save_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, reduce = inputs
    mean, _ = output
    ctx.save_for_backward(x, mean)
    ctx.count = math.prod(x.shape[axis] for axis in reduce)


def _differentiate_statistics(ctx: Any, dmean: Tensor | None, dm2: Tensor | None) -> Any:
    x, mean = ctx.saved_tensors
    dx = None if dmean is None else (dmean / ctx.count).expand(x.shape)
    if dm2 is not None:
        part = 2 * dm2 * (x.to(mean.dtype) - mean)
        dx = part if dx is None else dx + part
    return None if dx is None else dx.to(x.dtype), None


def _define() -> None:
    library().define()
    register_fake, register_autograd = torch.library.register_fake, torch.library.register_autograd
    register_fake("planish::norm_forward", _forward_fake)
    register_fake("planish::norm_backward", _backward_fake)
    register_fake("planish::norm_statistics", _statistics_fake)
    register_autograd(
        "planish::norm_statistics", _differentiate_statistics, setup_context=_save_statistics
    )
    register_autograd("planish::norm_forward", _differentiate_forward, setup_context=_save_forward)
    register_autograd(
        "planish::norm_backward", _differentiate_backward, setup_context=_save_backward
    )


_define()  # at import: tracing must not come across it

#: Without the Python function around them.
_forward_op = torch.ops.planish.norm_forward.default._op
_backward_op = torch.ops.planish.norm_backward.default._op


# ---- The same at less cost ----------------------------------------------------------------------
#
# torch runs a derivative that was registered in Python by way of Python, several times a call, also
# where there is nothing to differentiate. Tensors that only eager autograd looks at go past that.

_PLAIN = (Tensor, torch.nn.Parameter)


def _keys(*names: str) -> Any:
    sets = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names]
    return functools.reduce(lambda one, other: one | other, sets)


#: What differentiates, and what notes that a tensor is a view of another: an activation in place
#: would make autograd copy the gradients of a view.
_AUTOGRAD = _keys("AutogradFunctionality", "AutogradOther", "ADInplaceOrView")


def _below_autograd() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(_AUTOGRAD)


def _is_plain(*tensors: Tensor | None) -> bool:
    """Whether only eager autograd sees these calls: no subclass, tracing, transform or mode."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and torch.autograd.forward_ad._current_level < 0
        and all(tensor is None or type(tensor) in _PLAIN for tensor in tensors)
    )


def _needs_graph(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


class _Axes(NamedTuple):
    """What a norm is besides its tensors."""

    reduce: list[int]
    affine: list[int]
    rms: bool
    keep: bool = False
    #: Channels (axis 1) are seen as this many groups, and the axes are those of that view; 0: not.
    groups: int = 0
    activation: int = 0


def split_channels(x: Tensor, groups: int) -> Tensor:
    """(N, C, ...) seen as (N, groups, C / groups, ...), whatever the strides."""
    batch, channels, *pixels = x.shape
    return x.view(batch, groups, channels // groups, *pixels)


def _seen(x: Tensor, axes: _Axes) -> Tensor:
    return split_channels(x, axes.groups) if axes.groups else x


def _seen_parameter(parameter: Tensor | None, axes: _Axes) -> Tensor | None:
    if not axes.groups or parameter is None:
        return parameter
    return parameter.view(axes.groups, parameter.shape[0] // axes.groups)


def _whole(grouped: Tensor, x: Tensor) -> Tensor:
    """With x's shape again, past autograd; a copy where pixels lie between the channels."""
    return grouped.view(x.shape) if grouped.is_contiguous() else grouped.reshape(x.shape)


def _run(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axes: _Axes
) -> tuple[Tensor, Tensor, Tensor]:
    """The forward, past autograd."""
    with _below_autograd():
        y, mean, rstd = _forward_op(
            _seen(x, axes),
            _seen_parameter(weight, axes),
            _seen_parameter(bias, axes),
            axes.reduce,
            axes.affine,
            eps,
            axes.rms,
            axes.keep,
            axes.activation,
        )
        return _whole(y, x) if axes.groups else y, mean, rstd


def _run_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    axes: _Axes,
    wanted: list[bool],
) -> list[Tensor | None]:
    dx, dweight, dbias = _backward_op(
        _seen(dy, axes),
        _seen(x, axes),
        mean,
        rstd,
        _seen_parameter(weight, axes),
        axes.reduce,
        axes.affine,
        axes.rms,
        wanted,
        _seen_parameter(bias, axes),
        axes.activation,
    )
    return [_whole(dx, x) if axes.groups and dx is not None else dx, dweight, dbias]


class _Norm(torch.autograd.Function):
    """The derivative of a norm of plain tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        axes: _Axes,
    ) -> Tensor:
        y, mean, rstd = _run(x, weight, bias, eps, axes)
        ctx.save_for_backward(x, weight, bias if axes.activation else None, mean, rstd)
        ctx.axes = axes
        ctx.weight_shape = None if weight is None else weight.shape
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        arguments = dy, x, weight, bias, mean, rstd, ctx.axes, wanted
        if torch.is_grad_enabled() or not _is_plain(dy, x, weight):
            dx, dweight, dbias = _run_backward(*arguments)
        else:
            with _below_autograd():
                dx, dweight, dbias = _run_backward(*arguments)
        if dweight is not None:
            dweight = dweight.reshape(ctx.weight_shape)
        if dbias is not None:
            dbias = dbias.reshape(ctx.bias_shape).to(ctx.bias_dtype)
        return dx, dweight, dbias, None, None


def _plain_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, axes: _Axes
) -> Tensor:
    if _needs_graph(x, weight, bias):
        y: Tensor = _Norm.apply(x, weight, bias, eps, axes)  # type: ignore[no-untyped-call]
        return y
    return _run(x, weight, bias, eps, axes)[0]


# ---- What the package calls ---------------------------------------------------------------------


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
    rms: bool,
    keep: bool = False,
) -> Tensor:
    """The general operator; axes are sorted and not negative. ``keep``: the result is laid out as
    torch.empty_like(x), else dense."""
    if _is_plain(x, weight, bias):
        return _plain_norm(x, weight, bias, eps, _Axes(reduce, affine, rms, keep))
    y: Tensor = torch.ops.planish.norm_forward(x, weight, bias, reduce, affine, eps, rms, keep)[0]
    return y


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None = None,
) -> Tensor:
    """Group norm of (N, C, ...), laid out as x; weight and bias have C elements."""
    reduce = list(range(2, x.dim() + 1))
    axes = _Axes(reduce, [1, 2], False, True, groups, ACTIVATIONS[activation])
    if _is_plain(x, weight, bias):
        return _plain_norm(x, weight, bias, eps, axes)
    y = torch.ops.planish.norm_forward(
        _seen(x, axes),
        _seen_parameter(weight, axes),
        _seen_parameter(bias, axes),
        axes.reduce,
        axes.affine,
        eps,
        axes.rms,
        axes.keep,
        axes.activation,
    )[0]
    if y.stride(1) == y.shape[2] * y.stride(2):
        # No view: an activation in place would make autograd copy a view's gradients.
        whole: Tensor = torch.ops.aten._unsafe_view(y, x.shape)
        return whole
    copied: Tensor = y.flatten(1, 2)
    return copied


def norm_and_statistics(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    reduce: list[int],
    affine: list[int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm laid out as x, with mean and rstd, which have no derivatives."""
    y, mean, rstd = torch.ops.planish.norm_forward(
        x, weight, bias, reduce, affine, eps, False, True
    )
    return y, mean.detach(), rstd.detach()


def statistics(x: Tensor, reduce: list[int]) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squares of what is left beside it, over these axes, kept with size 1."""
    mean, m2 = torch.ops.planish.norm_statistics(x, reduce)
    return mean, m2
