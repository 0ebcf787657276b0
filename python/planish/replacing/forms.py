"""What a norm of another library computes, as data, and how planish computes it.

A Form says which mathematics, over which axes, from which attributes and in which order of
rounding. :func:`runner` makes a function of it that runs on planish. Whether a class is of a form
is not decided here: replacing/families.py guesses, replacing/probe.py decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch.nn import functional

import torch
from planish.functions import functional as _functional
from planish.functions import gated as _gated_functions
from planish.functions import groups as _groups
from planish.library.seen import is_plain
from planish.operators import norms, ops
from planish.operators.arguments import DTYPES, HALF
from planish.operators.norms import split_channels
from planish.operators.ways import way_of
from torch import Tensor, nn

__all__ = ["Form", "Run", "eps_of", "parameter_of", "runner", "size_of"]

#: (module, x, gate) -> y.
Run = Callable[[Any, Tensor, "Tensor | None"], Tensor]


#: Activations of a gate, by the names that modules give them.
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "sigmoid": torch.sigmoid,
}


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to compute a norm. Names are attributes of the module.

    ``kind``: ``rms`` and ``layer`` over ``count`` axes from ``axis`` on (-1: the last ones, 1: the
    channels of (N, C, ...)); ``simple``, x / sqrt(var + eps) with the unbiased variance and the
    mean left in; ``l2``, x / max(|x|, 1e-12) * sqrt(C); ``group``; ``evo``, EvoNorm-S0;
    ``convolution``, with standardized weights.

    ``order`` of rounding: ``once``, at the end, to x's dtype; ``xhat``, xhat is rounded to x's
    dtype and the rest is torch's (Llama); ``weight``, xhat is rounded to the weight's dtype where
    that is half and else not at all (T5); ``wide``, everything is in the dtype that x and the
    parameters promote to.

    ``offset``: the weight is ``offset + weight``, summed in float, or where ``offset_in_weight`` in
    the weight's dtype. ``gate``: the second argument, by its activation, ``before`` or ``behind``
    the norm. ``groups`` and ``group_size``: the axis is normalized in such parts. ``then``: child
    modules that follow. ``channels_last``: the result of an image stored by channel is.
    """

    kind: str
    axis: int = -1
    count: int = 1
    weight: str | None = None
    bias: str | None = None
    eps: str | float = 1e-5
    order: str = "once"
    offset: float = 0.0
    offset_in_weight: bool = False
    gate: str | None = None
    gate_activation: str = "silu"
    groups: str | None = None
    group_size: str | None = None
    then: tuple[str, ...] = ()
    activation: str | None = None
    channels_last: bool = False

    def __str__(self) -> str:
        """In a few words, for a report."""
        kinds = {"rms": "RMS norm", "layer": "layer norm", "group": "group norm"}
        kinds |= {"simple": "variance norm", "l2": "L2 norm", "evo": "EvoNorm-S0"}
        kinds["convolution"] = "convolution with standardized weights"
        words = [kinds[self.kind]]
        if self.axis == 1:
            words.append("over channels")
        if self.offset:
            words.append(f"{self.offset:g} + weight")
        if self.order != "once":
            words.append(f"order of rounding {self.order!r}")
        if self.gate:
            words.append(f"gate {self.gate}")
        if self.groups or self.group_size:
            words.append("by groups")
        if self.activation or self.then:
            words.append(f"then {self.activation or ', '.join(self.then)}")
        return ", ".join(words)


def eps_of(form: Form, module: Any) -> float:
    """Read at every call: a user may set it."""
    return float(getattr(module, form.eps)) if isinstance(form.eps, str) else form.eps


def size_of(form: Form, module: Any) -> int | None:
    """Elements along the normalized axis, where the module knows it."""
    for name in (form.weight, form.bias):
        parameter = None if name is None else getattr(module, name, None)
        if isinstance(parameter, Tensor) and parameter.numel():
            return parameter.numel() if form.count == 1 else parameter.shape[-1]
    names = ("normalized_shape", "num_channels", "hidden_size", "dim", "dim_norm", "num_features")
    for name in names:
        value = getattr(module, name, None)
        value = value[-1] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int) and value > 0:
            return value
    return None


def _wide(x: Tensor, *parameters: Tensor | None) -> Tensor:
    dtype = x.dtype
    for parameter in parameters:
        if parameter is not None:
            dtype = torch.promote_types(dtype, parameter.dtype)
    return x if dtype == x.dtype else x.to(dtype)


def _wide_half(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


def parameter_of(module: Any, name: str | None) -> Tensor | None:
    """The parameter or buffer of this name, if it is a tensor."""
    if name is None:
        return None
    value = module._parameters.get(name)  # a third of the time that the attribute takes
    if value is None:
        value = getattr(module, name)
    return value if isinstance(value, Tensor) else None


def _weight(form: Form, module: Any) -> Tensor | None:
    weight = parameter_of(module, form.weight)
    if weight is None:
        return None
    if form.offset_in_weight:
        weight = weight + form.offset
    return weight


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
            _weight(form, module),
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
            x, gate, _weight(form, module), eps_of(form, module), **given
        )

    return run


def _gated_apart(form: Form) -> Run:
    """With another activation of the gate, in torch's operators around planish's norm."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        assert gate is not None
        weight, eps, dtype = _weight(form, module), eps_of(form, module), x.dtype
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
        weight, axis = _weight(form, module), 1 if form.axis == 1 else x.dim() - 1
        _, squares = norms.statistics(x, [axis])
        rstd = (squares / (x.shape[axis] - 1) + eps_of(form, module)).rsqrt()
        y = _wide_half(x) * rstd
        if weight is not None:
            y = y * (weight.reshape(-1, *[1] * (x.dim() - 2)) if axis == 1 else weight)
        wide = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
        return y.to(wide if form.order == "wide" else x.dtype)

    return run


#: F.normalize divides by max(|x|, this). Rows that are not zero and shorter than _SHORT times it
#: are not within rounding of x / sqrt(|x|^2 + eps^2).
_NORMALIZE_EPS, _SHORT = 1e-12, 4e3


class NotExact(Exception):
    """These values are the original's to compute."""


def _l2(form: Form) -> Run:
    """x / max(|x|, eps) as x / sqrt(|x|^2 + eps^2): the same for a row of zeros, and within
    rounding for rows longer than some 4e-9. Of f16 there are no others."""

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias = parameter_of(module, form.weight), parameter_of(module, form.bias)
        axis = 1 if form.axis == 1 else x.dim() - 1
        flat = [None if p is None else p.reshape(-1) for p in (weight, bias)]
        x_wide = _wide(x, *flat)
        channels = x.shape[axis]
        eps = _NORMALIZE_EPS**2 / channels
        y, _, rstd = ops.plain_forward(x_wide, flat[0], flat[1], [axis], [axis], eps, True)
        if x.dtype != torch.float16:
            if not is_plain(x, weight, bias) or x.device.type != "cpu":
                raise NotExact("rows shorter than 4e-9 cannot be looked for")
            if bool((rstd > channels**0.5 / (_SHORT * _NORMALIZE_EPS)).any()):
                raise NotExact("rows shorter than 4e-9")
        result: Tensor = y
        return result

    return run


def _group(form: Form) -> Run:
    activation = form.activation

    def run(module: Any, x: Tensor, gate: Tensor | None) -> Tensor:
        weight, bias, eps = (
            _weight(form, module),
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
        variance = squares / apart.shape[2:].numel()
        rstd = (variance + eps_of(form, module)).rsqrt()
        v, weight, bias = (t.view(1, -1, 1, 1) for t in (module.v, module.weight, module.bias))
        scale = rstd.expand(-1, -1, apart.shape[2], 1, 1).flatten(1, 2)
        h = _wide_half(x)
        y: Tensor = h * (h * v).sigmoid() * (scale * weight) + bias
        return y.to(x.dtype)

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
    "convolution": _convolution,
}


def runner(form: Form) -> Run:
    """The function that computes it on planish. It may raise NotExact."""
    run = _gated(form) if form.gate else _MAKERS[form.kind](form)
    return _followed(run, form.then) if form.then else run
