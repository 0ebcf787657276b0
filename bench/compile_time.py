"""What torch.compile takes with planish's backend, beside inductor: seconds from the call of it to
the end of the first training step of a model, each in a process of its own, with cold caches (that
of planish's kernels, too) and again with what these left. Both ways load inductor in that time.

    python3 bench/compile_time.py llama convnext --runs 5 --csv FILE
    python3 bench/compile_time.py llama --tiny --device cpu --together 1

The models are those of compiled_models.py. `--together` processes run at the same time, of both
ways as many, so that what the machine does besides falls on both. Printed are medians."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from planish.bench import machine, report

WAYS = ("inductor", "planish")


@dataclass(frozen=True)
class Row:
    """Seconds of a model's first step in one way."""

    model: str
    way: str
    caches: str
    median_s: float
    least_s: float
    most_s: float
    runs: int


def _first_step(name: str, way: str, tiny: bool, device: str) -> float:
    """In a process of its own: what it takes to compile, and the first step beyond the second."""
    import planish
    import torch
    from compiled_models import MODELS

    torch.manual_seed(0)
    planish.is_available(device)  # the library is loaded, as a program's import does
    model, loss = MODELS[name](tiny, device)
    model.to(device, torch.float32 if device == "cpu" else torch.bfloat16).train()
    if device == "cuda":
        torch.cuda.synchronize()
    times, begin = [], time.perf_counter()
    compiled = torch.compile(model, backend=way, dynamic=False)
    for _ in range(2):
        loss(compiled).backward()  # type: ignore[no-untyped-call]
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return times[0] - times[1]


def _start(name: str, way: str, folder: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, name, "--way", way, "--device", given.device]
    return subprocess.Popen(
        command + ["--tiny"] * given.tiny,
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "PLANISH_CACHE_DIR": f"{folder}/planish",
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def _measured(name: str, given: argparse.Namespace) -> list[Row]:
    jobs = [(way, run) for run in range(given.runs) for way in WAYS]
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for caches in ("cold", "warm"):
            for at in range(0, len(jobs), given.together):
                some = jobs[at : at + given.together]
                processes = [_start(name, way, f"{folder}/{way}{run}", given) for way, run in some]
                for (way, _), process in zip(some, processes, strict=True):
                    text, _ = process.communicate()
                    if process.returncode:
                        raise SystemExit(f"{name} by {way} failed")
                    found.setdefault((caches, way), []).append(json.loads(text.splitlines()[-1]))
    rows = []
    for (caches, way), times in found.items():
        rows.append(
            Row(name, way, caches, statistics.median(times), min(times), max(times), len(times))
        )
        print(f"{name:10} {caches} {way:9} {rows[-1].median_s:7.2f} s", flush=True)
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("models", nargs="+")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--together", type=int, default=2)
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    p.add_argument("--csv", type=Path)
    p.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.way:
        print(_first_step(given.models[0], given.way, given.tiny, given.device))
        return
    rows = [row for name in given.models for row in _measured(name, given)]
    if given.csv:
        about = {"machine": machine.describe(), "settings": {"command": " ".join(sys.argv)}}
        report.write_csv(given.csv, rows, about)


if __name__ == "__main__":
    main()
