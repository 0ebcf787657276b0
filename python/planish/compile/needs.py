"""What this torch's compiler has of what planish uses in compiled graphs: most of it is not public,
so it is asked for and not taken from a version."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable

import torch
from planish.compile import table

__all__ = ["found"]


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def _takes_table() -> bool:
    module = importlib.import_module("torch._inductor.compile_fx")
    names = inspect.signature(module.compile_fx).parameters
    return {"decompositions", "config_patches"} <= set(names)


def _adds_in_place() -> bool:
    return bool(importlib.import_module("planish.compile.in_place").is_there())


def _calls_without_python() -> bool:
    module = importlib.import_module("torch._inductor.codegen.cpp_wrapper_cpu")
    return hasattr(module.CppWrapperCpu, "generate_fallback_kernel_with_runtime_lookup_nopython")


_NO_BACKEND = "torch.compile(backend='planish') is not there"

#: What is needed, and what planish does without it.
_NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "backends by name": (
        lambda: _has("torch._dynamo.backends.registry", "register_backend"),
        _NO_BACKEND,
    ),
    "passes that caches know": (
        lambda: _has("torch._inductor.custom_graph_pass", "CustomGraphPass"),
        _NO_BACKEND,
    ),
    "a pass over forward and backward": (
        lambda: _has("torch._inductor.config", "joint_custom_pre_pass"),
        _NO_BACKEND,
    ),
    "whole norms in a graph": (_takes_table, _NO_BACKEND),
    "products added in place": (
        _adds_in_place,
        "a gradient that is a sum of matrix products is a pass of its own",
    ),
    "operators called by generated C++": (
        _calls_without_python,
        "with cpp_wrapper a norm of planish's is called by way of Python",
    ),
}


def found() -> dict[str, str]:
    """``{what: "yes" or what planish does without it}``, and the rows of the table for the devices
    that are here."""
    result = {}
    for name, (ask, without) in _NEEDS.items():
        try:
            has = ask()
        except Exception as error:  # of a compiler that is another one than was tried
            has, without = False, f"{without} ({type(error).__name__}: {error})"
        result[name] = "yes" if has else f"no: {without}"
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda", torch.cuda.current_device()))
    for device in devices:
        kind = table.device_kind(device)
        count = sum(row.device == kind for row in table.rows())
        rows = f"{count} rows" if count else "no row: inductor keeps its norms, but with 'always'"
        result[f"table of choices, {kind}"] = rows
    return result
