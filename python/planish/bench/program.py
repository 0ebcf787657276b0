"""What the benches with options of their own have in common: options, a process, tables, files.

Measures nothing by itself.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from planish.commands.command_lines import at_least, check_device

from . import allocator, machine, report
from .gpu import queued
from .timing import TOO_NOISY, Sample, Timed, loop, ratio


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options that all of them have."""
    p = argparse.ArgumentParser(prog=f"planish bench {name}", description=doc)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--quick", action="store_true", help="smaller and fewer: a look in seconds")
    p.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    p.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for the files")
    return p


def launch(
    name: str,
    words: Sequence[str],
    arguments: argparse.Namespace,
    run: Callable[[argparse.Namespace], Sequence[Any]],
) -> int:
    """Calls ``run`` in a process whose malloc keeps its pages, and writes the records that it
    returns to NAME.csv. 0, or 1 where there are none."""
    if arguments.device == "cpu" and not allocator.keeps_pages():
        return allocator.run_kept([name, *words], arguments.threads)
    check_device(arguments.device)
    begin = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    about = machine.describe()
    print(
        about["gpu"]
        if arguments.device == "cuda"
        else f"{about['cpu']}, {arguments.threads} threads, load {about['load_1m_5m_15m'][0]}"
    )
    records = run(arguments)
    context = {
        "machine": {**about, "load_at_end": machine.describe()["load_1m_5m_15m"]},
        "settings": {
            "command": " ".join(["planish", "bench", name, *words]),
            "device": arguments.device,
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - begin, 1),
        },
    }
    path = arguments.out / f"{name}.csv"
    report.write_csv(path, records, context)
    print(f"\n{time.perf_counter() - begin:.0f} s; wrote {path}")
    return int(not records)


def clock_of(device: str, warm: bool = True) -> Callable[[Callable[[], object]], Timed]:
    """How a call is timed on that device: by the GPU's clock in a queue of calls, or by a loop;
    with one thread by the seconds that it had a core, so that who else wants it does not count."""
    if device == "cuda":
        return queued
    return partial(loop, warm=warm, clock="cpu" if torch.get_num_threads() == 1 else None)


@dataclass(frozen=True)
class Row:
    """One way to do one piece of work."""

    work: str
    direction: str
    way: str
    microseconds: float | None  # None: too noisy, or missing
    times: float | None  # how many times as fast as the first way
    trials: int
    note: str = ""


def rows_of(work: str, direction: str, samples: Mapping[str, Sample]) -> list[Row]:
    """The rows of one piece of work; the first way is what the others are compared with."""
    first = next(iter(samples.values()))
    rows = []
    for way, sample in samples.items():
        times = ratio(first, sample)
        rows.append(
            Row(
                work,
                direction,
                way,
                None if sample.noisy else sample.median * 1e6,
                None if times.noisy else times.value,
                len(sample.seconds),
                TOO_NOISY if sample.noisy and times.noisy else "",
            )
        )
    return rows


def print_rows(rows: Sequence[Row]) -> None:
    """A line for each piece of work and direction, a column for each way: its time, and behind it
    how many times as fast as the first it is."""
    ways = list(dict.fromkeys(row.way for row in rows))
    print("\n" + f"{'us; times as fast as ' + ways[0]:34}" + "".join(f"{way:>22}" for way in ways))
    for key in dict.fromkeys((row.work, row.direction) for row in rows):
        found = {row.way: row for row in rows if (row.work, row.direction) == key}
        line = f"{key[0] + ', ' + key[1]:34}"
        for way in ways:
            row = found.get(way)
            if row is None:
                line += f"{'-':>22}"
                continue
            time_text = "noisy" if row.microseconds is None else f"{row.microseconds:.1f}"
            times = "noisy" if row.times is None else f"{row.times:.2f}x"
            line += f"{time_text:>13}{times:>9}"
        print(line, flush=True)
