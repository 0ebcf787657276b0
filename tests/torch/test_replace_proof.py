"""planish.replace() of classes that are a norm on ordinary numbers in eval and more elsewhere: in
training, at the edges of a dtype, or by numbers that they draw. They are left alone, and the report
says why. What a call leaves behind is in test_replace_state.py."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from replace_support import DRAWS, Norm, check_left, check_taken

import planish
import torch
from planish import zoo
from torch import Tensor, nn


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


EDGE = "finite where planish's overflows|finite for a row|large or small"
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
]


@pytest.mark.parametrize(("cls", "why"), LEFT, ids=[cls.__name__ for cls, _ in LEFT])
def test_a_class_that_is_more_than_a_norm_is_taken_or_touched(cls: Any, why: str) -> None:
    check_left(cls, why, python_draws=cls is PythonDrawNorm)


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


@pytest.mark.parametrize("cls", [Norm, WithDropoutNorm])
def test_a_class_that_changes_nothing_is_left(cls: Any) -> None:
    check_taken(cls)


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


@pytest.mark.parametrize("groups", [1, 4, 32])
@pytest.mark.parametrize("act", ["relu", "silu", "identity"])
def test_a_group_norm_whose_squares_overflow_is_left(groups: int, act: str) -> None:
    if zoo.missing_packages(("timm",)):
        pytest.skip("timm not installed")
    zoo.prepare()
    from timm.layers import GroupNormAct

    module = GroupNormAct(32, groups, act_layer=act)
    planish.replace(module)
    assert planish.replaced(module).modules_taken == 1, str(planish.replaced(module))
