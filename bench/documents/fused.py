"""Tables of `planish bench fused`: norms with what stands around them, beside the ceiling and every
peer."""

from __future__ import annotations

from collections.abc import Sequence

from .markdown import markdown, source
from .reader import Row, rows

TITLES = {
    "add": "residual + {}",
    "dropout": "dropout, residual + {}",
    "modulated": "{}, modulated",
    "gated": "{}, gated",
    "fp8-row": "{}, fp8 per row",
    "fp8-tensor": "{}, fp8 by a static scale",
    "fp8-128": "{}, fp8 per 128 columns",
    "fp8-row-add": "residual + {}, fp8 per row",
    "qk": "{} of queries and keys",
}
HEADS = {
    "torch-compile": "torch.compile",
    "liger": "Liger",
    "row-triton": "a program a row",
    "tile-triton": "tiles of rows",
    "inplace-triton": "in place",
}
OWN = ("planish", "unfused")
Works = dict[tuple[str, str], dict[str, Row]]


def _works(paths: Sequence[str], decode: bool) -> Works:
    """Cells by (norm, shape); of two files the first counts."""
    found: Works = {}
    for path in paths:
        fresh: Works = {}
        for row in rows(path):
            if (row["group"] == "decode") is decode:
                layer = "LayerNorm" if row["kind"] == "layer" else "RMSNorm"
                title = f"{TITLES[row['row']].format(layer)}, {row['direction']}, {row['dtype']}"
                fresh.setdefault((title, row["work"]), {})[row["way"]] = row
        found = {**fresh, **found}
    return found


def _time(cell: Row | None) -> float | None:
    if cell is None or not cell["microseconds"] or cell["noisy"] == "True":
        return None
    return float(cell["microseconds"])


def _times(cells: dict[str, Row], names: Sequence[str]) -> str:
    """How many times as fast as the best peer planish is."""
    own = _time(cells.get("planish"))
    peers = [t for n in names if n not in OWN and (t := _time(cells.get(n))) is not None]
    return f"{min(peers) / own:.2f}" if own is not None and peers else ""


def _share(cell: Row | None) -> str:
    if cell is None or cell["status"] == "unsupported":
        return ""
    if cell["status"] != "ok":
        return cell["status"]
    if cell["noisy"] == "True":
        return "too noisy"
    return f"{100 * float(cell['share']):.0f}%" if cell["share"] else ""


def by_turns(*paths: str) -> str:
    """Shares of the ceiling's speed: files with columns norm, rows, ceiling_us, planish_us."""
    body = [
        [r["norm"], r["rows"], f"{100 * float(r['ceiling_us']) / us:.0f}%", f"{us:.4g}"]
        for path in paths
        for r in rows(path)
        if (us := float(r["planish_us"]))
    ]
    return markdown(["norm, bf16", "rows", "planish", "planish, us"], body) + source(*paths)


def fused(*paths: str, decode: bool = False) -> str:
    """Shares of the ceiling's speed and planish's microseconds; of decoding microseconds alone."""
    works = _works(paths, decode)
    ways = dict.fromkeys(name for cells in works.values() for name in cells if name != "ceiling")
    names = [n for n in ways if any(_time(cells.get(n)) is not None for cells in works.values())]
    heads = [HEADS.get(name, name) for name in names]
    body = []
    for (title, shape), cells in works.items():
        if decode:
            texts = [f"{t:.3g}" if (t := _time(cells.get(n))) is not None else "" for n in names]
            line = [title, shape, *texts]
        else:
            us = _time(cells.get("planish"))
            texts = [_share(cells.get(n)) for n in names]
            line = [title, shape, *texts, "" if us is None else f"{us:.4g}"]
        body.append([*line, _times(cells, names)])
    if decode:
        return markdown(["us", "rows", *heads, "times the best peer"], body) + source(*paths)
    head = ["norm", "rows", *heads, "planish, us", "times the best peer"]
    return markdown(head, body) + source(*paths)


def trained(path: str) -> str:
    """Models trained four ways: time of a step, memory, and how far losses go from torch's."""
    models: dict[str, dict[str, Row]] = {}
    for row in rows(path):
        models.setdefault(row["model"], {})[row["way"]] = row
    ways = ("replace", "fuse", "both")
    body = []
    for name, of in models.items():
        base = of["torch"]
        times = [float(base["step_ms"]) / float(of[way]["step_ms"]) for way in ways]
        memory = float(of["fuse"]["peak_mib"]) / float(base["peak_mib"])
        apart = [f"{float(of[way]['farthest_from_torch']):.1e}" for way in ("replace", "fuse")]
        body.append(
            [
                name,
                of["fuse"]["together"],
                f"{float(base['step_ms']):.1f}",
                *(f"{times_faster:.2f}" for times_faster in times),
                f"{memory:.2f}",
                *apart,
            ]
        )
    head = [
        "model",
        "places fused",
        "torch, ms",
        "replaced",
        "fused",
        "fused, enabled",
        "memory, fused",
        "losses apart, replaced",
        "losses apart, fused",
    ]
    return markdown(head, body) + source(path)


MODELS = {
    "llama": "Llama",
    "qwen3": "Qwen3",
    "gemma3": "Gemma 3",
    "olmo2": "OLMo 2",
    "gpt2": "GPT-2",
    "vit": "ViT",
    "dit": "DiT",
    "flux": "Flux",
}


def trained_short(path: str) -> str:
    """The same for some of them: speed and memory, fused, over torch's."""
    of = {(row["model"], row["way"]): row for row in rows(path)}

    def ratios(column: str, over: bool) -> list[str]:
        pairs = [(float(of[m, "torch"][column]), float(of[m, "fuse"][column])) for m in MODELS]
        return [f"{a / b:.2f}x" if over else f"{100 * b / a:.0f}%" for a, b in pairs]

    body = [["speed", *ratios("step_ms", True)], ["memory", *ratios("peak_mib", False)]]
    return markdown(["a training step", *MODELS.values()], body)
