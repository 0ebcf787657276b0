"""planish.replace() of classes whose calls read or leave something behind: in buffers, attributes,
variables or parameters. They are left alone, and the report says why."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from replace_support import Norm, check_left, check_taken

import torch
from torch import Tensor, nn

CALLS = {"count": 0}
SEEN: list[int] = []
TOTAL = 0


class CountingNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1  # type: ignore[operator, has-type]
        return super().forward(x)


class RunningNorm(CountingNorm):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.copy_(torch.maximum(self.seen, x.detach().abs().amax()))
        return Norm.forward(self, x)


class DataNorm(CountingNorm):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.data.add_(1)
        return Norm.forward(self, x)


class StepNorm(CountingNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = Norm.forward(self, x)
        return y * 2 if float(self.seen) > 1000 else y


class AttributeNorm(Norm):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class HistoryNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, list[int]] = {"rows": []}

    def forward(self, x: Tensor) -> Tensor:
        self.history["rows"].append(x.numel())
        return super().forward(x)


class PlainTensorNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.amax = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.amax.fill_(1.5)
        return super().forward(x)


@dataclasses.dataclass
class Statistics:
    calls: int = 0


class RecordNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.statistics = Statistics()

    def forward(self, x: Tensor) -> Tensor:
        self.statistics.calls += 1
        return super().forward(x)


class ClassCounterNorm(Norm):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        ClassCounterNorm.count += 1
        return super().forward(x)


class GlobalNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        CALLS["count"] += 1
        return super().forward(x)


class GlobalIntegerNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        global TOTAL
        TOTAL += 1
        return super().forward(x)


def _note(x: Tensor) -> None:
    SEEN.append(x.numel())


class HelperNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        _note(x)
        return super().forward(x)


def closed_over() -> type[Norm]:
    calls = 0

    class ClosureNorm(Norm):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(x)

    return ClosureNorm


class WeightWritingNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(max=1.0)
        return super().forward(x)


LEFT: list[tuple[Any, str]] = [
    (CountingNorm, "changes the buffer 'seen'"),
    (RunningNorm, "changes the buffer 'seen'"),
    (DataNorm, "changes the buffer 'seen'"),
    (StepNorm, "reads the buffer 'seen'"),
    (AttributeNorm, "changes the attribute 'calls'"),
    (HistoryNorm, "changes the attribute 'history'"),
    (PlainTensorNorm, "changes the attribute 'amax'"),
    (RecordNorm, "changes the attribute 'statistics'"),
    (ClassCounterNorm, "changes the attribute of ClassCounterNorm 'count'"),
    (GlobalNorm, "changes the variable 'CALLS'"),
    (GlobalIntegerNorm, "changes the variable 'TOTAL'"),
    (HelperNorm, "changes the variable 'SEEN'"),
    (closed_over(), "changes the variable 'calls'"),
    (WeightWritingNorm, "changes the parameter 'weight'"),
]


@pytest.mark.parametrize(("cls", "why"), LEFT, ids=[cls.__name__ for cls, _ in LEFT])
def test_a_class_that_leaves_something_behind_is_taken_or_touched(cls: Any, why: str) -> None:
    check_left(cls, why)


class AllowedNorm(Norm):
    """Reads much, changes nothing."""

    scales = (1.0, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.names, self.statistics = {"a": [1, 2]}, Statistics()
        self.register_buffer("unused", torch.zeros(3))
        self.generator, self.dtype = torch.Generator(), torch.float32
        self.act = nn.functional.silu

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(self.names["a"]) == 2 and CALLS["count"] < 10**9:
            x = x * self.scales[0]
        return (self.norm(x) * self.weight.float()).to(x.dtype)


def test_a_class_that_reads_much_and_changes_nothing_is_left() -> None:
    check_taken(AllowedNorm)
