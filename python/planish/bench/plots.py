"""Draws the results of a sweep. Needs matplotlib; without it says so and draws nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .sweeps import SWEEPS

# planish in one strong colour, ceilings in grey, peers in muted ones.
COLOURS = {
    "copy": "#9a9a9a",
    "add": "#9a9a9a",
    "planish": "#d1495b",
    "planish-torch": "#edae49",
    "planish-torch-kept": "#e07a3f",
    "torch": "#8fb8de",
    "torch-kept": "#30638e",
    "torch-compile": "#00798c",
    "unfused": "#a3b18a",
    "onednn": "#6a4c93",
    "onnxruntime": "#588157",
    "welford": "#bc6c25",
    "two-pass": "#dda15e",
    "E[x2]-E[x]2": "#283618",
}
OTHER = "#555555"


def draw(name: str, records: Sequence[Any], context: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes the sweep's PNG files and returns their paths."""
    if not records:
        return []
    if importlib.util.find_spec("matplotlib") is None:
        print("no pictures: matplotlib is not installed")
        return []
    import matplotlib

    matplotlib.use("Agg")
    if name == "accuracy":
        return _accuracy(records, context, folder)
    if name == "model":
        return _models(records, context, folder)
    drawer = _lines if SWEEPS[name].axis == "cols" else _dots
    written = []
    for kind, dtype in dict.fromkeys((r.kind, r.dtype) for r in records):
        chosen = [r for r in records if (r.kind, r.dtype) == (kind, dtype)]
        path = folder / f"{name}-{kind}-{dtype}.png"
        layer = "LayerNorm" if kind == "layer" else "RMSNorm"
        drawer(chosen, f"{layer}, {dtype}", context, path)
        written.append(path)
    return written


def _subtitle(context: Mapping[str, Any]) -> str:
    machine = context["machine"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    return f"{machine['cpu']}, {threads}; useful GB/s, median and quartiles, higher is better"


def _tidy(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def _is_shown(record: Any) -> bool:
    return record.gb_per_s is not None and not record.noisy


def _directions(records: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(r.direction for r in records))


def _lines(records: Sequence[Any], title: str, context: Mapping[str, Any], path: Path) -> None:
    """GB/s over the row length, a line for each provider, its name at the line's end."""
    import matplotlib.pyplot as plt

    directions = _directions(records)
    figure, axes = plt.subplots(
        1, len(directions), figsize=(6.5 * len(directions), 4.6), squeeze=False
    )
    for axis, direction in zip(axes[0], directions, strict=True):
        chosen = [r for r in records if r.direction == direction and _is_shown(r)]
        ends = []
        for name in dict.fromkeys(r.provider for r in chosen):
            line = sorted((r.cols, r.gb_per_s) for r in chosen if r.provider == name)
            own = name.startswith("planish")
            axis.plot(
                *zip(*line, strict=True),
                color=COLOURS.get(name, OTHER),
                linewidth=2.2 if own else 1.4,
                linestyle="--" if name in ("copy", "add") else "-",
                zorder=3 if own else 2,
            )
            ends.append((line[-1][1], line[-1][0], name))
        axis.set_ylim(bottom=0)
        axis.set_title(f"{title} {direction}", loc="left", fontsize=11, fontweight="bold")
        axis.set_xlabel("elements in a row")
        axis.set_ylabel("GB/s")
        _tidy(axis)
        _end_labels(axis, ends)
    figure.text(0.01, 0.005, _subtitle(context), fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _end_labels(axis: Any, ends: list[tuple[float, float, str]]) -> None:
    """Names at the lines' right ends, moved apart where they would touch."""
    bottom, top = axis.get_ylim()
    least = (top - bottom) * 0.045
    height = bottom - least
    for y, x, name in sorted(ends):
        height = max(y, height + least)
        axis.annotate(
            name,
            (x, y),
            xytext=(x + (axis.get_xlim()[1] - axis.get_xlim()[0]) * 0.015, height),
            color=COLOURS.get(name, OTHER),
            fontsize=8,
            va="center",
            annotation_clip=False,
        )


def _dots(records: Sequence[Any], title: str, context: Mapping[str, Any], path: Path) -> None:
    """A line for each shape with a dot for each provider, and its quartiles as a bar."""
    import matplotlib.pyplot as plt

    directions = _directions(records)
    works = list(dict.fromkeys(r.work for r in records))
    figure, axes = plt.subplots(
        1, len(directions), figsize=(6.2 * len(directions), 1.8 + 0.42 * len(works)), squeeze=False
    )
    for axis, direction in zip(axes[0], directions, strict=True):
        chosen = [r for r in records if r.direction == direction and _is_shown(r)]
        for name in dict.fromkeys(r.provider for r in chosen):
            mine = [r for r in chosen if r.provider == name]
            own = name.startswith("planish")
            heights = [len(works) - works.index(r.work) for r in mine]
            speeds = [r.gb_per_s for r in mine]
            slow = [
                s * (1 - r.microseconds / r.microseconds_q3)
                for s, r in zip(speeds, mine, strict=True)
            ]
            fast = [
                s * (r.microseconds / r.microseconds_q1 - 1)
                for s, r in zip(speeds, mine, strict=True)
            ]
            axis.errorbar(
                speeds,
                heights,
                xerr=[slow, fast],
                fmt="D" if own else ("|" if name in ("copy", "add") else "o"),
                markersize=11 if name in ("copy", "add") else 6,
                color=COLOURS.get(name, OTHER),
                elinewidth=1,
                alpha=0.95,
                label=name,
                zorder=3 if own else 2,
            )
        axis.set_yticks(range(len(works), 0, -1), works)
        axis.set_ylim(0.4, len(works) + 0.6)
        axis.set_xlim(left=0)
        axis.set_xlabel("GB/s")
        axis.set_title(f"{title} {direction}", loc="left", fontsize=11, fontweight="bold")
        _tidy(axis)
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        handles.update(dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True)))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="lower center",
        bbox_to_anchor=(0.5, 0.03),
        ncols=6,
        fontsize=8,
        frameon=False,
    )
    figure.text(0.01, 0.005, _subtitle(context), fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.16 if len(works) < 6 else 0.1, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _accuracy(records: Sequence[Any], context: Mapping[str, Any], folder: Path) -> list[Path]:
    """The largest error over mean / std, a panel for each output."""
    import matplotlib.pyplot as plt

    written = []
    for kind, dtype in dict.fromkeys((r.kind, r.dtype) for r in records if r.eps > 0):
        chosen = [r for r in records if (r.kind, r.dtype) == (kind, dtype) and r.eps > 0]
        if any(r.provider == "planish" for r in chosen):  # under torch it has the same bits
            chosen = [r for r in chosen if r.provider != "planish-torch"]
        # dbias does not depend on x.
        outputs = [o for o in ("y", "dx", "dweight") if any(r.output == o for r in chosen)]
        figure, axes = plt.subplots(
            1, len(outputs), figsize=(4.6 * len(outputs), 4.4), squeeze=False
        )
        for axis, output in zip(axes[0], outputs, strict=True):
            for name in dict.fromkeys(r.provider for r in chosen if r.output == output):
                line = [
                    (max(r.mean_over_std, 0.1), min(max(r.ulp_max, 0.01), 1e9))
                    for r in chosen
                    if r.output == output and r.provider == name
                ]
                axis.plot(
                    *zip(*line, strict=True),
                    color=COLOURS.get(name, OTHER),
                    linewidth=2.4 if name.startswith("planish") else 1.3,
                    marker="o",
                    markersize=3,
                    label=name,
                )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.axhline(4, color="#9a9a9a", linewidth=0.8, linestyle="--")
            axis.set_title(f"{output}, {dtype}", loc="left", fontsize=11, fontweight="bold")
            axis.set_xlabel("mean / standard deviation (0 drawn at 0.1)")
            axis.set_ylabel("largest error, ULP")
            axis.legend(fontsize=7, frameon=False)
            _tidy(axis)
        figure.text(
            0.01, 0.005, "dashed: 4 ULP; NaN and anything above 1e9 drawn at 1e9",
            fontsize=8, color="#555555",
        )  # fmt: skip
        figure.tight_layout(rect=(0, 0.03, 1, 1))
        path = folder / f"accuracy-{kind}-{dtype}.png"
        figure.savefig(path, dpi=130)
        plt.close(figure)
        written.append(path)
    return written


def _models(records: Sequence[Any], context: Mapping[str, Any], folder: Path) -> list[Path]:
    """Milliseconds of a step, a bar for each provider."""
    import matplotlib.pyplot as plt

    works = list(dict.fromkeys((r.work, r.direction) for r in records))
    figure, axes = plt.subplots(1, len(works), figsize=(3.2 * len(works), 3.4), squeeze=False)
    for axis, (work, direction) in zip(axes[0], works, strict=True):
        chosen = [r for r in records if (r.work, r.direction) == (work, direction)]
        for place, r in enumerate(chosen):
            height, text = (0.0, "noisy") if r.noisy else (r.milliseconds, f"{r.milliseconds:.0f}")
            axis.bar(place, height, color=COLOURS.get(r.provider, OTHER), width=0.6)
            axis.text(place, height, text, ha="center", va="bottom", fontsize=9)
        axis.set_xticks(range(len(chosen)), [r.provider for r in chosen], fontsize=8)
        axis.set_title(f"{work}\n{direction}, ms", loc="left", fontsize=9, fontweight="bold")
        _tidy(axis)
    figure.tight_layout()
    path = folder / "model.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return [path]
