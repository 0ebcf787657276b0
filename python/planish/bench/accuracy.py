"""How far a result is from the truth: a reference in wider arithmetic, and distances in ULP.

Does not run any provider and knows no bound but the one that tells a wrong result from a rough one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import torch

from .case import Case, Data

# Digits of the significand, the implied one included, and the exponent of the smallest normal.
PRECISION: dict[torch.dtype, tuple[int, int]] = {
    torch.float16: (11, -14),
    torch.bfloat16: (8, -126),
    torch.float32: (24, -126),
    torch.float64: (53, -1022),
}

# A provider whose result is further off than this has computed something else; it is reported as
# wrong and its time is not shown. Several peers keep dweight in 16 bits and are a few ULP off:
# that is their precision, shown by the accuracy sweep, and no reason to hide their time.
WRONG_ULP = 64.0

# Elements of x that the reference works on at a time (8 or 16 bytes each, about ten arrays).
CHUNK_ELEMENTS = 1 << 22


def ulp_of(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring ``dtype`` values at ``magnitude``, as f64.

    Below the smallest normal number, 0 included, that is the smallest subnormal.
    """
    digits, smallest = PRECISION[dtype]
    magnitude = magnitude.to(torch.float64).abs()
    _, exponent = torch.frexp(magnitude)  # magnitude = m * 2^exponent with m in [0.5, 1)
    exponent = torch.where(magnitude > 0, exponent - 1, smallest)
    exponent = exponent.clamp(min=smallest).to(torch.float64)
    return torch.exp2(exponent - (digits - 1))


def distance(found: torch.Tensor, wanted: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """|found - wanted| in units of ``unit``, elementwise; infinite where one of them is NaN and the
    other is not, or where an infinity stands for something else."""
    wide = found.to(torch.float64)
    gap = (wide - wanted).abs() / unit
    same = (wide == wanted) | (wide.isnan() & wanted.isnan())
    return torch.where(same, 0.0, gap).nan_to_num(nan=math.inf, posinf=math.inf)


def rows_distance(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distances in ULP of the largest magnitude of each row of ``wanted``, as NUMERICS bounds y
    and dx."""
    if wanted.numel() == 0:
        return torch.zeros_like(wanted)
    return distance(found, wanted, ulp_of(wanted.abs().amax(-1, keepdim=True), dtype))


@dataclass
class Spread:
    """Collects the distances of one output, chunk by chunk.

    ``coarse`` is the largest distance in ULP of the largest magnitude in the row or (dweight,
    dbias) in the whole output: what tells a wrong result from a rough one.
    """

    largest: float = 0.0
    coarse: float = 0.0
    chunks: list[torch.Tensor] | None = None

    def add(self, distances: torch.Tensor, coarse: torch.Tensor | None = None) -> None:
        """Takes in more distances; keeps them all only where ``chunks`` is a list."""
        if distances.numel():
            self.largest = max(self.largest, float(distances.max()))
            self.coarse = max(self.coarse, self.largest if coarse is None else float(coarse.max()))
        if self.chunks is not None:
            self.chunks.append(distances.flatten())

    def quantile(self, q: float) -> float:
        """The q-quantile (higher of two neighbours) of everything added."""
        if not self.chunks:
            raise ValueError("no distances were kept")
        return quantile(torch.cat(self.chunks), q)


def quantile(values: torch.Tensor, q: float) -> float:
    """The smallest value that at least the share q of ``values`` does not exceed."""
    ordered = values.flatten().sort().values
    index = max(0, math.ceil(q * ordered.numel()) - 1)
    return float(ordered[index])


@dataclass(frozen=True)
class Chunk:
    """The reference for rows [begin, end): y, or dx, with the rows' share of dweight and dbias and
    of the magnitudes that were added for them."""

    begin: int
    end: int
    y: torch.Tensor | None = None
    dx: torch.Tensor | None = None


def forward_wide(x: Any, weight: Any, bias: Any, eps: float, kind: str) -> tuple[Any, Any, Any]:
    """y, xhat and rstd by the textbook formula, in the arithmetic of x (torch or NumPy array)."""
    mean = x.mean(axis=-1, keepdims=True) if kind == "layer" else 0.0
    centred = x - mean
    if kind == "layer":  # the rest of the mean's rounding
        centred = centred - centred.mean(axis=-1, keepdims=True)
    rstd = ((centred * centred).mean(axis=-1, keepdims=True) + eps) ** -0.5
    xhat = centred * rstd
    y = xhat * weight
    return (y if bias is None else y + bias), xhat, rstd


def backward_wide(dy: Any, xhat: Any, rstd: Any, weight: Any, kind: str) -> Any:
    """dx by the textbook formula."""
    g = dy * weight
    c2 = (g * xhat).mean(axis=-1, keepdims=True)
    if kind == "layer":
        g = g - g.mean(axis=-1, keepdims=True)
    return rstd * (g - xhat * c2)


def _widen(tensor: torch.Tensor | None, longdouble: bool) -> Any:
    """The tensor in f64, or as a NumPy longdouble array."""
    if tensor is None:
        return None
    wide = tensor.detach().to(torch.float64)
    return wide.cpu().numpy().astype(np.longdouble) if longdouble else wide


def _narrow(value: Any) -> torch.Tensor:
    """A reference array as an f64 tensor. (For f64 cases this rounds the reference once: half a
    ULP of slack.)"""
    if isinstance(value, torch.Tensor):
        return value
    return torch.from_numpy(np.asarray(value, dtype=np.float64))


class Reference:
    """The true result of a case, computed in f64 (long double for f64 cases), some rows at a
    time."""

    def __init__(self, case: Case, data: Data) -> None:
        self.case = case
        self.data = data
        self.dweight: Any = 0.0
        self.dbias: Any = 0.0
        self.dweight_magnitude: Any = 0.0
        self.dbias_magnitude: Any = 0.0

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order. Once it is exhausted dweight and dbias are complete."""
        case, data = self.case, self.data
        longdouble = case.dtype == "f64"
        weight, bias = _widen(data.weight, longdouble), _widen(data.bias, longdouble)
        step = max(1, CHUNK_ELEMENTS // max(1, case.cols))
        for begin in range(0, case.rows, step):
            end = min(case.rows, begin + step)
            x = _widen(data.x[begin:end], longdouble)
            y, xhat, rstd = forward_wide(x, weight, bias, case.eps, case.kind)
            if case.direction == "forward":
                yield Chunk(begin, end, y=_narrow(y))
                continue
            assert data.dy is not None
            dy = _widen(data.dy[begin:end], longdouble)
            terms = dy * xhat
            self.dweight = self.dweight + terms.sum(axis=0)
            self.dweight_magnitude = self.dweight_magnitude + abs(terms).sum(axis=0)
            self.dbias = self.dbias + dy.sum(axis=0)
            self.dbias_magnitude = self.dbias_magnitude + abs(dy).sum(axis=0)
            yield Chunk(begin, end, dx=_narrow(backward_wide(dy, xhat, rstd, weight, case.kind)))


def compare(
    case: Case,
    data: Data,
    outputs: Mapping[str, Mapping[str, torch.Tensor]],
    keep: bool = False,
) -> dict[str, dict[str, Spread]]:
    """Distances of several providers' outputs from one reference.

    ``outputs`` maps a provider's name to its tensors: ``y``, or ``dx`` and any of ``dweight`` and
    ``dbias``. y and dx are measured in ULP of the largest magnitude in the row, dweight and dbias
    in ULP of the sum of the magnitudes added. With ``keep`` the spreads can give quantiles.
    """
    reference = Reference(case, data)
    spreads = {
        name: {key: Spread(chunks=[] if keep else None) for key in tensors}
        for name, tensors in outputs.items()
    }
    for chunk in reference.chunks():
        for name, tensors in outputs.items():
            for key, wanted in (("y", chunk.y), ("dx", chunk.dx)):
                if wanted is None or key not in tensors:
                    continue
                found = tensors[key][chunk.begin : chunk.end].to(wanted.device)
                spreads[name][key].add(rows_distance(found, wanted, tensors[key].dtype))
    if case.direction == "backward":
        sums = {
            "dweight": (_narrow(reference.dweight), _narrow(reference.dweight_magnitude)),
            "dbias": (_narrow(reference.dbias), _narrow(reference.dbias_magnitude)),
        }
        for name, tensors in outputs.items():
            for key, (wanted, magnitude) in sums.items():
                if key in tensors:
                    found, dtype = tensors[key].to(wanted.device), tensors[key].dtype
                    # With few rows a column's terms can all be tiny beside the row they come from;
                    # nearly every kernel is then many ULP of that column's own sum off.
                    whole = ulp_of(magnitude.amax(), dtype) if magnitude.numel() else magnitude
                    spreads[name][key].add(
                        distance(found, wanted, ulp_of(magnitude, dtype)),
                        distance(found, wanted, whole),
                    )
    return spreads
