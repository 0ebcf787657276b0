"""What the references of both passes share: dropout, activations, memory, comparison.

Written with torch and numpy alone, in double; nothing of the library is used.

A result is compared as follows. A reference gives each element's exact value and its room: how far
the compute type's arithmetic may be off, counted in units of the compute type (2^-24 for f32; an
ULP is one or two) of the magnitudes of the terms that were added or multiplied. An output is a
monotone function of that value: it is rounded once, or divided by a scale and rounded once. So what
is written has to lie between that function of value - room and that of value + room. That is the
exact result rounded once or, beside a tie, its neighbour; where terms cancel, their errors stay as
large as they are, and the interval is as wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
from c_api import GELU, GELU_TANH, HARDSWISH, IDENTITY, RELU, RELU6, SILU

import torch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
#: Half an ULP at 1: what rounding takes from a number, relative to it.
UNITS = {"f32": 2.0**-24, "f64": 2.0**-53}
DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.float64: 53}
LOWEST = {torch.float32: -149, torch.float16: -24, torch.bfloat16: -133, torch.float64: -1074}
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GUARD = 64
FILL = 0xFF  # NaN in every floating-point type


def philox(index: np.ndarray, seed: int, offset: int) -> np.ndarray:
    """Word index % 4 of block index / 4 of Philox4x32-10."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    block = index.astype(np.uint64) // np.uint64(4)
    c = [block & low, block >> half]
    c += [np.full_like(block, v) for v in (offset & 0xFFFFFFFF, offset >> 32)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (q >> half) ^ c[1] ^ np.uint64(key[0]),
            q & low,
            (p >> half) ^ c[3] ^ np.uint64(key[1]),
            p & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose((index % 4).astype(np.int64), c)


def kept(shape: Sequence[int], rng: torch.Tensor | None, p: float) -> torch.Tensor:
    """Which elements dropout keeps."""
    if rng is None:
        return torch.ones(tuple(shape), dtype=torch.bool)
    seed, offset = (int(v) & (1 << 64) - 1 for v in rng.tolist())
    index = np.arange(math.prod(shape), dtype=np.uint64).reshape(tuple(shape))
    return torch.from_numpy(philox(index, seed, offset) >= np.uint64(math.ceil(p * 2.0**32)))


def activated(m: torch.Tensor, which: int) -> tuple[torch.Tensor, torch.Tensor]:
    """f(m) and f'(m)."""
    if which == SILU:
        s = torch.sigmoid(m)
        return m * s, s * (1 + m * (1 - s))
    if which == RELU:
        return m.clamp_min(0), (m > 0).to(m.dtype)
    if which == GELU:
        cdf = 0.5 * torch.special.erfc(-m / math.sqrt(2))
        return m * cdf, cdf + m * torch.exp(-m * m / 2) / math.sqrt(2 * math.pi)
    if which == GELU_TANH:
        a, b = math.sqrt(2 / math.pi), 0.044715
        t = torch.tanh(a * (m + b * m**3))
        slope = 0.5 * (1 + t) + 0.5 * m * (1 - t * t) * a * (1 + 3 * b * m * m)
        return 0.5 * m * (1 + t), slope
    if which == RELU6:
        return m.clamp(0, 6), ((m > 0) & (m < 6)).to(m.dtype)
    if which == HARDSWISH:
        inside, above = (m > -3) & (m < 3), (m >= 3).to(m.dtype)
        return m * (m + 3).clamp(0, 6) / 6, torch.where(inside, m / 3 + 0.5, above)
    return m, torch.ones_like(m)


#: The most that f' and f'' are anywhere: what an error of m becomes in f(m) and in f'(m).
STEEPEST = {IDENTITY: 1.0, SILU: 1.1, RELU: 1.0, GELU: 1.13, GELU_TANH: 1.13}
STEEPEST |= {RELU6: 1.0, HARDSWISH: 1.5}
BENT = {IDENTITY: 0.0, SILU: 0.5, RELU: 0.0, GELU: 0.8, GELU_TANH: 0.83}
BENT |= {RELU6: 0.0, HARDSWISH: 0.34}


def silu_terms(g: torch.Tensor) -> torch.Tensor:
    """What silu(g)'s rounding counts in: g / (1 + e^-g), whose exponent has g's own rounding in it.

    e^-g is off by |g| units, and the quotient by e^-g / (1 + e^-g) = 1 - s times as many.
    """
    s = torch.sigmoid(g)
    return g.abs() * s * (1 + g.abs() * (1 - s))


def silu_slope_terms(g: torch.Tensor) -> torch.Tensor:
    """Likewise of silu'(g) = s + g s (1 - s), which is 0 at -1.28 though its terms are not."""
    s = torch.sigmoid(g)
    return s * (1 + g.abs() * (1 - s)) * (1 + g.abs() * (1 - s))


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place of `dtype` at |value|."""
    exponent = torch.frexp(value.abs().double().clamp_min(2.0**-1040))[1] - DIGITS[dtype]
    one = torch.ones_like(value, dtype=torch.float64)
    return torch.ldexp(one, exponent.clamp_min(LOWEST[dtype]))


def between(
    got: torch.Tensor, value: torch.Tensor, room: torch.Tensor, dtype: torch.dtype
) -> list[str]:
    """What is wrong with `got`, which is to be `value`, known to `room`, rounded once."""
    low, high = ((value + side * room).to(dtype).double() for side in (-1, 1))
    return ordered(got, low, high, value)


def ordered(
    got: torch.Tensor, low: torch.Tensor, high: torch.Tensor, value: torch.Tensor
) -> list[str]:
    """What is wrong with `got`, which is to be from `low` to `high` and best `value`."""
    v = got.double()
    bad = ~((v >= low) & (v <= high))  # NaN is neither
    if not bool(bad.any()):
        return []
    beyond = torch.maximum(low - v, v - high).nan_to_num(nan=math.inf)
    worst = int(torch.where(bad, beyond, -math.inf).argmax())
    numbers = (float(t.expand_as(v).flatten()[worst]) for t in (v, value, low, high))
    told = "{:.9g}; wanted {:.9g}, from {:.9g} to {:.9g}".format(*numbers)
    return [f"{int(bad.sum())} of {bad.numel()} wrong; element {worst} is {told}"]


def either_side(value: torch.Tensor, room: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far `value`, known to `room`, may go where it is rounded to `dtype` on the way."""
    low, high = ((value + side * room).to(dtype).double() for side in (-1, 1))
    return high - low


class Guarded:
    """A tensor, full of NaN, with guard elements around it and, with `pad`, between its rows.

    It begins `skew` elements behind an aligned address; `order`: its axes in memory.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: str,
        skew: int = 0,
        pad: int = 0,
        order: Sequence[int] = (),
    ) -> None:
        strides, length = [1] * len(shape), 1
        for k, axis in enumerate(reversed(order or range(len(shape)))):
            strides[axis] = length
            length = length * shape[axis] + (pad if k == 0 and len(shape) > 1 else 0)
        size = torch.empty((), dtype=dtype).element_size()
        count = (2 * GUARD + skew + length) * size
        self.whole = torch.full((count,), FILL, dtype=torch.uint8, device=device)
        self.view = self.whole.view(dtype).as_strided(shape, strides, GUARD + skew)

    def outside_untouched(self) -> bool:
        """Whether the guards are as they were."""
        left = self.whole.clone()
        words = left.view(WORDS[self.view.element_size()])
        where = self.view.shape, self.view.stride(), self.view.storage_offset()
        words.as_strided(*where).fill_(-1 if words.dtype != torch.uint8 else FILL)
        return bool((left == FILL).all())


def bits(t: torch.Tensor) -> torch.Tensor:
    """Its bits as integers."""
    return t.contiguous().view(WORDS[t.element_size()])


def differing(a: torch.Tensor, b: torch.Tensor) -> float:
    """Which part of two tensors' elements has different bits."""
    return float((bits(a) != bits(b)).double().mean()) if a.numel() else 0.0


class HasTraits(Protocol):
    """A case that says what it is there for."""

    def traits(self) -> set[str]: ...


CaseType = TypeVar("CaseType", bound=HasTraits)


def representative(cases: Iterable[CaseType]) -> list[CaseType]:
    """Those with a trait that none before them has."""
    seen: set[str] = set()
    chosen = []
    for case in cases:
        if not case.traits() <= seen:
            chosen.append(case)
            seen |= case.traits()
    return chosen
