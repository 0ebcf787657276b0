"""What is right: the formulas of planish.h in double, and the bounds of docs/internals/numerics.md.

f64 is held against long double; where NumPy's is no wider than double there is nothing to hold it
against (LONG_DOUBLE). Written to be read; tests/c/reference.c has the same, element by element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import torch

from .case import Case

#: Whether NumPy has a type wider than double.
LONG_DOUBLE = np.finfo(np.longdouble).nmant > 52

#: Digits of the significand, the implied one included, and the exponent of the smallest normal.
DIGITS = {"f16": (11, -14), "bf16": (8, -126), "f32": (24, -126), "f64": (53, -1022)}
#: The largest error of an output, in units of the last place at its scale.
ULPS = 4.0


@dataclass(frozen=True)
class Exact:
    """One output as it has to be: its values, the magnitude that an error is measured against, in
    ULP of which dtype, and how many of them are allowed. ``rounds``: it is to be the exact value
    rounded once, or the value beside it."""

    value: Any
    scale: Any
    unit: str
    ulps: float
    rounds: bool = False


def widened(case: Case, tensor: torch.Tensor) -> Any:
    """The tensor in the arithmetic of the reference: torch's f64, or NumPy's long double."""
    wide = tensor.detach().to(torch.float64)
    return wide.cpu().numpy().astype(np.longdouble) if case.is_double else wide


def _library(value: Any) -> Any:
    """torch or NumPy, whose functions have the same names here."""
    return torch if isinstance(value, torch.Tensor) else np


def _largest(value: Any, axes: tuple[int, ...]) -> Any:
    return (
        torch.amax(value, axes, True)
        if _library(value) is torch
        else value.max(axes, keepdims=True)
    )


def ulp(scale: Any, dtype: str) -> Any:
    """One unit in the last place of the dtype at these magnitudes."""
    library = _library(scale)
    digits, smallest = DIGITS[dtype]
    _, exponent = library.frexp(abs(scale))
    exponent = library.where(scale == 0, smallest, exponent - 1)
    exponent = library.maximum(exponent, library.full_like(exponent, smallest)) - (digits - 1)
    if library is torch:
        return torch.exp2(exponent.to(torch.float64))
    return np.ldexp(np.ones_like(scale), exponent)


class _Sums:
    """Means over the reduced axes and sums over those that are not affine."""

    def __init__(self, case: Case) -> None:
        self.axes = case.reduce
        self.others = tuple(i for i in range(len(case.shape)) if i not in case.affine)

    def mean(self, value: Any) -> Any:
        return value.mean(self.axes, keepdims=True)

    def largest(self, *values: Any) -> Any:
        found = _largest(abs(values[0]), self.axes)
        for value in values[1:]:
            found = _library(found).maximum(found, _largest(abs(value), self.axes))
        return found

    def columns(self, value: Any) -> Any:
        return value.sum(self.others, keepdims=True) if self.others else value


def moments(case: Case, x: Any, eps: float) -> tuple[Any, Any, Any]:
    """mean, m2 and rstd of each row of x, which is widened."""
    sums = _Sums(case)
    mean = sums.mean(x)
    mean = mean + sums.mean(x - mean)  # the rest of its rounding
    if case.kind == "rms":
        mean = mean * 0
    variance = sums.mean((x - mean) ** 2)
    count = 1
    for axis in case.reduce:
        count *= case.shape[axis]
    return mean, variance * count, 1 / (variance + eps) ** 0.5


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + _library(z).exp(-z))


def _activated(case: Case, z: Any) -> Any:
    if case.activation == "silu":
        return z * _sigmoid(z)
    return z * (z > 0) if case.activation == "relu" else z


def _slope(case: Case, z: Any) -> Any:
    s = _sigmoid(z)
    return s * (1 + z * _sigmoid(-z)) if case.activation == "silu" else (z > 0) * 1.0


def _output(case: Case, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Exact:
    """y of forward and apply."""
    scaled = (x - mean) * rstd * weight
    z = scaled + bias
    scale = _Sums(case).largest(z, scaled, scaled * 0 + bias)
    if case.is_double:
        scale = _library(scale).maximum(scale, _Sums(case).largest(mean * rstd * weight + z * 0))
    dtype = case.dtype_of("y")
    return Exact(_activated(case, z), scale, dtype, ULPS, rounds=dtype in ("f16", "bf16"))


def _added(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Their sum as it is rounded: in f32 or f64, then to their dtype."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return (x.to(wide) + residual.to(wide)).to(x.dtype)


def _behind(case: Case, y: Exact, wide: Mapping[str, Any]) -> Exact:
    """y with what stands behind the norm."""
    if case.stage == "modulated":
        factor, shift = 1 + wide["scale"], wide["shift"]
        value = y.value * factor + shift
        scale = _Sums(case).largest(y.scale * factor + value * 0, shift + value * 0)
        return replace(y, value=value, scale=scale, ulps=y.ulps + 1)
    if case.stage == "gated":
        silu = wide["gate"] * _sigmoid(wide["gate"])
        # silu has two roundings of its own, and a product one.
        return replace(y, value=y.value * silu, scale=y.scale * abs(silu), ulps=y.ulps + 2)
    return y


def _gradients(
    case: Case, dy: Any, xhat: Any, mean: Any, rstd: Any, weight: Any, bias: Any, repeats: int
) -> dict[str, Exact]:
    """dx, dweight and dbias. A mean of None: xhat came from y."""
    sums, library = _Sums(case), _library(xhat)
    layer = case.kind == "layer"
    # An xhat whose mean was taken off is known to a few ULP of the standard deviation, which is 1.
    spread = abs(xhat)
    if layer and mean is not None:
        spread = library.maximum(spread, library.ones_like(spread))
        if case.is_double:
            spread = spread + abs(mean * rstd)
    known = abs(dy)
    if case.activation:
        z, terms = xhat * weight + bias, spread * abs(weight) + abs(bias)
        if case.activation == "silu":
            known = known * (1 + terms / 2)
        else:  # a slope that jumps: where z is nothing beside its terms either is right
            digits = 2.0 ** DIGITS["f64" if case.is_double else "f32"][0]
            either = abs(z) * digits < 8 * sums.largest(terms)
            known = library.where(either, known * digits, known)
        dy = dy * _slope(case, z)
    g, size = dy * weight, known * abs(weight)
    c1, c1_size = sums.mean(g) * layer, sums.mean(size) * layer
    c2, c2_size = sums.mean(g * xhat), sums.mean(size * spread)
    dx = rstd * (g - c1 - xhat * c2)
    scale = sums.largest(dx, rstd * size, rstd * c1_size, rstd * spread * c2_size)
    added = repeats
    for axis in sums.others:
        added *= case.shape[axis]
    dtype = case.dtype_of("dweight")
    growth = max(ULPS, added / 2) if dtype == "f64" else ULPS * max(1.0, added / 8) ** 0.5
    return {
        "dx": Exact(dx, scale, case.dtype_of("dx"), ULPS),
        "dweight": Exact(
            repeats * sums.columns(dy * xhat), repeats * sums.columns(known * spread), dtype, growth
        ),
        "dbias": Exact(repeats * sums.columns(dy), repeats * sums.columns(known), dtype, growth),
    }


def from_y(case: Case, y: Any, weight: Any, bias: Any) -> Any:
    """xhat divided out of y; 0 where y holds no digit of it (planish.h)."""
    lost = abs(weight) <= 2.0 ** (1 - DIGITS[case.dtype_of("y")][0]) * abs(bias)
    lost = (lost | (weight == 0)) & (y == y)
    library = _library(y)
    return library.where(lost, 0 * y, (y - bias) / library.where(weight == 0, weight + 1, weight))


def exact(
    case: Case, tensors: Mapping[str, torch.Tensor], eps: float, repeats: int = 1
) -> dict[str, Exact]:
    """Every output of the case as it has to be, from its inputs. Statistics that are inputs count
    as exact, but for a mean in backward, which stands for x's own. ``repeats``: there are so many
    copies of the rows, which dweight and dbias are sums of."""
    wide = {role: widened(case, tensors[role]) for role in case.inputs}
    first = wide["x" if "x" in wide else "y"]
    weight = wide.get("weight", _library(first).ones_like(first[(slice(0, 1),) * first.ndim]))
    bias = wide.get("bias", weight * 0)
    if case.direction == "from-y":
        xhat = from_y(case, wide["y"], weight, bias)
        found = _gradients(case, wide["dy"], xhat, None, wide["rstd"], weight, bias, repeats)
        return {role: found[role] for role in case.outputs}
    x = wide["x"]
    if case.stage == "residual" and case.direction == "forward":
        x = widened(case, _added(tensors["x"], tensors["residual"]))
    if case.direction == "apply":
        return {"y": _output(case, x, wide.get("mean", 0.0), wide["rstd"], weight, bias)}
    mean, m2, rstd = moments(case, x, eps)
    if case.direction == "backward":
        xhat = (x - mean) * wide["rstd"]
        found = _gradients(case, wide["dy"], xhat, mean, wide["rstd"], weight, bias, repeats)
        if case.stage == "residual":
            dx, dsum = found["dx"], wide["dsum"]
            scale = _library(x).maximum(dx.scale + 0 * dsum, abs(dsum))
            found["dx"] = replace(dx, value=dx.value + dsum, scale=scale)
        return {role: found[role] for role in case.outputs}
    unit = "f64" if case.is_double else "f32"  # as good as the arithmetic, however they are kept
    ulps = ULPS
    if case.is_double and case.device == "cuda":  # plain sums over the row
        ulps = max(ULPS, x.size / m2.size / 2)
    found = {
        "mean": Exact(mean, _Sums(case).mean(x * x) ** 0.5, unit, ULPS),
        "rstd": Exact(rstd, rstd, unit, ulps),
        "m2": Exact(m2, m2, unit, 2 * ulps),
        "y": _behind(case, _output(case, x, mean, rstd, weight, bias), wide),
        "sum": Exact(x, x, case.dtype_of("sum"), 0.25),  # its bits
    }
    return {role: found[role] for role in case.outputs}
