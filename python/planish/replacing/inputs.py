"""What a probe runs on: copies of a module with seeded parameters, and seeded inputs, ordinary ones
and those at the edges of a dtype. All on the CPU, whatever the caller's default device is.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Iterator
from typing import Any

import torch.overrides
from torch.utils._python_dispatch import _disable_current_modes

import torch
from planish.replacing.forms import Form
from planish.replacing.settings import unmarked
from planish.replacing.state import Reads, own_attributes
from torch import Tensor, nn

__all__ = [
    "MULTIPLES",
    "UNLIKE",
    "apart",
    "copied",
    "edges",
    "large_weight",
    "near_largest",
    "ordinary",
]
__all__ += ["seeded", "spread"]

_overrides: Any = torch.overrides


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """No mode, default device, autocast or gradient setting of the caller's is seen inside."""
    with (
        _disable_current_modes(),
        _no_function_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@contextlib.contextmanager
def _no_function_modes() -> Iterator[None]:
    """Without torch.device() as a context, set_default_device(), and users' own."""
    modes = [_overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _overrides._push_mode(mode)


def seeded(shape: Any, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(dtype)


def copied(
    cls: type[nn.Module], module: nn.Module, size: int, dtype: torch.dtype | None
) -> nn.Module:
    """The module with seeded parameters of this dtype, in eval. Nothing that its forward could
    change is shared with the module."""
    generator = torch.Generator().manual_seed(1)
    new: nn.Module = object.__new__(cls)  # a wrapper's own __new__ may want arguments
    state = own_attributes(module, unmarked(module))
    for name, value in state.items():
        if isinstance(value, types.MethodType) and value.__self__ is module:
            state[name] = types.MethodType(value.__func__, new)
    new.__dict__ = state
    state["training"] = False
    state["_parameters"] = {
        name: None
        if p is None
        else nn.Parameter(
            seeded(p.shape if p.numel() else (size,), generator, torch.float32)
            .mul_(0.3)
            .add_(1.0)
            .to(dtype or torch.float32)
        )
        for name, p in module._parameters.items()
    }
    state["_buffers"] = Reads(
        {
            name: b if b is None else seeded(b.shape, generator, b.dtype)
            for name, b in module._buffers.items()
        }
    )
    state["_modules"] = {
        name: child if child is None else copy.deepcopy(child).eval()
        for name, child in module._modules.items()
    }
    return new


def ordinary(form: Form, module: Any, size: int, rank: int, dtype: torch.dtype) -> Tensor:
    """Rows with means and of several scales, the smallest as small as eps."""
    generator = torch.Generator().manual_seed(2)
    if form.kind == "convolution":
        size = module.in_channels
        # One pixel of one channel: the results are the weights, with no sums that round.
        x = torch.zeros(2, size, 9, 8, dtype=torch.float32, device="cpu")
        x[0, 0, 4, 4] = x[1, size - 1, 4, 4] = 1.0
        return x.to(dtype)
    sides = [3, 5, 2, 4]
    if form.axis == 1:
        shape = [2, size, *sides[: rank - 2]]
    else:
        last = list(module.normalized_shape) if form.count > 1 else [size]
        shape = [*sides[: rank - form.count], *last]
    x = seeded(shape, generator, torch.float32) + 0.25
    scales = torch.tensor([1.0, 0.01, 3.0, 0.002, 0.3], dtype=torch.float32, device="cpu")
    along = 0 if shape[0] > 2 else -1
    where = [1] * len(shape)
    where[along] = -1
    return (x * scales.repeat(-(-shape[along] // 5))[: shape[along]].view(where)).to(dtype)


# ---- Edges --------------------------------------------------------------------------------------

#: So many of the first rows of :func:`edges` are multiples of one, by powers of two.
MULTIPLES = 3
#: Kinds of which multiples of a row do not give multiples of the result, or the same.
UNLIKE = ("evo", "response", "filter")


def _placed(form: Form, module: Any, rows: Tensor, rank: int, dtype: torch.dtype) -> Tensor:
    """Rows (R, size) as an input of this number of axes; the first is that of the rows."""
    count, size = rows.shape
    if form.axis == 1:
        x = rows.view(count, size, *[1] * (rank - 2)).repeat(1, 1, *[2] * (rank - 2))
        if rank > 2:
            x[..., 1] *= -0.5  # what is the same in every pixel has no variance in a group
        return x.to(dtype)
    last = list(module.normalized_shape) if form.count > 1 else [size]
    ones = rank - 1 - len(last)
    x = rows.view(count, *[1] * ones, *last)
    return x.repeat(1, *[2] * ones, *[1] * len(last)).to(dtype)


def edges(
    form: Form, module: Any, size: int, rank: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x, and a gate: rows of large and small numbers, up to near the dtype's largest, of one
    element that is not 0, with a NaN, with an infinity."""
    generator = torch.Generator().manual_seed(5)
    largest = {torch.float16: 13, torch.float64: 300}.get(dtype, 100)
    scales = [2.0**5, 2.0**9, 2.0**largest, 1e-6, 0.0]
    one = len(scales)
    normal = seeded((one + 5, size), generator, torch.float64).clamp_(-4, 4)
    # Beside the least of these eps is nothing, in a group of one channel, too.
    normal[:MULTIPLES] = normal[0].sign() * normal[0].abs().clamp_min(0.25)
    gates = normal.flip(0)
    gates[1:MULTIPLES] = gates[0]
    gates[-1] *= 40.0
    x = normal * torch.tensor([*scales, *[1.0] * 5], dtype=torch.float64, device="cpu")[:, None]
    if form.kind in UNLIKE:
        x[1:MULTIPLES] = normal[1:MULTIPLES]
    x[one] = 0.0
    x[one, size // 2] = 3.0
    for row, value in ((one + 1, "nan"), (one + 2, "inf"), (one + 3, "-inf")):
        x[row, size // 3] = float(value)
    return _placed(form, module, x, rank, dtype), _placed(form, module, gates, rank, dtype)


def near_largest(
    form: Form, module: Any, size: int, rank: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x, and a gate: with weights of :func:`large_weight`, results that are about a third of the
    dtype's largest number, and as many that are a third more than it."""
    pattern = torch.tensor([1.0, 4.0, -1.0, -4.0], dtype=torch.float64, device="cpu")
    rows = pattern.repeat(-(-size // 4))[:size].repeat(2, 1)
    one = 8.0 if form.gate_activation == "sigmoid" else 1.2785  # what these give
    gates = torch.full_like(rows, one)
    return _placed(form, module, rows, rank, dtype), _placed(form, module, gates, rank, dtype)


def spread(new: nn.Module) -> None:
    """Makes the parameters sixteen times as large, with both signs."""
    with torch.no_grad():
        for parameter in new.parameters(recurse=False):
            flat = parameter.view(-1)
            flat *= 16.0
            flat[1::2] *= -1.0


def large_weight(new: Any, form: Form, result: torch.dtype) -> None:
    """Sets the weight to what makes results overflow where xhat is above 1.1."""
    weight = getattr(new, form.weight or "")
    largest = min(torch.finfo(weight.dtype).max, torch.finfo(result).max)
    weight.detach().fill_(0.9 * largest)
