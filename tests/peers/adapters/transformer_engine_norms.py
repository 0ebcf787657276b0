"""TransformerEngine's tests of its norms over planish.compat.transformer_engine.

Of tests/pytorch/test_numerics.py and test_fusible_ops.py only the functions named below are kept,
with what they call; their files need TransformerEngine as a whole. Quantised cases are not made,
since planish's modules have none.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from planish.compat import transformer_engine as ours

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

_NUMERICS = (
    "dtype_tols",
    "assert_allclose",
    "TorchLayerNorm",
    "TorchRMSNorm",
    "_test_granular_accuracy",
    "test_rmsnorm_accuracy",
    "test_layernorm_accuracy",
)
_FUSIBLE = ("make_reference_and_test_tensors",)
_METHODS = (
    "test_layer_norm",
    "test_layer_norm_autocast",
    "test_rmsnorm",
    "test_backward_add_rmsnorm",
)

_HEAD = """
from typing import *
from collections.abc import Iterable
import math, types, pytest, torch
from torch import nn
from torch.nn import Parameter
import te_stand_in
from te_stand_in import *
"""


def _kept(tree: ast.Module, names: tuple[str, ...]) -> list[ast.stmt]:
    return [node for node in tree.body if getattr(node, "name", None) in names]


def _on_device(text: str) -> str:
    if DEVICE == "cuda":
        return text
    text = text.replace(".cuda()", "").replace("torch.cuda.synchronize()", "None")
    return text.replace("'cuda'", "'cpu'").replace('"cuda"', '"cpu"')


def _numerics(text: str) -> str:
    return _HEAD + _on_device(ast.unparse(ast.Module(_kept(ast.parse(text), _NUMERICS), [])))


def _fusible(text: str) -> str:
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    methods = [m for c in classes for m in c.body if getattr(m, "name", None) in _METHODS]
    whole = ast.ClassDef("TestNorms", [], [], methods, [])
    body = [*_kept(tree, _FUSIBLE), whole]
    return _HEAD + _on_device(ast.unparse(ast.fix_missing_locations(ast.Module(body, []))))


TESTS: dict[str, Any] = {
    "tests/pytorch/test_numerics.py": _numerics,
    "tests/pytorch/test_fusible_ops.py": _fusible,
}

NOT_APPLICABLE = [
    (
        "test_backward_add_rmsnorm",
        "asks TransformerEngine what operations it fused",
    ),
]


class _Sequential(torch.nn.Sequential):
    """te.ops.Sequential; None, an unquantised Quantize, is left out."""

    def __init__(self, *modules: Any) -> None:
        super().__init__(*(module for module in modules if module is not None))


@contextlib.contextmanager
def _autocast(**_: Any) -> Iterator[None]:
    yield


def install(folder: Path) -> None:
    module = types.ModuleType("te_stand_in")
    config = types.SimpleNamespace(max_seqlen_q=2048, hidden_size=768)  # the suite's "126m"
    ops = types.SimpleNamespace(
        LayerNorm=ours.LayerNorm,
        RMSNorm=ours.RMSNorm,
        Sequential=_Sequential,
        Quantize=lambda **_: None,
    )
    sizes = {torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
    module.__dict__.update(
        LayerNorm=ours.LayerNorm,
        RMSNorm=ours.RMSNorm,
        te_ops=ops,
        te=types.SimpleNamespace(autocast=_autocast),
        autocast=_autocast,
        model_configs={"126m": config},
        param_types=list(sizes),
        _dtypes=list(sizes),
        batch_sizes=[1, 2],
        all_boolean=[True, False],
        _quantization_list=[None],
        reset_rng_states=lambda: torch.manual_seed(1234),
        maybe_skip_quantization=lambda *_, **__: None,
        make_recipe=lambda _: None,
        QuantizerRole=object,
        QuantizedTensor=type("QuantizedTensor", (), {}),
        dtype_tols=lambda dtype: {"rtol": sizes[dtype], "atol": 1e-5},
    )
    module.__all__ = [name for name in module.__dict__ if not name.startswith("__")]
    sys.modules["te_stand_in"] = module
