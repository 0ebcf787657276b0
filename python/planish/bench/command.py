"""The command line of the bench: `planish bench [sweep] ...`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from planish.commands import command_lines
from planish.commands.command_lines import PROGRAMS, UsageError, words

from . import allocator, machine, plots, report
from .accuracy import compare
from .ahead import compile_ahead
from .case import DTYPE_BYTES, Case, make_data
from .measure import Result, measure
from .providers import Provider, UnsupportedError, all_providers, gpu_providers
from .providers.planish_c import PlanishBefore
from .providers.processes import Workers
from .providers.textbook import textbook_providers
from .sweeps import SWEEPS, accuracy_cases, cases_of
from .timing import CLOCK_VARIABLE, QUICK, THOROUGH, Effort, clock_name

# Compiles anew for each shape, or computes nothing that is not in the row beside it.
SLOW_TO_PREPARE = ("torch-compile",)


@dataclass(frozen=True)
class Accuracy:
    """How far one output of one provider is from the truth."""

    rows: int
    cols: int
    dtype: str
    kind: str
    direction: str
    mean_over_std: float
    scale: float
    eps: float
    provider: str
    output: str
    ulp_max: float
    ulp_p9999: float


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The options that the words give, and the words."""
    found = command_lines.parse("bench", given)
    found.words = list(given)
    return found


def choose(providers: Sequence[Provider], names: str | None, quick: bool) -> list[Provider]:
    """The providers asked for; all of them by default, but for those that take long to prepare
    where it must be quick."""
    if names:
        wanted = words(names, [p.name for p in providers], "--providers")
        return [p for p in providers if p.name in wanted]
    return [p for p in providers if not (quick and p.name in SLOW_TO_PREPARE)]


def shapes_of(text: str) -> list[tuple[int, int]]:
    """The rows and columns of --shapes."""
    try:
        pairs = [tuple(map(int, word.split("x"))) for word in text.split(",")]
        if all(len(pair) == 2 and min(pair) > 0 for pair in pairs):
            return [(rows, cols) for rows, cols in pairs]
    except ValueError:
        pass
    raise UsageError(f"--shapes: {text!r} is not like 4096x1024,16x8192")


def print_missing(providers: Sequence[Provider]) -> dict[str, str]:
    """Names every provider that cannot be used, with the reason."""
    missing = {p.name: reason for p in providers if (reason := p.missing()) is not None}
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}")
    return missing


def run_timed(
    name: str, groups: Sequence[Sequence[Case]], providers: Sequence[Provider], effort: Effort
) -> list[Result]:
    """Measures the cases of a sweep and prints a table for each group."""
    present = [p for p in providers if p.missing() is None]
    results: list[Result] = []
    for group in groups:
        first = group[0]
        ceiling = "add" if first.direction == "backward" else "copy"
        shown = [p.name for p in present if p.role != "ceiling" or p.name == ceiling]
        table = report.Table(shown)
        layer = "LayerNorm" if first.kind == "layer" else "RMSNorm"
        table.head(f"{name}: {layer} {first.direction}, {first.dtype}")
        for case in group:
            found = measure(case, [p for p in present if p.name in shown], effort)
            table.row(found)
            results += found
        table.foot()
    return results


def run_accuracy(cases: Sequence[Case], providers: Sequence[Provider]) -> list[Accuracy]:
    """Compares every provider with the reference at every case; prints each case as it is done."""
    records: list[Accuracy] = []
    for case in cases:
        data = make_data(case)
        outputs: dict[str, dict[str, torch.Tensor]] = {}
        for provider in providers:
            if provider.missing() is not None or provider.role == "ceiling":
                continue
            try:
                run = provider.prepare(case, data)
                outputs[provider.name] = {k: v.clone() for k, v in run.outputs().items()}
                run.close()
            except UnsupportedError:
                continue
        found = [
            Accuracy(
                case.rows, case.cols, case.dtype, case.kind, case.direction, case.mean, case.scale,
                case.eps, name, key, spread.largest, spread.quantile(0.9999),
            )
            for name, spreads in compare(case, data, outputs, keep=True).items()
            for key, spread in spreads.items()
        ]  # fmt: skip
        report.accuracy_table(found)
        records += found
    return records


def run(arguments: argparse.Namespace) -> int:
    """Runs one sweep, or all of them, in this process; 0, or 1 if any provider was wrong."""
    torch.set_num_threads(arguments.threads)
    workers = Workers()
    try:
        known = all_providers(workers) if arguments.device == "cpu" else gpu_providers()
        providers = choose(known, arguments.providers, arguments.quick)
        if arguments.before:
            providers.append(PlanishBefore(arguments.before))
        if arguments.list:
            for provider in providers:
                print(f"{provider.name:20}{provider.missing() or provider.what}")
            return 0
        names = [*SWEEPS, "model", "accuracy"] if arguments.sweep == "all" else [arguments.sweep]
        return max([run_sweep(name, arguments, providers) for name in names])
    finally:
        workers.close()


def run_sweep(name: str, arguments: argparse.Namespace, providers: Sequence[Provider]) -> int:
    """Runs one sweep and writes its files."""
    kinds: list[Any] = words(arguments.kind, ["layer", "rms"], "--kind")
    directions: list[Any] = words(arguments.direction, ["forward", "backward"], "--direction")
    dtypes = words(arguments.dtype, list(DTYPE_BYTES), "--dtype")
    begin = time.perf_counter()
    context: dict[str, Any] = {
        "machine": machine.describe(),
        "versions": machine.versions(providers),
        "settings": {
            "command": " ".join(["planish", "bench", *arguments.words]),
            "device": arguments.device,
            "quick": arguments.quick,
            "scale": arguments.scale,
            "clock": clock_name(),
            "malloc": "kept" if allocator.keeps_pages() else "as users have it",
        },
    }
    about = context["machine"]
    print(
        f"{about['gpu']}"
        if arguments.device == "cuda"
        else f"{about['cpu']}, {about['threads']} threads, {clock_name()} clock, "
        f"load {about['load_1m_5m_15m'][0]}"
    )
    context["missing"] = print_missing(providers)
    effort = QUICK if arguments.quick else THOROUGH
    records: Sequence[Any]
    if name == "model":
        from .models import run_losses, run_models

        only = arguments.only
        records = run_models(providers, arguments.quick, arguments.device, dtypes, only)
        if arguments.device == "cuda":
            losses = run_losses(providers, arguments.quick, dtypes, only)
            report.write_csv(arguments.out / "losses.csv", losses, context)
    elif name == "accuracy":
        cases = accuracy_cases(
            quick=arguments.quick,
            dtypes=dtypes,
            kinds=kinds,
            directions=directions,
            device=arguments.device,
        )
        # The twins in the other process compute the same bits.
        distinct = [p for p in providers if not p.name.endswith("-kept")]
        textbook = textbook_providers() if arguments.device == "cpu" else []
        records = run_accuracy(cases, distinct + textbook)
    else:
        sweep = SWEEPS[name]
        if arguments.shapes:
            sweep = sweep.with_shapes(shapes_of(arguments.shapes))
        groups = cases_of(
            sweep,
            quick=arguments.quick,
            dtypes=dtypes,
            kinds=kinds,
            directions=directions,
            budget_bytes=arguments.scale * machine.memory_available(arguments.device),
            device=arguments.device,
        )
        if arguments.device == "cuda" and arguments.processes:
            names = [p.name for p in providers]
            compile_ahead([c for group in groups for c in group], names, arguments.processes)
        records = run_timed(name, groups, providers, effort)
    context["machine"]["load_at_end"] = machine.describe()["load_1m_5m_15m"]
    context["settings"]["seconds"] = round(time.perf_counter() - begin, 1)
    report.write_csv(arguments.out / f"{name}.csv", records, context)
    report.write_json(arguments.out / f"{name}.json", records, context)
    drawn = plots.draw(name, records, context, arguments.out)
    files = ", ".join(str(p) for p in [arguments.out / f"{name}.csv", *drawn])
    print(f"\n{time.perf_counter() - begin:.0f} s; wrote {files}")
    return int(any(getattr(r, "status", "ok") == "wrong" for r in records))


def _tables_of(path: Path) -> str:
    try:
        return report.markdown(path)
    except OSError as error:
        raise UsageError(f"--markdown {path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--markdown {path}: this is no JSON that a sweep wrote") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the bench in a process of its own, whose malloc keeps its pages (allocator.py)."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in PROGRAMS:
        module = importlib.import_module(f".{PROGRAMS[given[0]][0]}", __package__)
        return int(module.main(given[1:]))
    arguments = parse(given)
    if arguments.markdown:
        print(_tables_of(arguments.markdown))
        return 0
    if arguments.clock == "cpu" and arguments.threads != 1:
        raise UsageError("--clock cpu counts all threads' seconds: use --threads 1")
    if allocator.keeps_pages() or arguments.device == "cuda":
        return run(arguments)
    clock = {CLOCK_VARIABLE: arguments.clock}
    return allocator.run_kept(arguments.words, arguments.threads, **clock)
