"""What the commands that need torch take: their options, told and checked without torch.

`planish bench --help` works where torch or NumPy is not installed, and so does the refusal of what
makes no sense (UsageError, exit status 2). Nothing here imports either.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from planish.bench.sweeps import SWEEPS
from planish.bench.timing import CLOCKS
from planish.demo.time import SECONDS as MODEL_SECONDS

__all__ = [
    "PROGRAMS", "UsageError", "at_least", "check_device", "is_here", "parse", "seconds", "words",
]  # fmt: skip

DTYPES = ("f32", "bf16", "f16")
#: What is done to a model before its norms are counted (reach.apply).
MODES = ("enable", "replace", "both")
#: Seconds for all cases of `planish check`: of the timing what is left beside the checks.
CHECK_SECONDS = 50.0

#: Benches with options of their own: the module in planish.bench, and what it does.
PROGRAMS = {
    "switch": ("switch", "torch without and with planish.enable(): no norm may get slower"),
    "apex": ("apex", "2048 x 128 to 1024 and 64 x 16 x 224 x 224, by module: torch, Apex, planish"),
    "unfused": ("unfused", "the formula of before 2019 beside the fused, with its profile"),
    "fused": ("fused", "norms with a residual, dropout, modulation, gate or fp8 around them"),
    "batch": ("batch", "batch norms of ResNet-50 in training and eval: torch's and planish's"),
    "norms": ("norms", "ConvNeXt and ResNet with six norms over their channels"),
    "bert": ("bert", "training of BERT with each LayerNorm"),
    "choices": ("choices", "norms of compiled graphs: inductor's own beside planish's"),
    "compiled": ("compiled", "what a norm costs the host inside of a compiled graph"),
}


class UsageError(ValueError):
    """What a command was given makes no sense here; the text says why. Exit status 2."""


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: whole numbers from there on."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r}; wanted a whole number from {least} on")
        return value

    return number


def seconds(text: str) -> float:
    """An argument's type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}; wanted a number above 0")
    return value


def words(text: str | None, allowed: Sequence[str], option: str) -> list[str]:
    """The words of a comma-separated option, each one of those allowed."""
    found = [word for word in (text or "").split(",") if word]
    for word in found:
        if word not in allowed:
            raise UsageError(f"{option}: {word!r} is none of {', '.join(allowed)}")
    return found


def check_device(text: str) -> None:
    """UsageError where torch has no such device, or it is none that planish runs on."""
    import torch

    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {text}; known are cpu, cuda, cuda:1 and so on")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise UsageError(f"--device {text}: torch finds no GPU that it can use")
        if (device.index or 0) >= count:
            raise UsageError(f"--device {text}: torch finds {count} GPUs, counted from 0")


def _threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))


# ---- The commands -------------------------------------------------------------------------------


def bench() -> argparse.ArgumentParser:
    """Of `planish bench`, but for the benches with options of their own."""
    p = argparse.ArgumentParser(
        prog="planish bench",
        description="Measures planish beside its peers, by turns, each result checked first.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="sweeps:\n"
        + "".join(f"  {s.name:10}{s.what}\n" for s in SWEEPS.values())
        + "  model     whole models: BERT, ConvNeXt, on a GPU ResNets; forward and training steps\n"
        + "  accuracy  errors in ULP of every provider, by mean / std and by scale\n"
        + "  all       every one of these\n\n"
        + "with options of their own (planish bench NAME --help):\n"
        + "".join(f"  {name:10}{what}\n" for name, (_, what) in PROGRAMS.items()),
    )
    p.add_argument(
        "sweep", nargs="?", default="rows", choices=[*SWEEPS, "model", "accuracy", "all"]
    )
    p.add_argument("--quick", action="store_true", help="fewer shapes and trials: under a minute")
    p.add_argument("--providers", help="comma-separated names; see --list")
    p.add_argument(
        "--before", metavar="LIBRARY", help="another libplanish.so, to be measured beside this one"
    )
    p.add_argument(
        "--shapes", metavar="MxN,...", help="rows x columns in place of the sweep's own shapes"
    )
    p.add_argument("--dtype", help="comma-separated: f16, bf16, f32, f64")
    p.add_argument("--kind", default="layer", help="comma-separated: layer, rms")
    p.add_argument("--direction", default="forward,backward", help="comma-separated")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument(
        "--processes",
        type=at_least(0),
        default=0,
        help="cuda: compile ahead in so many processes",
    )
    p.add_argument("--only", default="", help="model: those whose name has one of these words")
    _threads(p)
    p.add_argument(
        "--scale", type=seconds, default=0.3, help="share of the free memory to use (default 0.3)"
    )
    p.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for the files")
    p.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="wall",
        help="cpu: seconds on a core, for a machine with other work; one thread only",
    )
    p.add_argument(
        "--markdown", type=Path, metavar="JSON", help="print the tables of a run's file and stop"
    )
    p.add_argument("--list", action="store_true", help="name the providers and stop")
    return p


def check() -> argparse.ArgumentParser:
    """Of `planish check`."""
    p = argparse.ArgumentParser(
        prog="planish check",
        description="Runs kernels against a reference in double, then times them beside a copy.",
        epilog="planish check rows bf16 avx2    names of one sort are alternatives, of several all "
        "have to fit; none: everything",
    )
    where = p.add_mutually_exclusive_group()
    where.add_argument(
        "--cpu", action="store_true", help="the kernels of the CPU, on one core (default)"
    )
    where.add_argument("--cuda", action="store_true", help="the kernels of the GPU")
    p.add_argument("names", nargs="*", metavar="NAME", help="kernel, variant, dtype or tier")
    p.add_argument("--list", action="store_true", help="only list the names")
    p.add_argument("--no-time", action="store_true", help="only check the results")
    p.add_argument(
        "--seconds", type=seconds, default=CHECK_SECONDS, help="after which nothing more is timed"
    )
    return p


_COVERAGE = """\
planish coverage: which norms of a model run on planish, which do not, and why.

planish coverage llama                a tiny model of planish's own list
planish coverage resnet50_gn          a model of timm
planish coverage opt                  a model type of Transformers, cut to two layers
planish coverage mine:make            make() of mine.py returns (model, arguments of its forward)
planish coverage --all --out FILE     every tiny model, as docs/guide/coverage.md has them
"""


def coverage() -> argparse.ArgumentParser:
    """Of `planish coverage`."""
    p = argparse.ArgumentParser(
        prog="planish coverage",
        description=_COVERAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("model", nargs="?", help="a name, or module:function")
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--activations", action="store_true", help="replace(activations=True)")
    p.add_argument("--all", action="store_true", help="every tiny model")
    p.add_argument("--family", help="with --all: only families that have this in their name")
    p.add_argument("--out", type=Path, help="with --all: the file to write")
    p.add_argument("--no-check", action="store_true", help="with --all: no results compared")
    return p


_TRY = """\
planish try: your model before and after, and what a step gains.

    planish try mine:make       make() of mine.py returns (model, arguments of its forward)
    planish try bert            or a name that `planish coverage` knows

The forward and the training step (without an optimizer) run by turns, with planish under the model
(planish.replace() and planish.enable()) and without, for about a minute. Beside the times: what ran
on planish, what did not and why, and how far the results moved. What goes on meanwhile is told on
stderr.
"""


def trial() -> argparse.ArgumentParser:
    """Of `planish try`."""
    p = argparse.ArgumentParser(
        prog="planish try",
        description=_TRY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("model", help="module:function, or a name")
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    p.add_argument("--mode", choices=MODES, default="both")
    p.add_argument("--activations", action="store_true", help="replace(activations=True)")
    p.add_argument("--fuse", action="store_true", help="replace(fuse=True)")
    p.add_argument("--seconds", type=seconds, default=50.0, help="to measure for")
    _threads(p)
    return p


_MODEL = """\
Puts planish under real models, checks every norm against f64, times before and after. Prints a
table for each model, writes demo.png, and ends with status 1 if a result is out of bounds or
planish did not run. It is done within three minutes.
"""


def model() -> argparse.ArgumentParser:
    """Of `planish model`, which `make demo` runs."""
    p = argparse.ArgumentParser(prog="planish model", description=_MODEL)
    p.add_argument("--out", type=Path, default=Path("demo-out"))
    p.add_argument("--device", choices=("cpu", "cuda"), help="by default a GPU, where there is one")
    p.add_argument("--dtype", choices=DTYPES, help="by default f32, on a GPU bf16")
    p.add_argument(
        "--models",
        help="comma-separated: bert, bert-large, convnext; by default bert,convnext, on a GPU "
        "bert-large,convnext",
    )
    p.add_argument("--variant", default="convnext_base", help="which of timm's ConvNeXts")
    _threads(p)
    p.add_argument(
        "--seconds", type=seconds, default=MODEL_SECONDS, help="after which nothing more is timed"
    )
    p.add_argument("--small", action="store_true", help="small inputs: a look in seconds")
    return p


_PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "bench": bench,
    "check": check,
    "coverage": coverage,
    "try": trial,
    "model": model,
}


def is_here(command: str, given: Sequence[str]) -> bool:
    """Whether this file knows what the command takes."""
    return command in _PARSERS and not (command == "bench" and given and given[0] in PROGRAMS)


def parse(command: str, given: Sequence[str] | None) -> argparse.Namespace:
    """The options that were given; ends with status 2 where they make no sense, and with 0 after
    --help. Names and options come in any order."""
    parser = _PARSERS[command]()
    found = parser.parse_intermixed_args(given)
    if command == "coverage":
        if found.all and found.model is not None:
            parser.error(f"{found.model!r} and --all: wanted one of them")
        if not found.all and found.model is None:
            parser.error("which model? or --all")
        if not found.all and (found.family or found.out or found.no_check):
            parser.error("--family, --out and --no-check go with --all")
    return found
