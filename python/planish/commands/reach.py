"""Counts a model's norm calls: which ran on planish, which did not, why, and how long they took.

What a norm is, is told by names here and not by what planish knows: a module whose class is called
one and that has no norm inside, and torch's functions outside of such modules. Not counted: plain
Lp norms of vectors and what is made of them (GlobalResponseNorm), of which planish has none, and
weight norm, a parametrization, which enable() takes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

import planish
import torch
from planish.bench.timing import LEAST_ON_CORE, NOISE_LIMIT, TOO_NOISY, median_interval
from planish.commands.command_lines import MODES
from planish.replacing import families, swapped
from torch import nn

__all__ = ["MODES", "Calls", "Reach", "apply", "look"]

#: Norms that planish has not; their calls are counted apart.
_FOREIGN = ("LpNorm", "GlobalResponseNorm", "LocalResponseNorm")
#: And what is none, for all its name.
_NOT_COUNTED = (*_FOREIGN, "WeightNorm", "NoNorm")
_FUNCTIONS: dict[Any, str] = {
    getattr(place, name): f"{word}.{name}"
    for place, word in ((functional, "F"), (torch, "torch"))
    for name in ("layer_norm", "group_norm", "rms_norm", "instance_norm", "batch_norm")
    if hasattr(place, name)
}
_FORWARD = (
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "native_batch_norm",
    "cudnn_batch_norm",
    "batch_norm_elemt",
    "planish::batch_norm",
    "planish::norm_forward",
    "planish::norm_forward (stages)",
    "planish::norm_statistics",
    "planish::norm_apply",
    "planish::norm_part_apply",
    "planish::norm_pair",
    "planish::quantized_norm",
)


@dataclasses.dataclass
class Calls:
    """The calls of one class."""

    on_planish: int = 0
    seconds: float = 0.0
    #: Reason -> calls that did not run on planish.
    elsewhere: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @property
    def calls(self) -> int:
        """All of them."""
        return self.on_planish + sum(self.elsewhere.values())


#: Shares of a time that are this near each other are alike, however small they are.
ALIKE = 0.02
#: How many times as many rounds there are at most where they differ.
PATIENCE = 3


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of a time, one value for each round."""

    values: tuple[float, ...]
    starved: bool = False  # other work had the core for too much of the time

    @property
    def noisy(self) -> bool:
        """Whether the rounds leave open what it is; one or two do."""
        if self.starved or len(self.values) < 3:
            return True
        low, high = median_interval(self.values)
        return high - low > ALIKE and high > NOISE_LIMIT * low

    def __str__(self) -> str:
        return TOO_NOISY if self.noisy else f"{statistics.median(self.values):.0%}"


@dataclasses.dataclass(frozen=True)
class Round:
    """The times of one step: of all of it, of the norms of each class, and the share of it in which
    the calling thread had a core (1 where it waits for a GPU)."""

    seconds: float
    classes: dict[str, float]
    on_core: float = 1.0


@dataclasses.dataclass
class Reach:
    """The norms of one step of a model."""

    classes: dict[str, Calls]
    step_seconds: float
    rounds: list[Round] = dataclasses.field(default_factory=list)
    #: Class -> calls of norms that planish has not, such as LocalResponseNorm: in no other figure.
    foreign: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @property
    def calls(self) -> int:
        """All norm calls."""
        return sum(one.calls for one in self.classes.values())

    @property
    def on_planish(self) -> int:
        """Norm calls that ran on planish."""
        return sum(one.on_planish for one in self.classes.values())

    @property
    def seconds(self) -> float:
        """Time inside norms."""
        return sum(one.seconds for one in self.classes.values())

    @property
    def norm_share(self) -> Share:
        """What norms take of the step."""
        shares = [sum(r.classes.values()) / r.seconds for r in self.rounds if r.seconds]
        return Share(tuple(shares), self._starved)

    def class_share(self, name: str) -> Share:
        """What one class takes of the time of all norms."""
        sums = [(r.classes.get(name, 0.0), sum(r.classes.values())) for r in self.rounds]
        return Share(tuple(mine / every for mine, every in sums if every), self._starved)

    @property
    def _starved(self) -> bool:
        shares = [one.on_core for one in self.rounds]
        return bool(shares) and statistics.median(shares) < LEAST_ON_CORE


def apply(
    mode: str, model: nn.Module, activations: bool = False, fuse: bool = False
) -> contextlib.AbstractContextManager[Any]:
    """Does what ``mode`` says to the model; the context is for its calls."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; known are {', '.join(MODES)}")
    if mode != "enable":
        planish.replace(model, activations=activations, fuse=fuse)
    return contextlib.nullcontext() if mode == "replace" else planish.enabled()


def _is_called_norm(cls: type[nn.Module]) -> bool:
    name = cls.__qualname__.rpartition(".")[2]
    if any(word in name for word in _NOT_COUNTED):
        return False
    return "norm" in name.lower() or "StdConv" in name


def _is_foreign(module: nn.Module) -> bool:
    """Whether it is one of the norms that planish has not, and not made of another such."""

    def named(one: nn.Module) -> bool:
        return any(word in type(one).__qualname__.rpartition(".")[2] for word in _FOREIGN)

    return named(module) and not any(map(named, module.children()))


def _is_norm(module: nn.Module) -> bool:
    if not _is_called_norm(swapped.original_class(module)):
        return False
    children = [child for child in module._modules.values() if child is not None]
    return not any(
        _is_called_norm(swapped.original_class(child)) or any(True for _ in child.parameters())
        for child in children
    )


def _counts() -> tuple[int, collections.Counter[str]]:
    """Forward calls on planish, and handed to torch, by reason."""
    stats = planish.stats()
    here = sum(stats[name]["planish"] for name in _FORWARD)
    there: collections.Counter[str] = collections.Counter()
    for name in _FORWARD:
        there.update(stats[name]["torch"])
    return here, there


class _Watch(TorchFunctionMode):
    """Norms called as functions, where no module that is a norm is at work."""

    def __init__(
        self, note: Callable[[str, Any, Callable[[], Any]], Any], busy: Callable[[], bool]
    ):
        super().__init__()
        self.note, self.busy = note, busy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _FUNCTIONS.get(func)
        if name is None or self.busy():
            return func(*args, **(kwargs or {}))
        return self.note(name, None, lambda: func(*args, **(kwargs or {})))


class _Observer:
    """Looks at every norm of a model while it runs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found: dict[str, Calls] = {}
        self.reasons: dict[int, str] = {}
        self.foreign: collections.Counter[str] = collections.Counter()
        self.depth = 0
        self.cuda = any(p.is_cuda for p in model.parameters())
        # One thread's seconds on a core: whoever else wants the core does not count.
        alone = not self.cuda and torch.get_num_threads() == 1
        self.now = time.process_time if alone else time.perf_counter

    def clock(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return self.now()

    def note(self, name: str, module: nn.Module | None, call: Callable[[], Any]) -> Any:
        """Runs one norm's call and says what became of it."""
        here, there = _counts()
        self.depth += 1
        begin = self.clock()
        try:
            return call()
        finally:
            seconds = self.clock() - begin
            self.depth -= 1
            now_here, now_there = _counts()
            calls = self.found.setdefault(name, Calls())
            calls.seconds += seconds
            if now_here > here:
                calls.on_planish += 1
            else:
                reasons = [f"torch's kernel: {why}" for why in now_there - there]
                why = self.reasons.get(id(module), "torch's function, planish not enabled")
                calls.elsewhere[" and ".join(reasons) or why] += 1

    @staticmethod
    def why(module: nn.Module) -> str:
        """Why a module's call would come across no operator of planish's."""
        decision = swapped.decide(module)
        if isinstance(decision, str):
            if decision:
                return decision
            proof = getattr(module, "_planish_proof", None)
            return "a dtype, shape or device that was not proven" if proof else "planish declined"
        return "it computes without torch's norm operators; planish.replace() takes it"

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Each norm's forward is an attribute of its module meanwhile."""
        wrapped: list[nn.Module] = []
        for module in self.model.modules():
            if "forward" in module.__dict__ or not (_is_norm(module) or _is_foreign(module)):
                continue
            name = families.name_of(swapped.original_class(module))
            wrapped.append(module)
            if not _is_norm(module):
                module.__dict__["forward"] = self.counter(name, module.forward)
                continue
            self.reasons[id(module)] = self.why(module)
            module.__dict__["forward"] = self.wrapper(module, name, module.forward)
        try:
            with _Watch(self.note, lambda: self.depth > 0):
                yield
        finally:
            for module in wrapped:
                del module.__dict__["forward"]

    def counter(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Only counts."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.foreign[name] += 1
            return forward(*args, **kwargs)

        return watched

    def wrapper(
        self, module: nn.Module, name: str, forward: Callable[..., Any]
    ) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.depth:
                return forward(*args, **kwargs)
            return self.note(name, module, lambda: forward(*args, **kwargs))

        return watched


def look(model: nn.Module, step: Callable[[], Any], rounds: int = 1) -> Reach:
    """What became of the norm calls of ``step()``, which runs the model. Times are the fastest of
    that many rounds, or of more where these leave open what share of the step norms take."""
    best: Reach | None = None
    every: list[Round] = []
    while best is None or _wants_more(best, rounds):
        observer = _Observer(model)
        with observer.watching():
            begin, had_core = observer.clock(), time.thread_time()
            step()
            seconds = observer.clock() - begin
            had_core = time.thread_time() - had_core
        classes = {name: calls.seconds for name, calls in observer.found.items()}
        waits = observer.cuda or observer.now is time.process_time or seconds <= 0
        every.append(Round(seconds, classes, 1.0 if waits else had_core / seconds))
        if best is None or observer_seconds(observer) < best.seconds:
            best = Reach(observer.found, seconds, every, observer.foreign)
    return best


def _wants_more(found: Reach, rounds: int) -> bool:
    count = len(found.rounds)
    return count < rounds or (rounds > 1 and count < PATIENCE * rounds and found.norm_share.noisy)


def observer_seconds(observer: _Observer) -> float:
    """Time inside the norms it saw."""
    return sum(calls.seconds for calls in observer.found.values())
