"""Puts planish under torch's operators, and takes it away again.

The work is done in C (src/torch); what has to be Python is told to torch's Python dispatcher, which
tracing uses, and the wait for a moment in which the registrations can be removed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from planish._library import OperatorStats, library

__all__ = ["disable", "enable", "enabled", "is_enabled", "stats"]

_log = logging.getLogger("planish")
_lock = threading.RLock()

#: PLANISH_TORCH_* in src/torch/planish_torch.h.
_GROUPS = {"layer_norm": 1, "rms_norm": 2}
_DEVICES = ("cpu",)

_REPLACED = {
    "layer_norm": ["native_layer_norm", "native_layer_norm_backward"],
    "rms_norm": ["rms_norm", "_fused_rms_norm", "_fused_rms_norm_backward"],
}

#: The groups that run on planish: Python's copy of what C knows, for tracing to look at.
_active: set[str] = set()

#: disable() gives up waiting for a quiet moment after this long.
_PATIENCE_SECONDS = 2.0
_ATTEMPT_MICROSECONDS = 2000

#: torch's records of planish's kernels. One that a thread was just about to enter when the kernel
#: was removed must not be freed under it.
_kept_records: list[object] = []


def _overloads(group: str) -> list[Any]:
    return [getattr(torch.ops.aten, name).default for name in _REPLACED[group]]


def _traced_as_composite(overload: Any) -> Callable[..., Any]:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *args, **kwargs: overload._op_dk(key, *args, **kwargs)


def _tell_python_dispatcher() -> None:
    """Tracing sees rms_norm as torch's composition, with symbolic sizes kept symbolic."""
    for name in ("rms_norm", "_fused_rms_norm"):
        overload = getattr(torch.ops.aten, name).default
        if torch._C.DispatchKey.AutogradCPU not in overload.py_kernels:
            overload.py_impl(torch._C.DispatchKey.AutogradCPU)(_traced_as_composite(overload))


def _untell_python_dispatcher() -> None:
    for name in ("rms_norm", "_fused_rms_norm"):
        overload = getattr(torch.ops.aten, name).default
        overload.py_kernels.pop(torch._C.DispatchKey.AutogradCPU, None)


def _forget_resolved_kernels() -> None:
    for group in _GROUPS:
        for overload in _overloads(group):
            overload._dispatch_cache.clear()


def _keep_records(groups: Iterable[str]) -> None:
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        return
    for group in groups:
        for overload in _overloads(group):
            _kept_records.append(get_kernel(overload, "CPU"))
    if "rms_norm" in groups:
        _kept_records.append(get_kernel(torch.ops.aten.rms_norm.default, "AutogradCPU"))


def _chosen(given: str | Iterable[str] | None, known: Iterable[str], what: str) -> list[str]:
    if given is None:
        return list(known)
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            raise ValueError(f"planish.enable: {what} has {name!r}; known are {', '.join(known)}")
    if not names:
        raise ValueError(f"planish.enable: {what} is empty; known are {', '.join(known)}")
    return names


def enable(
    ops: str | Iterable[str] | None = None, devices: str | Iterable[str] | None = None
) -> None:
    """Runs torch's normalization operators on planish, in this process, from now on.

    ``ops``: ``"layer_norm"``, ``"rms_norm"`` or several; all of them by default. ``devices``:
    ``"cpu"``. Enabling what is enabled already does nothing. Input that planish does not run goes
    to torch's own kernel and is counted, see :func:`stats`.

    Raises ValueError for an unknown name and RuntimeError where torch lacks what planish needs.
    """
    groups = _chosen(ops, _GROUPS, "ops")
    _chosen(devices, _DEVICES, "devices")
    mask = sum(_GROUPS[group] for group in set(groups))
    with _lock:
        missing = mask & ~library().enabled()
        if not missing:
            return
        added = [group for group, bit in _GROUPS.items() if bit & missing]
        library().enable(missing)
        _keep_records(added)
        if "rms_norm" in added:
            _tell_python_dispatcher()
        _forget_resolved_kernels()
        replaced = [name for group in added for name in _REPLACED[group]]
        _active.update(added)
        _log.info("torch's aten::%s now run on planish (CPU)", ", aten::".join(replaced))


def disable() -> bool:
    """Gives torch's operators back to torch.

    From the moment this is called no call runs on planish any more. The registrations are removed
    when no other thread is inside one of the operators; should that not happen within two seconds,
    they stay, pass every call on to torch's own kernels, and the next :func:`disable` removes them.

    Returns true if they are removed: torch's dispatch table is then what it was, except for
    ``aten::_fused_rms_norm_backward``, which torch has no CPU kernel for: a graph recorded while
    planish was enabled must still find it.
    """
    with _lock:
        _active.clear()
        patience = time.monotonic() + _PATIENCE_SECONDS
        while not (removed := library().disable(_ATTEMPT_MICROSECONDS)):
            if time.monotonic() > patience:
                _log.warning(
                    "planish is off, but other threads kept its kernels from being removed"
                )
                break
            time.sleep(0.001)  # lets other Python threads finish what they are in
        _untell_python_dispatcher()
        _forget_resolved_kernels()
        return removed


def is_enabled(op: str) -> bool:
    """Whether torch's operators of this group run on planish now."""
    return op in _active


@contextlib.contextmanager
def enabled(
    ops: str | Iterable[str] | None = None, devices: str | Iterable[str] | None = None
) -> Iterator[None]:
    """:func:`enable` for a block; afterwards everything is as it was before.

    This is a switch of the whole process: other threads see it too.
    """
    before = [group for group in _GROUPS if is_enabled(group)]
    enable(ops, devices)
    try:
        yield
    finally:
        with _lock:
            if [group for group in _GROUPS if is_enabled(group)] != before:
                disable()
                if before:
                    enable(before)


def stats() -> dict[str, OperatorStats]:
    """What became of every call so far: ``{operator: {"planish": n, "torch": {reason: n}}}``.

    ``rms_norm (autograd)`` counts the calls that went on to ``_fused_rms_norm``, which counts them
    again.
    """
    return library().stats()
