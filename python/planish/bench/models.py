"""The sweep `model`: whole forward and training steps, torch as it is and with planish enabled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from ..models import Workload, bert_base, convnext
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


def run_workload(
    workload: Workload, providers: Sequence[Provider], effort: Effort
) -> list[ModelResult]:
    """Measures both steps of a workload under each provider, by turns."""
    results = []
    contexts = ways(providers)
    steps = (("forward", workload.forward_step), ("training step", workload.training_step))
    for direction, step in steps:
        losses: dict[str, float] = {}
        works = {
            name: loop(partial(_once, step, enter, losses, name), warm=False)
            for name, enter in contexts.items()
        }
        for name, sample in interleave(works, effort).items():
            q1, q3 = sample.quartiles
            result = ModelResult(
                f"{workload.name}, {workload.shape}", direction, name, "ok", "",
                sample.median * 1e3, q1 * 1e3, q3 * 1e3, len(sample.seconds), losses[name],
            )  # fmt: skip
            results.append(result)
            print(
                f"{result.work:48} {direction:14} {name:14} {sample.median * 1e3:9.1f} ms"
                f"  +-{50 * sample.spread:.1f}%  loss {losses[name]:.6f}",
                flush=True,
            )
    return results


def _once(
    step: Callable[[], float],
    enter: Callable[[], AbstractContextManager[object]],
    losses: dict[str, float],
    name: str,
) -> None:
    with enter():
        losses[name] = step()


def run_models(providers: Sequence[Provider], quick: bool) -> list[ModelResult]:
    """BERT-base and ConvNeXt; small batches of small models with ``quick``."""
    makers: Sequence[Callable[[], Workload]] = (
        [lambda: bert_base(1, 64), lambda: convnext("convnext_tiny", 1, 128)]
        if quick
        else [lambda: bert_base(4, 128), lambda: convnext("convnext_base", 2)]
    )
    effort = Effort(3, 0.0, 8.0) if quick else Effort(9, 0.0, 120.0)
    results: list[ModelResult] = []
    for make in makers:
        try:
            workload = make()
        except ImportError as error:
            print(f"missing: a model: {error}")
            results.append(ModelResult("", "", "", "failed", str(error)))
            continue
        results += run_workload(workload, providers, effort)
    return results
