"""Helpers of the torch tests: who ran an operator, which ran, and how far results are apart."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils._python_dispatch import TorchDispatchMode

import planish
import torch
from planish.library.loaded import library
from torch import Tensor

#: Where the tests run that say so of themselves.
DEVICE = os.environ.get("PLANISH_TEST_DEVICE", "cpu")

#: A numpy array of long double.
Exact = Any

LAYER = "native_layer_norm"
LAYER_BACKWARD = "native_layer_norm_backward"
GROUP = "native_group_norm"
GROUP_BACKWARD = "native_group_norm_backward"
RMS = "_fused_rms_norm"
RMS_BACKWARD = "_fused_rms_norm_backward"

#: Operators under which planish puts itself and takes itself away.
REPLACED = [
    *(LAYER, LAYER_BACKWARD, GROUP, GROUP_BACKWARD, RMS, "rms_norm"),
    *("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"),
    *("_native_batch_norm_legit.no_stats", "_batch_norm_with_update", "batch_norm_backward"),
    *("batch_norm_stats", "batch_norm_elemt", "batch_norm_elemt.out"),
    *("batch_norm_backward_reduce", "batch_norm_backward_elemt"),
    *("_weight_norm_interface", "_weight_norm_interface_backward"),
]

HALVES = [torch.bfloat16, torch.float16]
NARROW = [torch.float32, *HALVES]
FLOATS = [*NARROW, torch.float64]


class Calls:
    """What the operators did since this was made."""

    def __init__(self) -> None:
        self._before = planish.stats()

    def on_planish(self, *operators: str) -> int:
        now, before = planish.stats(), self._before
        return sum(now[name]["planish"] - before[name]["planish"] for name in operators)

    def on_torch(self, operator: str) -> dict[str, int]:
        before = self._before[operator]["torch"]
        now = planish.stats()[operator]["torch"]
        return {why: n - before.get(why, 0) for why, n in now.items() if n > before.get(why, 0)}


@contextlib.contextmanager
def on_planish(*operators: str) -> Iterator[Calls]:
    """Enables planish for a block in which each of these must run on planish and never on torch."""
    calls = Calls()
    with planish.enabled():
        yield calls
    for operator in operators:
        assert calls.on_planish(operator) > 0, f"{operator} never ran on planish"
        assert not calls.on_torch(operator), f"{operator} went to torch: {calls.on_torch(operator)}"


@contextlib.contextmanager
def another_override(result: Tensor) -> Iterator[None]:
    """Another library's layer norm on the CPU: always this."""
    other = torch.library.Library("aten", "IMPL")
    with library().quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.impl("native_layer_norm", lambda *_: (result, result, result), "CPU")
    yield
    other._destroy()


def description(tensors: Sequence[Tensor | None]) -> list[object]:
    """Everything about the results that is not their values."""
    return [
        t if t is None else (tuple(t.shape), t.stride(), t.dtype, t.storage_offset(), t.device)
        for t in tensors
    ]


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random numbers, as a tensor that gradients are taken of."""
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def wide(tensor: Tensor) -> Exact:
    """The values in long double, which has 11 bits more than float64."""
    return tensor.detach().double().cpu().numpy().astype(np.longdouble)


def row_error(result: Tensor, exact: Exact, axis: int | None, scale: Exact | None = None) -> float:
    """The largest error, in ULP of the largest magnitude of `scale` (or `exact`) along `axis`
    (None: of all)."""
    if result.numel() == 0:
        return 0.0
    info = torch.finfo(result.dtype)
    largest = np.abs(exact if scale is None else scale).max(axis, keepdims=True)
    largest = np.maximum(largest, np.longdouble(info.smallest_normal))
    unit = np.ldexp(np.longdouble(info.eps), np.frexp(largest)[1] - 1)
    return float((np.abs(wide(result) - exact) / unit).max())


def exact_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    dy: Tensor | None = None,
    *,
    rms: bool = False,
    eps: float = 1e-5,
) -> list[Exact]:
    """y, dx, dweight and dbias over the last axis, by docs/internals/numerics.md."""
    values = wide(x)
    w = np.ones(x.shape[-1], np.longdouble) if weight is None else wide(weight)
    centred = values if rms else values - values.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.longdouble(eps))
    xhat = centred * rstd
    y = xhat * w + (0 if bias is None else wide(bias))
    if dy is None:
        return [y]
    gradient = wide(dy)
    g = gradient * w
    c1 = 0 if rms else g.mean(-1, keepdims=True)
    dx = rstd * (g - c1 - xhat * (g * xhat).mean(-1, keepdims=True))
    rows = tuple(range(x.dim() - 1))
    return [y, dx, (gradient * xhat).sum(rows), gradient.sum(rows)]


def dispatch_tables() -> list[str]:
    """torch's own account of who implements the operators."""
    return [torch._C._dispatch_dump(f"aten::{name}") for name in REPLACED] + [
        torch._C._dispatch_dump_table(f"aten::{name}") for name in REPLACED
    ]


class Watched(TorchDispatchMode):
    """Changes nothing, and sees which operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.add(str(func))
        return func(*args, **kwargs or {})
