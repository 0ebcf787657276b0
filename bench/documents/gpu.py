"""Tables of norms on a GPU, beside the ceiling and every peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .markdown import NAMES, markdown, percent, source
from .reader import merged, microseconds, sweep, work_times

PEERS = ("torch", "torch-compile", "triton", "liger", "quack")


def gpu_rows(direction: str, files: Sequence[str], peers: Sequence[str] = PEERS) -> str:
    """A sweep beside every peer: shares of the ceiling, and how much faster than the best peer."""
    body = []
    for work, found in merged(files, direction).items():
        own = found.get("planish")
        others = [v[1] for n in peers if isinstance(v := found.get(n), tuple)]
        if not isinstance(own, tuple):
            continue
        body.append(
            [
                work,
                *(percent(found.get(n)) for n in peers),
                percent(own),
                f"{own[0]:.3g}",
                f"{own[1] / max(others):.2f}",
            ]
        )
    head = [
        f"{direction}, speed beside {'a copy' if direction == 'forward' else 'an add'}",
        *(NAMES.get(n, n) for n in peers),
        "planish",
        "planish, us",
        "times the best peer",
    ]
    return markdown(head, body) + source(*files)


def gpu_other_rows() -> str:
    """Long, odd and few rows, both norms, both directions."""
    layer = work_times(
        ("gpu-18/two-blocks.csv", "new"), ("gpu-17/rows.csv", "new"), ("gpu-16/rows.csv", "planish")
    )
    rms = work_times(("gpu-18/two-blocks.csv", "new"), ("gpu-18/rms.csv", "planish"))
    works: dict[str, list[str]] = {}
    for column, (found, way) in enumerate(
        ((layer, "layer fwd "), (layer, "layer bwd "), (rms, "rms fwd "), (rms, "rms bwd "))
    ):
        for work, (us, share) in found.items():
            name = work.removeprefix(way)
            if name == work or name.startswith(("4096x", "401408x")):
                continue
            cells = works.setdefault(name.replace("x", " x "), [""] * 4)
            cells[column] = f"{us:.3g} us, {100 * share:.0f}%"
    order = sorted(works, key=lambda w: (int(w.split()[0]) > 128, int(w.split()[2])))
    head = [
        "rows",
        "LayerNorm forward",
        "LayerNorm backward",
        "RMSNorm forward",
        "RMSNorm backward",
    ]
    return markdown(head, ([w, *works[w]] for w in order)) + source(
        "gpu-18/two-blocks.csv",
        "gpu-17/rows.csv",
        "gpu-16/rows.csv",
        "gpu-18/rms.csv",
        machine="NVIDIA H200, torch 2.11",
        command="python3 bench/gpu_rows.py forward backward odd; --kind rms",
    )


PASSES = {
    "channels fwd nchw": "LayerNorm over channels, forward, NCHW",
    "channels fwd view": "the same, result NHWC (`F.layer_norm` of a permuted view)",
    "channels bwd nchw": "LayerNorm over channels, backward, NCHW",
    "groups fwd nchw": "GroupNorm(32), forward, NCHW",
    "groups fwd nhwc": "GroupNorm(32), forward, channels last",
    "groups bwd nchw": "GroupNorm(32), backward, NCHW",
    "groups bwd nhwc": "GroupNorm(32), backward, channels last",
}


def images(
    wanted: Callable[[str], bool],
    found: dict[str, tuple[float, float]],
    others: dict[str, dict[str, tuple[float, float]]],
    sources: str,
) -> str:
    """Norms of images: planish in three dtypes, others in f16."""
    body = []
    for work, (us, share) in found.items():
        if not wanted(work) or " f16" not in work:
            continue
        way, shape = " ".join(work.split()[:3]), work.split()[3]
        cells = [f"{us:.3g}", f"{100 * share:.0f}%"]
        for dtype in ("bf16", "f32"):
            cells.append(percent(found.get(work.replace("f16", dtype))))
        cells += [percent(other.get(work)) for other in others.values()]
        body.append([PASSES[way], shape.replace("/32", "").replace("x", " x "), *cells])
    head = ["pass", "images x channels x pixels", "us, f16", "f16", "bf16", "f32"]
    return markdown(head + [f"{n}, f16" for n in others], body) + sources


def gpu_images() -> str:
    """Norms over channels and groups."""
    found = work_times(("gpu-17/images.csv", "planish"))
    torch = work_times(("gpu-8/channels-f16.csv", "eager"))
    return images(
        lambda w: "silu" not in w,
        found,
        {"torch": torch},
        source(
            "gpu-17/images.csv",
            "gpu-8/channels-f16.csv",
            machine="NVIDIA H200, torch 2.11",
            command="python3 bench/gpu_channels.py channels groups --dtype f16,bf16,f32",
        ),
    )


def gpu_silu() -> str:
    """GroupNorm with SiLU behind it."""
    found = work_times(("gpu-16/images.csv", "planish"))
    first = "gpu-11/silu-first-f16.csv"
    others = {
        "torch": work_times((first, "eager")),
        "torch.compile": work_times((first, "compiled")),
    }
    return images(
        lambda w: "silu" in w,
        found,
        others,
        source(
            "gpu-16/images.csv",
            first,
            machine="NVIDIA H200, torch 2.11",
            command="python3 bench/gpu_channels.py groups silu --dtype f16,bf16,f32",
        ),
    )


def gpu_decode() -> str:
    """The backward of few rows."""
    path = "gpu-7/decode-backward.csv"
    names = ("torch", "torch-compile", "liger", "quack", "planish")
    body = [
        [
            work,
            *(
                f"{t:.3g}"
                if (t := microseconds(found.get(n)))
                else (found[n]["status"] if n in found else "")
                for n in names
            ),
        ]
        for work, found in sweep(path, "backward").items()
    ]
    return markdown(["us, bf16", *(NAMES.get(n, n) for n in names)], body) + source(path)
