"""Reads the committed results: CSV files of `planish bench` and of the scripts beside this one.
Knows their columns, and nothing of tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "results"
CEILINGS = ("copy", "add")
Row = dict[str, str]


@cache
def lines(path: str) -> tuple[str, ...]:
    """The lines of a file under bench/results."""
    return tuple((RESULTS / path).read_text(encoding="utf-8").splitlines())


def rows(path: str) -> list[Row]:
    """The records of a CSV file, without its comment lines."""
    return list(csv.DictReader(line for line in lines(path) if not line.startswith("#")))


def header(path: str) -> dict[str, object]:
    """What the comment lines at the top of a file say: "machine.gpu", "settings.command" ..."""
    found: dict[str, object] = {}
    for line in lines(path):
        key, colon, value = line.removeprefix("# ").partition(": ")
        if line.startswith("# ") and colon:
            try:
                found[key] = json.loads(value)
            except json.JSONDecodeError:
                found[key] = value
    return found


def sweep(path: str, direction: str, dtype: str | None = None) -> dict[str, dict[str, Row]]:
    """A sweep's records by work and provider."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows(path):
        if row["direction"] == direction and dtype in (None, row["dtype"]):
            found.setdefault(row["work"], {})[row["provider"]] = row
    return found


def microseconds(row: Row | None) -> float | None:
    """The time of one record, if it has one that can be trusted."""
    if row is None or not row["microseconds"] or row.get("noisy") == "True":
        return None
    return float(row["microseconds"])


def merged(paths: Iterable[str], direction: str) -> dict[str, dict[str, tuple[float, float] | str]]:
    """Several runs of one sweep: for each work and provider the microseconds and the share of that
    run's own ceiling, or the status where there is no time. Of two runs the first counts."""
    found: dict[str, dict[str, tuple[float, float] | str]] = {}
    for path in paths:
        for work, providers in sweep(path, direction).items():
            times = {name: microseconds(row) for name, row in providers.items()}
            ceiling = next((t for n in CEILINGS if (t := times.get(n)) is not None), None)
            if ceiling is None:
                continue
            for name, time in times.items():
                value = (time, ceiling / time) if time else providers[name]["status"]
                if isinstance(value, tuple) or value != "unsupported":
                    found.setdefault(work, {}).setdefault(name, value)
    return found


def work_times(*choices: tuple[str, str]) -> dict[str, tuple[float, float]]:
    """The results of gpu_rows.py, gpu_channels.py and gpu_compare.py, which have the columns work,
    provider, us and share: a choice is a file and the provider's name in it; the first counts."""
    found: dict[str, tuple[float, float]] = {}
    for path, provider in choices:
        for row in rows(path):
            if row["provider"] == provider:
                found.setdefault(row["work"], (float(row["us"]), float(row["share"])))
    return found
