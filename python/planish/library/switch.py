"""Puts planish under torch's operators, and takes it away again.

The work is done in C (src/torch); what has to be Python is told to torch's Python dispatcher, which
tracing uses, and the wait for a moment in which the registrations can be removed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from planish.library import dispatcher, recomputing
from planish.library.loaded import library

__all__ = ["DEVICES", "active", "disable", "enable", "enabled", "is_enabled"]

_log = logging.getLogger("planish")
lock = threading.RLock()

DEVICES = ("cpu", "cuda")
#: PLANISH_TORCH_* in src/torch/planish_torch.h.
GROUPS = {
    ("layer_norm", "cpu"): 1,
    ("rms_norm", "cpu"): 2,
    ("layer_norm", "cuda"): 4,
    ("rms_norm", "cuda"): 8,
    ("group_norm", "cpu"): 32,
    ("group_norm", "cuda"): 64,
    ("batch_norm", "cpu"): 128,
    ("batch_norm", "cuda"): 256,
    ("weight_norm", "cpu"): 512,
}
_CUDA_MIXED = 16
#: What src/torch/aoti.c says of the functions of libtorch that batch norms on CUDA need.
_BATCHES = "handing batch norms on CUDA"
#: The groups that run on planish: Python's copy of what C knows, for tracing to look at.
_active: frozenset[tuple[str, str]] = frozenset()

#: What enable() asked for and disable() has not taken back: (op, device, autocast is kept).
_Group = tuple[str, str, bool]
_explicit: set[_Group] = set()

#: What each block of enabled() that is under way asks for beside it, whichever thread is in it.
_blocks: list[set[_Group]] = []

#: disable() gives up waiting for a quiet moment after this long.
_PATIENCE_SECONDS = 2.0
_ATTEMPT_MICROSECONDS = 2000


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


def _chosen_devices(devices: str | Iterable[str] | None) -> list[str]:
    """CUDA by itself only where this torch has it, and has what planish needs of it."""
    if devices is not None:
        return _chosen(devices, DEVICES, "devices")
    missing = library().cuda_is_missing()
    if missing and torch.version.cuda:
        _log.warning("planish leaves CUDA tensors to torch: %s", missing)
    return ["cpu"] if missing else ["cpu", "cuda"]


def check_cuda() -> None:
    """Where CUDA runs already: that torch's own kernels, called by their C++ names, are what they
    are taken for. Otherwise not: to start CUDA here would break a fork later."""
    running: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not running or torch.cuda.is_current_stream_capturing():
        return
    library().check_cuda(torch.cuda.current_device())


def enable(
    ops: str | Iterable[str] | None = None,
    devices: str | Iterable[str] | None = None,
    autocast: str | None = None,
    compile: bool | str | None = None,
) -> None:
    """Runs torch's normalization operators on planish, in this process, from now on.

    ``ops``: ``"layer_norm"``, ``"group_norm"``, ``"rms_norm"``, ``"batch_norm"``,
    ``"weight_norm"`` (on the CPU alone) or several; all of them by default. Batch norm takes
    instance norm, which torch makes of it, with it.
    ``devices``: ``"cpu"``, ``"cuda"`` or both; by default the CPU, and CUDA where this torch has
    it. No GPU is touched until a norm runs on it. Enabling what is enabled already does nothing.
    Input that planish does not run goes to torch's own kernel and is counted
    (:func:`planish.stats`).

    ``autocast="keep"``: under ``torch.autocast("cuda")`` these norms take half input as it is, also
    with float parameters, and return half. By default they do what torch does: cast to float.

    ``compile=True``: of graphs that ``torch.compile`` makes with inductor from now on planish takes
    the norms that it was measured to be faster at, torch's own as well as planish's; ``"always"``
    takes all of them, and ``False`` none. A graph that is compiled already stays as it is, also
    after :func:`disable`.

    Raises ValueError for an unknown name and RuntimeError where torch lacks what planish needs.

    Example:

    >>> planish.enable("layer_norm", devices="cpu")
    >>> y = torch.nn.functional.layer_norm(torch.randn(4, 64), (64,))  # runs on planish
    >>> planish.disable()
    True
    """
    groups = _asked(ops, devices, autocast)
    with lock:
        if compile is not None:
            _compiler().switch(compile)
        _put(groups)
        _explicit.update(groups)


def _compiler() -> Any:
    """What is imported only where it is asked for: with it comes torch's compiler."""
    return importlib.import_module("planish.compile.inductor")


def _asked(
    ops: str | Iterable[str] | None, devices: str | Iterable[str] | None, autocast: str | None
) -> set[_Group]:
    """The arguments of enable() as groups."""
    if autocast not in (None, "keep"):
        raise ValueError(f"planish.enable: autocast is {autocast!r}; known are None and 'keep'")
    names, places = _chosen(ops, dispatcher.OPS, "ops"), _chosen_devices(devices)
    left = {("batch_norm", "cuda")} if ops is None and _lacks_batch_norms(places) else set()
    return {
        (op, device, device == "cuda" and autocast == "keep")
        for op in names
        for device in places
        if (op, device) in GROUPS and (op, device) not in left
    }


def _lacks_batch_norms(places: list[str]) -> bool:
    """Whether this torch does not tell where its CUDA batch norms are, which then stay its own."""
    if "cuda" not in places:
        return False
    missing = [one.name for one in library().symbols() if not one.found and _BATCHES in one.use]
    if missing:
        _log.warning("planish leaves batch norms on CUDA to torch, which lacks %s", missing[0])
    return bool(missing)


def _put(groups: set[_Group]) -> None:
    """Puts planish under these operators, where it is not under them already."""
    pairs, kept = _effect(groups)
    mask = sum(GROUPS[pair] for pair in pairs) | (_CUDA_MIXED if kept else 0)
    missing = mask & ~library().enabled()
    added = [group for group, bit in GROUPS.items() if bit & missing]
    if missing:
        if any(device == "cuda" for _, device in added):
            check_cuda()
        library().enable(missing)
    if kept:
        dispatcher.let_autocast_pass(sorted(kept))
    if not added:
        return
    dispatcher.keep_records(added)
    for op, device in added:
        if op == "rms_norm":
            dispatcher.tell_python(device)
    dispatcher.forget_resolved_kernels()
    _set_active(_active.union(added))
    recomputing.install(state, go_to)
    for device in DEVICES:
        replaced = [
            name
            for op, place in added
            if place == device
            for name in dispatcher.replaced(op, device)
        ]
        if replaced:
            _log.info(
                "torch's aten::%s now run on planish (%s)",
                ", aten::".join(replaced),
                dispatcher.KEYS[device],
            )


def disable() -> bool:
    """Gives torch's operators back to torch.

    From the moment this is called no call runs on planish any more. The registrations are removed
    when no other thread is inside one of the operators; should that not happen within two seconds,
    they stay, pass every call on to torch's own kernels, and the next :func:`disable` removes them.

    Returns true if they are removed: torch's dispatch table is then what it was, except for
    ``aten::_fused_rms_norm_backward`` on the CPU, which torch has no kernel for there, and
    ``aten::cudnn_batch_norm_backward`` on CUDA, which cannot use what planish's forward saved: a
    graph recorded while planish was enabled must still find them. Norms that planish's own
    functions and modules called (docs/guide/pytorch-details.md, "Four ways") keep planish's kernels
    for these calls alone.

    Example:

    >>> planish.enable()
    >>> planish.disable()
    True
    """
    with lock:
        _explicit.clear()
        _blocks.clear()
        if "planish.compile.inductor" in sys.modules:
            _compiler().switch(False)
        return _take_away()


def _take_away() -> bool:
    """Takes planish from under all of torch's operators; whether the registrations are removed."""
    _set_active(frozenset())
    dispatcher.give_back_autocast()
    patience = time.monotonic() + _PATIENCE_SECONDS
    while not (removed := library().disable(_ATTEMPT_MICROSECONDS)):
        if time.monotonic() > patience:
            _log.warning("planish is off, but other threads kept its kernels from being removed")
            break
        time.sleep(0.001)  # lets other Python threads finish what they are in
    for device in DEVICES:
        dispatcher.untell_python(device)
    dispatcher.forget_resolved_kernels()
    return removed


def _set_active(groups: frozenset[tuple[str, str]]) -> None:
    global _active
    _active = groups


def active() -> frozenset[tuple[str, str]]:
    """The groups of torch's operators, each on a kind of device, that run on planish now."""
    return _active


def is_enabled(op: str, device: str = "cpu") -> bool:
    """Whether torch's operators of this group run on planish now, on this kind of device."""
    return (op, device) in _active


#: The groups that run on planish.
State = frozenset[_Group]


def state() -> State:
    return frozenset(
        (
            op,
            device,
            device == "cuda"
            and not dispatcher.autocast_passes.keys().isdisjoint(dispatcher.AUTOCAST[op]),
        )
        for op, device in _active
    )


def go_to(wanted: State) -> Callable[[], None]:
    """Has these groups run on planish, and no others, whoever asked for what. Returns what takes it
    back, unless somebody has said something new by then."""
    with lock:
        explicit, blocks = set(_explicit), list(_blocks)
        _ask(set(wanted), [])

    def back() -> None:
        with lock:
            if _explicit == wanted and not _blocks:
                _ask(explicit, blocks)

    return back


def _ask(explicit: set[_Group], blocks: list[set[_Group]]) -> None:
    """Has these be what was asked for."""
    _explicit.clear()
    _explicit.update(explicit)
    _blocks[:] = blocks
    wanted = _explicit.union(*_blocks)
    if _effect(set(state())) != _effect(wanted):
        _take_away()
        _put(wanted)


@contextlib.contextmanager
def enabled(
    ops: str | Iterable[str] | None = None,
    devices: str | Iterable[str] | None = None,
    autocast: str | None = None,
) -> Iterator[None]:
    """:func:`enable` for a block; afterwards everything is as it was before.

    A backward outside of the block that computes a part of the forward again, for
    ``torch.utils.checkpoint`` with ``use_reentrant=False``, does so as the forward ran.

    This is a switch of the whole process: other threads see it too. Where blocks overlap, of
    several threads or one in another, planish is on for what any of them asks for, until the last
    of these ends. :func:`enable` and :func:`disable` inside of a block outlast it: what the one
    asks for stays, and after the other planish is off, for all blocks.

    Example:

    >>> with planish.enabled():
    ...     y = torch.nn.functional.rms_norm(torch.randn(4, 64), (64,))
    """
    block = _asked(ops, devices, autocast)
    with lock:
        _put(block)
        _blocks.append(block)
    try:
        yield
    finally:
        with lock:
            _end(block)


def _end(block: set[_Group]) -> None:
    """Takes away what only this block asked for."""
    left = [other for other in _blocks if other is not block]
    if len(left) == len(_blocks):
        block.clear()  # disable() or a recomputation came in between: it asks for nothing any more
        return
    _blocks[:] = left
    wanted = _explicit.union(*left)
    if _effect(wanted | block) != _effect(wanted):
        _take_away()
        _put(wanted)


def _effect(groups: set[_Group]) -> tuple[set[tuple[str, str]], set[str]]:
    """The groups that run on planish, and the operators that keep dtypes under autocast."""
    return {(op, device) for op, device, _ in groups}, {op for op, _, keep in groups if keep}
