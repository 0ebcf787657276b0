"""`planish model`, the demo: puts planish under real models, checks every norm against f64, times
before and after.

`make demo` runs it; its options are in command_lines.py. It prints a table for each model, writes
demo-out/demo.png, and ends with status 1 if a result is out of bounds or planish did not run. It is
done within three minutes: what a busy machine leaves no time to measure is left out and named
(demo_time.py).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import planish
import torch
from planish._torchvision import mend_torchvision
from planish.bench import gpu
from planish.bench.accuracy import compare
from planish.bench.case import Case, Data
from planish.bench.machine import describe
from planish.bench.providers.planish_torch import switched_off
from planish.bench.timing import (
    Effort,
    OutOfTimeError,
    Sample,
    Timed,
    interleave,
    loop,
    ratio_settled,
)
from planish.commands import command_lines
from planish.commands.command_lines import UsageError, check_device, words
from planish.commands.models import NormCall, Workload, bert_base, collect_norms, convnext
from planish.demo.picture import AFTER, BEFORE, NormReport, StepReport, draw
from planish.demo.screen import BOUND_ULP, KERNELS, Screen, print_norms, print_stats, print_steps
from planish.demo.time import MODEL_SECONDS, NORMS_SHARE, Budget
from planish.library.dtypes import BY_NAME
from planish.library.loaded import library

NORM_EFFORT = Effort(trials=9, trial_seconds=0.01, case_seconds=1.5, patience=2.0)
STEP_EFFORT = Effort(trials=5, trial_seconds=0.0, case_seconds=35.0, patience=2.0)


def default_device() -> str:
    """A GPU where planish can use one."""
    there = torch.cuda.is_available() and torch.version.cuda
    return "cuda" if there and not library().cuda_is_missing() else "cpu"


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


def by_turns(
    works: dict[str, Timed], effort: Effort, budget: Budget, until: float, what: str
) -> dict[str, Sample]:
    """Until it is known how the two compare, or the effort's patience is over; nothing where the
    time was over before."""
    seconds = min(effort.case_seconds, budget.left(until) / effort.patience)
    settled = ratio_settled(BEFORE, AFTER)
    try:
        return interleave(
            works, replace(effort, case_seconds=seconds), budget.clock, settled, True, until
        )
    except OutOfTimeError:
        budget.leave_out(what)
        return {}


def examine(call: NormCall, budget: Budget, until: float) -> NormReport:
    """Checks one norm, and times it until then."""
    found = {}
    for name in KERNELS:
        with under(name):
            found[name] = run_norm(call)
    shape, weight, bias = call.normalized_shape, call.weight, call.bias
    queued = call.x.is_cuda

    def forward() -> object:
        return torch.native_layer_norm(call.x, shape, weight, bias, call.eps)

    forward_samples = by_turns(
        {name: timed_under(name, forward, queued=queued) for name in KERNELS},
        NORM_EFFORT,
        budget,
        budget.part(1 if call.dy is None else 2, until),
        f"the time of norm {call.shape}, forward",
    )
    backward_samples: dict[str, Sample] = {}
    if call.dy is not None:
        operator: Any = torch.ops.aten.native_layer_norm_backward.default
        mask = [True, weight is not None, bias is not None]
        _, mean, rstd = torch.native_layer_norm(call.x, shape, weight, bias, call.eps)

        def backward() -> object:
            return operator(call.dy, call.x, shape, mean, rstd, weight, bias, mask)

        backward_samples = by_turns(
            {name: timed_under(name, backward, queued=queued) for name in KERNELS},
            NORM_EFFORT,
            budget,
            until,
            f"the time of norm {call.shape}, backward",
        )
    return NormReport(call, forward_samples, backward_samples, errors(call, found))


def _note(losses: dict[str, float], name: str, work: Callable[[], float]) -> None:
    losses[name] = work()


def time_steps(
    workload: Workload, screen: Screen, budget: Budget, until: float
) -> list[StepReport]:
    """Times the forward step and the training step, before and after by turns; each has half of the
    time until then, and the second what the first did not need."""
    reports = []
    for shares, step, work in (
        (2, "forward", workload.forward_step),
        (1, "training step", workload.training_step),
    ):
        done = screen.doing(f"{step}s by turns, torch and planish")
        losses: dict[str, float] = {}
        samples = by_turns(
            {
                name: timed_under(name, partial(_note, losses, name, work), False)
                for name in KERNELS
            },
            STEP_EFFORT,
            budget,
            budget.part(shares, until),
            f"{workload.name}: the {step}",
        )
        done()
        if samples:
            reports.append(StepReport(workload.name, step, samples, losses))
    return reports


def broken_bounds(reports: Sequence[NormReport]) -> list[str]:
    """Every output of planish that is further from f64 than the bound."""
    return [
        f"{report.call.shape} {report.call.dtype}: {key} is {value:.2f} ULP off, "
        f"at most {BOUND_ULP:g} allowed"
        for report in reports
        for key, value in report.ulp[AFTER].items()
        if not value <= BOUND_ULP
    ]


#: Of whose library each model is.
_LIBRARIES = {"bert": "transformers", "bert-large": "transformers", "convnext": "timm"}


def _models(arguments: argparse.Namespace) -> list[str]:
    """The models asked for, and the device filled in; UsageError where there is no such thing."""
    arguments.device = arguments.device or default_device()
    check_device(arguments.device)
    usual = "bert-large,convnext" if arguments.device == "cuda" else "bert,convnext"
    names = words(arguments.models or usual, list(_LIBRARIES), "--models")
    mend_torchvision()
    for key in names:
        importlib.import_module(_LIBRARIES[key])  # the command says what is missing
    if "convnext" in names:
        import timm

        known = timm.list_models("convnext*")
        if arguments.variant not in known:
            raise UsageError(f"--variant: {arguments.variant!r} is none of {', '.join(known)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo."""
    arguments = command_lines.parse("model", argv)
    names = _models(arguments)
    torch.set_num_threads(arguments.threads)
    gpu = arguments.device == "cuda"
    dtype = arguments.dtype or ("bf16" if gpu else "f32")
    place: dict[str, Any] = {"device": arguments.device, "dtype": BY_NAME[dtype]}
    screen = Screen()
    budget = Budget(arguments.seconds)
    about = describe()
    screen.say(screen.paint("planish model", "1"))
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
    for number, key in enumerate(names):
        screen.say()
        if budget.left() < MODEL_SECONDS:
            budget.leave_out(f"{key}: all of it")
            continue
        until = budget.part(len(names) - number)
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
        norms_until = budget.clock() + NORMS_SHARE * budget.left(until)
        for i, call in enumerate(calls, start=1):
            done = screen.doing(f"norm {i} of {len(calls)}: check and time")
            reports.append(examine(call, budget, budget.part(len(calls) - i + 1, norms_until)))
            done()
        norms[workload.name] = reports
        print_norms(screen, reports)
        found = time_steps(workload, screen, budget, until)
        print_steps(screen, found)
        steps += found
        del workload, calls
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "demo.png"
    try:
        if norms:
            draw(picture, norms, steps, about)
    except ModuleNotFoundError as error:
        screen.say(f"  no picture: {error}")
    return conclude(screen, norms, picture, budget)


def conclude(
    screen: Screen, norms: dict[str, list[NormReport]], picture: Path, budget: Budget
) -> int:
    """Says what was counted, what was left out and whether all bounds hold; the exit status."""
    screen.say()
    ran = print_stats(screen)
    broken = [line for reports in norms.values() for line in broken_bounds(reports)]
    for line in broken:
        screen.say(screen.paint(f"  out of bounds: {line}", "31;1"))
    count = sum(len(reports) for reports in norms.values())
    if count and not broken:
        screen.say(
            screen.paint(
                f"  all outputs and gradients of {count} norms are within {BOUND_ULP:g} ULP of f64",
                "32",
            )
        )
    for what in budget.left_out:
        screen.say(f"  left out, as no time was left for it (--seconds): {what}")
    screen.say(f"  {budget.used:.0f} s; picture: {picture if picture.exists() else 'none'}")
    if not count:
        screen.say(screen.paint("  no norm was checked", "31;1"))
    elif not ran:
        screen.say(screen.paint("  planish ran no norm: everything went to torch", "31;1"))
    return 1 if broken or not count or not ran else 0
