"""What torch's dispatcher keeps beside the kernels that C registers: what tracing sees of them, the
records that must outlive them, and autocast's casts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from planish.library.loaded import library

__all__ = [
    "AUTOCAST",
    "KEYS",
    "OPS",
    "autocast_passes",
    "forget_resolved_kernels",
    "give_back_autocast",
    "keep_records",
    "let_autocast_pass",
    "replaced",
    "tell_python",
    "untell_python",
]

OPS = ("layer_norm", "group_norm", "rms_norm", "batch_norm", "weight_norm")
KEYS = {"cpu": "CPU", "cuda": "CUDA"}

#: What autocast on CUDA casts to float before the norm, in the order of the calls inside.
AUTOCAST = {
    "layer_norm": ("layer_norm", "native_layer_norm"),
    "group_norm": ("group_norm",),
    "rms_norm": ("rms_norm",),
    "batch_norm": (),
    "weight_norm": (),
}

#: The operators of each group that C registers a kernel for, by their names and overloads.
_REPLACED = {
    "layer_norm": ["native_layer_norm", "native_layer_norm_backward"],
    "group_norm": ["native_group_norm", "native_group_norm_backward"],
    "rms_norm": ["rms_norm", "_fused_rms_norm", "_fused_rms_norm_backward"],
    "batch_norm": [
        "native_batch_norm",
        "native_batch_norm_backward",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats",
        "_batch_norm_with_update",
        "batch_norm_backward",
        *("batch_norm_stats", "batch_norm_elemt", "batch_norm_elemt.out"),
        *("batch_norm_backward_reduce", "batch_norm_backward_elemt"),
    ],
    "weight_norm": [],
}
#: Those that torch has, or planish takes, on one kind of device alone.
_REPLACED_ON = {
    "cpu": {"weight_norm": ["_weight_norm_interface", "_weight_norm_interface_backward"]},
    "cuda": {"batch_norm": ["cudnn_batch_norm", "cudnn_batch_norm_backward"]},
}

#: What torch's functions call, which ends in an operator of a group.
_COMPOSITES = ("layer_norm", "group_norm", "batch_norm", "instance_norm", "_weight_norm")

#: Registrations that let autocast on CUDA pass, while it is told to keep dtypes.
autocast_passes: dict[str, Any] = {}

#: torch's records of planish's kernels. One that a thread was just about to enter when the kernel
#: was removed must not be freed under it.
_kept_records: list[object] = []


def replaced(op: str, device: str) -> list[str]:
    """The operators of a group that have a kernel of planish's on this kind of device."""
    return _REPLACED[op] + _REPLACED_ON[device].get(op, [])


def _overloads(op: str, device: str) -> list[Any]:
    found = []
    for name in replaced(op, device):
        packet, _, overload = name.partition(".")
        found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


_rms_of_compilers: list[Callable[..., Any]] = []


def trace_rms_by(forward: Callable[..., Any]) -> None:
    """(y, rstd) of what aten::_fused_rms_norm is called with, as torch.compile traces it where the
    backend takes no norms apart, or None for torch's composition."""
    _rms_of_compilers.append(forward)


def _traced(overload: Any) -> Callable[..., Any]:
    """What tracing sees of torch's RMS norm: the composition; but planish's own operator where
    torch.compile's backend takes no norms apart, and would take this one apart all the same."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd

    def traced(*args: Any, **kwargs: Any) -> Any:
        results = None
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            for forward in _rms_of_compilers:
                results = forward(*args, **kwargs)
        if results is None:
            return overload._op_dk(key, *args, **kwargs)
        return results if overload is torch.ops.aten._fused_rms_norm.default else results[0]

    return traced


def _told(device: str) -> tuple[Any, tuple[str, ...]]:
    """The key and the operators that tracing has to see otherwise than C does, with symbolic sizes
    kept symbolic. For CUDA torch has a _fused_rms_norm of its own, which stays as it is."""
    if device == "cpu":
        return torch._C.DispatchKey.AutogradCPU, ("rms_norm", "_fused_rms_norm")
    return torch._C.DispatchKey.AutogradCUDA, ("rms_norm",)


def tell_python(device: str) -> None:
    key, names = _told(device)
    for name in names:
        overload = getattr(torch.ops.aten, name).default
        if key not in overload.py_kernels:
            overload.py_impl(key)(_traced(overload))


def untell_python(device: str) -> None:
    key, names = _told(device)
    for name in names:
        getattr(torch.ops.aten, name).default.py_kernels.pop(key, None)


def forget_resolved_kernels() -> None:
    for op in OPS:
        for overload in _overloads(op, "cuda"):
            overload._dispatch_cache.clear()
    for name in _COMPOSITES:
        getattr(torch.ops.aten, name).default._dispatch_cache.clear()


def keep_records(groups: Iterable[tuple[str, str]]) -> None:
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        return
    for op, device in groups:
        for overload in _overloads(op, device):
            _kept_records.append(get_kernel(overload, KEYS[device]))
        if op == "rms_norm":
            autograd = f"Autograd{KEYS[device]}"
            _kept_records.append(get_kernel(torch.ops.aten.rms_norm.default, autograd))


def let_autocast_pass(ops: Iterable[str]) -> None:
    """Replaces autocast's cast to float by nothing, where this torch has one."""
    for op in ops:
        for name in AUTOCAST[op]:
            casts = "\nAutocastCUDA: registered" in torch._C._dispatch_dump(f"aten::{name}")
            if name in autocast_passes or not casts:
                continue
            made: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            with library().quiet(), warnings.catch_warnings():
                # quiet keeps torch's once for others; here the warning comes by way of Python
                warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
                made.impl(name, torch.library.fallthrough_kernel, "AutocastCUDA")
            autocast_passes[name] = made


def give_back_autocast() -> None:
    for made in autocast_passes.values():
        made._destroy()
    autocast_passes.clear()
