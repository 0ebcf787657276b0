"""What a norm of another library computes, as data, and how planish computes it.

A Form says which mathematics, over which axes, from which attributes and in which order of
rounding. :func:`runner` makes a function of it that runs on planish. Whether a class is of a form
is not decided here: replacing/families.py guesses, replacing/probe.py decides.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

__all__ = ["Form", "eps_of", "parameter_of", "size_of", "weight_of"]


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to compute a norm. Names are attributes of the module.

    ``kind``: ``rms`` and ``layer`` over ``count`` axes from ``axis`` on (-1: the last ones, 1: the
    channels of (N, C, ...)); ``simple``, x / sqrt(var + eps) with the unbiased variance and the
    mean left in; ``l2``, x / max(|x|, 1e-12) * sqrt(C), without the root where ``unit``; ``group``;
    ``evo``, EvoNorm-S0; ``response``, global response norm; ``filter``, filter response norm;
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
    unit: bool = False

    def __str__(self) -> str:
        """In a few words, for a report."""
        kinds = {"rms": "RMS norm", "layer": "layer norm", "group": "group norm"}
        kinds |= {"simple": "variance norm", "l2": "L2 norm", "evo": "EvoNorm-S0"}
        kinds |= {"response": "global response norm", "filter": "filter response norm"}
        kinds["convolution"] = "convolution with standardized weights"
        words = ["unit " * self.unit + kinds[self.kind]]
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


def parameter_of(module: Any, name: str | None) -> Tensor | None:
    """The parameter or buffer of this name, if it is a tensor."""
    if name is None:
        return None
    value = module._parameters.get(name)  # a third of the time that the attribute takes
    if value is None:
        value = getattr(module, name)
    return value if isinstance(value, Tensor) else None


def weight_of(form: Form, module: Any) -> Tensor | None:
    """The weight, with the offset that is summed in its dtype."""
    weight = parameter_of(module, form.weight)
    if weight is None:
        return None
    if form.offset_in_weight:
        weight = weight + form.offset
    return weight
