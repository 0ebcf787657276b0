"""What one call of planish.apex's modules costs the host, beside planish.LayerNorm.

    python bench/apex_overhead.py [--rounds 15] [--device cuda]

Rows are (1, 16), float32, one thread. Printed as a table, in microseconds of CPU time a call, the
best of the rounds: without and with a graph, and forward and backward. On CUDA the calls are only
queued while the clock runs.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

import planish
import torch
from planish import apex
from planish.apex.normalization import fused_layer_norm as fused

CALLS = 200


def best(call: Callable[[], object], rounds: int, on_gpu: bool) -> float:
    fastest = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(CALLS):
            call()
        fastest = min(fastest, time.process_time() - began)
        if on_gpu:
            torch.cuda.synchronize()
    return fastest / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    device, on_gpu = given.device, given.device == "cuda"
    torch.set_num_threads(1)
    x = torch.randn(1, 16, device=device, requires_grad=True)
    norm, efficient = apex.FusedLayerNorm(16), apex.FusedLayerNorm(16, memory_efficient=True)
    modules = {
        "torch.nn.LayerNorm": torch.nn.LayerNorm(16),
        "planish.LayerNorm": planish.LayerNorm(16),
        "FusedLayerNorm": norm,
        "FusedRMSNorm": apex.FusedRMSNorm(16),
        "FastLayerNorm": apex.FastLayerNorm(16),
        "FusedLayerNorm, memory_efficient": efficient,
    }
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    for name, module in modules.items():
        module.to(device)
        calls[name] = lambda module=module: module(x)
    function = fused.FusedLayerNormAffineFunction
    calls["FusedLayerNormAffineFunction"] = lambda: function.apply(
        x, norm.weight, norm.bias, (16,), 1e-5
    )

    def under_autocast() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return norm(x)

    calls["FusedLayerNorm in a torch.autocast"] = under_autocast
    print("| call | planish | no graph | graph | forward, backward |\n|---|---|---|---|---|")
    for name, call in calls.items():
        for on in (False, True):
            with planish.enabled() if on else contextlib.nullcontext():
                with torch.no_grad():
                    bare = best(call, given.rounds, on_gpu)
                graph = best(call, given.rounds, on_gpu)
                both = best(lambda call=call: call().sum().backward(), given.rounds, on_gpu)
            state = "enabled" if on else ""
            print(f"| {name} | {state} | {bare:.1f} | {graph:.1f} | {both:.1f} |", flush=True)


if __name__ == "__main__":
    main()
