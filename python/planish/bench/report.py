"""Turns results into what people and programs read: terminal tables, CSV and JSON. Measures
nothing."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from .measure import Result

WORK = 15


def best_peer(results: Iterable[Result]) -> Result | None:
    """The fastest right result that is neither a ceiling nor planish; it may be noise."""
    peers = [r for r in results if r.role == "peer" and r.microseconds is not None]
    return min(peers, key=lambda r: r.microseconds or 0.0, default=None)


def named(results: Iterable[Result], *names: str) -> Result | None:
    """The first right result of one of these providers, in the order of the names."""
    found = {r.provider: r for r in results if r.microseconds is not None}
    return next((found[name] for name in names if name in found), None)


def ratio(results: Sequence[Result]) -> float | None:
    """How many times as fast as the best peer planish is; None if either is absent or noise."""
    peer, own = best_peer(results), named(results, "planish", "planish-torch-kept", "planish-torch")
    if peer is None or own is None or not peer.microseconds or not own.microseconds:
        return None
    if peer.noisy or own.noisy:
        return None
    return peer.microseconds / own.microseconds


class Table:
    """A table that is printed line by line as the results come."""

    def __init__(self, providers: Sequence[str], stream: TextIO | None = None) -> None:
        self.providers = list(providers)
        self.stream = stream or sys.stdout
        self.colour = self.stream.isatty()
        self.reasons: dict[str, None] = {}

    def paint(self, text: str, code: str) -> str:
        """The text in a colour, on a terminal."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def head(self, title: str) -> None:
        """The title and the two header lines."""
        tail = f"{'best peer':>15}{'ratio':>7}"
        first = f"{'':{WORK}}" + "".join(self.fill(n, n.partition("-")[0]) for n in self.providers)
        second = f"{'GB/s':{WORK}}" + "".join(
            self.fill(n, n.partition("-")[2]) for n in self.providers
        )
        print(f"\n{self.paint(title, '1')}", file=self.stream)
        print(first.rstrip(), file=self.stream)
        print(second + tail, file=self.stream)
        print("-" * len(second + tail), file=self.stream, flush=True)

    @staticmethod
    def fill(name: str, text: str) -> str:
        """The text, right-aligned in the column of that provider."""
        width = max(7, *(len(part) for part in name.split("-", 1))) + 2
        return f"{text:>{width}}"

    def row(self, results: Sequence[Result]) -> None:
        """One case."""
        found = {r.provider: r for r in results}
        line = f"{results[0].work:{WORK}}" if results else ""
        for name in self.providers:
            line += self.fill(name, self.cell(found.get(name)))
        peer, times = best_peer(results), ratio(results)
        line += f"{peer.provider if peer else '-':>15}"
        text = f"{times:.2f}" if times is not None else "-"
        colour = "32" if times is not None and times >= 1 else "31"
        line += self.paint(f"{text:>7}", colour if times is not None else "0")
        print(line, file=self.stream, flush=True)
        for result in results:
            if result.noisy:
                self.reasons["noisy: too noisy to tell; other work had the cores"] = None
            if result.reason:
                self.reasons[f"{result.provider}: {result.status}: {result.reason}"] = None

    @staticmethod
    def cell(result: Result | None) -> str:
        """What one provider did."""
        if result is None:
            return ""
        if result.noisy:
            return "noisy"
        if result.gb_per_s is not None:
            return f"{result.gb_per_s:.1f}"
        return {"unsupported": "-", "wrong": "WRONG", "failed": "FAILED"}.get(result.status, "?")

    def foot(self) -> None:
        """Why cells are empty."""
        for reason in self.reasons:
            print(f"  {reason}", file=self.stream)
        self.reasons.clear()


def markdown(path: Path, accuracy_mean: Sequence[float] = (0.0, 100.0, 1e4)) -> str:
    """The tables of a run's JSON file as Markdown, for the docs."""
    body = json.loads(path.read_text())
    records = body["results"]
    if records and "ulp_max" in records[0]:
        return _markdown_accuracy(records, accuracy_mean)
    if body["settings"].get("device") == "cuda":
        return _markdown_shares(records)
    names = {f.name for f in fields(Result)}
    results = [Result(**{k: v for k, v in r.items() if k in names}) for r in records]
    blocks = []
    for kind, dtype, direction in dict.fromkeys((r.kind, r.dtype, r.direction) for r in results):
        group = [r for r in results if (r.kind, r.dtype, r.direction) == (kind, dtype, direction)]
        shown = [n for n in dict.fromkeys(r.provider for r in group) if named(group, n)]
        layer = "LayerNorm" if kind == "layer" else "RMSNorm"
        lines = [
            f"| {layer} {direction}, {dtype}, GB/s | " + " | ".join(shown) + " | ratio |",
            "|---" * (len(shown) + 2) + "|",
        ]
        for work in dict.fromkeys(r.work for r in group):
            row = [r for r in group if r.work == work]
            found = {r.provider: r for r in row}
            cells = [Table.cell(found.get(name)) for name in shown]
            times = ratio(row)
            cells.append("-" if times is None else f"{times:.2f}")
            lines.append(f"| {work} | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _markdown_shares(records: Sequence[Mapping[str, Any]]) -> str:
    """A GPU's tables: microseconds of planish, and every provider's share of the ceiling."""
    blocks = []
    for key in dict.fromkeys((r["kind"], r["dtype"], r["direction"]) for r in records):
        group = [r for r in records if (r["kind"], r["dtype"], r["direction"]) == key]
        timed = [r for r in group if r["microseconds"] is not None]
        shown = list(dict.fromkeys(r["provider"] for r in timed if r["role"] != "ceiling"))
        layer = "LayerNorm" if key[0] == "layer" else "RMSNorm"
        lines = [
            f"| {layer} {key[2]}, {key[1]} | planish, us | " + " | ".join(shown) + " |",
            "|---" * (len(shown) + 2) + "|",
        ]
        for work in dict.fromkeys(r["work"] for r in group):
            row = {r["provider"]: r for r in group if r["work"] == work}
            times = {
                name: r["microseconds"]
                for name, r in row.items()
                if r["microseconds"] and not r.get("noisy")
            }
            ceiling = next((times[n] for n in ("copy", "add") if n in times), None)
            cells = [f"{times['planish']:.3g}" if "planish" in times else "-"]
            for name in shown:
                status = row[name]["status"] if name in row else ""
                if name in row and row[name].get("noisy"):
                    cells.append("noisy")
                elif name in times and ceiling is not None:
                    cells.append(f"{ceiling / times[name]:.2f}")
                else:
                    cells.append({"wrong": "wrong", "failed": "failed"}.get(status, "-"))
            lines.append(f"| {work} | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _markdown_accuracy(records: Sequence[Mapping[str, Any]], means: Sequence[float]) -> str:
    """Largest errors of a LayerNorm in f32 by mean / std, and by scale with eps 0."""
    chosen = [r for r in records if (r["kind"], r["dtype"]) == ("layer", "f32")]
    blocks = []
    for output in ("y", "dx", "dweight"):
        mine = [r for r in chosen if r["output"] == output]
        columns = [(mean, 1.0, False) for mean in means]
        if output == "y":
            columns += [(0.0, 1e-30, True), (0.0, 1e20, True)]
        head = [f"scale {scale:g}" if bare else f"mean/std {m:g}" for m, scale, bare in columns]
        lines = [
            f"| {output}, f32, largest error in ULP | " + " | ".join(head) + " |",
            "|---" * (len(head) + 1) + "|",
        ]
        for name in dict.fromkeys(r["provider"] for r in mine):
            cells = [
                f"{float(r['ulp_max']):.3g}"
                for mean, scale, bare in columns
                for r in mine
                if r["provider"] == name
                and (r["mean_over_std"], r["scale"], r["eps"] == 0.0) == (mean, scale, bare)
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def accuracy_table(records: Sequence[Any], stream: TextIO | None = None) -> None:
    """The accuracy sweep's records, one block for each case and one line for each provider."""
    out = stream or sys.stdout
    heads = sorted({r.output for r in records}, key=["y", "dx", "dweight", "dbias"].index)
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for record in records:
        key = (record.kind, record.dtype, record.direction, record.mean_over_std, record.scale)
        groups.setdefault(key, []).append(record)
    for (kind, dtype, direction, mean, scale), group in groups.items():
        where = (
            f"scale {scale:.0e}, eps {group[0].eps:g}"
            if group[0].eps == 0.0
            else f"mean/std {mean:g}"
        )
        shown = [h for h in heads if any(r.output == h for r in group)]
        print(f"\n{kind} {direction} {dtype}, {where}", file=out)
        print(f"{'ULP':18}" + "".join(f"{h + ' max':>14}{'99.99%':>11}" for h in shown), file=out)
        for provider in dict.fromkeys(r.provider for r in group):
            found = {r.output: r for r in group if r.provider == provider}
            line = f"{provider:18}"
            for head in shown:
                record = found.get(head)
                if record is None:
                    line += f"{'-':>14}{'-':>11}"
                else:
                    line += f"{record.ulp_max:>14.4g}{record.ulp_p9999:>11.4g}"
            print(line, file=out, flush=True)


def write_csv(path: Path, records: Sequence[Any], context: Mapping[str, Any]) -> None:
    """One line for each record under a header line, after comment lines ("# key: value") with
    machine, versions and settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        for section, content in context.items():
            for key, value in content.items():
                file.write(f"# {section}.{key}: {json.dumps(value)}\n")
        if records:
            writer = csv.DictWriter(file, [f.name for f in fields(records[0])], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rounded(asdict(record)) for record in records)


def write_json(path: Path, records: Sequence[Any], context: Mapping[str, Any]) -> None:
    """The same as one JSON object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {**context, "results": [rounded(asdict(record)) for record in records]}
    path.write_text(json.dumps(body, indent=1) + "\n")


def rounded(record: dict[str, Any]) -> dict[str, Any]:
    """Floats to six digits: more is noise, and makes committed files large. JSON has no infinity:
    it becomes the text "inf"."""
    return {key: _short(value) for key, value in record.items()}


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    short = float(f"{value:.6g}")
    return "inf" if short == float("inf") else short
