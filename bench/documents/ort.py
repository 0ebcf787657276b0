"""Tables of norms and models in ONNX Runtime."""

from __future__ import annotations

from .markdown import markdown, source
from .reader import rows


def ort(path: str, models: bool) -> str:
    """bench/ort_models.py: whole models, or norms alone."""
    body = []
    for row in rows(path):
        if (", opset " in row["case"]) != models:
            continue
        times = [row[column] for column in ("onnxruntime_ms", "planish_ms")]
        spent = [row[column] for column in ("onnxruntime_cpu", "planish_cpu")]
        gains = [f"{float(own) / float(ours):.2f}" for own, ours in (times, spent)]
        calls = [sum(int(part.split()[0]) for part in row["taken"].split(", "))] if models else []
        body.append([row["case"], *map(str, calls), *times, gains[0], *spent, gains[1]])
    head = [
        "milliseconds",
        *(["norms"] if models else []),
        *("ONNX Runtime", "with planish", "gain", "CPU time: ONNX Runtime", "with planish", "gain"),
    ]
    return markdown(head, body) + source(
        path,
        machine="AMD EPYC (Zen 4), two threads, f32, onnxruntime 1.32, torch 2.13",
        command="python bench/ort_models.py --opset 20 23",
    )
