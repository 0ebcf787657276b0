"""`planish bench choices`: where planish's kernels are faster than what inductor makes of a norm.

Each norm is compiled alone, with the residual sum in front of it, or with the activation behind it,
and its forward and its backward are timed beside planish's operators that do the same: on a GPU in
CUDA graphs, and on a CPU in compiled graphs, for what calls these is part of their time. The shapes
are those of no particular model: each stands for the class around it. It writes the rows of this
kind of device into a copy of planish/compile/choices.json, which planish's backend of torch.compile
decides by; another file, which need not be there yet, is what PLANISH_CHOICES may name.

A first run with `--compile N` lets N processes fill inductor's cache.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch._functorch.config
import torch.nn.functional as F

import planish
import torch
from planish.compile import forms, table
from planish.library.dtypes import BY_NAME
from planish.operators import call
from torch import Tensor

from .choice_classes import Class, classes
from .gpu import replayed, side_stream
from .machine import describe
from .program import launch, parser
from .timing import QUICK, THOROUGH, Timed, interleave, loop, ratio

#: Large tensors that one trial goes around in: more than a GPU's L2 holds.
_ROTATED_BYTES = 200 << 20


@dataclass(frozen=True)
class Found:
    """One pass of one class."""

    device: str
    layout: str
    dtype: str
    direction: str
    shape: str
    columns: str
    elements: str
    inductor_us: float
    planish_us: float
    speedup: float
    noisy: bool


# ---- One class, by torch's functions and by planish's operators ----------------------------------


def _formula(one: Class, fused: bool = False) -> Callable[..., Any]:
    """The norm in torch's functions, and what stands beside it; ``fused``: an activation is an
    argument of planish's."""
    if one.groups:

        def of_groups(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            if one.staged and fused:
                return planish.group_norm(x, one.groups, w, b, activation="silu")
            y = F.group_norm(x, one.groups, w, b, 1e-5)
            return F.silu(y) if one.staged else y

        return of_groups
    if one.layout.startswith("layer channels"):

        def of_channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            y = F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b, 1e-6)
            return y.permute(0, 3, 1, 2)

        return of_channels

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if not one.rms:
            return F.layer_norm(x, w.shape, w, b, 1e-5)
        wide = x.float()  # as models write it, and as torch's own formula on every device
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    if not one.staged:
        return norm

    def with_sum(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        total = x + r
        return norm(total, w, b), total

    return with_sum


def _call(one: Class) -> call.Call:
    dtype = BY_NAME[one.dtype]
    staged = one.staged and not one.groups
    if one.groups:
        axes, affine = list(range(2, len(one.shape) + 1)), [1, 2]
    else:
        axes = affine = [1] if len(one.shape) > 2 else [len(one.shape) - 1]
    return call.make_call(
        axes,
        affine,
        split=one.groups,
        eps=1e-5,
        rms=one.rms,
        activation=call.ACTIVATIONS["silu"] if one.groups and one.staged else 0,
        dtype=dtype,
        sum_dtype=dtype if staged else None,
    )


class _Operators:
    """planish's operators as a graph has them."""

    def __init__(self, one: Class) -> None:
        self.call = _call(one)
        self.dtype, self.rms = BY_NAME[one.dtype], one.rms
        self.staged = one.staged and not one.groups
        self.activated = bool(one.groups) and one.staged

    def forward(self, x: Tensor, w: Tensor, b: Tensor, r: Tensor | None) -> Any:
        """(y, the sum where there is one, the mean but of RMS, rstd)"""
        tensors = [x, r, *[None] * 3, w, None if self.rms else b, *[None] * 3]
        there = [t for t in tensors if t is not None]
        results = 2 + self.staged + (not self.rms)
        run = forms.form(forms.FORWARD, len(there), results)
        return run(*there, forms.given_bits(tensors), *self.call)

    def backward(
        self, dy: Tensor, s: Tensor, saved: Any, w: Tensor, b: Tensor, dsum: Tensor | None
    ) -> Any:
        """The gradients of x (and of the residual, which is the same), weight and bias."""
        rstd, mean = saved[-1], None if self.rms else saved[-2]
        bias = b if self.activated else None
        tensors = [dy, s, rstd, mean, dsum, *[None] * 4, w, bias, *[None] * 3]
        there = [t for t in tensors if t is not None]
        wanted = 0b101 if self.rms else 0b1101
        options = call.backward_options(self.call.options, wanted, self.dtype, self.dtype)
        run = forms.form(forms.BACKWARD, len(there), 2 if self.rms else 3)
        axes, _, split, _, _ = self.call
        return run(*there, forms.given_bits(tensors), axes, options, split, 0.0)


def _tensor(one: Class, device: str, dtype: torch.dtype) -> Tensor:
    x = torch.randn(one.shape, device=device, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last) if "nhwc" in one.layout else x


def _compiled(one: Class, taken: bool = False) -> Any:
    """By inductor alone, or with the norm ``taken`` by planish."""
    how: Any = {"backend": "planish", "options": {"planish": "always"}} if taken else {}
    return torch.compile(_formula(one, taken), dynamic=False, fullgraph=True, **how)


def _leaves(one: Class, device: str, dtype: torch.dtype) -> list[Tensor]:
    columns = one.shape[1]
    w = torch.randn(columns, device=device, dtype=dtype).requires_grad_()
    b = torch.randn(columns, device=device, dtype=dtype).requires_grad_()
    x = _tensor(one, device, dtype).requires_grad_()
    residual = one.staged and not one.groups
    return [x, w, b, *([_tensor(one, device, dtype).requires_grad_()] if residual else [])]


def _graphs(one: Class) -> dict[str, Timed]:
    """A graph of inductor's alone and one with planish's operators, on the CPU."""
    leaves = _leaves(one, "cpu", BY_NAME[one.dtype])
    gradients = [_tensor(one, "cpu", BY_NAME[one.dtype]) for _ in range(2)]
    wrt = [leaf for at, leaf in enumerate(leaves) if not (one.rms and at == 2)]
    calls: dict[str, Callable[[], object]] = {}
    for name in ("inductor", "planish"):
        compiled = _compiled(one, name == "planish")
        y = compiled(*leaves)
        results = y if isinstance(y, tuple) else (y,)

        def forward(compiled: Any = compiled) -> object:
            return compiled(*leaves)

        def backward(results: Any = results) -> object:
            given = gradients[: len(results)]
            return torch.autograd.grad(results, wrt, given, retain_graph=True)

        calls[name] = forward if one.direction == table.FORWARD else backward
    return {name: loop(call) for name, call in calls.items()}


def _kernels(one: Class, device: str) -> dict[str, Timed]:
    """Inductor's pass and planish's, over as many sets of tensors as exceed the L2."""
    dtype = BY_NAME[one.dtype]
    numel = math.prod(one.shape)
    bytes_ = numel * dtype.itemsize * (4 + 2 * one.staged)
    sets = max(1, min(16, _ROTATED_BYTES // bytes_))
    compiled, ours = _compiled(one), _Operators(one)
    calls: dict[str, list[Callable[[], object]]] = {"inductor": [], "planish": []}
    forward = one.direction == table.FORWARD
    for _ in range(sets):
        leaves = _leaves(one, device, dtype)
        x, w, b, *rest = leaves
        r = rest[0] if rest else None
        gradients = [_tensor(one, device, dtype) for _ in range(2 if r is not None else 1)]
        y = compiled(*leaves)
        results = y if isinstance(y, tuple) else (y,)
        wrt = [leaf for leaf in leaves if not (one.rms and leaf is b)]

        def inductor_forward(leaves: Any = leaves) -> object:
            return compiled(*leaves)

        def inductor_backward(
            results: Any = results, wrt: Any = wrt, gradients: Any = gradients
        ) -> object:
            return torch.autograd.grad(results, wrt, gradients, retain_graph=True)

        plain = [None if t is None else t.detach() for t in (x, w, b, r)]
        saved = ours.forward(*plain)  # type: ignore[arg-type]
        s = saved[1] if r is not None else plain[0]

        def planish_forward(plain: Any = plain) -> object:
            return ours.forward(*plain)

        def planish_backward(
            s: Any = s, saved: Any = saved, plain: Any = plain, g: Any = gradients
        ) -> object:
            return ours.backward(g[0], s, saved, plain[1], plain[2], g[1] if len(g) > 1 else None)

        calls["inductor"].append(inductor_forward if forward else inductor_backward)
        calls["planish"].append(planish_forward if forward else planish_backward)
    return {name: replayed(each) for name, each in calls.items()}


def measure(one: Class, device: str, quick: bool) -> Found:
    """One class."""
    effort = QUICK if quick or device == "cuda" else THOROUGH
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # a backward is called many times
    kind = table.device_kind(torch.device(device, 0) if device == "cuda" else torch.device(device))
    with side_stream() if device == "cuda" else torch.enable_grad():
        works = _kernels(one, device) if device == "cuda" else _graphs(one)
    samples = interleave(works, effort, alike=True)
    times = ratio(samples["inductor"], samples["planish"])
    found = Found(
        kind,
        one.layout,
        one.dtype,
        one.direction,
        "x".join(map(str, one.shape)),
        f"{one.columns[0]}-{one.columns[1]}",
        f"{one.elements[0]}-{one.elements[1]}",
        samples["inductor"].median * 1e6,
        samples["planish"].median * 1e6,
        times.value,
        times.noisy,
    )
    print(
        f"{one.layout:32}{one.dtype:5}{found.shape:18}{one.direction:23}"
        f"{found.inductor_us:9.1f}{found.planish_us:9.1f} us {times!s}",
        flush=True,
    )
    return found


# ---- The table -----------------------------------------------------------------------------------


def write_table(found: Sequence[Found], path: Path, command: str) -> None:
    """Puts the rows of this kind of device in the place of those that were there. What was too
    noisy to say is no row: inductor keeps such norms."""
    kept = json.loads(path.read_text()) if path.exists() else {"rows": []}
    device = found[0].device
    rows = [row for row in kept["rows"] if row[0] != device]
    for one in found:
        if one.noisy:
            continue
        bounds = [_bounds_of(one.columns), _bounds_of(one.elements)]
        dtype = table.NAMES[BY_NAME[one.dtype]]
        rows.append([device, one.layout, dtype, one.direction, *bounds, round(one.speedup, 2)])
    about = describe()
    machine = about.get("gpu") if device.startswith("sm_") else about["cpu"]
    measured = {
        **kept.get("measured", {}),
        device: f"{machine}, torch {torch.__version__}: {command}",
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{{"measured": {json.dumps(measured)},\n "rows": [\n{lines}\n]}}\n')


def _bounds_of(text: str) -> list[int | None]:
    low, high = text.split("-")
    return [int(low), None if high == "None" else int(high)]


def _compile_part(device: str, quick: bool, part: int, parts: int) -> None:
    torch._functorch.config.donated_buffer = False
    shapes = {(one.layout, one.dtype, one.shape): one for one in classes(device, quick)}
    for one in list(shapes.values())[part::parts]:
        torch._dynamo.reset()
        leaves = _leaves(one, device, BY_NAME[one.dtype])
        results = _compiled(one)(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.float().sum() for r in results).backward()


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and writes choices.csv and the table."""
    p = parser("choices", __doc__)
    p.add_argument("--compile", type=int, default=0, help="processes that compile first")
    p.add_argument("--table", type=Path, help="the file to write the rows into; none by default")
    arguments = p.parse_args(argv)

    def run(given: argparse.Namespace) -> list[Found]:
        if given.compile:
            context = multiprocessing.get_context("spawn")
            parts = [
                context.Process(
                    target=_compile_part, args=(given.device, given.quick, k, given.compile)
                )
                for k in range(given.compile)
            ]
            for part in parts:
                part.start()
            for part in parts:
                part.join()
        found = [
            measure(one, given.device, given.quick) for one in classes(given.device, given.quick)
        ]
        if given.table is not None:
            write_table(found, given.table, f"planish bench choices --device {given.device}")
        return found

    return launch("choices", argv, arguments, run)
