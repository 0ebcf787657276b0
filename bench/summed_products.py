"""A gradient that is a sum of matrix products in front of a norm's backward: summed by inductor's
norm, by a pass of its own, or by the products. Microseconds, and those beyond the products alone,
by replays of a CUDA graph over six sets of tensors, the median of 15.

    python3 bench/summed_products.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import planish
import torch
from planish.operators import call
from torch import Tensor

SETS, REPLAYS = 6, 15


class Case(NamedTuple):
    """What is summed: products over so many terms each, and a gradient that goes round them."""

    rows: int
    columns: int
    terms: tuple[int, ...]
    around: bool
    rms: bool


CASES = {
    "llama attention": Case(4096, 2048, (2048, 512, 512), False, True),
    "llama mlp": Case(4096, 2048, (5632, 5632), False, True),
    "bert attention": Case(16384, 1024, (1024, 1024, 1024), True, False),
    "bert mlp": Case(16384, 1024, (4096,), True, False),
    "t5 attention": Case(8192, 1024, (1024, 1024, 1024), False, True),
}


class Given(NamedTuple):
    """The factors of the products, and the other tensors. Where no gradient goes round the products
    `other` is that of a residual stream."""

    factors: list[tuple[Tensor, Tensor]]
    x: Tensor
    other: Tensor
    weight: Tensor
    rstd: Tensor
    mean: Tensor | None
    around: bool

    @property
    def dsum(self) -> Tensor | None:
        return None if self.around else self.other


def _given(case: Case) -> Given:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    rows, columns = case.rows, case.columns
    factors = [(draw(rows, n), draw(n, columns) * n**-0.5) for n in case.terms]
    rstd = torch.rand(rows, 1, device="cuda")
    mean = None if case.rms else torch.randn(rows, 1, device="cuda")
    x, other, weight = draw(rows, columns), draw(rows, columns), draw(columns)
    return Given(factors, x, other, weight, rstd, mean, case.around)


# ---- The ways ------------------------------------------------------------------------------------


def _formula(parts: list[Tensor], given: Given) -> tuple[Tensor, ...]:
    dy, x = reduce(torch.add, [part.float() for part in parts]), given.x.float()
    xhat = (x if given.mean is None else x - given.mean) * given.rstd
    g = dy * given.weight.float()
    dx = g - xhat * (g * xhat).mean(-1, keepdim=True)
    if given.mean is not None:
        dx = dx - g.mean(-1, keepdim=True)
    dx = dx * given.rstd
    if given.dsum is not None:
        dx = dx + given.dsum.float()
    sums = [dy * xhat] if given.mean is None else [dy * xhat, dy]
    return dx.to(given.x.dtype), *(each.sum(0).to(given.x.dtype) for each in sums)


def _sum(parts: list[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _products(given: Given) -> list[Tensor]:
    return [one @ other for one, other in given.factors]


def _parts(given: Given) -> list[Tensor]:
    return _products(given) + ([given.other] if given.around else [])


def _added(given: Given, in_place: bool) -> Tensor:
    """What goes round the products is written over: its numbers are of no account here."""
    factors = list(given.factors)
    total = given.other if given.around else torch.mm(*factors.pop(0))
    for one, other in factors:
        total = total.addmm_(one, other) if in_place else torch.addmm(total, one, other)
    return total


def _planish(dy: Tensor, given: Given) -> Any:
    rms, x = given.mean is None, given.x
    options = call.pack_options(rms=rms)
    options = call.backward_options(options, 0b101 if rms else 0b1101, x.dtype, x.dtype)
    tensors = (dy, x, given.rstd, given.mean, given.dsum, *[None] * 4, given.weight, *[None] * 4)
    return torch.ops.planish.norm_backward(*tensors, call.pack_axes([1], [1]), options, 0, 0.0)


def microseconds(run: Callable[[], object]) -> float:
    """Of one of the sets that it runs over, as a CUDA graph."""
    run()
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / SETS)
    return float(statistics.median(times))


def main() -> None:
    """Prints a line for each case."""
    planish.is_available("cuda")
    formula: Any = torch.compile(_formula, dynamic=False)
    add: Any = torch.compile(_sum, dynamic=False)
    ways: dict[str, Callable[[Given], object]] = {
        "products alone": _products,
        "inductor's norm": lambda given: formula(_parts(given), given),
        "added, planish": lambda given: _planish(add(_parts(given)), given),
        "added in place, planish": lambda given: _planish(_added(given, True), given),
        "addmm, planish": lambda given: _planish(_added(given, False), given),
        "inplace products alone": lambda given: _added(given, True),
    }
    for name, case in CASES.items():
        torch._dynamo.reset()
        sets = [_given(case) for _ in range(SETS)]
        found = {}
        with torch.no_grad():
            for way, run in ways.items():
                found[way] = microseconds(lambda run=run, sets=sets: [run(one) for one in sets])  # type: ignore[misc]
        base = found["products alone"]
        shown = (f"{way}: {time:7.1f} ({time - base:+6.1f})" for way, time in found.items())
        print(f"{name:16}", "  ".join(shown), flush=True)


if __name__ == "__main__":
    main()
