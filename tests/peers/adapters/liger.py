"""Liger-Kernel's tests of its norms over planish.compat.liger.

Modules ``liger_kernel.*`` of planish's functions stand where Liger's would be, so that Triton is
not needed; the helpers that the tests take from the checkout's test/utils.py are taken by name,
without importing it. bfloat16 is run on the CPU, too, where Liger leaves it out.
"""

from __future__ import annotations

import ast
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy

import torch
from planish.compat import liger as ours

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

TESTS: dict[str, list[tuple[str, str]]] = {
    f"test/transformers/test_{name}.py": []
    for name in (
        "rms_norm",
        "layer_norm",
        "group_norm",
        "fused_add_rms_norm",
        "poly_norm",
        "modulated_rms_norm",
    )
}

NOT_APPLICABLE = [
    ("dtensor|distributed", "starts processes on several devices"),
]

HELPERS = ("set_seed", "assert_verbose_allclose")


def _function(call: Any) -> type:
    """What the tests call as an autograd.Function: a class with ``apply``."""
    return type("Function", (), {"apply": staticmethod(call)})


def _rms(
    X: Any,
    W: Any,
    eps: float,
    offset: float = 0.0,
    casting_mode: Any = "llama",
    in_place: bool = True,
    row_mode: Any = None,
) -> Any:
    return ours.liger_rms_norm(X, W, eps, offset, casting_mode, in_place)


def _module(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(members)
    sys.modules[name] = module


def _helpers(folder: Path) -> dict[str, Any]:
    path = folder / "test/utils.py"
    tree = ast.parse(path.read_text())
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in HELPERS]
    found: dict[str, Any] = {
        "torch": torch,
        "random": random,
        "np": numpy,
        "device": DEVICE,
        "infer_device": lambda: DEVICE,
        "os": __import__("os"),
    }
    exec(compile(tree, str(path), "exec"), found)
    found["supports_bfloat16"] = lambda: True
    return {name: found[name] for name in (*HELPERS, "infer_device", "supports_bfloat16")}


def install(folder: Path) -> None:
    functions = {name: getattr(ours, name) for name in ours.__all__ if name.startswith("liger_")}
    modules = {name: getattr(ours, name) for name in ours.__all__ if name.startswith("Liger")}
    _module("liger_kernel")
    _module("liger_kernel.utils", infer_device=lambda: DEVICE, infer_comm_backend=lambda: "gloo")
    _module(
        "liger_kernel.ops",
        LigerRMSNormFunction=_function(_rms),
        LigerLayerNormFunction=_function(ours.liger_layer_norm),
        LigerFusedAddRMSNormFunction=_function(ours.liger_fused_add_rms_norm),
        LigerModulatedRMSNormFunction=_function(ours.liger_modulated_rms_norm),
        LigerPolyNormFunction=_function(ours.liger_poly_norm),
    )
    _module("liger_kernel.transformers", **modules)
    _module("liger_kernel.transformers.functional", **functions)
    for name in (
        "rms_norm",
        "layer_norm",
        "group_norm",
        "fused_add_rms_norm",
        "poly_norm",
        "modulated_rms_norm",
    ):
        _module(f"liger_kernel.transformers.{name}", **modules)
    _module("test")
    _module("test.utils", **_helpers(folder))
