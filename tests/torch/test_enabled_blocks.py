"""Blocks of planish.enabled() that overlap: of several threads, and one in another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
from support import dispatch_tables

import planish
from planish.library import switch


def overlapping(
    first: contextlib.AbstractContextManager[None],
    second: contextlib.AbstractContextManager[None],
    between: Callable[[], object] = lambda: None,
) -> None:
    """The first block, in another thread, begins before the second and ends inside of it."""
    entered, leave = threading.Event(), threading.Event()

    def run() -> None:
        with first:
            entered.set()
            assert leave.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(30)
    with second:
        leave.set()
        thread.join(30)
        assert not thread.is_alive()
        between()


@pytest.mark.parametrize("before", [None, "layer_norm"])
@pytest.mark.parametrize("ops", [(None, None), ("layer_norm", "rms_norm"), (None, "rms_norm")])
def test_blocks_of_two_threads_that_overlap_leave_planish_on(
    ops: tuple[str | None, str | None], before: str | None
) -> None:
    planish.enable()  # the backward of RMS norm stays for good: make it part of what was before
    planish.disable()
    if before:
        planish.enable(before)
    tables = dispatch_tables()

    def look() -> None:
        for op in ("layer_norm", "rms_norm", "group_norm"):
            wanted = ops[1] is None or op in (ops[1], before)
            assert switch.is_enabled(op) == wanted, op

    overlapping(planish.enabled(ops[0]), planish.enabled(ops[1]), look)
    assert switch.is_enabled("layer_norm") == bool(before)
    assert not switch.is_enabled("rms_norm")
    assert dispatch_tables() == tables


def test_what_is_asked_for_inside_of_a_block_ends_with_it() -> None:
    with planish.enabled("layer_norm"):
        planish.enable("rms_norm")
    assert switch.is_enabled("rms_norm")
    assert not switch.is_enabled("layer_norm")
    overlapping(planish.enabled("layer_norm"), planish.enabled("layer_norm"), planish.disable)
    assert not switch.is_enabled("rms_norm")
    assert not switch.is_enabled("layer_norm")


def test_a_block_inside_of_a_block_turns_the_outer_one_off() -> None:
    with planish.enabled():
        with planish.enabled():
            pass
        assert switch.is_enabled("rms_norm")
        with planish.enabled("layer_norm"):
            pass
        assert switch.is_enabled("layer_norm")
    assert not switch.is_enabled("layer_norm")
