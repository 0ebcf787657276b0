"""What docs/guide/limits.md says that planish does not do, it does not do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import planish
import torch
from torch import Tensor, nn

NOT_TAKEN = [
    nn.SyncBatchNorm(8),
    nn.LocalResponseNorm(2),
    nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
]


@pytest.mark.parametrize("module", NOT_TAKEN, ids=lambda module: type(module).__name__)
def test_a_norm_that_planish_has_not_is_taken(module: nn.Module) -> None:
    model, kind = nn.Sequential(module, nn.LayerNorm(8)), type(module)
    assert planish.replaced(planish.replace(model)).modules_taken == 1
    assert type(module) is kind


def test_instance_norm_with_running_statistics_runs_on_planish_in_eval() -> None:
    module = planish.InstanceNorm2d(4, track_running_stats=True).eval()
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(module(x), nn.InstanceNorm2d.forward(module, x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e4m3fn, torch.bool])
@pytest.mark.parametrize("norm", [planish.layer_norm, planish.rms_norm])
def test_another_dtype_is_taken(norm: Callable[..., Tensor], dtype: torch.dtype) -> None:
    with pytest.raises(NotImplementedError, match="not implemented for x of"):
        norm(torch.zeros(2, 8).to(dtype), -1)


def test_seventeen_axes_are_taken() -> None:
    for norm in (planish.layer_norm, planish.rms_norm):
        norm(torch.ones([1] * 15 + [8]), -1)
        with pytest.raises((RuntimeError, NotImplementedError)):
            norm(torch.ones([1] * 16 + [8]), -1)
    with pytest.raises((RuntimeError, NotImplementedError)):
        planish.group_norm(torch.ones([1, 8] + [1] * 15), 2)


def test_a_quantised_result_has_a_gradient() -> None:
    x = torch.randn(4, 64, requires_grad=True)
    q, _ = planish.quantized_rms_norm(x)
    with pytest.raises(RuntimeError):
        q.float().sum().backward()
