"""The formulas in double, and how far a result may be from them. Runs no provider."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .works import DROPOUT, Data, Work

#: Units in the last place, of the largest magnitude in the row (of gradients of parameters: in the
#: whole), beyond which a result is another function's. Compositions round between their stages.
LIMITS = {torch.float16: 8.0, torch.bfloat16: 8.0, torch.float32: 64.0, torch.float64: 64.0}
#: The same in steps of an 8-bit type: half a step is the rounding, the rest a scale a little off.
LIMIT_STEPS = 1.0
LARGEST = 448.0
#: How far the share of what is dropped may be from the probability.
DROPPED = 0.02

#: Results with a value for each element of x; the others are sums over rows.
BY_ELEMENT = ("y", "sum", "dx", "dresidual", "dgate", "q", "k", "dq", "dk")


def off(found: Tensor, wanted: Tensor, by_row: bool) -> float:
    """The largest distance, in ULP of the largest magnitude of the row or of the whole."""
    magnitude = wanted.abs()
    unit = magnitude.amax(-1, keepdim=True) if by_row else magnitude.amax()
    unit = unit.clamp(min=torch.finfo(torch.float32).tiny) * torch.finfo(found.dtype).eps
    gap = ((found.to(wanted.dtype) - wanted).abs() / unit).amax()
    return math.inf if bool(gap.isnan()) else float(gap)


def _moments(s: Tensor, kind: str, eps: float) -> tuple[Tensor, Tensor]:
    """(xhat, rstd)"""
    if kind == "layer":
        s = s - s.mean(-1, keepdim=True)
    rstd = (s.square().mean(-1, keepdim=True) + eps).rsqrt()
    return s * rstd, rstd


def _rows(t: Tensor) -> tuple[int, ...]:
    return tuple(range(t.dim() - 1))


def forward(work: Work, data: Data) -> dict[str, Tensor]:
    """y, and the sum where a residual is added; not for dropout and qk."""
    found: dict[str, Tensor] = {}
    s = data["x"]
    if work.has_residual:
        s = (s.double() + data["residual"].double()).to(s.dtype)
        found["sum"] = s.double()
    xhat, _ = _moments(s.double(), work.kind, work.eps)
    found["y"] = behind(work, data, xhat)
    return found


def behind(work: Work, data: Data, xhat: Tensor) -> Tensor:
    """The stages behind the norm."""
    y = xhat
    if "weight" in data:
        y = y * data["weight"].double()
    if "bias" in data:
        y = y + data["bias"].double()
    if work.row == "modulated":
        y = y * (1 + data["scale"].double()) + data["shift"].double()
    if work.row == "gated":
        y = y * torch.nn.functional.silu(data["gate"].double())
    return y


def backward(work: Work, data: Data, s: Tensor) -> dict[str, Tensor]:
    """Every gradient, given s as it was rounded; dx without what dropout does to it."""
    xhat, rstd = _moments(s.double(), work.kind, work.eps)
    dm, found = data["dy"].double(), dict[str, Tensor]()
    weight = data["weight"].double() if "weight" in data else torch.ones((), device=s.device)
    if work.row == "gated":
        gate = data["gate"].double()
        share = torch.sigmoid(gate)
        found["dgate"] = dm * xhat * weight * share * (1 + gate * (1 - share))
        dm = dm * gate * share
    if work.row == "modulated":
        found["dshift"] = dm.sum(1, keepdim=True)
        found["dscale"] = (dm * xhat).sum(1, keepdim=True)
        dm = dm * (1 + data["scale"].double())
    if "weight" in data:
        found["dweight"] = (dm * xhat).sum(_rows(dm))
    if "bias" in data:
        found["dbias"] = dm.sum(_rows(dm))
    g = dm * weight
    ds = g - xhat * (g * xhat).mean(-1, keepdim=True)
    if work.kind == "layer":
        ds = ds - g.mean(-1, keepdim=True)
    ds = ds * rstd
    if work.has_residual:
        ds = ds + data["dsum"].double()
        found["dresidual"] = ds
    found["dx"] = ds
    return found


def _heads(work: Work, data: Data) -> dict[str, Tensor]:
    """qk: both norms."""
    found: dict[str, Tensor] = {}
    for name in ("q", "k"):
        part = {"x": data[name], "weight": data[f"{name}_weight"]}
        if work.direction == "forward":
            found[name] = forward(work, part)["y"]
        else:
            gradients = backward(work, {**part, "dy": data["d" + name]}, data[name])
            found["d" + name] = gradients["dx"]
            found[f"d{name}_weight"] = gradients["dweight"]
    return found


def _quantised(wanted: Tensor, q: Tensor, scale: Tensor) -> float:
    """How far q times its scale is from y, in steps of float8_e4m3fn."""
    wide = scale.double()
    if wide.dim() and wide.shape[-1] > 1:  # blocks of 128
        wide = wide.repeat_interleave(128, -1)[..., : q.shape[-1]]
    exponent = torch.frexp((wanted / wide).abs())[1].double() - 1
    step = torch.exp2(exponent.clamp(min=-6) - 3)
    gap = ((q.float().double() - wanted / wide).abs() / step).amax()
    return math.inf if bool(gap.isnan()) else float(gap)


def _scale_of(work: Work, y: Tensor) -> Tensor | None:
    if work.quantised == "row":
        return y.abs().amax(-1, keepdim=True) / LARGEST
    if work.quantised == "128":
        padded = torch.nn.functional.pad(y, (0, -y.shape[-1] % 128))
        return padded.view(*y.shape[:-1], -1, 128).abs().amax(-1) / LARGEST
    return None


def _dropped(found: Tensor, kept: Tensor, without: Tensor) -> tuple[float, str]:
    """(ULP to the nearer of the two values, what is wrong with the share that is dropped)."""
    wide = found.double()
    drop = (wide - without).abs() < (wide - kept).abs()
    error = off(found, torch.where(drop, without, kept), True)
    share = float(drop.double().mean())
    if error > LIMITS[found.dtype]:
        return error, f"what is kept is {error:.3g} ULP off"
    return error, "" if abs(share - DROPOUT) < DROPPED else f"{share:.3f} is dropped"


class Truth:
    """What a work's results are to be. It is computed once, but for dropout: there it hangs from
    the mask, which each provider draws for itself and which is read off its own sum."""

    def __init__(self, work: Work, data: Data) -> None:
        self.work, self.data = work, data
        self._wanted: dict[str, Tensor] | None = None

    def _all(self) -> dict[str, Tensor]:
        if self._wanted is None:
            work, data = self.work, self.data
            if work.row == "qk":
                self._wanted = _heads(work, data)
            elif work.direction == "forward":
                self._wanted = forward(work, data)
            else:
                s = data["x"]
                if work.has_residual:
                    s = (s.double() + data["residual"].double()).to(s.dtype)
                self._wanted = backward(work, data, s)
        return self._wanted

    def _with_dropout(self, found: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float, str]:
        """(the rest of the truth, the distance of what is kept, what is wrong with it)"""
        work, data, s = self.work, self.data, found["sum"]
        if work.direction == "forward":
            residual = data["residual"].double()
            kept = data["x"].double() / (1 - DROPOUT) + residual
            worst, wrong = _dropped(s, kept, residual)
            y = behind(work, data, _moments(s.double(), work.kind, work.eps)[0])
            return {"y": y}, worst, wrong
        wanted = backward(work, data, s)
        ds = wanted.pop("dx")
        worst, wrong = _dropped(found["dx"], ds / (1 - DROPOUT), torch.zeros_like(ds))
        return wanted, worst, wrong

    def _of_quantised(self, y: Tensor, found: Mapping[str, Tensor]) -> tuple[float, str]:
        work = self.work
        scale = self.data["static"] if work.quantised == "tensor" else found["scale"]
        worst = _quantised(y, found["q8"], scale)
        true = _scale_of(work, y)
        if true is not None and not torch.allclose(scale.double(), true, rtol=0.02):
            return worst, "the scales are more than 2% off"
        return worst, f"q is {worst:.3g} steps off" if worst > LIMIT_STEPS else ""

    def check(self, found: Mapping[str, Tensor]) -> tuple[float, str]:
        """(the largest distance from the truth, what is wrong; empty if nothing is)"""
        worst, wrong = 0.0, ""
        if self.work.row == "dropout":
            wanted, worst, wrong = self._with_dropout(found)
        else:
            wanted = dict(self._all())
        if self.work.quantised:
            worst, wrong = self._of_quantised(wanted.pop("y"), found)
        for name, truth in wanted.items():
            if name not in found:
                wrong = wrong or f"{name} is missing"
                continue
            error = off(found[name], truth, name in BY_ELEMENT)
            worst = max(worst, error)
            if error > LIMITS[found[name].dtype]:
                wrong = wrong or f"{name} is {error:.3g} ULP off"
        return worst, wrong
