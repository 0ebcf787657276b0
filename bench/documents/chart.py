"""Draws the charts of the documents as SVG, from committed results, without a plotting library, so
that the same results give the same bytes and bench/tables.py can tell an outdated chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from .markdown import NAMES
from .reader import merged
from .tables import GPU_BACKWARD, GPU_FORWARD

COLOURS = {
    "torch": "#8a8f98",
    "torch-compile": "#d98c3f",
    "liger": "#4a9d6e",
    "quack": "#b0639f",
    "planish": "#2457c5",
}
WIDTH, HEIGHT, LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, GAP = 960, 380, 62, 74, 420, 240, 38
FONT = "font-family='Helvetica, Arial, sans-serif' fill='#24292f'"


def text(x: float, y: float, said: str, size: int = 13, more: str = "") -> str:
    """A line of text."""
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' {FONT} {more}>{escape(said)}</text>"


def panel(left: float, title: str, direction: str, files: Sequence[str]) -> list[str]:
    """One direction: the share of the ceiling's speed over the length of a row."""
    found = merged(files, direction)
    lengths = [int(work.split()[-1]) for work in found]
    most = max(lengths)

    def x(length: int) -> float:
        return left + PANEL_WIDTH * length / most

    def y(share: float) -> float:
        return TOP + PANEL_HEIGHT * (1 - share)

    out = [text(left, TOP - 12, title, 14, "font-weight='bold'")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        out.append(
            f"<line x1='{left:g}' x2='{left + PANEL_WIDTH:g}' y1='{y(share):g}' y2='{y(share):g}' "
            f"stroke='#d8dee4' stroke-width='{2 if share in (0.0, 1.0) else 1}'/>"
        )
        if left == LEFT:
            out.append(text(left - 8, y(share) + 4, f"{share:.0%}", 12, "text-anchor='end'"))
    for length in (2048, 4096, 6144, 8192, 10240, 12288, 14336):
        out.append(
            text(x(length), TOP + PANEL_HEIGHT + 18, str(length), 12, "text-anchor='middle'")
        )
    for name, colour in COLOURS.items():
        points = [
            (x(int(work.split()[-1])), y(value[1]))
            for work, ran in found.items()
            if isinstance(value := ran.get(name), tuple)
        ]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        width = 3 if name == "planish" else 1.8
        out.append(
            f"<polyline fill='none' stroke='{colour}' stroke-width='{width}' points='{path}'/>"
        )
    return out


def gpu_rows() -> str:
    """LayerNorm on a GPU beside its peers: the classic table as a picture."""
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>",
        "<title>LayerNorm on one H200: speed beside a copy and an add, by row length</title>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
    ]
    place = float(LEFT)
    for name, colour in reversed(COLOURS.items()):
        out.append(f"<rect x='{place:g}' y='18' width='22' height='5' fill='{colour}'/>")
        weight = "font-weight='bold'" if name == "planish" else ""
        out.append(text(place + 28, 26, NAMES.get(name, name), 14, weight))
        place += 52 + 9 * len(NAMES.get(name, name))
    out += panel(LEFT, "forward, speed of a copy = 100%", "forward", GPU_FORWARD)
    right = LEFT + PANEL_WIDTH + GAP
    out += panel(right, "backward, speed of an add = 100%", "backward", GPU_BACKWARD)
    said = "elements in a row; LayerNorm of 4096 rows, f16, one NVIDIA H200; higher is better"
    out.append(text(LEFT, HEIGHT - 22, said))
    return "\n".join([*out, "</svg>", ""])


CHARTS: dict[str, Callable[[], str]] = {"docs/pictures/gpu-rows.svg": gpu_rows}
