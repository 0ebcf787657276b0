"""What a norm is besides its tensors, and the tensors by their roles, as planish's operators take
them: src/torch/options.h has the same numbers. Nothing is looked up or run here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "ACTIVATIONS",
    "GRADIENTS",
    "Call",
    "Norm",
    "Quantized",
    "Tensors",
    "axes_of",
    "dtype_in",
    "make_call",
    "pack_axes",
    "pack_options",
    "seen_shape",
]

#: What may follow a norm: planish_activation of planish.h.
ACTIVATIONS = {
    None: 0,
    "silu": 1,
    "relu": 2,
    "gelu": 3,
    "gelu_tanh": 4,
    "relu6": 5,
    "hardswish": 6,
}

#: The results of norm_backward, in their order: the bit of each in ``wanted``.
GRADIENTS = ("x", "residual", "weight", "bias", "column_scale", "scale", "shift", "gate")

RMS, ROUND_XHAT, GATE_BEFORE, DENSE, SAVE = (1 << bit for bit in range(5))
POWER_OF_TWO, SCALES_AS_BYTES, TRANSPOSED = (1 << bit for bit in range(5, 8))
#: The spread of statistics that are given is the running variance, and not rstd.
RUNNING = 1 << 40
#: Beside RMS: an L2 norm. norm_backward then has eps in the place of dropout_p.
L2 = 1 << 41
_ACTIVATION_AT, _WEIGHT_OFFSET_AT, WANTED_AT, _DTYPE_AT, _SUM_DTYPE_AT = 8, 12, 16, 24, 32
_SMALL, _BYTE = 0xF, 0xFF
#: The bits of a field each.
WANTED, DTYPE, SUM_DTYPE = (_BYTE << place for place in (WANTED_AT, _DTYPE_AT, _SUM_DTYPE_AT))
_AXES = 16

#: torch's numbers of dtypes (c10::ScalarType, which files of tensors keep stable).
_NUMBERS = {
    torch.int8: 1,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
}
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}


class Tensors(NamedTuple):
    """What norm_forward takes, None where there is none."""

    x: Tensor
    residual: Tensor | None = None
    row_scale: Tensor | None = None
    column_scale: Tensor | None = None
    rng: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    gate: Tensor | None = None


class Quantized(NamedTuple):
    """What quantized_norm takes before its numbers."""

    x: Tensor
    residual: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    y_scale: Tensor | None


def pack_axes(
    reduce: Iterable[int],
    affine: Iterable[int] = (),
    column: Iterable[int] = (),
    modulation: Iterable[int] = (),
) -> int:
    """Sets of axes that are not negative, as the operators take them."""
    packed = 0
    for place, axes in enumerate((reduce, affine, column, modulation)):
        for axis in axes:
            packed |= 1 << (_AXES * place + axis)
    return packed - (1 << 64) if packed >> 63 else packed


def axes_of(packed: int, place: int) -> list[int]:
    """The axes of one of the sets: 0 for reduce, 1 affine, 2 column, 3 modulation."""
    axes = packed >> (_AXES * place) & ((1 << _AXES) - 1)
    return [axis for axis in range(_AXES) if axes >> axis & 1]


def pack_options(
    *,
    rms: bool,
    weight_offset: int = 0,
    activation: int = 0,
    gate_before: bool = False,
    round_xhat: bool = False,
    dense: bool = False,
    save: bool = True,
    dtype: torch.dtype | None = None,
    sum_dtype: torch.dtype | None = None,
    wanted: int = 0,
    more: int = 0,
) -> int:
    """``dtype``: of y, q or dx, None for x's; ``sum_dtype``: of sum or dresidual, None for none (of
    dresidual: x's). ``more``: further bits."""
    options = RMS * rms | ROUND_XHAT * round_xhat | GATE_BEFORE * gate_before
    options |= DENSE * dense | SAVE * save | more
    options |= activation_bits(activation) | weight_offset << _WEIGHT_OFFSET_AT
    options |= wanted << WANTED_AT
    options |= (0 if dtype is None else _NUMBERS[dtype] + 1) << _DTYPE_AT
    return options | (0 if sum_dtype is None else _NUMBERS[sum_dtype] + 1) << _SUM_DTYPE_AT


def dtype_in(options: int) -> torch.dtype | None:
    """Of y, q or dx; None: x's."""
    number = options >> _DTYPE_AT & _BYTE
    return _DTYPES[number - 1] if number else None


def sum_dtype_in(options: int) -> torch.dtype | None:
    """Of sum or dresidual; None: no sum, or x's."""
    number = options >> _SUM_DTYPE_AT & _BYTE
    return _DTYPES[number - 1] if number else None


def sum_bits(dtype: torch.dtype) -> int:
    """The options that ask for a sum of this dtype."""
    return (_NUMBERS[dtype] + 1) << _SUM_DTYPE_AT


def dtype_bits(dtype: torch.dtype) -> int:
    """The options that ask for y, q or dx of this dtype."""
    return (_NUMBERS[dtype] + 1) << _DTYPE_AT


def activation_bits(activation: int) -> int:
    """The options that ask for an activation by its number."""
    return activation << _ACTIVATION_AT


def activation_in(options: int) -> int:
    return options >> _ACTIVATION_AT & _SMALL


def weight_offset_in(options: int) -> int:
    return options >> _WEIGHT_OFFSET_AT & _SMALL


def wanted_in(options: int) -> list[bool]:
    """Of the results of norm_backward, or of norm_pair_backward."""
    return [bool(options >> (WANTED_AT + bit) & 1) for bit in range(len(GRADIENTS))]


_OF_BACKWARD = RMS | L2 | GATE_BEFORE | _SMALL << _ACTIVATION_AT | _SMALL << _WEIGHT_OFFSET_AT


def backward_options(
    options: int, wanted: int, dtype: torch.dtype, residual_dtype: torch.dtype
) -> int:
    """Those of the backward of a call with these; the dtypes are dx's and dresidual's."""
    options = options & _OF_BACKWARD | wanted << WANTED_AT
    options |= (_NUMBERS[dtype] + 1) << _DTYPE_AT
    return options | (_NUMBERS[residual_dtype] + 1) << _SUM_DTYPE_AT


class Norm(NamedTuple):
    """A norm alone, besides its tensors, once it was checked: axes are sorted and not negative."""

    reduce: tuple[int, ...]
    affine: tuple[int, ...]
    eps: float
    rms: bool
    keep: bool = False  # the result is laid out as torch.empty_like(x), else dense
    activation: str | None = None
    split: int = 0  # how x is seen, as split_place has it
    l2: bool = False  # rms is True then, too

    @property
    def kind(self) -> str:
        """Of torch's operator, and of planish's function."""
        return "rms_norm" if self.rms else "layer_norm"

    def call(self) -> Call:
        """What norm_forward takes, to save for a derivative."""
        activation = ACTIVATIONS[self.activation]
        more = L2 * self.l2
        options = pack_options(rms=self.rms, dense=not self.keep, activation=activation, more=more)
        return Call(pack_axes(self.reduce, self.affine), options, self.split, self.eps)


class Call(NamedTuple):
    """What norm_forward takes behind its tensors."""

    axes: int
    options: int
    split: int = 0
    eps: float = 0.0
    dropout_p: float = 0.0

    def is_over_last(self, ndim: int) -> bool:
        """Whether the norm is over the last axis of x, seen as it is."""
        return not self.split and axes_of(self.axes, 0) == [ndim - 1]

    def with_axes(self, **axes: Iterable[int]) -> Call:
        """With other sets of axes, by their names in pack_axes()."""
        names = ("reduce", "affine", "column", "modulation")
        own = {name: axes_of(self.axes, place) for place, name in enumerate(names)}
        return self._replace(axes=pack_axes(**{**own, **axes}))

    @property
    def last_of_backward(self) -> float:
        """What norm_backward takes behind ``split``."""
        return self.eps if self.options & L2 else self.dropout_p


def make_call(
    reduce: Iterable[int],
    affine: Iterable[int] = (),
    column: Iterable[int] = (),
    modulation: Iterable[int] = (),
    *,
    split: int = 0,
    eps: float = 0.0,
    dropout_p: float = 0.0,
    **options: Any,
) -> Call:
    axes = pack_axes(reduce, affine, column, modulation)
    return Call(axes, pack_options(**options), split, eps, dropout_p)


def split_place(ndim: int, split: int) -> tuple[int, int]:
    """The axis that is seen as two, and how many groups its first one has."""
    return (1, split) if split > 0 else (ndim - 1, -split)


def seen_shape(shape: Any, split: int) -> list[Any]:
    """x's shape as the norm sees it."""
    sizes = list(shape)
    if split:
        axis, groups = split_place(len(sizes), split)
        sizes[axis : axis + 1] = [groups, sizes[axis] // groups]
    return sizes
