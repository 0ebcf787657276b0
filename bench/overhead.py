"""What one call costs, without the work: torch's norms on 8 channels, bare and on planish.

Rows are (1, 8), images (1, 8, 2, 2).

    python bench/overhead.py [--rounds 60] [--device cuda] [--json]

Every case is timed with planish disabled and enabled in turn, round after round in one process, so
that both see the same machine. Functions of planish's own stand beside the torch call that says the
same, with planish disabled: they then run on operators of planish's own. Printed, in microseconds:
the fastest round (what the call costs when nothing else runs), the median, and the quartiles. One
thread.

On CUDA the calls are only queued while the clock runs, fewer of them than a stream holds; the
GPU is waited for outside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch.nn.functional as F

import planish
import torch

CALLS = 2000


Call = Callable[[], object]


def cases(device: str) -> dict[str, Call]:
    """The calls to time, by name."""
    x = torch.randn(1, 8, device=device)
    weight, bias = torch.randn(8, device=device), torch.randn(8, device=device)
    live = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    dy = torch.ones(1, 8, device=device)
    rows_apart = torch.randn(4, 16, device=device)[:, :8]
    image = torch.randn(1, 8, 2, 2, device=device)
    last = image.contiguous(memory_format=torch.channels_last)
    live_image, dy_image = image.clone().requires_grad_(), torch.ones(1, 8, 2, 2, device=device)

    def train_layer_norm() -> object:
        return torch.autograd.grad(F.layer_norm(live[0], (8,), live[1], live[2]), live, dy)

    def train_group_norm() -> object:
        leaves = [live_image, *live[1:]]
        return torch.autograd.grad(F.group_norm(live_image, 2, *leaves[1:]), leaves, dy_image)

    def train_rms_norm() -> object:
        return torch.autograd.grad(F.rms_norm(live[0], (8,), live[1]), live[:2], dy)

    def inference_rms_norm() -> object:
        with torch.inference_mode():
            return F.rms_norm(x, (8,), weight)

    return {
        "F.layer_norm": lambda: F.layer_norm(x, (8,), weight, bias),
        "F.layer_norm, no parameters": lambda: F.layer_norm(x, (8,)),
        "F.layer_norm, with a graph": lambda: F.layer_norm(live[0], (8,), *live[1:]),
        "F.layer_norm, rows apart": lambda: F.layer_norm(rows_apart, (8,), weight, bias),
        "F.layer_norm, forward and backward": train_layer_norm,
        "F.group_norm": lambda: F.group_norm(image, 2, weight, bias),
        "F.group_norm, no parameters": lambda: F.group_norm(image, 2),
        "F.group_norm, channels last": lambda: F.group_norm(last, 2, weight, bias),
        "F.group_norm, forward and backward": train_group_norm,
        "F.rms_norm": lambda: F.rms_norm(x, (8,), weight),
        "F.rms_norm, inference mode": inference_rms_norm,
        "F.rms_norm, forward and backward": train_rms_norm,
    }


def own_cases(device: str) -> dict[str, tuple[Call, Call]]:
    """What torch calls and what planish does, by name."""
    image, dy = torch.randn(1, 8, 2, 2, device=device), torch.ones(1, 8, 2, 2, device=device)
    weight, bias = torch.randn(8, device=device), torch.randn(8, device=device)
    live = [tensor.clone().requires_grad_() for tensor in (image, weight, bias)]

    def channels(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.permute(0, 2, 3, 1), (8,), *parameters).permute(0, 3, 1, 2)

    def train(y: torch.Tensor) -> object:
        return torch.autograd.grad(y, live, dy)

    def silu(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return planish.group_norm(x, 2, *parameters, activation="silu")

    return {
        "planish.group_norm": (
            lambda: F.group_norm(image, 2, weight, bias),
            lambda: planish.group_norm(image, 2, weight, bias),
        ),
        "planish.group_norm, forward and backward": (
            lambda: train(F.group_norm(live[0], 2, *live[1:])),
            lambda: train(planish.group_norm(live[0], 2, *live[1:])),
        ),
        "planish.group_norm, silu": (
            lambda: F.silu(F.group_norm(image, 2, weight, bias)),
            lambda: silu(image, weight, bias),
        ),
        "planish.group_norm, silu, forward and backward": (
            lambda: train(F.silu(F.group_norm(live[0], 2, *live[1:]))),
            lambda: train(silu(*live)),
        ),
        "planish.layer_norm over channels": (
            lambda: channels(image, weight, bias),
            lambda: planish.layer_norm(image, 1, weight, bias),
        ),
        "planish.layer_norm over channels, forward and backward": (
            lambda: train(channels(*live)),
            lambda: train(planish.layer_norm(live[0], 1, *live[1:])),
        ),
    }


def microseconds(call: Callable[[], object], calls: int, device: str) -> float:
    """Time of one call, over many."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    if device == "cuda":
        torch.cuda.synchronize()
    return seconds / calls * 1e6


def take_turns(
    calls: dict[str, Call], rounds: int, device: str, enabling: bool
) -> dict[str, list[float]]:
    """Times of the call of each provider per round."""
    found: dict[str, list[float]] = {provider: [] for provider in calls}
    for turn in range(rounds + 1):
        for provider, call in calls.items():
            enabled = enabling and provider == "planish"
            if enabled:
                planish.enable()
            microseconds(call, 50, device)
            timing = microseconds(call, CALLS // 10, device)
            if enabled:
                planish.disable()
            if turn:  # the first round warms up
                found[provider].append(timing)
    return found


def measure(rounds: int, device: str) -> dict[str, dict[str, list[float]]]:
    """Times of every case, without planish and with it."""
    times: dict[str, dict[str, list[float]]] = {}
    for name, call in cases(device).items():
        times[name] = take_turns({"torch": call, "planish": call}, rounds, device, True)
    for name, (native, ours) in own_cases(device).items():
        times[name] = take_turns({"torch": native, "planish": ours}, rounds, device, False)
    return times


def main() -> int:
    """Prints the table; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(options.rounds, options.device)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    if options.json:
        found = {"torch": torch.__version__, "device": machine, "times_us": times}
        json.dump(found, sys.stdout, indent=2)
        return 0
    print(
        f"torch {torch.__version__}, planish {planish.__version__}, 8 channels of f32, "
        f"one thread, {machine}"
    )
    print(
        f"{'microseconds per call':54}  fastest: torch planish ratio   median: torch planish ratio"
    )
    for name, found in times.items():
        columns = []
        for pick in (min, statistics.median):
            native, ours = pick(found["torch"]), pick(found["planish"])
            columns.append(f"{native:14.2f} {ours:7.2f} {ours / native:5.2f}")
        spread = ", ".join(
            "{:.1f}-{:.1f}".format(*statistics.quantiles(timings, n=4)[::2])
            for timings in found.values()
        )
        print(f"{name:54} {'  '.join(columns)}   ({spread})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
