"""The parts that all tables of the documents share: a table in Markdown, the line below it that
says where it is from, and what providers are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .reader import header

NAMES = {
    "torch-compile": "torch.compile",
    "triton": "Triton's tutorial",
    "liger": "Liger",
    "planish-torch": "planish under torch",
    "planish-torch-kept": "planish under torch, pages kept",
    "torch-kept": "torch, pages kept",
    "onnxruntime": "ONNX Runtime",
    "onednn": "oneDNN",
    "unfused": "separate operators",
    "copy": "a copy",
    "add": "an add",
}
MACHINES = {
    "zen3": "AMD EPYC (Zen 3)",
    "zen4": "AMD EPYC (Zen 4)",
    "zen5": "AMD EPYC (Zen 5)",
    "xeon": "Intel Xeon (AVX-512)",
}


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    out += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(out)


def source(*paths: str, machine: str = "", command: str = "") -> str:
    """The line below a table: machine, versions, day, command and files."""
    known = header(paths[0])
    folder = next((text for start, text in MACHINES.items() if paths[0].startswith(start)), "")
    machine = machine or folder or str(known.get("machine.gpu") or known.get("machine.cpu") or "")
    version = known.get("settings.torch") or known.get("versions.torch")
    day = str(known.get("machine.time", ""))[:10]
    command = command or re.sub(r" --out \S+", "", str(known.get("settings.command", "")))
    said = ", ".join(filter(None, [machine, f"torch {version}" if version else "", day]))
    files = ", ".join(f"[{path}](bench/results/{path})" for path in paths)
    return f"\n\n*{said}; {f'`{command}`; ' if command else ''}{files}*"


def percent(value: tuple[float, float] | str | None) -> str:
    """A share of the ceiling's speed."""
    if isinstance(value, tuple):
        return f"{100 * value[1]:.0f}%"
    return value if value in ("wrong", "failed") else ""
