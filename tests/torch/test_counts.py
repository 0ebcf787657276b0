"""planish.stats() is no table for people, or what was counted before a reset is counted still."""

from __future__ import annotations

import json

import pytest
from torch.nn import functional as F

import planish
import torch
from planish.library import counts as _counts


def call(times: int) -> None:
    with planish.enabled():
        for _ in range(times):
            F.layer_norm(torch.ones(2, 8), (8,))


@pytest.fixture(autouse=True)
def from_zero() -> None:
    planish.reset_stats()


def test_the_table_lacks_what_was_called() -> None:
    assert str(planish.stats()) == "no norm was called yet"
    call(3)
    with planish.enabled():
        F.layer_norm(torch.ones(2, 8), (8,), eps=float("inf"))  # which planish refuses
    head, *rows = str(planish.stats()).splitlines()
    assert head.split() == ["operator", "planish", "torch", "why", "torch"]
    row = next(row.split() for row in rows if row.startswith("native_layer_norm"))
    counts = planish.stats()["native_layer_norm"]
    handed = sum(counts["torch"].values())
    assert counts["planish"] == 3 and handed == 1
    assert row[1:3] == ["3", str(handed)]
    for reason, count in counts["torch"].items():
        assert f"{reason} ({count})" in "\n".join(rows)


def test_it_is_no_dict() -> None:
    call(1)
    found = planish.stats()
    assert isinstance(found, dict)
    assert json.loads(json.dumps(found)) == found == dict(found)
    call(1)
    assert found != planish.stats(), "it is a copy"
    assert all(set(counts) == {"planish", "unboxed", "torch"} for counts in found.values())


def test_a_reset_leaves_something() -> None:
    call(2)
    planish.reset_stats()
    for counts in planish.stats().values():
        assert counts == {"planish": 0, "unboxed": 0, "torch": {}}
    call(1)
    assert planish.stats()["native_layer_norm"]["planish"] == 1


def test_a_reset_while_a_probe_runs_counts_it_twice() -> None:
    call(1)
    with _counts.uncounted():
        call(2)
        planish.reset_stats()
        call(4)
    assert planish.stats()["native_layer_norm"]["planish"] == 0
    call(1)
    assert planish.stats()["native_layer_norm"]["planish"] == 1
    with _counts.uncounted():
        call(5)
    assert planish.stats()["native_layer_norm"]["planish"] == 1
