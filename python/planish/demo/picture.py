"""What the demo found, and its picture: every norm before and after, and the whole steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planish.bench.timing import Ratio, Sample, ratio
from planish.commands.models import NormCall

BEFORE, AFTER = "torch", "planish"
#: In place of bars.
NOTHING = "left out: no time was left for it"
BEFORE_COLOUR, AFTER_COLOUR = "#30638e", "#d1495b"


@dataclass(frozen=True)
class NormReport:
    """What the demo found about one norm: times and errors under torch's kernel and planish's."""

    call: NormCall
    forward: dict[str, Sample]
    backward: dict[str, Sample]
    ulp: dict[str, dict[str, float]]  # by provider, then by output


@dataclass(frozen=True)
class StepReport:
    """The time and loss of a whole step before and after."""

    model: str
    step: str
    samples: dict[str, Sample]
    losses: dict[str, float]


def _bars(axis: Any, labels: list[str], samples: Sequence[dict[str, Sample]], unit: str) -> None:
    """Two horizontal bars for each label, in ms, and how many times as fast behind them; no bars
    where that is noise, and no scale where there are no bars."""
    places = range(len(labels), 0, -1)
    times: list[Ratio] = [ratio(s[BEFORE], s[AFTER]) for s in samples]
    before, after = (
        [0.0 if t.noisy else s[name].median * 1e3 for s, t in zip(samples, times, strict=True)]
        for name in (BEFORE, AFTER)
    )
    axis.barh([p + 0.19 for p in places], before, 0.36, color=BEFORE_COLOUR)
    axis.barh([p - 0.19 for p in places], after, 0.36, color=AFTER_COLOUR)
    for place, old, new, found in zip(places, before, after, times, strict=True):
        axis.text(
            max(old, new) * 1.02,
            place,
            str(found),
            va="center",
            fontsize=9,
            fontweight="bold",
        )
    axis.set_yticks(list(places), labels, fontsize=8)
    longest = max([*before, *after, 0.0])
    axis.set_xlim(0, (longest or 1.0) * 1.18)
    if longest == 0:
        axis.set_xticks([])
    if not labels:
        axis.text(0.02, 0.5, NOTHING, transform=axis.transAxes, va="center", fontsize=9)
    axis.set_xlabel(unit if longest else "", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def draw(
    path: Path,
    norms: Mapping[str, Sequence[NormReport]],
    steps: Sequence[StepReport],
    machine: Mapping[str, Any],
) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    heights = [max(1.2, 0.5 * len(reports)) for reports in norms.values()]
    figure, axes = plt.subplots(
        len(norms), 3, figsize=(13, 1.6 + 1.25 * sum(heights)), squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    for line, (name, reports) in zip(axes, norms.items(), strict=True):
        for axis, title in ((line[0], "forward"), (line[1], "backward")):
            shown = [r for r in reports if getattr(r, title)]
            _bars(
                axis,
                [f"{r.call.shape}  ({r.call.calls} calls)" for r in shown],
                [getattr(r, title) for r in shown],
                "ms a call",
            )
            axis.set_title(f"{name}: norms, {title}", loc="left", fontsize=10, fontweight="bold")
        mine = [s for s in steps if s.model == name]
        _bars(
            line[2],
            [s.step for s in mine],
            [s.samples for s in mine],
            "ms a step",
        )
        line[2].set_title(f"{name}: whole step", loc="left", fontsize=10, fontweight="bold")
    handles = [Patch(color=BEFORE_COLOUR), Patch(color=AFTER_COLOUR)]
    place: dict[str, Any] = {"loc": "lower right", "ncols": 2, "frameon": False, "fontsize": 9}
    figure.legend(handles, [BEFORE, AFTER], **place)
    worst = max(
        (value for reports in norms.values() for r in reports for value in r.ulp[AFTER].values()),
        default=0.0,
    )
    note = f"{machine['cpu']}, {machine['threads']} threads; medians of trials by turns, shorter "
    note += f"is better; planish's largest error against f64: {worst:.2f} ULP"
    figure.text(0.01, 0.008, note, fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)
