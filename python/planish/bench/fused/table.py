"""What `planish bench fused` prints and draws. Measures nothing."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from .works import Work

WORK = 18
COLOURS = {
    "planish": "#d1495b",
    "unfused": "#edae49",
    "torch": "#8fb8de",
    "torch-compile": "#00798c",
    "liger": "#6a4c93",
    "row-triton": "#588157",
    "tile-triton": "#a3b18a",
    "inplace-triton": "#bc6c25",
}


def best_peer(cells: Sequence[Any]) -> Any:
    """The fastest cell that is neither the ceiling nor planish; noise left out."""
    peers = [
        c
        for c in cells
        if c.way not in ("ceiling", "planish", "unfused") and c.microseconds and not c.noisy
    ]
    return min(peers, key=lambda c: c.microseconds, default=None)


class Table:
    """Printed line by line as the results come: microseconds of the ceiling and planish, the share
    of the ceiling's speed of every way, and how many times as fast as the best peer planish is."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = [name for name in names if name != "ceiling"]
        self.title = ""
        self.reasons: dict[str, None] = {}

    def row(self, work: Work, cells: Sequence[Any]) -> None:
        """One work."""
        if work.title != self.title:
            self.title = work.title
            head = "".join(f"{name:>{max(8, len(name) + 2)}}" for name in self.names)
            line = f"{'':{WORK}}{'ceiling':>9}{'planish':>9}   shares of the ceiling's speed:"
            print(f"\n{work.title}\n{line}")
            print(f"{'':{WORK}}{'us':>9}{'us':>9}{head}{'best peer':>16}{'times':>7}")
        found = {cell.way: cell for cell in cells}
        line = f"{work.label:{WORK}}"
        for name in ("ceiling", "planish"):
            cell = found.get(name)
            us = cell.microseconds if cell is not None and not cell.noisy else None
            line += f"{'-' if us is None else format(us, '.4g'):>9}"
        for name in self.names:
            line += f"{self.text(found.get(name)):>{max(8, len(name) + 2)}}"
        peer, own = best_peer(cells), found.get("planish")
        line += f"{'-' if peer is None else peer.way:>16}"
        times = "-"
        if peer is not None and own is not None and own.microseconds and not own.noisy:
            times = f"{peer.microseconds / own.microseconds:.2f}"
        line += f"{times:>7}"
        print(line, flush=True)
        for cell in cells:
            if cell.status in ("wrong", "failed"):
                name = f"{cell.way}: {work.title}, {work.label}: {cell.status}: {cell.reason}"
                self.reasons[name] = None

    @staticmethod
    def text(cell: Any) -> str:
        """What one way did."""
        if cell is None:
            return ""
        if cell.status != "ok":
            return {"unsupported": "-", "wrong": "WRONG", "failed": "FAILED"}[cell.status]
        if cell.noisy:
            return "noisy"
        return "?" if cell.share is None else f"{cell.share:.2f}"

    def foot(self) -> None:
        """Why cells are empty."""
        for reason in self.reasons:
            print(f"  {reason}")


def draw(cells: Sequence[Any], arguments: argparse.Namespace) -> None:
    """fused.png: a line for each work, a dot for each way at its share of the ceiling."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed")
        return
    shown = [cell for cell in cells if cell.share is not None and cell.way != "ceiling"]
    if not shown:
        print("no picture: no share is known")
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    works = list(dict.fromkeys((c.row, c.kind, c.direction, c.work, c.dtype) for c in shown))
    places = {work: place for place, work in enumerate(works)}
    figure, axis = plt.subplots(figsize=(9, 1.6 + 0.2 * len(works)))
    for name in reversed(list(dict.fromkeys(c.way for c in shown))):
        mine = [c for c in shown if c.way == name]
        own = name == "planish"
        axis.plot(
            [c.share for c in mine],
            [places[c.row, c.kind, c.direction, c.work, c.dtype] for c in mine],
            "o" if own else "s",
            color=COLOURS.get(name, "#555555"),
            markersize=7 if own else 4,
            label=name,
            zorder=3 if own else 2,
        )
    axis.axvline(1.0, color="#9a9a9a", linewidth=1)
    axis.set_yticks(range(len(works)))
    axis.set_yticklabels([f"{r} {k} {d}, {w}, {t}" for r, k, d, w, t in works], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.25)
    axis.set_xlabel("share of the speed of an element-wise loop over the same streams")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.legend(fontsize=8, loc="lower left", frameon=False)
    place = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    axis.set_title(f"Norms with what stands around them, {place}", loc="left", fontsize=11)
    figure.tight_layout()
    arguments.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out / "fused.png", dpi=120)
    plt.close(figure)
