"""What computes each form of a norm on planish."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.nn import functional

import torch
from planish.functions import functional as _functional
from planish.functions import gated as _gated_functions
from planish.functions import groups as _groups
from planish.functions.normalize import normalize
from planish.functions.response import global_response_norm
from planish.library.seen import is_plain
from planish.operators import norms
from planish.operators.arguments import DTYPES, HALF
from planish.operators.norms import split_channels
from planish.operators.ways import way_of
from planish.replacing.forms import Form, eps_of, parameter_of, weight_of
from torch import Tensor, nn

__all__ = ["NotExact", "Run", "runner"]

#: (module, x, gate) -> y.
Run = Callable[[Any, Tensor, "Tensor | None"], Tensor]

#: Activations of a gate, by the names that modules give them.
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "sigmoid": torch.sigmoid,
}


class NotExact(Exception):
    """These values are the original's to compute."""


def _wide(x: Tensor, *parameters: Tensor | None) -> Tensor:
    dtype = x.dtype
    for parameter in parameters:
        if parameter is not None:
            dtype = torch.promote_types(dtype, parameter.dtype)
    return x if dtype == x.dtype else x.to(dtype)


def _wide_half(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


def _rows(form: Form) -> Callable[[Tensor, Tensor | None, Tensor | None, float, str], Tensor]:
    """rms_norm or layer_norm over the form's axes, laid out as x where they are channels."""
    name = "rms_norm" if form.kind in ("rms", "l2") else "layer_norm"
    offset = 0.0 if form.offset_in_weight else form.offset
    axis, count, last = form.axis, form.count, form.channels_last

    def norm(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, cast: str
    ) -> Tensor:
        if axis == 1 and x.dim() == 4 and not offset and cast == "once":
            way = way_of(x, weight, bias)
            return _functional.channel_norm(way, name, x, weight, bias, eps, last)
        dims = [1] if axis == 1 else list(range(x.dim() - count, x.dim()))
        return _functional._norm(
            name, x, dims, weight, bias, eps, None, True, weight_offset=offset, cast=cast
        )

    return norm


def _ordered(form: Form) -> Run:
    """rms and layer norms in one of the orders of rounding."""
    norm, order = _rows(form), form.order
    cast = "xhat" if order == "xhat" else "once"

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias, eps = (
            weight_of(form, module),
            parameter_of(module, form.bias),
            eps_of(form, module),
        )
        if order == "wide":
            x = _wide(x, weight, bias)
        elif order == "weight" and weight is not None:
            if weight.dtype not in HALF:
                x = _wide(x, weight)
            elif x.dtype == weight.dtype:
                return norm(x, weight, bias, eps, "xhat")
            else:
                x = norm(_wide_half(x), None, None, eps, "once").to(weight.dtype)
                y = x * weight
                return y if bias is None else y + bias
        return norm(x, weight, bias, eps, cast)

    return run


def _group_size(form: Form, module: Any, x: Tensor) -> int | None:
    if form.group_size:
        return int(getattr(module, form.group_size))
    return x.shape[-1] // int(getattr(module, form.groups)) if form.groups else None


def _gated(form: Form) -> Run:
    """A gate before or behind; between gate and norm all stays in float, as in the originals."""
    if form.gate_activation not in ("silu", "swish"):
        return _gated_apart(form)
    behind = form.gate == "behind"

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        assert gate is not None
        if gate.shape != x.shape or gate.device != x.device or gate.dtype not in DTYPES:
            raise NotExact("a gate that is not like x")
        size = _group_size(form, module, x)
        given: dict[str, Any] = {"norm_before_gate": behind, "group_size": size, "cast": form.order}
        return _gated_functions.gated_rms_norm(
            x, gate, weight_of(form, module), eps_of(form, module), **given
        )

    return run


def _gated_apart(form: Form) -> Run:
    """With another activation of the gate, in torch's operators around planish's norm."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        assert gate is not None
        weight, eps, dtype = weight_of(form, module), eps_of(form, module), x.dtype
        h = x.float()
        factor = _GATES[form.gate_activation](gate.float())
        if form.gate == "before":
            h = h * factor
        size = _group_size(form, module, x)
        parts = h if size is None else h.view(*h.shape[:-1], -1, size)
        h = _functional.rms_norm(parts, -1, eps=eps).view(h.shape)
        if form.order == "xhat":
            h = h.to(dtype)
        if weight is not None:
            h = weight * h
        if form.gate == "behind":
            h = h * factor
        return h if form.order == "xhat" and form.gate == "before" else h.to(dtype)

    return run


def _simple(form: Form) -> Run:
    """Mean and squares from planish; the product is torch's."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, axis = weight_of(form, module), 1 if form.axis == 1 else x.dim() - 1
        _, squares = norms.statistics(x, [axis])
        rstd = (squares / (x.shape[axis] - 1) + eps_of(form, module)).rsqrt()
        y = _wide_half(x) * rstd
        if weight is not None:
            y = y * (weight.reshape(-1, *[1] * (x.dim() - 2)) if axis == 1 else weight)
        wide = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
        return y.to(wide if form.order == "wide" else x.dtype)

    return run


#: What F.normalize divides by at least.
_NORMALIZE_EPS = 1e-12


def _with_root(weight: Tensor | None, x: Tensor, channels: int) -> Tensor:
    """The weight times the root of the channels, in float."""
    wide, root = _wide_half(x).dtype, channels**0.5
    if weight is None:
        return torch.full((channels,), root, dtype=wide, device=x.device)
    product: Tensor = weight.to(wide) * root
    if product.is_cpu and is_plain(weight) and not bool(product.isfinite().all()):
        raise NotExact("weights that overflow times the root of the channels, or are no numbers")
    return product


def _l2(form: Form) -> Run:
    """planish.normalize, with the root of the channels, where there is one, in the weight. On a GPU
    an f32 weight of more than some 1e37 overflows there."""
    unit = form.unit

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias = parameter_of(module, form.weight), parameter_of(module, form.bias)
        axis = 1 if form.axis == 1 else x.dim() - 1
        weight, bias = (None if p is None else p.reshape(-1) for p in (weight, bias))
        wide = _wide(x, weight, bias)
        scale = weight if unit else _with_root(weight, wide, x.shape[axis])
        return normalize(wide, 2.0, axis, _NORMALIZE_EPS, scale, bias)

    return run


def _group(form: Form) -> Run:
    activation = form.activation

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias, eps = (
            weight_of(form, module),
            parameter_of(module, form.bias),
            eps_of(form, module),
        )
        return _groups.group_norm(x, module.num_groups, weight, bias, eps, activation)

    return run


def _evo(form: Form) -> Run:
    """As planish.EvoNorm2dS0 does it, with one rounding."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        apart = split_channels(x, module.groups)
        _, squares = norms.statistics(apart, [2, 3, 4])
        variance = squares / math.prod(apart.shape[2:])
        rstd = (variance + eps_of(form, module)).rsqrt()
        v, weight, bias = (t.view(1, -1, 1, 1) for t in (module.v, module.weight, module.bias))
        scale = rstd.expand(-1, -1, apart.shape[2], 1, 1).flatten(1, 2)
        h = _wide_half(x)
        y: Tensor = h * (h * v).sigmoid() * (scale * weight) + bias
        return y.to(x.dtype)

    return run


def _response(form: Form) -> Run:
    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias = parameter_of(module, form.weight), parameter_of(module, form.bias)
        eps, wide = eps_of(form, module), _wide(x, weight, bias)
        w, b = (None if p is None else p.reshape(-1) for p in (weight, bias))
        return global_response_norm(wide, w, b, eps, channel_axis=form.axis)

    return run


def _filter(form: Form) -> Run:
    """An RMS norm over a channel's pixels; a threshold behind it is torch's."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias = parameter_of(module, form.weight), parameter_of(module, form.bias)
        pixels, eps = list(range(2, x.dim())), eps_of(form, module)
        y = _functional.rms_norm(x, pixels, weight, bias, eps, affine_dims=[1])
        tau = parameter_of(module, "tau") if hasattr(module, "tau") else None
        return y if tau is None else torch.maximum(y, tau.view(-1, 1, 1).to(y.dtype))

    return run


def _same_padding(module: Any, x: Tensor) -> Tensor:
    """TensorFlow's: ceil(size / stride) results, one more pixel at the end where it is odd."""
    pads: list[int] = []
    for size, kernel, stride, dilation in zip(
        x.shape[-2:], module.kernel_size, module.stride, module.dilation, strict=True
    ):
        reach = (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1
        total = max(reach - size, 0)
        pads = [total // 2, total - total // 2, *pads]
    return functional.pad(x, pads)


def _convolution(form: Form) -> Run:
    """timm's StdConv2d and, with gain and scale, ScaledStdConv2d."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        if getattr(module, "same_pad", False):
            x = _same_padding(module, x)
        weight = _functional.weight_standardize(module.weight, eps_of(form, module))
        if form.weight is not None:
            weight = weight * (getattr(module, form.weight) * module.scale)
        where = module.stride, module.padding, module.dilation, module.groups
        return functional.conv2d(x, weight, module.bias, *where)

    return run


def _followed(run: Run, then: tuple[str, ...]) -> Run:
    def followed(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        y = run(module, x, gate)
        for name in then:
            child: nn.Module = module._modules[name]
            y = child(y)
        return y

    return followed


_MAKERS: dict[str, Callable[[Form], Run]] = {
    "rms": _ordered,
    "layer": _ordered,
    "simple": _simple,
    "l2": _l2,
    "group": _group,
    "evo": _evo,
    "response": _response,
    "filter": _filter,
    "convolution": _convolution,
}


def runner(form: Form) -> Run:
    """The function that computes it on planish. It may raise NotExact."""
    run = _gated(form) if form.gate else _MAKERS[form.kind](form)
    return _followed(run, form.then) if form.then else run
