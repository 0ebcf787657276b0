"""The switch travels with a checkpoint: what is computed again in the backward runs as the forward
ran, whatever planish.enable and planish.disable have said since.

torch.utils.checkpoint with use_reentrant=False wants the recomputation to save the tensors that the
forward saved, and what F.rms_norm saves on the CPU is another matter with planish under it than
without. torch has no hook for this, so the two private context managers that it enters, one in the
forward and one around a recomputation, are taken by ones that note the switch and that set it. That
is done once, when planish is first enabled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["install"]

#: One recomputation at a time where the switch has to be set: it is the process's.
_switching = threading.RLock()

_NAMES = ("_checkpoint_hook", "_recomputation_hook")


#: The switch as it is, and what sets it; of switch.py.
_State = Callable[[], Any]
_GoTo = Callable[[Any], Callable[[], None]]


@contextlib.contextmanager
def _switched(wanted: Any, state: _State, go_to: _GoTo) -> Any:
    if state() == wanted:
        yield
        return
    with _switching:
        back = go_to(wanted)
        try:
            yield
        finally:
            back()


def _noting(base: Any, state: _State, go_to: _GoTo) -> Any:
    class CheckpointHook(base):  # type: ignore[misc]
        """Around the forward."""

        def __init__(self, frame: Any, *rest: Any) -> None:
            frame.planish_state = state()
            super().__init__(frame, *rest)

    return CheckpointHook


def _setting(base: Any, state: _State, go_to: _GoTo) -> Any:
    class RecomputationHook(base):  # type: ignore[misc]
        """Around a recomputation; what was made before planish was ever enabled has no note."""

        def __init__(self, frame: Any, *rest: Any) -> None:
            super().__init__(frame, *rest)
            noted: Any = getattr(frame(), "planish_state", frozenset())
            self._planish = _switched(noted, state, go_to)

        def __enter__(self) -> Any:
            self._planish.__enter__()
            try:
                return super().__enter__()
            except BaseException:
                self._planish.__exit__(None, None, None)
                raise

        def __exit__(self, *error: Any) -> Any:
            try:
                return super().__exit__(*error)
            finally:
                self._planish.__exit__(None, None, None)

    return RecomputationHook


def install(state: _State, go_to: _GoTo) -> None:
    """Has checkpoints note the switch and set it. Does nothing where that was done, or where this
    torch has no such names."""
    from torch.utils import checkpoint

    known = [getattr(checkpoint, name, None) for name in _NAMES]
    if any(hook is None or hasattr(hook, "planish") for hook in known):
        return
    for name, hook, make in zip(_NAMES, known, (_noting, _setting), strict=True):
        made = make(hook, state, go_to)
        made.planish = True
        setattr(checkpoint, name, made)
