"""The sweep `model`: whole forward and training steps, torch as it is and with planish enabled.

On a GPU also what share of the time the norms take, and the losses of some steps of training.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from planish.commands.models import RESNET_NORMS, Workload, bert_base, convnext, resnet50
from planish.library.dtypes import BY_NAME

from .providers.base import Provider
from .timing import TOO_NOISY, Effort, Sample, Timed, interleave, loop, median_interval


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
    gpu_milliseconds: float | None = None  # of a step: the time its kernels take on the GPU,
    norm_share: float | None = None  # of that: norms,
    product_share: float | None = None  # and matrix products and convolutions
    noisy: bool = False  # whether the trials leave open what a step takes


@dataclass(frozen=True)
class Loss:
    """The loss of one step of the same training under torch and under planish."""

    work: str
    step: int
    torch: float
    planish: float


Way = Callable[[], AbstractContextManager[object]]


def ways(providers: Sequence[Provider]) -> dict[str, Way]:
    """How a step is run under torch and under planish."""
    from .providers.planish_torch import enabled

    names = _present(providers)
    chosen: dict[str, Way] = {}
    if "torch-kept" in names or "torch" in names:
        chosen["torch"] = contextlib.nullcontext
    if "planish-torch-kept" in names or "planish-torch" in names:
        chosen["planish-torch"] = enabled
    return chosen


def ways_of(workload: Workload, providers: Sequence[Provider]) -> dict[str, Way]:
    """Those, and on a GPU the whole model by torch.compile, and autocast that keeps half."""
    chosen = ways(providers)
    if not next(workload.model.parameters()).is_cuda:
        return chosen
    if workload.autocast and "planish-torch" in chosen:
        import planish

        chosen["planish-keep"] = partial(planish.enabled, autocast="keep")
    if "torch-compile" in _present(providers):
        chosen["torch-compile"] = compiled(workload.model)
    return chosen


def _present(providers: Sequence[Provider]) -> set[str]:
    return {provider.name for provider in providers if provider.missing() is None}


def compiled(model: torch.nn.Module) -> Way:
    """A block in which calls of the model are torch.compile's. Compiled once, at the first call."""
    compiled_call = torch.compile(model._call_impl)

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        model._compiled_call_impl = compiled_call  # what Module.__call__ looks for
        try:
            yield
        finally:
            model._compiled_call_impl = None

    return block


def title(workload: Workload) -> str:
    """The model, its batch and its dtype where that is not f32."""
    dtype = next(workload.model.parameters()).dtype
    name = next(name for name, found in BY_NAME.items() if found == dtype)
    if workload.autocast:
        name = "autocast f16"
    return f"{workload.name}, {workload.shape}" + ("" if name == "f32" else f", {name}")


def with_modules(make: Callable[[], Workload], providers: Sequence[Provider]) -> Workload | None:
    """The workload with planish's modules in place of those over channels, whose results under
    torch are NCHW whatever they get; None where it has none."""
    if "planish-torch" not in _present(providers):
        return None
    import planish

    workload = make()
    planish.replace(workload.model)
    ours = (planish.GroupNorm, planish.LayerNorm2d)
    return workload if any(isinstance(m, ours) for m in workload.model.modules()) else None


Step = Callable[[], torch.Tensor]


def captured(step: Step, enter: Way) -> Step:
    """The step as one CUDA graph, captured after some that are not. A replay does all that the step
    does on the GPU and asks next to nothing of the host."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with enter():
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


def with_captured(steps: dict[str, tuple[Step, Way]]) -> dict[str, tuple[Step, Way]]:
    """Those steps, and each of them as a CUDA graph; one that cannot be captured is named."""
    found = dict(steps)
    for name, (step, enter) in steps.items():
        if name in ("torch", "planish-torch", "planish-modules"):
            try:
                found[f"{name}-graph"] = captured(step, enter), contextlib.nullcontext
            except RuntimeError as error:
                print(f"missing: {name}-graph: {error}", flush=True)
    return found


def run_workload(
    make: Callable[[], Workload], providers: Sequence[Provider], effort: Effort
) -> list[ModelResult]:
    """Measures both steps of a workload under each provider, by turns."""
    results = []
    workload = make()
    gpu = next(workload.model.parameters()).is_cuda
    replaced = with_modules(make, providers) if gpu else None
    ways_taken = {name: (workload, enter) for name, enter in ways_of(workload, providers).items()}
    if replaced is not None:
        ways_taken["planish-modules"] = replaced, ways(providers)["planish-torch"]
    for direction in ("forward", "training step"):
        losses: dict[str, float] = {}
        steps = {
            name: (which.infer if direction == "forward" else which.train, enter)
            for name, (which, enter) in ways_taken.items()
        }
        if gpu:
            steps = with_captured(steps)
        works = {
            name: _timed(step, enter, losses, name, warm=gpu)
            for name, (step, enter) in steps.items()
        }
        for name, sample in interleave(works, effort).items():
            q1, q3 = sample.quartiles
            busy, norms, products = gpu_busy(*steps[name]) if gpu else (None, None, None)
            result = ModelResult(
                title(workload), direction, name, "ok", "",
                sample.median * 1e3, q1 * 1e3, q3 * 1e3, len(sample.seconds), losses[name],
                workload.batch / sample.median, busy, norms, products, sample.noisy,
            )  # fmt: skip
            results.append(result)
            print(
                f"{result.work:48} {direction:14} {name:14} {took(sample, workload.batch)}"
                f"  loss {losses[name]:.6f}"
                + (
                    f", {busy:.1f} ms on the GPU: norms {norms:.1%}, products {products:.1%}"
                    if gpu
                    else ""
                ),
                flush=True,
            )
    return results


def took(sample: Sample, items: int) -> str:
    """The time of a step as it is printed."""
    if sample.noisy:
        low, high = median_interval(sample.seconds)
        return f"{TOO_NOISY}: {low * 1e3:.1f} to {high * 1e3:.1f} ms"
    return (
        f"{sample.median * 1e3:9.1f} ms  +-{50 * sample.spread:.1f}%  {items / sample.median:.0f}/s"
    )


NORM_KERNELS = (
    "layer_norm", "layernorm", "group_norm", "groupnorm", "batch_norm", "batchnorm", "bn_fw",
    "bn_bw", "gammabeta", "rowwisemoments", "computeinternalgradients", "planish",
)  # fmt: skip
PRODUCT_KERNELS = (
    "gemm", "conv", "cudnn", "cutlass", "xmma", "nvjet", "dgrad", "wgrad", "attention", "flash",
    "fmha",
)  # fmt: skip


def gpu_busy(step: Callable[[], object], enter: Way) -> tuple[float, float, float]:
    """The milliseconds that one step's kernels take on the GPU, whatever the host does meanwhile,
    and the shares of them that are spent in kernels of norms, and in those of matrix products and
    convolutions, by their names."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with enter(), torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    total = norms = products = 0.0
    for event in profile.key_averages():
        spent, name = event.self_device_time_total, event.key.lower()
        total += spent
        if any(part in name for part in NORM_KERNELS):
            norms += spent
        elif any(part in name for part in PRODUCT_KERNELS):
            products += spent
    return (total / 1e3, norms / total, products / total) if total else (0.0, 0.0, 0.0)


def losses_side_by_side(
    make: Callable[[], Workload],
    contexts: dict[str, Way],
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


def _timed(step: Step, enter: Way, losses: dict[str, float], name: str, warm: bool) -> Timed:
    """Times steps that follow each other as in training: nothing waits for a loss but the last."""

    def run(count: int) -> None:
        for _ in range(count):
            loss = step()
        losses[name] = float(loss)

    def timed(count: int) -> float:
        with enter():
            if warm:
                run(1)
            seconds = loop(lambda: run(count), warm=False)(1)
            return (
                float(seconds) if warm else seconds
            )  # a thread that waits for a GPU needs no core

    return timed


Makers = dict[str, Callable[[], Workload]]


def makers_of(quick: bool, device: str, dtypes: Sequence[str]) -> Makers:
    """The models, by a short name: BERT-base and ConvNeXt on the CPU; on a GPU BERT-large,
    ConvNeXt-base and a ResNet-50 with each kind of norm, in both layouts, of half and by autocast.
    With ``quick``, small batches of small models."""
    if device == "cpu" and not quick:
        return {"bert": partial(bert_base, 4, 128), "convnext": partial(convnext, batch=2)}
    if device == "cpu":
        tiny = partial(convnext, "convnext_tiny", 1, 128)
        return {"bert": partial(bert_base, 1, 64), "convnext": tiny}
    made: Makers = {}
    for name in dtypes or ("f16", "bf16"):
        place: dict[str, Any] = {"device": device, "dtype": BY_NAME[name]}
        if quick:
            made[f"bert-{name}"] = partial(bert_base, 8, 128, **place)
            made[f"convnext-{name}"] = partial(convnext, "convnext_tiny", 16, 128, **place)
        else:
            made[f"bert-{name}"] = partial(bert_base, 32, 512, large=True, **place)
            made[f"convnext-{name}"] = partial(convnext, batch=64, **place)
    return made if quick else made | image_makers(device)


def image_makers(device: str) -> Makers:
    """ConvNeXt-base and the ResNets at batch 64, but for what makers_of has by itself."""
    made: Makers = {}
    for autocast, layout in itertools.product((False, True), ("nhwc", "nchw")):
        held = f"{'autocast' if autocast else 'f16'}-{layout}"
        place: dict[str, Any] = {
            "device": device,
            "dtype": torch.float16,
            "autocast": autocast,
            "channels_last": layout == "nhwc",
        }
        if held != "f16-nhwc":
            made[f"convnext-{held}"] = partial(convnext, batch=64, **place)
        for norm in RESNET_NORMS:
            made[f"resnet-{norm}-{held}"] = partial(resnet50, norm, **place)
    return made


def chosen(makers: Makers, only: str) -> Makers:
    """Those whose name has one of these words, between commas, in it."""
    found = {name: make for name, make in makers.items() if any(o in name for o in only.split(","))}
    if not found:
        raise ValueError(f"planish bench model: --only {only!r} is in none of {', '.join(makers)}")
    return found


LOSS_STEPS = 50
#: GroupNorm in training, beside the models of makers_of.
LOSS_MODELS = ("bert", "convnext-f16", "convnext-bf16", "resnet-group-f16")


def run_losses(
    providers: Sequence[Provider], quick: bool, dtypes: Sequence[str], only: str = ""
) -> list[Loss]:
    """50 steps of training of each model on the GPU (5 with ``quick``), torch beside planish."""
    found: list[Loss] = []
    for name, make in chosen(makers_of(quick, "cuda", dtypes), only).items():
        if not any(name.startswith(wanted) and "nchw" not in name for wanted in LOSS_MODELS):
            continue
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
    providers: Sequence[Provider],
    quick: bool,
    device: str = "cpu",
    dtypes: Sequence[str] = (),
    only: str = "",
) -> list[ModelResult]:
    """Times the models of makers_of."""
    trial_seconds = 0.0 if device == "cpu" else 0.3  # a step of a CPU takes seconds
    effort = Effort(3, 0.0, 8.0) if quick else Effort(9, trial_seconds, 120.0)
    results: list[ModelResult] = []
    for make in chosen(makers_of(quick, device, dtypes), only).values():
        try:
            results += run_workload(make, providers, effort)
        except ImportError as error:
            print(f"missing: a model: {error}")
            results.append(ModelResult("", "", "", "failed", str(error)))
    return results
