"""The sweep `model`: whole forward and training steps, torch as it is and with planish enabled.

On a GPU also what share of the time the norms take, and the losses of some steps of training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..models import Workload, bert_base, convnext
from .case import DTYPES
from .providers.base import Provider
from .timing import Effort, interleave, loop


@dataclass(frozen=True)
class ModelResult:
    """The time of one kind of step of one model under one provider."""

    work: str
    direction: str
    provider: str
    status: str
    reason: str
    milliseconds: float | None = None
    milliseconds_q1: float | None = None
    milliseconds_q3: float | None = None
    trials: int = 0
    loss: float | None = None
    items_per_s: float | None = None  # images or sequences
    norm_share: float | None = None  # of the GPU's busy time


@dataclass(frozen=True)
class Loss:
    """The loss of one step of the same training under torch and under planish."""

    work: str
    step: int
    torch: float
    planish: float


def ways(providers: Sequence[Provider]) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """How a step is run under each of the providers that mean something for a whole model."""
    from .providers.planish_torch import enabled

    names = {provider.name for provider in providers if provider.missing() is None}
    chosen: dict[str, Callable[[], AbstractContextManager[object]]] = {}
    if "torch-kept" in names or "torch" in names:
        chosen["torch"] = contextlib.nullcontext
    if "planish-torch-kept" in names or "planish-torch" in names:
        chosen["planish-torch"] = enabled
    return chosen


def title(workload: Workload) -> str:
    """The model, its batch and its dtype where that is not f32."""
    dtype = next(workload.model.parameters()).dtype
    name = next(name for name, found in DTYPES.items() if found == dtype)
    return f"{workload.name}, {workload.shape}" + ("" if name == "f32" else f", {name}")


def run_workload(
    workload: Workload, providers: Sequence[Provider], effort: Effort
) -> list[ModelResult]:
    """Measures both steps of a workload under each provider, by turns."""
    results = []
    contexts = ways(providers)
    gpu = next(workload.model.parameters()).is_cuda
    steps = (("forward", workload.forward_step), ("training step", workload.training_step))
    for direction, step in steps:
        losses: dict[str, float] = {}
        works = {
            name: loop(partial(_once, step, enter, losses, name), warm=False)
            for name, enter in contexts.items()
        }
        for name, sample in interleave(works, effort).items():
            q1, q3 = sample.quartiles
            share = norm_share(step, contexts[name]) if gpu else None
            result = ModelResult(
                title(workload), direction, name, "ok", "",
                sample.median * 1e3, q1 * 1e3, q3 * 1e3, len(sample.seconds), losses[name],
                workload.batch / sample.median, share,
            )  # fmt: skip
            results.append(result)
            print(
                f"{result.work:48} {direction:14} {name:14} {sample.median * 1e3:9.1f} ms"
                f"  +-{50 * sample.spread:.1f}%  loss {losses[name]:.6f}"
                f"  {workload.batch / sample.median:.0f}/s"
                + ("" if share is None else f", norms {share:.1%}"),
                flush=True,
            )
    return results


NORM_KERNELS = (
    "layer_norm", "layernorm", "group_norm", "groupnorm", "gammabeta", "rowwisemoments",
    "computeinternalgradients", "planish",
)  # fmt: skip


def norm_share(
    step: Callable[[], float], enter: Callable[[], AbstractContextManager[object]]
) -> float:
    """The share of one step's time on the GPU that is spent in kernels of norms, by their names."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with enter(), torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    all_time = norm_time = 0.0
    for event in profile.key_averages():
        all_time += event.self_device_time_total
        if any(part in event.key.lower() for part in NORM_KERNELS):
            norm_time += event.self_device_time_total
    return norm_time / all_time if all_time else 0.0


def losses_side_by_side(
    make: Callable[[], Workload],
    contexts: dict[str, Callable[[], AbstractContextManager[object]]],
    steps: int,
    rate: float = 1e-3,
) -> list[Loss]:
    """Trains the same model from the same seed under each, and pairs up the losses."""
    found: dict[str, list[float]] = {}
    for name, enter in contexts.items():
        workload = make()
        for group in workload.optimizer.param_groups:
            group["lr"] = rate
        with enter():
            found[name] = [workload.training_step() for _ in range(steps)]
    return [
        Loss(title(workload), step, *pair)
        for step, pair in enumerate(zip(found["torch"], found["planish-torch"], strict=True), 1)
    ]


def _once(
    step: Callable[[], float],
    enter: Callable[[], AbstractContextManager[object]],
    losses: dict[str, float],
    name: str,
) -> None:
    with enter():
        losses[name] = step()


def makers_of(quick: bool, device: str, dtypes: Sequence[str]) -> list[Callable[[], Workload]]:
    """BERT-base and ConvNeXt on the CPU, BERT-large and ConvNeXt-base on a GPU; small batches of
    small models with ``quick``."""
    if device == "cpu" and not quick:
        return [lambda: bert_base(4, 128), lambda: convnext("convnext_base", 2)]
    if device == "cpu":
        return [lambda: bert_base(1, 64), lambda: convnext("convnext_tiny", 1, 128)]
    made: list[Callable[[], Workload]] = []
    for name in dtypes or ("f16", "bf16"):
        place: dict[str, Any] = {"device": device, "dtype": DTYPES[name]}
        if quick:
            made += [partial(bert_base, 8, 128, **place)]
            made += [partial(convnext, "convnext_tiny", 16, 128, **place)]
        else:
            made += [partial(bert_base, 32, 512, large=True, **place)]
            made += [partial(convnext, "convnext_base", 64, **place)]
    return made


LOSS_STEPS = 50


def run_losses(providers: Sequence[Provider], quick: bool, dtypes: Sequence[str]) -> list[Loss]:
    """50 steps of training of each model on the GPU (5 with ``quick``), torch beside planish."""
    found: list[Loss] = []
    for make in makers_of(quick, "cuda", dtypes):
        losses = losses_side_by_side(make, ways(providers), 5 if quick else LOSS_STEPS)
        found += losses
        apart = max(abs(loss.torch - loss.planish) for loss in losses)
        print(
            f"{losses[0].work:48} losses of {len(losses)} steps: torch {losses[0].torch:.4f} to "
            f"{losses[-1].torch:.4f}, planish {losses[0].planish:.4f} to {losses[-1].planish:.4f}, "
            f"at most {apart:.2g} apart",
            flush=True,
        )
    return found


def run_models(
    providers: Sequence[Provider], quick: bool, device: str = "cpu", dtypes: Sequence[str] = ()
) -> list[ModelResult]:
    """Times the models of makers_of."""
    effort = Effort(3, 0.0, 8.0) if quick else Effort(9, 0.0, 120.0)
    results: list[ModelResult] = []
    for make in makers_of(quick, device, dtypes):
        try:
            workload = make()
        except ImportError as error:
            print(f"missing: a model: {error}")
            results.append(ModelResult("", "", "", "failed", str(error)))
            continue
        results += run_workload(workload, providers, effort)
    return results
