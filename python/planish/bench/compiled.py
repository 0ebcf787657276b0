"""`planish bench compiled`: what a norm costs the host inside of a compiled graph.

Twenty norms of a tiny tensor, each behind a matrix product that inductor fuses with nothing, by
turns with the same graph without norms: microseconds a norm more than that. The yardstick of a
call that inductor does not make itself is torch's `native_layer_norm`, kept as such a call.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from planish.commands.command_lines import words
from planish.compile import choice, inductor
from torch import Tensor, nn

from .program import launch, parser
from .timing import QUICK, THOROUGH, Sample, Timed, interleave

LAYERS, COLUMNS, ROWS = 20, 32, 8

#: name: the norm, and who makes it.
WAYS = {
    "none": ("none", "inductor"),
    "LayerNorm: inductor's own": ("layer", "inductor"),
    "LayerNorm: native_layer_norm": ("layer", "extern"),
    "LayerNorm: planish": ("layer", choice.ALWAYS),
    "RMSNorm: inductor's own": ("rms", "inductor"),
    "RMSNorm: planish": ("rms", choice.ALWAYS),
}
BASE = "none"
YARDSTICK = "LayerNorm: native_layer_norm"


@dataclass(frozen=True)
class Cost:
    """One way of a norm in one kind of graph."""

    wrapper: str
    direction: str
    way: str
    us_a_norm: float
    #: How many times the yardstick's.
    share: float | None
    noisy: bool


class Net(nn.Module):
    """Products with a norm behind each."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        kinds: dict[str, Callable[[int], nn.Module]] = {
            "none": lambda _: nn.Identity(),
            "layer": nn.LayerNorm,
            "rms": planish_rms,
        }
        self.products = nn.ModuleList(nn.Linear(COLUMNS, COLUMNS) for _ in range(LAYERS))
        self.norms = nn.ModuleList(kinds[norm](COLUMNS) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """y"""
        for product, norm in zip(self.products, self.norms, strict=True):
            x = norm(product(x))
        return x


def planish_rms(columns: int) -> nn.Module:
    """A norm that is an operator on every device: torch has its own as a composition on CPUs."""
    import planish

    return planish.RMSNorm(columns)


def _extern(model: Any, inputs: Any) -> Any:
    """inductor, with torch's norms as calls of torch's kernels."""
    from torch._inductor import lowering
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    from planish.compile.reading import TORCHS

    for op in TORCHS:
        if op not in lowering.lowerings:  # torch before 2.13 refuses what it has a formula for
            lowering.make_fallback(op, warn=False, override_decomp=True)  # type: ignore[no-untyped-call]
    table = {op: made for op, made in select_decomp_table().items() if op not in TORCHS}
    return compile_fx(model, inputs, decompositions=table)


def _backend(maker: str) -> Callable[..., Any]:
    if maker == "extern":
        return _extern
    mode = choice.NEVER if maker == "inductor" else maker
    return lambda model, inputs: inductor.compile_graph(model, inputs, mode)


def _prepared(way: str, device: str, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    norm, maker = WAYS[way]
    torch.manual_seed(0)
    model = Net(norm).to(device, dtype)
    x = torch.randn(ROWS, COLUMNS, device=device, dtype=dtype)
    compiled: Any = torch.compile(model, backend=_backend(maker), dynamic=False, fullgraph=True)
    parameters = list(model.parameters())

    def infer() -> object:
        with torch.no_grad():
            return compiled(x)

    def train() -> object:
        compiled(x).sum().backward()
        for parameter in parameters:
            parameter.grad = None
        return None

    for call in (infer, train, train):
        call()
    return {"inference": infer, "training": train}


def _timed(call: Callable[[], object], device: str) -> Timed:
    """By the clock of the host, which a GPU does not hold up: its queue has room for a trial. On a
    CPU by the time that the process has cores: on one thread others' work is left out."""
    clock = time.perf_counter if device == "cuda" else time.process_time

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def timed(count: int) -> float:
        call()
        wait()
        gc.disable()
        begin = clock()
        for _ in range(count):
            call()
        seconds = clock() - begin
        gc.enable()
        wait()
        return seconds

    return timed


def _costs(wrapper: str, direction: str, samples: dict[str, Sample]) -> list[Cost]:
    def a_norm(way: str) -> float:
        pairs = zip(samples[way].seconds, samples[BASE].seconds, strict=True)
        return statistics.median(one - base for one, base in pairs) / LAYERS * 1e6

    yardstick = a_norm(YARDSTICK) if YARDSTICK in samples else 0.0
    costs = []
    for way in samples:
        us = samples[BASE].median / LAYERS * 1e6 if way == BASE else a_norm(way)
        share = us / yardstick if yardstick > 0 and way != BASE else None
        noisy = samples[way].noisy or samples[BASE].noisy
        costs.append(Cost(wrapper, direction, way, us, share, noisy))
        said = "" if share is None else f"{share:8.2f}"
        print(f"{wrapper:8}{direction:11}{way:32}{us:9.1f} us{said}{' noisy' * noisy}", flush=True)
    return costs


def run(arguments: argparse.Namespace) -> list[Cost]:
    """Measures every way, by the wrappers that inductor writes."""
    import torch._functorch.config
    from torch._inductor import config

    device, found = arguments.device, []
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    effort = QUICK if arguments.quick else THOROUGH
    ways = {way: made for way, made in WAYS.items() if made[0] in ("none", *arguments.norms)}
    for wrapper in arguments.wrappers:
        torch._dynamo.reset()
        # What a cache keeps it keeps by the passes, and `_extern` has none.
        uncached = {"fx_graph_cache": False, "cpp_wrapper": wrapper == "cpp"}
        functorch: Any = torch._functorch.config
        limit = torch._dynamo.config.patch(recompile_limit=8 * len(WAYS))
        with config.patch(uncached), functorch.patch(enable_autograd_cache=False), limit:
            calls = {way: _prepared(way, device, dtype) for way in ways}
            for direction in ("inference", "training"):
                works = {way: _timed(made[direction], device) for way, made in calls.items()}
                found += _costs(wrapper, direction, interleave(works, effort, alike=True))
    return found


def _of(*known: str) -> Callable[[str], tuple[str, ...]]:
    """An argument's type: some of these words, separated by commas."""
    return lambda text: tuple(words(text, list(known), "an option"))


def main(argv: Sequence[str]) -> int:
    """Measures, prints and writes compiled.csv."""
    p = parser("compiled", __doc__)
    p.add_argument("--wrappers", type=_of("python", "cpp"), default=("python", "cpp"))
    p.add_argument("--norms", type=_of("layer", "rms"), default=("layer", "rms"))
    arguments = p.parse_args(argv)
    return launch("compiled", argv, arguments, run)
