"""The options of `planish bench fused`, and the measuring: every result checked before it is timed,
then all of a work's ways by turns."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from planish.commands.command_lines import UsageError, at_least, seconds
from planish.commands.command_lines import words as words_of
from torch import Tensor

from ..case import DTYPE_BYTES
from ..gpu import MOST_SETS, ROTATE_BYTES, replayed, side_stream
from ..program import clock_of, launch, parser
from ..providers.base import UnsupportedError
from ..timing import TOO_NOISY, Effort, Timed, interleave
from . import table
from .ceilings import Ceiling
from .reference import Truth
from .way import Prepared, Way
from .ways import all_ways
from .works import GROUPS, Work, copies, make_data, works

DOC = """Norms with what stands around them in a model - a residual, dropout, a modulation, a gate,
quantisation, queries and keys - beside a ceiling and every peer: the shares of the speed of an
element-wise loop that moves as many bytes in as many streams."""

EFFORT = {"cuda": Effort(7, 0.003, 0.8, patience=2.0), "cpu": Effort(9, 0.01, 6.0, patience=2.0)}
QUICK = Effort(5, 0.002, 0.5, patience=2.0)


@dataclass(frozen=True)
class Cell:
    """One way at one work."""

    group: str
    row: str
    kind: str
    direction: str
    work: str
    dtype: str
    way: str
    status: str  # ok, wrong, unsupported, failed
    reason: str = ""
    microseconds: float | None = None
    microseconds_q1: float | None = None
    microseconds_q3: float | None = None
    trials: int = 0
    gb_per_s: float | None = None
    share: float | None = None  # of the ceiling's speed; None too where either is noise
    error: float | None = None  # ULP of the row's largest, of 8-bit results steps
    noisy: bool = False


def _cell(work: Work, way: Way, status: str, reason: str = "") -> Cell:
    return Cell(
        work.group, work.row, work.kind, work.direction, work.label, work.dtype, way.name, status,
        reason,
    )  # fmt: skip


def _verdict(truth: Truth, way: Way, found: dict[str, Tensor]) -> tuple[float, str]:
    if isinstance(way, Ceiling):
        wrong = any(bool(t.any()) for t in found.values())
        return 0.0, "it is not the sum of what is read" if wrong else ""
    return truth.check(found)


def _timed(work: Work, made: Prepared) -> Timed:
    return replayed(made.calls) if work.device == "cuda" else clock_of("cpu")(made.calls[0])


def measure(work: Work, ways: Sequence[Way], effort: Effort) -> list[Cell]:
    """A cell for each way."""
    cuda = work.device == "cuda"
    count = min(MOST_SETS, -(-ROTATE_BYTES // work.needed_bytes)) if cuda else 1
    sets = copies(make_data(work), max(1, count))
    truth = Truth(work, sets[0])
    cells: dict[str, Cell] = {}
    timed: dict[str, Timed] = {}
    kept: list[Prepared] = []  # what is timed works on memory that hangs from it
    for way in ways:
        try:
            with side_stream() if cuda else contextlib.nullcontext():
                made = way.prepare(work, sets)
                found = {name: t.detach() for name, t in made.outputs().items()}
            error, wrong = _verdict(truth, way, found)
            del found
            cell = _cell(work, way, "wrong" if wrong else "ok", wrong)
            cells[way.name] = replace(cell, error=error)
            if not wrong:
                timed[way.name] = _timed(work, made)
                kept.append(made)
        except UnsupportedError as error_:
            cells[way.name] = _cell(work, way, "unsupported", str(error_))
        except Exception as error_:  # a peer's failure must not end the run, and is reported
            text = str(error_).strip() or type(error_).__name__
            cells[way.name] = _cell(work, way, "failed", text.splitlines()[0])
    del truth
    samples = interleave(timed, effort)
    ceiling = samples.get(Ceiling.name)
    for name, sample in samples.items():
        q1, q3 = sample.quartiles
        share = None
        if ceiling is not None and not sample.noisy and not ceiling.noisy:
            share = ceiling.median / sample.median
        cells[name] = replace(
            cells[name],
            microseconds=sample.median * 1e6,
            microseconds_q1=q1 * 1e6,
            microseconds_q3=q3 * 1e6,
            trials=len(sample.seconds),
            gb_per_s=work.needed_bytes / sample.median / 1e9,
            share=share,
            noisy=sample.noisy,
            reason=TOO_NOISY if sample.noisy else "",
        )
    return list(cells.values())


def _prepare_only(work: Work, compiled: str, chosen: Sequence[str]) -> None:
    """One work over all ways, for what they keep on disk; a failure comes again when measured."""
    sets = copies(make_data(work), 1)
    for way in choose(work.device, compiled, chosen, quiet=True):
        with contextlib.suppress(Exception):
            way.prepare(work, sets).outputs()
    gc.collect()
    torch.cuda.empty_cache()


def compile_ahead(
    all_works: Sequence[Work], compiled: str, chosen: Sequence[str], processes: int
) -> None:
    """Prepares every work once in several processes: Triton, torch.compile and planish keep on disk
    what they compile."""
    begin = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        jobs = [pool.submit(_prepare_only, work, compiled, chosen) for work in all_works]
        for job in jobs:
            with contextlib.suppress(Exception):
                job.result()
    print(f"compiled ahead: {len(jobs)} works, {time.perf_counter() - begin:.0f} s", flush=True)


def choose(device: str, compiled: str, chosen: Sequence[str], quiet: bool = False) -> list[Way]:
    """The ways that can be used, the ceiling first; the others are named with the reason."""
    found: list[Way] = [Ceiling(), *all_ways(device, compiled)]
    names = [way.name for way in found]
    for name in chosen:
        if name not in names:
            raise UsageError(f"--ways: {name!r} is none of {', '.join(names)}")
    present = []
    for way in found:
        if chosen and way.name not in chosen:
            continue
        reason = way.missing(device)
        if reason is None:
            present.append(way)
        elif not quiet:
            print(f"missing: {way.name}: {reason}")
    return present


def run(arguments: argparse.Namespace) -> list[Cell]:
    """The whole table, work after work."""
    begin = time.perf_counter()
    only = words_of(arguments.only, GROUPS, "--only")
    dtype = arguments.dtype or ("bf16" if arguments.device == "cuda" else "f32")
    dtypes = words_of(dtype, list(DTYPE_BYTES), "--dtype")
    chosen = [word for word in arguments.ways.split(",") if word]
    planned = works(arguments.device, dtypes, only, arguments.quick)
    ways = choose(arguments.device, arguments.compile, chosen)
    for way in ways:
        print(f"{way.name:15}{way.what}")
    if arguments.device == "cuda" and arguments.processes:
        compile_ahead(planned, arguments.compile, chosen, arguments.processes)
    effort = QUICK if arguments.quick else EFFORT[arguments.device]
    printed = table.Table([way.name for way in ways])
    cells: list[Cell] = []
    for place, work in enumerate(planned):
        if arguments.seconds and time.perf_counter() - begin > arguments.seconds:
            left = ", ".join(f"{w.title} {w.label}" for w in planned[place:])
            print(f"out of time, not measured: {left}")
            break
        found = measure(work, ways, effort)
        printed.row(work, found)
        cells += found
        gc.collect()
        if work.device == "cuda":
            torch.cuda.empty_cache()
    printed.foot()
    table.draw(cells, arguments)
    return cells


def main(words: Sequence[str]) -> int:
    """Runs the bench; 1 where planish or any other way was wrong."""
    p = parser("fused", DOC)
    p.add_argument(
        "--cuda", dest="device", action="store_const", const="cuda", help="--device cuda"
    )
    p.add_argument("--only", default="", help=",".join(GROUPS))
    p.add_argument("--dtype", default="", help="f16,bf16,f32; bf16 on a GPU, f32 on a CPU")
    p.add_argument("--ways", default="", help="some of the ways; all of them by default")
    p.add_argument(
        "--compile", choices=("few", "all", "none"), default="few",
        help="for which shapes torch.compile is measured",
    )  # fmt: skip
    p.add_argument(
        "--processes",
        type=at_least(0),
        default=0,
        help="cuda: compile ahead in so many processes",
    )
    p.add_argument("--seconds", type=seconds, default=0.0, help="begin no work after so many")
    wrong: list[Cell] = []

    def kept(arguments: argparse.Namespace) -> list[Cell]:
        cells = run(arguments)
        wrong.extend(cell for cell in cells if cell.status == "wrong")
        return cells

    return launch("fused", words, p.parse_args(words), kept) or int(bool(wrong))
