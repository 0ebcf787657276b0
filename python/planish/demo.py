"""The demo: puts planish under real models, checks every norm against f64, times before and after.

`make demo` runs it. It prints a table for each model, writes demo-out/demo.png, and ends with
status 1 if a result is out of bounds or planish did not run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import planish
import torch
from planish._library import library

from .bench import gpu
from .bench.accuracy import compare
from .bench.case import Case, Data
from .bench.machine import describe
from .bench.providers.planish_torch import switched_off
from .bench.timing import Effort, Sample, Timed, interleave, loop, ratio, ratio_settled
from .demo_picture import AFTER, BEFORE, NormReport, StepReport, draw
from .models import NormCall, Workload, bert_base, collect_norms, convnext

# The bound on every output, in ULP of the largest magnitude in the row (y, dx) or of the largest
# sum of the magnitudes added (dweight, dbias).
BOUND_ULP = 4.0
BOUND_TEXT = (
    "  ULP against f64: y and dx of the largest magnitude in the row, "
    "dweight and dbias of their largest sum of magnitudes"
)
NORM_EFFORT = Effort(trials=9, trial_seconds=0.01, case_seconds=1.5, patience=2.0)
STEP_EFFORT = Effort(trials=5, trial_seconds=0.0, patience=2.0)
# All steps together end by then, but for the least number of trials, however noisy they are.
STEPS_SECONDS = 140.0
KERNELS = (BEFORE, AFTER)
OUTPUTS = ("y", "dx", "dweight", "dbias")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def default_device() -> str:
    """A GPU where planish can use one."""
    there = torch.cuda.is_available() and torch.version.cuda
    return "cuda" if there and not library().cuda_is_missing() else "cpu"


class Screen:
    """Prints in colour on a terminal and plainly elsewhere."""

    def __init__(self) -> None:
        self.colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def paint(self, text: str, code: str) -> str:
        """The text in a colour."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def say(self, text: str = "") -> None:
        """One line."""
        print(text, flush=True)

    def doing(self, text: str) -> Callable[[], None]:
        """Announces a long step; the returned function says how long it took."""
        print(self.paint(f"  {text} ... ", "2"), end="", flush=True)
        begin = time.perf_counter()

        def done() -> None:
            print(self.paint(f"{time.perf_counter() - begin:.1f} s", "2"), flush=True)

        return done

    def times(self, samples: dict[str, Sample]) -> str:
        """How many times as fast, or that it is noise; green above 1.02, red under 0.98."""
        found = ratio(samples[BEFORE], samples[AFTER])
        code = "32" if found.value > 1.02 else ("31" if found.value < 0.98 else "0")
        return self.paint(f"{found!s:>9}", "2" if found.noisy else code)


def run_norm(call: NormCall) -> dict[str, torch.Tensor]:
    """Forward and backward of one norm through torch's operators, whoever is under them."""
    y, mean, rstd = torch.native_layer_norm(
        call.x, call.normalized_shape, call.weight, call.bias, call.eps
    )
    found = {"y": y}
    if call.dy is not None:
        backward: Any = torch.ops.aten.native_layer_norm_backward.default
        mask = [True, call.weight is not None, call.bias is not None]
        gradients = backward(
            call.dy, call.x, call.normalized_shape, mean, rstd, call.weight, call.bias, mask
        )
        found.update(zip(("dx", "dweight", "dbias"), gradients, strict=True))
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def errors(
    call: NormCall, found: dict[str, dict[str, torch.Tensor]]
) -> dict[str, dict[str, float]]:
    """The largest error of each provider's outputs against f64, in ULP as NUMERICS counts them."""
    cols = 1
    for size in call.normalized_shape:
        cols *= size
    rows = call.x.numel() // cols
    ones, zeros = torch.ones(cols), torch.zeros(cols)
    data = Data(
        call.x.reshape(rows, cols).cpu(),
        (ones if call.weight is None else call.weight).reshape(cols).cpu(),
        (zeros if call.bias is None else call.bias).reshape(cols).cpu(),
        None if call.dy is None else call.dy.reshape(rows, cols).cpu(),
    )

    def flat(name: str, tensor: torch.Tensor) -> torch.Tensor:
        shape = (rows, cols) if name in ("y", "dx") else (cols,)
        return tensor.reshape(shape).cpu()

    result: dict[str, dict[str, float]] = {name: {} for name in found}
    for direction, names in (("forward", ("y",)), ("backward", ("dx", "dweight", "dbias"))):
        if direction == "backward" and call.dy is None:
            continue
        case = Case(rows, cols, call.dtype, direction, eps=call.eps)  # type: ignore[arg-type]
        outputs = {
            provider: {k: flat(k, v) for k, v in tensors.items() if k in names}
            for provider, tensors in found.items()
        }
        for provider, spreads in compare(case, data, outputs).items():
            result[provider].update({name: spread.coarse for name, spread in spreads.items()})
    return result


def under(name: str) -> Any:
    """The context in which torch's operators run on that kernel."""
    return planish.enabled() if name == AFTER else switched_off()


def timed_under(
    name: str, work: Callable[[], object], warm: bool = True, queued: bool = False
) -> Timed:
    """Times the work under that kernel."""
    clock = "cpu" if torch.get_num_threads() == 1 else None
    timed = gpu.queued(work) if queued else loop(work, warm, clock)

    def run(count: int) -> float:
        with under(name):
            return timed(count)

    return run


def by_turns(works: dict[str, Timed], effort: Effort) -> dict[str, Sample]:
    """Until it is known how the two compare, or the effort's patience is over."""
    return interleave(works, effort, settled=ratio_settled(BEFORE, AFTER), alike=True)


def examine(call: NormCall) -> NormReport:
    """Checks and times one norm."""
    found = {}
    for name in KERNELS:
        with under(name):
            found[name] = run_norm(call)
    shape, weight, bias = call.normalized_shape, call.weight, call.bias
    queued = call.x.is_cuda

    def forward() -> object:
        return torch.native_layer_norm(call.x, shape, weight, bias, call.eps)

    forward_samples = by_turns(
        {name: timed_under(name, forward, queued=queued) for name in KERNELS}, NORM_EFFORT
    )
    backward_samples: dict[str, Sample] = {}
    if call.dy is not None:
        operator: Any = torch.ops.aten.native_layer_norm_backward.default
        mask = [True, weight is not None, bias is not None]
        _, mean, rstd = torch.native_layer_norm(call.x, shape, weight, bias, call.eps)

        def backward() -> object:
            return operator(call.dy, call.x, shape, mean, rstd, weight, bias, mask)

        backward_samples = by_turns(
            {name: timed_under(name, backward, queued=queued) for name in KERNELS}, NORM_EFFORT
        )
    return NormReport(call, forward_samples, backward_samples, errors(call, found))


def _note(losses: dict[str, float], name: str, work: Callable[[], float]) -> None:
    losses[name] = work()


def time_steps(workload: Workload, screen: Screen, seconds: float) -> list[StepReport]:
    """Times the forward step and the training step, before and after by turns; each has half of the
    seconds."""
    reports = []
    effort = replace(STEP_EFFORT, case_seconds=seconds / 2 / STEP_EFFORT.patience)
    for step, work in (
        ("forward", workload.forward_step),
        ("training step", workload.training_step),
    ):
        done = screen.doing(f"{step}s by turns, torch and planish")
        losses: dict[str, float] = {}
        samples = by_turns(
            {
                name: timed_under(name, partial(_note, losses, name, work), False)
                for name in KERNELS
            },
            effort,
        )
        done()
        reports.append(StepReport(workload.name, step, samples, losses))
    return reports


def print_norms(screen: Screen, reports: Sequence[NormReport]) -> None:
    """The table of norms."""
    times = f"{'torch':>10}{'planish':>11}{'':>10}"
    errors = "".join(f"{key:>15}" for key in OUTPUTS)
    head = f"  {'norm':24}{'dtype':>6}{'calls':>6} |{'forward, us':>21}{'':>10}"
    head += f" |{'backward, us':>21}{'':>10} |{'largest error in ULP, torch / planish':>60}"
    screen.say(screen.paint(head, "1"))
    screen.say(f"  {'':36} |{times} |{times} |{errors}")
    for report in reports:
        line = f"  {report.call.shape:24}{report.call.dtype:>6}{report.call.calls:>6}"
        for samples in (report.forward, report.backward):
            if samples:
                noise = ratio(samples[BEFORE], samples[AFTER]).noisy
                before, after = (
                    "-" if noise else f"{samples[name].median * 1e6:.0f}" for name in KERNELS
                )
                line += f" |{before:>10}{after:>11} {screen.times(samples)}"
            else:
                line += f" |{'-':>10}{'-':>11}{'':>10}"
        line += " |"
        for key in OUTPUTS:
            old, new = report.ulp[BEFORE].get(key), report.ulp[AFTER].get(key)
            text = "-" if old is None or new is None else f"{old:.3g} / {new:.3g}"
            broken = new is not None and not new <= BOUND_ULP
            line += screen.paint(f"{text:>15}", "31;1" if broken else "0")
        screen.say(line)
    screen.say(screen.paint(BOUND_TEXT, "2"))


def print_steps(screen: Screen, reports: Sequence[StepReport]) -> None:
    """The whole steps."""
    for report in reports:
        before, after = (report.samples[name] for name in (BEFORE, AFTER))
        if ratio(before, after).noisy:
            times = f"{screen.times(report.samples)}: other work had the cores (--threads 1 helps)"
        else:
            times = (
                f"{before.median * 1e3:8.1f} ms -> {after.median * 1e3:8.1f} ms "
                f"{screen.times(report.samples)}   (quartiles within "
                f"{50 * max(before.spread, after.spread):.1f}%)"
            )
        losses = f"loss {report.losses[BEFORE]:.6f} -> {report.losses[AFTER]:.6f}"
        screen.say(f"  {report.step:14} {times}   {losses}")


def broken_bounds(reports: Sequence[NormReport]) -> list[str]:
    """Every output of planish that is further from f64 than the bound."""
    return [
        f"{report.call.shape} {report.call.dtype}: {key} is {value:.2f} ULP off, "
        f"at most {BOUND_ULP:g} allowed"
        for report in reports
        for key, value in report.ulp[AFTER].items()
        if not value <= BOUND_ULP
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo."""
    parser = argparse.ArgumentParser(prog="planish demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default_device())
    parser.add_argument("--dtype", choices=DTYPES, help="by default f32, on a GPU bf16")
    parser.add_argument(
        "--models",
        help="comma-separated: bert, bert-large, convnext; by default bert,convnext, on a GPU "
        "bert-large,convnext",
    )
    parser.add_argument("--variant", default="convnext_base", help="which of timm's ConvNeXts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--small", action="store_true", help="small inputs: a look in seconds")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    gpu = arguments.device == "cuda"
    dtype = arguments.dtype or ("bf16" if gpu else "f32")
    place: dict[str, Any] = {"device": arguments.device, "dtype": DTYPES[dtype]}
    screen = Screen()
    begin = time.perf_counter()
    about = describe()
    screen.say(screen.paint("planish demo", "1"))
    screen.say(
        f"  {about['cpu']} ({', '.join(about['isa'])}), {about['threads']} threads, "
        f"torch {torch.__version__}, load {about['load_1m_5m_15m'][0]}"
    )
    if gpu:
        screen.say(f"  {torch.cuda.get_device_name()}")
    tokens = (1, 32) if arguments.small else (32, 512) if gpu else (4, 128)
    images = (1, 64) if arguments.small else (128 if gpu else 2, 224)
    makers: dict[str, Callable[[], Workload]] = {
        "bert": lambda: bert_base(*tokens, **place),
        "bert-large": lambda: bert_base(*tokens, **place, large=True),
        "convnext": lambda: convnext(arguments.variant, *images, **place),
    }
    norms: dict[str, list[NormReport]] = {}
    steps: list[StepReport] = []
    models = arguments.models or ("bert-large,convnext" if gpu else "bert,convnext")
    names = models.split(",")
    for key in names:
        screen.say()
        if key not in makers:
            parser.error(f"--models: {key!r} is none of {', '.join(makers)}")
        done = screen.doing(f"building {key}")
        workload = makers[key]()
        done()
        screen.say(
            screen.paint(f"  {workload.name}, {workload.shape}, {dtype}, seeded weights", "1")
        )
        done = screen.doing("one training step, to collect its norms with their real operands")
        calls = collect_norms(workload)
        done()
        reports = []
        for i, call in enumerate(calls, start=1):
            done = screen.doing(f"norm {i} of {len(calls)}: check and time")
            reports.append(examine(call))
            done()
        norms[workload.name] = reports
        print_norms(screen, reports)
        found = time_steps(workload, screen, STEPS_SECONDS / len(names))
        print_steps(screen, found)
        steps += found
        del workload, calls
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "demo.png"
    try:
        draw(picture, norms, steps, about)
    except ModuleNotFoundError as error:
        screen.say(f"  no picture: {error}")
    return conclude(screen, norms, picture, time.perf_counter() - begin)


def print_stats(screen: Screen) -> bool:
    """What planish.stats() counted; whether planish ran any norm."""
    ran = False
    for operator, counts in planish.stats().items():
        handed_on = sum(counts["torch"].values())
        if not counts["planish"] and not handed_on:
            continue
        ran = ran or counts["planish"] > 0
        reasons = "".join(f"; to torch {n}: {reason}" for reason, n in counts["torch"].items())
        screen.say(f"  planish.stats(): {operator}: {counts['planish']} calls on planish{reasons}")
    return ran


def conclude(
    screen: Screen, norms: dict[str, list[NormReport]], picture: Path, seconds: float
) -> int:
    """Says what was counted and whether all bounds hold; the exit status."""
    screen.say()
    ran = print_stats(screen)
    broken = [line for reports in norms.values() for line in broken_bounds(reports)]
    for line in broken:
        screen.say(screen.paint(f"  out of bounds: {line}", "31;1"))
    count = sum(len(reports) for reports in norms.values())
    if not broken:
        screen.say(
            screen.paint(
                f"  all outputs and gradients of {count} norms are within {BOUND_ULP:g} ULP of f64",
                "32",
            )
        )
    screen.say(f"  {seconds:.0f} s; picture: {picture}")
    if not ran:
        screen.say(screen.paint("  planish ran no norm: everything went to torch", "31;1"))
    return 1 if broken or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
