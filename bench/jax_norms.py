#!/usr/bin/env python3
"""planish.jax beside XLA's own fusion and, on a GPU, Pallas' kernels: microseconds a norm.

    python bench/jax_norms.py [--out FILE.csv] [--quick]

One jitted program norms so many arrays that together they are past every cache, in one dtype; the
time is that of the program divided by their number, the median of turns in which the ways take part
one after the other. Shares are those of a copy (forward) or of an add of two arrays (backward) of
the same bytes, in the same turns. Needs jax alone, no torch.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import planish.jax as pj

TURNS = 7
SHAPES = [
    (4096, 768),
    (4096, 1024),
    (4096, 4096),
    (4096, 8192),
    (16384, 4096),
    (64, 4096),
    (8, 1024),
]
#: Bytes of all inputs of one program.
PAST_CACHES = {"cpu": 1 << 28, "gpu": 1 << 29}


def by_xla(rms: bool) -> Callable[..., Any]:
    """The formula, as XLA fuses it."""

    def norm(x: Any, weight: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide if rms else wide - wide.mean(-1, keepdims=True)
        rstd = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        return (centred * rstd * weight).astype(x.dtype)

    return norm


def by_planish(rms: bool) -> Callable[..., Any]:
    return (lambda x, w: pj.rms_norm(x, w, 1e-5)) if rms else pj.layer_norm


def by_pallas(rms: bool) -> Callable[..., Any] | None:
    """Those of JAX's examples, where a GPU is there and this jax has them."""
    if jax.default_backend() != "gpu":
        return None
    try:
        from jax.experimental.pallas.ops.gpu import layer_norm, rms_norm
    except ImportError as error:
        print(f"no Pallas kernels: {error}", file=sys.stderr)
        return None
    module = rms_norm if rms else layer_norm
    name = "rms_norm" if rms else "layer_norm"

    def norm(x: Any, weight: Any) -> Any:
        bias = jnp.zeros_like(weight)
        return getattr(module, name)(x, weight.astype(x.dtype), bias.astype(x.dtype))

    return norm


def programs(ways: dict[str, Any], count: int) -> dict[str, dict[str, Any]]:
    """For each pass: the program of each way, over so many arrays."""

    def forward(norm: Any) -> Any:
        return jax.jit(lambda xs, dys, w: [norm(x, w) for x in xs])

    def backward(norm: Any) -> Any:
        def one(x: Any, dy: Any, w: Any) -> Any:
            y, pull = jax.vjp(norm, x, w)
            return y, *pull(dy)

        return jax.jit(lambda xs, dys, w: [one(x, dy, w) for x, dy in zip(xs, dys, strict=True)])

    made = {"forward": {name: forward(norm) for name, norm in ways.items()}}
    made["forward+backward"] = {name: backward(norm) for name, norm in ways.items()}
    made["forward"]["copy"] = jax.jit(lambda xs, dys, w: [-x for x in xs])
    made["forward+backward"]["copy"] = jax.jit(
        lambda xs, dys, w: [(-x, x + dy) for x, dy in zip(xs, dys, strict=True)]
    )
    return made


def seconds(program: Any, arguments: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - begin


def cells(quick: bool) -> list[dict[str, Any]]:
    """One row for each kind, shape, dtype and pass."""
    found = []
    backend = jax.default_backend()
    for rms in (False, True):
        ways = {"planish": by_planish(rms), "xla": by_xla(rms)}
        if pallas := by_pallas(rms):
            ways["pallas"] = pallas
        for rows, columns in SHAPES[:: 3 if quick else 1]:
            for dtype in ("float32",) if backend == "cpu" else ("bfloat16", "float32"):
                size = rows * columns * jnp.dtype(dtype).itemsize
                count = max(2, min(64, PAST_CACHES[backend] // (2 * size)))
                keys = jax.random.split(jax.random.key(0), 2 * count)
                xs, dys = (
                    [jax.random.normal(k, (rows, columns), dtype) for k in part]
                    for part in (keys[:count], keys[count:])
                )
                arguments = xs, dys, jnp.ones(columns)
                for name, each in programs(ways, count).items():
                    times = measure(each, arguments, count)
                    cell = {"kind": "rms" if rms else "layer", "rows": rows, "columns": columns}
                    found.append({**cell, "dtype": dtype, "pass": name, **times})
                    print(found[-1], flush=True)
    return found


def measure(ways: dict[str, Any], arguments: Any, count: int) -> dict[str, float]:
    """Microseconds a norm, by turns; nan where a way fails, which is said."""
    working = {}
    for name, program in ways.items():
        try:
            seconds(program, arguments)
            working[name] = program
        except Exception as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
    times: dict[str, list[float]] = {name: [] for name in working}
    for _ in range(TURNS):
        for name, program in working.items():
            times[name].append(seconds(program, arguments) / count * 1e6)
    return {
        name: round(statistics.median(times[name]), 2) if name in times else float("nan")
        for name in ways
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", help="the table as CSV")
    parser.add_argument("--quick", action="store_true", help="every third shape")
    options = parser.parse_args()
    device = jax.devices()[0]
    print(f"# jax {jax.__version__}, {device.device_kind}")
    found = cells(options.quick)
    if options.out:
        names = list(dict.fromkeys(key for cell in found for key in cell))
        with open(options.out, "w", encoding="utf-8", newline="") as file:
            file.write(f"# jax {jax.__version__}, {device.device_kind}; bench/jax_norms.py\n")
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
