"""planish.replace() of classes that are a norm on ordinary numbers in eval and more elsewhere: in
training, at the edges of a dtype, or by what a call leaves behind. They are left alone, and the
report says why."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
from typing import Any

import pytest

import planish
import torch
from torch import Tensor, nn

CALLS = {"count": 0}
SEEN: list[int] = []
TOTAL = 0


class Norm(nn.Module):
    """An RMS norm that is rounded once."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def norm(self, x: Tensor) -> Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) * self.weight.float()).to(x.dtype)


class ClampedResultNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) * self.weight.float()).clamp(-65504.0, 65504.0).to(x.dtype)


class ClampedToDtypeNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        most = torch.finfo(x.dtype).max
        return (self.norm(x) * self.weight.float()).clamp(-most, most).to(x.dtype)


class ClampedInputNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(-1000, 1000))


class ClampedXhatNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x).clamp(-5, 5) * self.weight.float()).to(x.dtype)


class ClampedWeightNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) * self.weight.float().clamp(max=10)).to(x.dtype)


class PositiveWeightNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) * self.weight.float().abs()).to(x.dtype)


class ClampedGateNorm(Norm):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = (self.norm(x) * self.weight.float()).to(x.dtype)
        return (y * nn.functional.silu(gate.float().clamp(-20, 20))).to(x.dtype)


class NanToNumNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).nan_to_num()


class MendsInfinityNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.isinf().any()):
            x = x.clamp(-100, 100)
        return super().forward(x)


class RaisesNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.isnan().any()):
            raise FloatingPointError("a NaN")
        return super().forward(x)


class TrainingNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 2 if self.training else y


class TrainingGradientNorm(Norm):
    def norm(self, x: Tensor) -> Tensor:
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide * (rstd.detach() if self.training else rstd)


class ClippedGradientNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient.clamp(-100, 100))
        return y


class InferenceNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if torch.is_grad_enabled() else y * 2


class TrainingNoiseNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn_like(x) if self.training else x)


class UnusedDrawNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        return super().forward(x)


class PythonDrawNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if random.random() < 2 else x


class GeneratorNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1, generator=self.generator)
        return super().forward(x)


class DropoutNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


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


EDGE = "finite where planish's overflows|finite for a row|large or small"
DRAWS = "draws random numbers"
LEFT: list[tuple[Any, str]] = [
    (ClampedResultNorm, EDGE),
    (ClampedToDtypeNorm, EDGE),
    (ClampedInputNorm, EDGE),
    (ClampedXhatNorm, EDGE),
    (ClampedWeightNorm, EDGE),
    (PositiveWeightNorm, EDGE),
    (ClampedGateNorm, EDGE),
    (NanToNumNorm, "finite for a row with a NaN"),
    (MendsInfinityNorm, "finite for a row with a NaN or an infinity"),
    (RaisesNorm, "raises FloatingPointError: a NaN"),
    (TrainingNorm, "in training its result is another"),
    (TrainingGradientNorm, "in training, its gradient of x"),
    (ClippedGradientNorm, "in training, its gradient"),
    (InferenceNorm, "without gradients"),
    (TrainingNoiseNorm, DRAWS),
    (UnusedDrawNorm, DRAWS),
    (PythonDrawNorm, DRAWS),
    (GeneratorNorm, DRAWS),
    (DropoutNorm, DRAWS),
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


def _held(module: nn.Module) -> str:
    """What the module holds, as text."""
    generator = getattr(module, "generator", torch.Generator())
    held = {name: value for name, value in vars(module).items() if name != "generator"}
    return f"{held} {generator.get_state()}"


@pytest.mark.parametrize(("cls", "why"), LEFT, ids=[cls.__name__ for cls, _ in LEFT])
def test_a_class_that_is_more_than_a_norm_is_taken_or_touched(cls: Any, why: str) -> None:
    module = cls()
    before = _held(module)
    state, drawn = torch.get_rng_state(), random.getstate()
    box = planish.replace(nn.Sequential(module, nn.LayerNorm(32)))
    assert type(module) is cls
    (entry,) = planish.replaced(box).left
    assert entry.modules == 1
    assert re.search(why, entry.what), entry.what
    # The probe ran on copies, and drew nothing but of Python's generator.
    assert torch.equal(torch.get_rng_state(), state)
    assert cls is PythonDrawNorm or random.getstate() == drawn
    assert before == _held(module)


class HalfClampNorm(Norm):
    """As Gemma 3's mend for f16: only there."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x) * self.weight.float()
        return (y.clamp(-65504.0, 65504.0) if x.dtype == torch.float16 else y).to(x.dtype)


def test_a_dtype_that_is_clamped_is_taken_with_the_others() -> None:
    module, native = HalfClampNorm(), HalfClampNorm()
    planish.replace(module)
    (entry,) = planish.replaced(module).taken
    assert re.search("some float16 left to its own forward", entry.what), entry.what
    with torch.no_grad():
        for one in (module, native):
            one.weight.fill_(60000.0)
    x = torch.randn(4, 32).half()
    assert torch.equal(module(x), native(x))
    assert module(x).isfinite().all()


def test_a_module_in_the_dtype_that_is_clamped_is_on_planish_where_x_is_half() -> None:
    module = HalfClampNorm().half()
    planish.replace(nn.Sequential(module, nn.LayerNorm(32)))
    with torch.no_grad():
        module.weight.fill_(60000.0)
    assert module(torch.randn(4, 32).half()).isfinite().all()


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


class WithDropout(Norm):
    """A child that draws: planish's way calls it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(super().forward(x))
        return y


class WithDropoutNorm(WithDropout):
    pass


class ReversedDropoutNorm(WithDropout):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            torch.rand(7)
        return super().forward(x)


@pytest.mark.parametrize("cls", [Norm, AllowedNorm, WithDropoutNorm])
def test_a_class_that_changes_nothing_is_left(cls: Any) -> None:
    module = cls()
    native = copy.deepcopy(module)
    planish.replace(module)
    assert planish.replaced(module).modules_taken == 1, str(planish.replaced(module))
    x = torch.randn(4, 32)
    for training in (False, True):
        torch.manual_seed(5)
        y = native.train(training)(x)
        torch.manual_seed(5)
        torch.testing.assert_close(module.train(training)(x), y)


def test_a_child_hides_what_its_parent_draws() -> None:
    module = ReversedDropoutNorm()
    with pytest.warns(UserWarning, match="in training"):
        planish.replace(module)
    assert type(module) is ReversedDropoutNorm


class Scale(Norm):
    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.factor in (torch.float32, (1, (2,))) or callable(self.factor) else y * 2


class ScaleNorm(Scale):
    pass


@pytest.mark.parametrize(
    ("plain", "other"),
    [(torch.float32, torch.float16), ((1, (2,)), (1, (3,))), (len, {"a": 1})],
    ids=["dtype", "nested", "function"],
)
def test_a_proof_is_kept_for_modules_with_other_settings(plain: Any, other: Any) -> None:
    box = nn.Sequential(ScaleNorm(plain), ScaleNorm(other), nn.LayerNorm(32))
    planish.replace(box)
    assert type(box[0]) is not ScaleNorm
    assert type(box[1]) is ScaleNorm
