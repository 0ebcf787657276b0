"""planish coverage: which norms of a model run on planish, which do not, and why.

Its options are in command_lines.py.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from planish import zoo
from planish.commands import command_lines, distance, reach
from planish.commands.command_lines import UsageError
from planish.library.dtypes import BY_NAME
from planish.zoo import named

__all__ = ["by_modes", "main", "report"]


#: Forwards that are timed for one model; more where they differ.
ROUNDS = 5

#: Convolutions of more parameters than these are slow in 16 bits on a CPU: --all compares their
#: results in f32 only.
SMALL = 3_000_000


def by_modes(
    make: Callable[[], zoo.Built], activations: bool = False, rounds: int = 1
) -> dict[str, reach.Reach]:
    """The norm calls of one forward in each mode, of a model built anew for each."""
    found = {}
    for mode in reach.MODES:
        model, inputs = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change = reach.apply(mode, model, activations)
        with torch.no_grad(), change:
            if rounds > 1:
                model(**inputs)
            found[mode] = reach.look(model, functools.partial(model, **inputs), rounds)
    return found


def norms_take(found: reach.Reach, step: str) -> str:
    """What share of a step norms take, in words; or that the machine is too busy to say."""
    share = found.norm_share
    if share.noisy:
        return f"what norms take of {step} is {share} to say: other work had the cores"
    return f"norms take {share} of {step}"


def not_planishs(found: reach.Reach) -> list[str]:
    """A line for each class of norms that planish has not."""
    return [
        f"  not counted: {count} x {one}: planish has no such norm, it stays torch's"
        for one, count in found.foreign.items()
    ]


def report(name: str, found: dict[str, reach.Reach]) -> str:
    """The table of one model."""
    both = found["both"]
    if not both.calls:
        return "\n".join([f"{name}: no norm of planish's kinds in a forward", *not_planishs(both)])
    names = sorted(both.classes, key=lambda one: -both.classes[one].calls)
    width = max([len(one) for one in names] + [10])
    lines = [f"{name}: {both.calls} norm calls in a forward"]
    head = f"  {'class':{width}} {'calls':>6}"
    for mode in reach.MODES:
        head += f" {mode:>8}"
    lines.append(head + f" {'of norm time':>13}")
    for one in names:
        line = f"  {one:{width}} {both.classes[one].calls:6}"
        for mode in reach.MODES:
            there = found[mode].classes.get(one)
            line += f" {0 if there is None else there.on_planish:8}"
        lines.append(line + f" {both.class_share(one)!s:>13}")
    line = f"  {'all':{width}} {both.calls:6}"
    for mode in reach.MODES:
        line += f" {found[mode].on_planish:8}"
    lines.append(line)
    lines.append(f"  {norms_take(both, 'this forward')} (both; each call is timed, and waits)")
    for mode in reach.MODES:
        for one, calls in found[mode].classes.items():
            for why, count in calls.elsewhere.items():
                lines.append(f"  not with {mode}: {count} x {one}: {why}")
    return "\n".join([*lines, *not_planishs(both)])


# ---- All of them --------------------------------------------------------------------------------

_HEAD = """# Which norms of real models run on planish

Made by `planish coverage --all --out docs/guide/coverage.md` with {versions}, on the CPU.
{count} tiny models (`planish.zoo`), built from their configurations with seeded weights; "enable"
is `planish.enable()`, "replace" `planish.replace(model)`, "both" the one after the other. A call
counts where a norm's forward ran an operator of planish's. Not counted: plain Lp norms
and GlobalResponseNorm, which planish has not, and weight norm, which `enable()` takes.

| family | models | norm calls | enable | replace | both |
|---|---|---|---|---|---|
{families}

{within}

| model | norm calls | enable | replace | both | classes |
|---|---|---|---|---|---|
{models}

## What is left, and why

{left}
"""


_WITHIN = """\
Outputs and gradients of every model after `replace()` are no further from the same model in float64
than {factor:g} times what they were before, or {roundings:g} roundings: {within}.
Models of more than 3 million parameters were compared in f32 only."""


def _versions() -> str:
    names = [f"torch {torch.__version__.partition('+')[0]}"]
    for package in ("transformers", "diffusers", "timm", "torchvision"):
        with contextlib.suppress(ImportError):
            import importlib.metadata

            names.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(names)


def _figure(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "0"


class _Table:
    """Collects the models of --all."""

    def __init__(self) -> None:
        self.families: dict[str, collections.Counter[str]] = {
            f: collections.Counter() for f in zoo.FAMILIES
        }
        self.models: list[str] = []
        self.left: collections.Counter[str] = collections.Counter()
        self.outside: list[str] = []
        self.measured = 0

    def add(self, entry: zoo.Entry, found: dict[str, reach.Reach]) -> None:
        """One model."""
        sums, both = self.families[entry.family], found["both"]
        sums["models"] += 1
        sums["calls"] += both.calls
        for mode in reach.MODES:
            sums[mode] += found[mode].on_planish
        kinds = ", ".join(one.partition(".")[2] for one in both.classes)
        cells = [str(found[mode].on_planish) for mode in reach.MODES]
        self.models.append(f"| {entry.name} | {both.calls} | {' | '.join(cells)} | {kinds} |")
        for mode in ("replace", "both"):
            for one, calls in found[mode].classes.items():
                for why, count in calls.elsewhere.items():
                    self.left[f"{mode}: {one} of {entry.name}: {why}"] += count

    def check(self, entry: zoo.Entry) -> None:
        """Its results in f32 and bf16 after replace()."""
        size = sum(parameter.numel() for parameter in zoo.build(entry)[0].parameters())
        for name in ("f32", "bf16") if size < SMALL else ("f32",):
            try:
                far = distance.measure(entry, BY_NAME[name], lambda m: reach.apply("replace", m))
            except (RuntimeError, NotImplementedError) as error:
                self.outside.append(f"{entry.name} does not run in {name} ({str(error)[:60]})")
                continue
            self.measured += 1
            if not far.within:
                self.outside.append(f"{entry.name} in {name} is not: {far}")

    def text(self) -> str:
        """The page."""
        rows = []
        for family, sums in self.families.items():
            if sums["models"]:
                cells = [_figure(sums[mode], sums["calls"]) for mode in reach.MODES]
                rows.append(
                    f"| {family} | {sums['models']} | {sums['calls']} | {' | '.join(cells)} |"
                )
        broken = [text for text in self.outside if " is not: " in text]
        within = f"{self.measured - len(broken)} of {self.measured} runs in f32 and bf16"
        if self.outside:
            within += f" ({'; '.join(self.outside)})"
        within = _WITHIN.format(factor=distance.FACTOR, roundings=distance.ROUNDINGS, within=within)
        left = [f"- {count} x {what}" for what, count in self.left.items()]
        return _HEAD.format(
            versions=_versions(),
            count=len(self.models),
            families="\n".join(rows),
            within=within if self.measured else "Results were not compared (`--no-check`).",
            models="\n".join(self.models),
            left="\n".join(left) or f"Nothing, in these {len(self.models)} models on the CPU.",
        )


def _all(family: str | None, out: Path | None, check: bool) -> int:
    table = _Table()
    zoo.prepare()
    if family and not any(family in entry.family for entry in zoo.entries().values()):
        raise UsageError(f"--family {family}: no family; known are {', '.join(zoo.FAMILIES)}")
    for entry in zoo.entries().values():
        if family and family not in entry.family:
            continue
        missing = zoo.missing_packages(entry.packages)
        if missing:
            print(f"{entry.name}: left out, {', '.join(missing)} not installed", file=sys.stderr)
            continue
        found = by_modes(functools.partial(zoo.build, entry))
        table.add(entry, found)
        if check:
            table.check(entry)
        cells = "  ".join(f"{mode} {found[mode].on_planish}" for mode in reach.MODES)
        print(f"{entry.name}: {found['both'].calls} norm calls; {cells}", file=sys.stderr)
    text = table.text()
    if out is None:
        print(text)
    else:
        out.write_text(text)
    return int(any(" is not: " in text for text in table.outside))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 1 where --all found results out of bounds."""
    arguments = command_lines.parse("coverage", argv)
    if arguments.all:
        return _all(arguments.family, arguments.out, not arguments.no_check)
    make = named.resolve(arguments.model, BY_NAME[arguments.dtype])
    found = by_modes(make, arguments.activations, rounds=ROUNDS)
    print(report(arguments.model, found))
    return 0
