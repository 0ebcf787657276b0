"""Tables of whole models: inference and training steps before and after."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .markdown import markdown, source
from .reader import rows

MODELS = ("gpu-19/models.csv", "gpu-19/models-other.csv")
HOST = ("gpu-13/models.csv", "gpu-13/models-other.csv")


def model_rows(files: Sequence[str]) -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """Records of the sweep `model` by work and direction."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for path in files:
        for row in rows(path):
            found.setdefault((row["work"], row["direction"]), {})[row["provider"]] = row
    return found


def model_table(
    files: Sequence[str], column: str, ways: dict[str, str], unit: str, text: str, skip: str = "-"
) -> str:
    """Inference and training of each model, one column for each way; `skip` leaves models out."""
    found = model_rows(files)
    body = []
    for work in dict.fromkeys(work for work, _ in found if not work.startswith(skip)):
        cells = []
        for direction in ("forward", "training step"):
            for provider in ways:
                row = found.get((work, direction), {}).get(provider)
                cells.append(text.format(float(row[column])) if row and row[column] else "")
        if any(cells):
            name = work.replace("64 x 224x224 images, ", "").replace("32 x 512 tokens, ", "")
            body.append([name, *cells])
    head = [
        unit,
        *(f"inference: {n}" if i == 0 else n for i, n in enumerate(ways.values())),
        *(f"training: {n}" if i == 0 else n for i, n in enumerate(ways.values())),
    ]
    return markdown(head, body) + source(*files)


def models_short() -> str:
    """README's table: a few models, before and after."""
    found = model_rows(MODELS)
    chosen = [
        ("ResNet-50 LayerNorm2d, 64 x 224x224 images, channels last, f16", "-graph", True),
        ("ResNet-50 GroupNorm(32), 64 x 224x224 images, channels last, f16", "-graph", True),
        ("ResNet-50 GroupNorm(32), 64 x 224x224 images, NCHW, f16", "-graph", False),
        ("ConvNeXt-base, 64 x 224x224 images, channels last, f16", "-graph", False),
        ("BERT-large, 32 x 512 tokens, f16", "", False),
    ]
    body = []
    for work, suffix, modules in chosen:
        cells = []
        for direction in ("training step", "forward"):
            records = found[work, direction]
            own = "planish-modules" if modules else "planish-torch"
            before, after = (float(records[n + suffix]["items_per_s"]) for n in ("torch", own))
            cells.append(f"{before:.0f} → {after:.0f} ({after / before:.2f}x)")
        name = re.sub(r", (64|32) x \d+x?\d* (images|tokens)", "", work)
        call = "planish.replace(model)" if modules else "planish.enable()"
        body.append([name, f"`{call}`", *cells])
    head = ["items per second, before → after", "what was called", "training", "inference"]
    return markdown(head, body)
