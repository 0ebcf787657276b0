"""What a sharded norm costs the host: operators that torch's profiler sees, and microseconds of the
calling thread, of a group of two that exchanges nothing (torch's fake backend).

    python bench/parts_host.py [--device cpu] [--csv FILE]

x has 8 rows of 64 columns in f32, so that kernels take next to nothing; on a GPU they are queued.
The least and the median of nine rounds of 300 calls are written. "whole" is planish's norm of the
same rows without a group, "empty" an autograd function that computes nothing."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import planish
import torch
from torch import Tensor

ROUNDS, CALLS = 9, 300


class _Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight, bias)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        return dy, *ctx.saved_tensors


def _calls(device: str) -> dict[str, Callable[[], Any]]:
    x, dy = torch.randn(8, 64, device=device), torch.randn(8, 64, device=device)
    weight, bias = torch.ones(64, device=device), torch.zeros(64, device=device)
    sharded = planish.distributed

    def trained(norm: Callable[..., Tensor], *given: Tensor) -> Callable[[], Any]:
        def run() -> Any:
            leaves = [one.detach().requires_grad_() for one in given]
            return torch.autograd.grad(norm(*leaves), leaves, dy)

        return run

    def of_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return planish.layer_norm(x, -1, weight, bias)

    return {
        "layer_norm": lambda: sharded.layer_norm(x, weight, bias),
        "rms_norm": lambda: sharded.rms_norm(x, weight, 1e-6),
        "layer_norm, forward and backward": trained(sharded.layer_norm, x, weight, bias),
        "rms_norm, forward and backward": trained(
            lambda x, weight: sharded.rms_norm(x, weight, 1e-6), x, weight
        ),
        "whole, forward and backward": trained(of_rows, x, weight, bias),
        "empty, forward and backward": trained(_Empty.apply, x, weight, bias),
    }


def _operators(run: Callable[[], Any]) -> int:
    """Calls of operators, those inside of others among them, but for what the backend does."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()

    def is_of_backend(event: Any) -> bool:
        parent = event.cpu_parent
        return parent is not None and (parent.name.startswith("c10d::") or is_of_backend(parent))

    spaces = ("aten::", "planish::", "c10d::")
    events: Any = profile.events()
    return sum(event.name.startswith(spaces) and not is_of_backend(event) for event in events)


def _microseconds(run: Callable[[], Any]) -> list[float]:
    """Of a call, by the clock of this thread alone, which does not count what others take."""
    for _ in range(CALLS):
        run()
    found = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        for _ in range(CALLS):
            run()
        found.append((time.thread_time() - begin) / CALLS * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--csv")
    given = parser.parse_args()
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)  # type: ignore[no-untyped-call]
    lines = ["call,operators,least_us,median_us"]
    for name, run in _calls(given.device).items():
        times = _microseconds(run)
        quoted = f'"{name}"' if "," in name else name
        median = statistics.median(times)
        lines.append(f"{quoted},{_operators(run)},{min(times):.1f},{median:.1f}")
        print(lines[-1], flush=True)
    if given.csv:
        Path(given.csv).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
