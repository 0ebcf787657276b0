"""Tables of the field's classic benchmarks: Apex's, the unfused layer norm, six norms, BERT; batch
norm."""

from __future__ import annotations

import re

from .markdown import markdown, source
from .reader import lines, rows


def ways_table(path: str) -> str:
    """Results of `planish bench apex` and `unfused`: microseconds, and times as fast as torch."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows(path):
        found.setdefault(f"{row['work']}, {row['direction']}", {})[row["way"]] = row
    ways = list(dict.fromkeys(row["way"] for row in rows(path)))
    body = []
    for work, ran in found.items():
        cells = []
        for way in ways:
            time, times = ran[way]["microseconds"], ran[way]["times"]
            shown = f"{float(time):.4g} us" if time else ""
            beside = f"{float(times):.2f}x" if times and way != "torch" else ""
            cells.append(" ".join(filter(None, [shown, beside])) or "too noisy")
        body.append([work, *cells])
    return markdown(["f16", *ways], body) + source(path)


def batch_table(path: str) -> str:
    """Results of `planish bench batch`: planish's microseconds, and times as fast as torch."""
    found: dict[str, dict[str, str]] = {}
    for row in rows(path):
        if row["way"] == "planish":
            time, times = row["microseconds"], row["times"]
            shown = f"{float(time):.0f} us" if time else ""
            beside = f"{float(times):.2f}x" if times else ""
            cell = " ".join(filter(None, [shown, beside])) or "too noisy"
            found.setdefault(row["work"], {})[row["direction"]] = cell
    names = {"training": "forward in training", "eval": "in eval", "both": "forward and backward"}
    body = ([work, *(ran.get(name, "") for name in names)] for work, ran in found.items())
    return markdown(["x", *names.values()], body) + source(path)


def text_table(path: str) -> str:
    """Results of `planish bench norms` of before it wrote a CSV."""
    found: dict[str, dict[str, str]] = {}
    for line in lines(path):
        if match := re.match(r"(.+?)\s+(inference|training)\s+(\S+)\s+(\S.*)", line):
            speed = re.search(r"([\d.]+)/s\s+([\d.]+)x", match[4])
            cell = f"{float(speed[1]):.0f} ({speed[2]}x)" if speed else "too noisy"
            found.setdefault(f"{match[1].strip()}, {match[2]}", {})[match[3]] = cell
    ways = list(dict.fromkeys(way for ran in found.values() for way in ran))
    body = ([work, *(ran.get(way, "") for way in ways)] for work, ran in found.items())
    return markdown(["items per second", *ways], body) + source(path, machine=lines(path)[0])


def steps_table(*paths: str) -> str:
    """Results of `planish bench norms` and `bert`: items per second, and times as fast as the first
    way."""
    found: dict[str, dict[str, str]] = {}
    for path in paths:
        for row in rows(path):
            cell = "too noisy"
            if row["times"]:
                cell = f"{float(row['items_per_s']):.0f} ({float(row['times']):.2f}x)"
            found.setdefault(f"{row['work']}, {row['direction']}", {})[row["way"]] = cell
    ways = list(dict.fromkeys(way for ran in found.values() for way in ran))
    body = ([work, *(ran.get(way, "") for way in ways)] for work, ran in found.items())
    return markdown(["items per second", *ways], body) + source(*paths)


def profile() -> str:
    """torch's profiler over one backward, unfused and fused: the operators that used the GPU."""
    path, body = "gpu-20/unfused-profile.txt", []
    title = ""
    for line in lines(path):
        if match := re.match(r"backward of (\S+), (.+):", line):
            title = match[1]
            body.append([f"**{title}**", "", "", ""])
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == 11 and cells[0] != "Name" and cells[0][0] != "-" and cells[7] != "0.00%":
            body.append([f"`{cells[0]}`", cells[6], cells[7], cells[10]])
        elif line.startswith("Self CUDA time total"):
            body.append(["all", line.rpartition(" ")[2], "100.00%", ""])
    head = ["backward of 4096 x 1024, f16", "Self CUDA", "Self CUDA %", "# of calls"]
    return markdown(head, body) + source(
        path,
        machine="NVIDIA H200, torch 2.11",
        command="planish bench unfused --device cuda --dtype f16",
    )
