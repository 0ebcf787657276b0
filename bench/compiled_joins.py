"""What inductor fuses with a norm, beside planish's calls: two norms of one input with the gradient
of a residual stream, and norms whose result is quantised. Microseconds on the first GPU by replays
of a CUDA graph over six sets of tensors, the median of 15.

    python3 bench/compiled_joins.py
    python3 bench/compiled_joins.py cpu     # quantised results, of one set

On a CPU it is one thread's time that it had a core, the least of 15.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import planish
import torch
from planish.bench import machine
from planish.operators import call
from summed_products import REPLAYS, SETS, microseconds
from torch import Tensor

aten = torch.ops.aten
DEVICE = "cpu" if sys.argv[1:] == ["cpu"] else "cuda"
SHAPES = {
    "cuda": ((16384, 1024), (4096, 2048), (4096, 4096), (2048, 8192)),
    "cpu": ((1024, 1024), (1024, 4096)),
}
SETS_HERE = SETS if DEVICE == "cuda" else 1
FP8, LARGEST = torch.float8_e4m3fn, 448.0

Tensors = list[Tensor]


def _draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


# ---- Two norms of one input ----------------------------------------------------------------------


def _backward(dy: Tensor, given: Tensors, rms: bool) -> tuple[Tensor, ...]:
    x, mean, rstd, weight, bias, _ = given
    size = list(x.shape[1:])
    if rms:
        found = aten._fused_rms_norm_backward(dy, x, size, rstd, weight, [True, True])
    else:
        wanted = [True] * 3
        found = aten.native_layer_norm_backward(dy, x, size, mean, rstd, weight, bias, wanted)
    return tuple(found)


def _both(rms: bool) -> Callable[[Tensor, Tensor, Tensors], tuple[Tensor, ...]]:
    def both(dy: Tensor, other: Tensor, given: Tensors) -> tuple[Tensor, ...]:
        one, two = (_backward(gradient, given, rms) for gradient in (dy, other))
        return given[-1] + one[0] + two[0], *one[1:], *two[1:]

    return both


def _planish(dy: Tensor, given: Tensors, dsum: Tensor, rms: bool) -> Any:
    x, mean, rstd, weight, *_ = given
    options = call.pack_options(rms=rms)
    options = call.backward_options(options, 0b101 if rms else 0b1101, x.dtype, x.dtype)
    tensors = dy, x, rstd, None if rms else mean, dsum, *[None] * 4, weight, *[None] * 4
    return torch.ops.planish.norm_backward(*tensors, call.pack_axes([1], [1]), options, 0, 0.0)


def _pair(rows: int, columns: int, rms: bool) -> dict[str, Callable[[], object]]:
    sets = []
    for _ in range(SETS_HERE):
        statistics = [torch.rand(rows, 1, device=DEVICE) for _ in range(2)]
        rest = [_draw(columns), _draw(columns), _draw(rows, columns)]
        given = [_draw(rows, columns), *statistics, *rest]
        sets.append((_draw(rows, columns), _draw(rows, columns), given))
    both: Any = torch.compile(_both(rms), dynamic=False)

    def planish_(dy: Tensor, other: Tensor, given: Tensors) -> None:
        total = _planish(dy, given, given[-1], rms)[0]
        _planish(other, given, total, rms)

    ways = {"inductor": both, "planish": planish_}
    return {
        way: lambda run=run, sets=sets: [run(*one) for one in sets] for way, run in ways.items()
    }


# ---- Quantised results ---------------------------------------------------------------------------


def _norm(x: Tensor, weight: Tensor, bias: Tensor, rms: bool) -> Tensor:
    if not rms:
        return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def _quantised(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    rms: bool,
) -> tuple[Tensor, ...]:
    total = x if residual is None else x + residual
    y = _norm(total, weight, bias, rms).float()
    found = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / LARGEST if scale is None else scale
    q = (y / found).clamp(-LARGEST, LARGEST).to(FP8)
    return (q, found) if residual is None else (q, found, total)


def _quantising(
    rows: int, columns: int, rms: bool, static: bool, added: bool
) -> dict[str, Callable[[], object]]:
    sets = []
    for _ in range(SETS_HERE):
        residual = _draw(rows, columns) if added else None
        scale = torch.rand(1, device=DEVICE) + 0.1 if static else None
        sets.append((_draw(rows, columns), residual, _draw(columns), _draw(columns), scale))
    written: Any = torch.compile(_quantised, dynamic=False)

    def planish_(
        x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, scale: Tensor | None
    ) -> Any:
        more: dict[str, Any] = {"scale": scale, "residual": residual}
        if rms:
            return planish.quantized_rms_norm(x, weight, 1e-6, **more)
        return planish.quantized_layer_norm(x, weight, bias, **more)

    return {
        "inductor": lambda: [written(*one, rms) for one in sets],
        "planish": lambda: [planish_(*one) for one in sets],
    }


def _cpu_microseconds(run: Callable[[], object]) -> float:
    run()
    run()
    times = []
    for _ in range(REPLAYS):
        begin = time.process_time()
        run()
        times.append((time.process_time() - begin) * 1e6)
    return min(times)


def _show(name: str, ways: dict[str, Callable[[], object]]) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        timed = microseconds if DEVICE == "cuda" else _cpu_microseconds
        found = {way: timed(run) for way, run in ways.items()}
    shown = "  ".join(f"{way} {time:7.2f}" for way, time in found.items())
    print(f"{name:48} {shown}  {found['inductor'] / found['planish']:5.2f}", flush=True)


def main() -> None:
    """Prints a line for each case: how many times as fast as inductor planish is, at its end."""
    planish.is_available(DEVICE)
    torch.set_num_threads(1)
    about = machine.describe()
    print(about.get("gpu", about["cpu"]), "torch", torch.__version__, flush=True)
    for rows, columns in SHAPES[DEVICE]:
        for rms in (False, True):
            kind, size = "rms" if rms else "layer", f"{rows} x {columns}"
            if DEVICE == "cuda":
                _show(f"two {kind} norms of one input, {size}", _pair(rows, columns, rms))
            for static, added in ((True, False), (False, False), (False, True)):
                scale, sum_ = "static" if static else "row", ", sum" if added else ""
                ways = _quantising(rows, columns, rms, static, added)
                _show(f"{kind}, fp8, {scale}{sum_}, {size}", ways)


if __name__ == "__main__":
    main()
