"""`planish bench switch`: no norm may get slower by planish.enable().

Times torch's norms as they are and with planish enabled, by turns in one process, forward and
backward as a model calls them, over the norms of switch_shapes.py. Every result under planish is
compared with torch's in double first. Prints the cells whose time is above the limit, counts those
that are too noisy to tell, and writes all of them to switch.csv.

It is about torch with and without planish only; peers are in the other sweeps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from planish.commands.command_lines import UsageError, at_least, check_device, words
from planish.library.dtypes import BY_NAME

from . import allocator, machine, report
from .gpu import queued
from .providers.planish_torch import enabled, switched_off
from .switch_shapes import QUICK, Norm, norms
from .timing import TOO_NOISY, Effort, Ratio, Sample, Timed, interleave, loop, ratio

LIMIT = 1.1
EFFORT = Effort(trials=7, trial_seconds=0.004, case_seconds=1.0, patience=5.0)
WRONG_ULP = 64.0  # of the largest magnitude of an output: what tells wrong from rough
WARM_SECONDS = 0.004
EPS = 1e-5
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Cell:
    """One norm in one direction, dtype and number of threads."""

    kind: str
    model: str
    shape: str
    layout: str
    dtype: str
    direction: str
    threads: int
    ran: str  # planish, or torch's own kernel and why
    verdict: str  # fine, slower, too noisy, wrong
    torch_microseconds: float
    planish_microseconds: float
    ratio: float  # of planish's time to torch's
    ratio_low: float
    ratio_high: float
    rounds: int
    error_ulp: float
    torch_error_ulp: float


# ---- One norm -----------------------------------------------------------------------------------


def operands(norm: Norm, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """x, dy, weight and bias, the same for the same norm."""
    generator = torch.Generator(device).manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    x, dy = (normal(*norm.shape).to(dtype) for _ in range(2))
    if norm.layout == "nhwc":
        x, dy = (t.to(memory_format=LAST[t.dim()]) for t in (x, dy))
    if norm.kind != "group" and norm.layout == "nchw":
        x, dy = (t.permute(0, 2, 3, 1) for t in (x, dy))
    if norm.kind == "weight":
        sizes = [n if axis == norm.axis else 1 for axis, n in enumerate(norm.shape)]
        g = (normal(*sizes) * 0.25 + 1).to(dtype)
        return x, dy, g, g
    width = norm.shape[1] if norm.kind == "group" or norm.layout == "nchw" else norm.shape[-1]
    weight, bias = (normal(width) * 0.25 + 1).to(dtype), (normal(width) * 0.25).to(dtype)
    return x, dy, weight, bias


def forward_of(norm: Norm, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """What a model calls."""
    functional = torch.nn.functional
    if norm.kind == "group":
        return functional.group_norm(x, norm.groups, weight, bias, EPS)
    if norm.kind == "weight":
        return torch._weight_norm(x, weight, norm.axis)
    if norm.kind == "rms":
        return functional.rms_norm(x, weight.shape, weight, EPS)
    return functional.layer_norm(x, weight.shape, weight, bias, EPS)


def backward_of(norm: Norm, parts: Outputs) -> Callable[[], Outputs]:
    """The gradients as a model takes them, from a graph that is kept. (Called from Python by its
    name, the operator would be called boxed, as no model calls it.)"""
    x, dy, weight, bias = parts
    x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
    leaves = (x, weight) if norm.kind in ("rms", "weight") else (x, weight, bias)
    y = forward_of(norm, x, weight, bias)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def work_of(norm: Norm, direction: str, parts: Outputs) -> Callable[[], Outputs]:
    """The call that is timed; returns its outputs."""
    if direction == "backward":
        return backward_of(norm, parts)
    x, _, weight, bias = parts

    def forward() -> Outputs:
        with torch.no_grad():
            return (forward_of(norm, x, weight, bias),)

    return forward


def error(found: Outputs, wanted: Outputs) -> float:
    """The largest error of an output, in ULP of its largest magnitude."""
    worst = 0.0
    for mine, true in zip(found, wanted, strict=True):
        if mine.numel():
            unit = torch.finfo(mine.dtype).eps * true.abs().max().clamp_min(1e-30)
            gap = float(((mine.double() - true).abs().max() / unit).nan_to_num(nan=float("inf")))
            worst = max(worst, gap)
    return worst


def is_wrong(found: float, torchs: float) -> bool:
    """Further off than rounding explains, and than torch is: what planish hands on, and what it
    makes of statistics of torch's, is as far off as torch."""
    return not found <= max(WRONG_ULP, 2 * torchs)


def ran_on() -> Callable[[], str]:
    """Called after a norm, the function returned says who has run it since."""
    import planish

    before = planish.stats()

    def told() -> str:
        reasons: list[str] = []
        for operator, counts in planish.stats().items():
            for reason, count in counts["torch"].items():
                if count > before[operator]["torch"].get(reason, 0) and reason not in reasons:
                    reasons.append(reason)
        return f"torch: {'; '.join(reasons)}" if reasons else "planish"

    return told


def verdict(found: Ratio, limit: float) -> str:
    """Also where the ratio itself is noise it may be sure on which side of the limit it is."""
    if found.starved:
        return TOO_NOISY
    if found.high <= limit or (found.value <= limit and not found.noisy):
        return "fine"
    if found.low > limit or not found.noisy:
        return "slower"
    return TOO_NOISY


def under(context: Callable[[], Any], work: Callable[[], object], timed: Timed) -> Timed:
    """The same within that context, entered and the work called for a while outside the clock:
    a team of threads that slept through the switching takes a millisecond to be as fast as before
    (a norm of torch's own that was handed over was found 1.2 to 2.1 times as slow so)."""

    def run(count: int) -> float:
        with context():
            begin = time.perf_counter()
            while count > 1 and time.perf_counter() - begin < WARM_SECONDS:
                work()
            return timed(count)

    return run


def joined(one: Sample, other: Sample) -> Sample:
    """The trials of both."""
    return Sample(one.seconds + other.seconds, one.on_core + other.on_core)


def measure_cell(
    norm: Norm, dtype: str, direction: str, threads: int, device: str, limit: float, effort: Effort
) -> Cell:
    """Checks and times one cell."""
    torch.set_num_threads(threads)
    parts = operands(norm, BY_NAME[dtype], device)
    wide = tuple(t.double() for t in parts)
    wanted = work_of(norm, direction, wide)()
    del wide
    # Seconds on a core where there is one thread: whoever else wants the core does not count.
    clock = queued if device == "cuda" else partial(loop, clock="cpu" if threads == 1 else "wall")
    works: dict[str, Timed] = {}
    errors: dict[str, float] = {}
    for name, context in (("torch", switched_off), ("planish", enabled)):
        with context():
            work = work_of(norm, direction, parts)
            told = ran_on()  # the forward that a backward needs is not what is asked about
            found = work()
            ran = told()
        errors[name] = error(found, wanted)
        works[name] = under(context, work, clock(work))
    del wanted, found

    def settled(samples: Any) -> bool:
        return verdict(ratio(samples["planish"], samples["torch"]), limit) != TOO_NOISY

    samples = interleave(works, effort, settled=settled, alike=True)
    times = ratio(samples["planish"], samples["torch"])
    if verdict(times, limit) == "slower":
        # Of hundreds of cells some are above the limit by chance: not twice.
        again = interleave(works, effort, settled=settled, alike=True)
        samples = {name: joined(sample, again[name]) for name, sample in samples.items()}
        times = ratio(samples["planish"], samples["torch"])
    return Cell(
        norm.kind, norm.model, norm.label, norm.layout, dtype, direction, threads, ran,
        "wrong" if is_wrong(errors["planish"], errors["torch"]) else verdict(times, limit),
        samples["torch"].median * 1e6, samples["planish"].median * 1e6,
        times.value, times.low, times.high, len(samples["torch"].seconds),
        errors["planish"], errors["torch"],
    )  # fmt: skip


# ---- The command --------------------------------------------------------------------------------


LAYOUTS = ("rows", "nchw", "nhwc")


def _numbers(text: str) -> list[int]:
    return [at_least(1)(word) for word in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(prog="planish bench switch", description=__doc__)
    p.add_argument("--quick", action="store_true", help="a few shapes")
    p.add_argument("--only", default="", help="comma-separated: words of a kind, model or shape")
    p.add_argument("--dtype", default="f32,bf16")
    p.add_argument("--direction", default="forward,backward")
    p.add_argument("--layout", default="rows,nchw,nhwc", help="nhwc: channels last")
    p.add_argument(
        "--threads", type=_numbers, default="1,2", help="comma-separated numbers of threads"
    )
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--limit", type=float, default=LIMIT, help=f"by default {LIMIT}")
    p.add_argument(
        "--malloc",
        choices=("kept", "ordinary"),
        default="ordinary",
        help="as users have it, or with pages that are kept, which shows the kernels",
    )
    p.add_argument("--out", type=Path, default=Path("bench-out"))
    return p


def chosen(arguments: argparse.Namespace) -> list[Norm]:
    """The norms asked for."""
    only = [word for word in arguments.only.split(",") if word]
    layouts = words(arguments.layout, LAYOUTS, "--layout")
    found = [
        norm
        for norm in norms()
        if norm.layout in layouts
        and (not arguments.quick or norm.label in QUICK)
        and (not only or any(w in f"{norm.kind} {norm.model} {norm.label}" for w in only))
    ]
    if not found:
        raise UsageError("--only and --layout leave no shape")
    return list(dict.fromkeys(found))


def line(cell: Cell) -> str:
    """One cell as it is printed."""
    place = f"{cell.kind:7}{cell.shape:33}{cell.layout:6}{cell.dtype:6}{cell.direction:10}"
    times = f"{cell.torch_microseconds:11.1f}{cell.planish_microseconds:11.1f}{cell.ratio:8.2f}"
    open_ends = f"  {cell.ratio_low:.2f} to {cell.ratio_high:.2f}"
    return f"{place}{cell.threads:>3}{times}{open_ends:16}  {cell.verdict}; {cell.ran}"


def summary(cells: Sequence[Cell], limit: float) -> list[str]:
    """What was found, by kind, direction and dtype."""
    lines = []
    for key in dict.fromkeys((c.kind, c.direction, c.dtype) for c in cells):
        mine = [c for c in cells if (c.kind, c.direction, c.dtype) == key]
        count = {v: sum(c.verdict == v for c in mine) for v in ("slower", "wrong", TOO_NOISY)}
        settled = sorted(c.ratio for c in mine if c.verdict in ("fine", "slower"))
        middle = f"{settled[len(settled) // 2]:.2f}" if settled else "-"
        lines.append(
            f"{key[0]:7}{key[1]:10}{key[2]:6}{len(mine):5} cells, median ratio {middle}; above "
            f"{limit:g}: {count['slower']}, wrong: {count['wrong']}, {TOO_NOISY}: "
            f"{count[TOO_NOISY]}"
        )
    return lines


def run(arguments: argparse.Namespace, given: Sequence[str]) -> int:
    """Measures; 1 where a cell is slower or wrong."""
    begin = time.perf_counter()
    check_device(arguments.device)
    dtypes = words(arguments.dtype, list(BY_NAME), "--dtype")
    directions = words(arguments.direction, ["forward", "backward"], "--direction")
    todo = [
        (norm, dtype, direction, threads)
        for norm in chosen(arguments)
        for dtype in dtypes
        for direction in directions
        for threads in arguments.threads
    ]
    about = machine.describe()
    print(f"{about['cpu']}, load {about['load_1m_5m_15m'][0]}; {len(todo)} cells")
    print(
        f"{'norm':40}{'':6}{'dtype':6}{'':8}threads{'torch us':>11}{'planish us':>11}{'ratio':>8}"
    )
    cells: list[Cell] = []
    for count, (norm, dtype, direction, threads) in enumerate(todo, 1):
        if sys.stderr.isatty():
            print(f"\r{count} of {len(todo)}", end="", file=sys.stderr)
        cell = measure_cell(
            norm, dtype, direction, threads, arguments.device, arguments.limit, EFFORT
        )
        cells.append(cell)
        if cell.verdict in ("slower", "wrong"):
            print(line(cell), flush=True)
    print("\n" + "\n".join(summary(cells, arguments.limit)))
    context: dict[str, Any] = {
        "machine": {**about, "load_at_end": machine.describe()["load_1m_5m_15m"]},
        "settings": {
            "command": " ".join(["planish", "bench", "switch", *given]),
            "torch": torch.__version__,
            "malloc": arguments.malloc,
            "seconds": round(time.perf_counter() - begin, 1),
        },
    }
    path = arguments.out / "switch.csv"
    report.write_csv(path, cells, context)
    print(f"\n{time.perf_counter() - begin:.0f} s; wrote {path}")
    return int(any(cell.verdict in ("slower", "wrong") for cell in cells))


def main(given: Sequence[str]) -> int:
    """Runs the sweep in a process whose malloc is as asked for."""
    arguments = parser().parse_args(given)
    if arguments.malloc == "kept" and arguments.device == "cpu" and not allocator.keeps_pages():
        return allocator.run_kept(["switch", *given], max(arguments.threads))
    return run(arguments, given)
