"""Tables of norms on a CPU: speed, accuracy, what a call costs."""

from __future__ import annotations

from collections.abc import Sequence

from .markdown import NAMES, markdown, source
from .reader import Row, microseconds, rows, sweep


def cpu_sweep(path: str, providers: Sequence[str]) -> str:
    """A sweep on a CPU: useful GB/s, and times as fast as the best peer."""
    blocks = []
    keys = dict.fromkeys((r["dtype"], r["direction"]) for r in rows(path))
    for dtype, direction in keys:
        found = sweep(path, direction, dtype)
        shown = [n for n in providers if any(microseconds(w.get(n)) for w in found.values())]
        body = []
        for work, ran in found.items():
            cells = [
                f"{float(ran[n]['gb_per_s']):.1f}" if microseconds(ran.get(n)) else ""
                for n in shown
            ]
            own = microseconds(ran.get("planish"))
            peers = [t for r in ran.values() if r["role"] == "peer" and (t := microseconds(r))]
            body.append([work, *cells, f"{min(peers) / own:.2f}" if own and peers else ""])
        head = [f"{direction}, {dtype}, GB/s", *(NAMES.get(n, n) for n in shown), "times best peer"]
        blocks.append(markdown(head, body))
    return "\n\n".join(blocks) + source(path)


def cpu_groups(path: str, column: str, machine: str, command: str) -> str:
    """GroupNorm: planish's GB/s and, in parentheses, how many times as fast as torch."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows(path):
        groups = f"{row['groups']} group{'s' if row['groups'] != '1' else ''}"
        key = (row["dtype"], f"{row['shape']}, {groups}")
        way = f"{row['layout'].replace('NHWC', 'channels last')} {row['direction']}"
        cells.setdefault(key, {})[way] = f"{float(row[column]):.1f} ({float(row['ratio']):.2f}x)"
    ways = list(dict.fromkeys(way for found in cells.values() for way in found))
    body = (
        [f"{shape}, {dtype}", *(found.get(w, "") for w in ways)]
        for (dtype, shape), found in cells.items()
    )
    return markdown(["GB/s (times torch)", *ways], body) + source(
        path, machine=machine, command=command
    )


def instructions(path: str) -> str:
    """Instructions an element by instruction set, and how many of NEON's there are for one of
    AVX2's."""
    cells: dict[str, list[str]] = {}
    for row in rows(path):
        avx2, neon = float(row["x86-64 avx2"]), float(row["aarch64 neon"])
        cells.setdefault(f"{row['case']}, {row['dtype']}", []).extend(
            [f"{avx2:.2f}", f"{neon:.2f}", f"{neon / avx2:.2f}"]
        )
    passes = ("forward", "backward")
    head = [name for each in passes for name in (f"{each}, AVX2", "NEON", "NEON / AVX2")]
    return markdown(["", *head], ([case, *found] for case, found in cells.items())) + source(path)


def accuracy() -> str:
    """Largest errors in ULP of LayerNorm in f32."""
    path = "zen4-2/accuracy/accuracy.csv"
    chosen = [r for r in rows(path) if (r["kind"], r["dtype"]) == ("layer", "f32")]
    columns = {
        "y, mean / std 0": ("y", 0, 1, False),
        "100": ("y", 100, 1, False),
        "10000": ("y", 1e4, 1, False),
        "y, values of 1e-30": ("y", 0, 1e-30, True),
        "1e20": ("y", 0, 1e20, True),
        "dx, mean / std 100": ("dx", 100, 1, False),
        "10000 ": ("dx", 1e4, 1, False),
        "dweight, 10000": ("dweight", 1e4, 1, False),
    }
    body = []
    for name in dict.fromkeys(r["provider"] for r in chosen):
        found = {
            (r["output"], float(r["mean_over_std"]), float(r["scale"]), float(r["eps"]) == 0): r
            for r in chosen
            if r["provider"] == name
        }
        body.append(
            [
                NAMES.get(name, name),
                *(
                    f"{float(found[key]['ulp_max']):.3g}" if key in found else ""
                    for key in columns.values()
                ),
            ]
        )
    return markdown(["largest error in ULP", *columns], body) + source(path)


SWITCH = {
    "Zen 4, one thread: GroupNorm": "switch-2/zen4-groups.csv",
    "Zen 4, one thread: LayerNorm, f32 backward": "switch-2/zen4-backward.csv",
    "Zen 4, one thread: LayerNorm and RMSNorm, all else": "switch-2/zen4-rows.csv",
    "Zen 4, two threads: LayerNorm, f32 backward": "switch-2/zen4-backward-two-threads.csv",
    "Zen 4, two threads: LayerNorm and RMSNorm, bf16 backward": (
        "switch-2/zen4-rows-backward-bf16-two-threads.csv"
    ),
    "Zen 4, two threads: LayerNorm and RMSNorm, forward": (
        "switch-2/zen4-rows-forward-two-threads.csv"
    ),
    "Zen 4, two threads: GroupNorm, NCHW": "switch-2/zen4-nchw-two-threads.csv",
    "Zen 4, two threads: GroupNorm, channels last, forward": (
        "switch-2/zen4-channels-last-forward-two-threads.csv"
    ),
    "Zen 4, two threads: GroupNorm, channels last, backward": (
        "switch-2/zen4-channels-last-backward-two-threads.csv"
    ),
    "Xeon, one thread: LayerNorm, f32 backward": "switch-2/xeon-backward-prefetched.csv",
    "Xeon, two threads: GroupNorm, NCHW": "switch-2/xeon-nchw-two-threads.csv",
    "Xeon, two threads: GroupNorm, channels last, backward": (
        "switch-2/xeon-nhwc-backward-two-threads.csv"
    ),
}


def switch() -> str:
    """How many cells `planish bench switch` found slower than torch; the slowest and the median of
    those that were not too noisy to tell."""
    body = []
    for name, path in SWITCH.items():
        cells = [row for row in rows(path) if row["ratio"]]
        ratios = sorted(float(row["ratio"]) for row in cells if row["verdict"] != "too noisy")
        slow = sum(row["verdict"] == "slower" for row in cells)
        figures = [f"{ratios[-1]:.2f}", f"{ratios[len(ratios) // 2]:.2f}"]
        body.append([name, str(len(cells)), str(slow), str(len(cells) - len(ratios)), *figures])
    head = ["", "cells", "slower than 1.1 times torch", "too noisy", "the slowest", "median"]
    return markdown(head, body) + source(
        *SWITCH.values(),
        machine="AMD EPYC (Zen 4), torch 2.13, and Intel Xeon (AVX-512), torch 2.11",
        command="planish bench switch",
    )


def calls(path: str, machine: str) -> str:
    """What a call costs: bench/overhead.py --out."""
    modes = {"inference": "inference", "forward and backward": "training"}
    cells: dict[str, dict[str, Row]] = {}
    for row in rows(path):
        cells.setdefault(row["call"], {})[row["mode"]] = row
    body = []
    for name, found in cells.items():
        line = []
        for mode in modes:
            row = found.get(mode, {})
            line += [row.get(way, "") for way in ("torch", "not enabled", "enabled")]
        body.append([f"`{name}`" if not name.startswith("an ") else name, *line])
    ways = ("torch", "planish", "enabled")
    head = ["us", *(f"{mode}: {way}" for mode in modes.values() for way in ways)]
    return markdown(head, body) + source(path, machine=machine, command="python bench/overhead.py")
