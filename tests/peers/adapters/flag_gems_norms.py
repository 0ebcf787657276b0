"""FlagGems' tests/test_norm_ops.py with ``flag_gems.use_gems()`` being ``planish.enabled()``.

So most of it calls torch's operators, and planish stands under them. FlagGems' own functions are
planish's, where it has them; references are torch's on the CPU in float64.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import planish
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

TESTS: dict[str, list[tuple[str, str]]] = {"tests/test_norm_ops.py": []}
SUPPORT = ["tests/__init__.py", "tests/accuracy_utils.py", "tests/conftest.py"]
IMPORT_MODE = "prepend"

NOT_APPLICABLE = [
    ("weightnorm", "weight normalisation is no operator of planish's"),
    ("vectornorm", "vector norms are no operator of planish's"),
    ("batch_norm", "batch normalisation is no operator of planish's"),
    (r"instancenorm\[True-False", "running statistics are used: there torch's kernel runs"),
]

#: Relative tolerances of the suite's own assert_close.
_RTOL = {torch.float16: 1e-3, torch.float32: 1.3e-6, torch.bfloat16: 0.016, torch.float64: 1e-7}


def _assert_close(
    res: Any, ref: Any, dtype: Any, equal_nan: bool = False, reduce_dim: int = 1, atol: float = 1e-4
) -> None:
    assert res.dtype == dtype
    torch.testing.assert_close(
        res, ref.to(dtype), atol=atol * reduce_dim, rtol=_RTOL[dtype], equal_nan=equal_nan
    )


def _rms_norm(x: Any, normalized_shape: list[int], weight: Any = None, eps: float = 1e-5) -> Any:
    return planish.rms_norm(x, -1, weight, eps=eps)


def _skip_layer_norm(
    x: Any, residual: Any, normalized_shape: list[int], weight: Any, bias: Any, eps: float = 1e-5
) -> Any:
    # FlagGems reads the sum before it is rounded, and does not return it
    return planish.add_layer_norm(x, residual, weight, bias, eps, sum_dtype=torch.float32)[0]


def _fused_add_rms_norm(
    x: Any, residual: Any, normalized_shape: list[int], weight: Any, eps: float = 1e-5
) -> Any:
    return planish.add_rms_norm(x, residual, weight, eps)


def _instance_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The forward of planish's modules, with the caller's tensors in them."""
    cls = planish.InstanceNorm1d if x.dim() == 3 else planish.InstanceNorm2d
    norm = cls(x.shape[1], eps, momentum, track_running_stats=running_mean is not None)
    norm._parameters.update(weight=weight, bias=bias)
    if running_mean is not None:
        norm._buffers.update(running_mean=running_mean, running_var=running_var)
    return norm.train(use_input_stats)(x)


def install(folder: Path) -> None:
    module = types.ModuleType("flag_gems")
    device = types.SimpleNamespace(support_fp64=True, support_bf16=True, support_int64=True)
    module.__dict__.update(
        device=DEVICE,
        vendor_name="planish",
        use_gems=planish.enabled,
        runtime=types.SimpleNamespace(device=device),
        testing=types.SimpleNamespace(assert_close=_assert_close),
        rms_norm=_rms_norm,
        skip_layer_norm=_skip_layer_norm,
        fused_add_rms_norm=_fused_add_rms_norm,
        instance_norm=_instance_norm,
    )
    sys.modules["flag_gems"] = module
