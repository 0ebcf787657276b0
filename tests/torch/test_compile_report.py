"""What is said of the norms of compiled graphs: planish.compile.report(), the logger, stats() and
doctor; what torch's caches know of the choices, and the table that these are made by."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from compile_support import (  # noqa: F401 (fixtures)
    MODELS,
    Layer,
    Written,
    compiled,
    results_of,
    rows,
    uncached,
)

import planish
import planish.compile
import torch
from planish.commands import doctor
from planish.compile import choice, joint, table
from torch import Tensor


def test_the_report_lacks_a_norm(caplog: pytest.LogCaptureFixture) -> None:
    before = len(planish.compile.report())
    planish.reset_stats()
    run, _ = compiled(Layer())
    with caplog.at_level(logging.INFO, "planish.compile"):
        results_of(run, None, torch.randn(6, 16))
    found = planish.compile.report()[before:]
    assert [(e.direction, e.chosen, e.shape, e.dtype) for e in found] == [
        ("forward", "planish", (6, 16), "float32"),
        ("backward", "planish", (6, 16), "float32"),
    ]
    assert "every norm was asked for" in str(planish.compile.report())
    assert sum("every norm was asked for" in record.message for record in caplog.records) == 2
    assert planish.stats()["in compiled graphs (forward)"]["planish"] == 1


@pytest.mark.parametrize("mode", [choice.FASTER, choice.NEVER])
@pytest.mark.parametrize("name", ["layer", "written", "rms", "groups"])
def test_a_norm_that_is_left_is_not_said(name: str, mode: str, rows: Any) -> None:  # noqa: F811
    """Also of a norm that is taken apart before the graph is differentiated."""
    rows(forward=0.5)
    before = len(planish.compile.report())
    planish.reset_stats()
    run, _ = compiled(MODELS[name][0](), mode)
    results_of(run, None, torch.randn(6, 16))
    found = planish.compile.report()[before:]
    assert [(e.direction, e.chosen) for e in found] == [
        ("forward", "inductor"),
        ("backward", "inductor"),
    ]
    assert found[0].graph == found[1].graph
    if mode == choice.FASTER:
        assert "0.50 times as fast" in found[0].why and "no row" in found[1].why
    else:
        assert {e.why for e in found} == {choice.UNASKED}
    for direction in ("forward", "backward"):
        counted = planish.stats()[f"in compiled graphs ({direction})"]["torch"]
        assert sum(counted.values()) == 1, counted


def test_an_inference_that_is_left_has_a_backward(rows: Any) -> None:  # noqa: F811
    rows(forward=0.5)
    before = len(planish.compile.report())
    run, _ = compiled(Written(), choice.FASTER)
    with torch.no_grad():
        run(torch.randn(6, 16))
    assert [e.direction for e in planish.compile.report()[before:]] == ["forward"]


@pytest.mark.parametrize("mode", [choice.FASTER, choice.ALWAYS])
def test_a_norm_of_16_bits_is_not_said(mode: str, rows: Any) -> None:  # noqa: F811
    rows(forward=9.0, backward=9.0)
    before = len(planish.compile.report())

    def norm(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    run, _ = compiled(norm, mode)
    run(torch.randn(6, 16).bfloat16().requires_grad_())
    found = planish.compile.report()[before:]
    assert [e.chosen for e in found] == ["inductor"] * 2
    assert all("its squares are of torch.bfloat16" in e.why for e in found)


def test_a_norm_without_an_operator_is_not_said() -> None:
    """planish's have 16 axes at most."""
    before = len(planish.compile.report())
    x = torch.randn([1] * 16 + [16])
    run, _ = compiled(lambda x: F.layer_norm(x, (16,)), choice.FASTER)
    results_of(run, None, x)
    found = planish.compile.report()[before:]
    assert [(e.direction, e.chosen) for e in found] == [
        ("forward", "inductor"),
        ("backward", "inductor"),
    ]
    assert {e.why for e in found} == {"planish has no operator for it"}
    assert found[0].shape == tuple(x.shape)


def test_stats_do_not_say_why(rows: Any) -> None:  # noqa: F811
    rows(forward=0.5)
    planish.reset_stats()
    run, _ = compiled(Layer(), choice.FASTER)
    run(torch.randn(6, 16))
    (why,) = planish.stats()["in compiled graphs (forward)"]["torch"]
    assert "0.50 times as fast" in why


def test_caches_do_not_know_the_choices(rows: Any) -> None:  # noqa: F811
    one = joint.NormPass(choice.FASTER, {}).uuid()
    assert one != joint.NormPass(choice.ALWAYS, {}).uuid()
    assert one == joint.NormPass(choice.FASTER, {}).uuid()


def test_the_table_is_out_of_order() -> None:
    assert table.rows()
    for row in table.rows():
        assert row.direction in (table.FORWARD, table.BACKWARD, table.ONE_KERNEL)
        assert row.speedup > 0
        for least, end in (row.columns, row.elements):
            assert least >= 0 and (end is None or end > least)


def test_rows_of_a_users_own_file(tmp_path: Path) -> None:
    """They stand in the place of ours of their kind of device; what is no table says so."""
    ours = table.rows()
    file = tmp_path / "choices.json"
    row = [ours[0].device, "rms rows", "f32", "forward", [64, None], [0, None], 2.5]
    file.write_text(json.dumps({"rows": [row]}))
    bad = tmp_path / "bad.json"
    bad.write_text('{"rows": [[1, 2]]}')
    code = (
        "import sys; from planish.compile import table; rows = table.rows()\n"
        "print(sum(row.device == sys.argv[1] for row in rows), len(rows), table.digest())"
    )
    said = {}
    for name in (file, bad, tmp_path / "none.json"):
        environment = {**os.environ, "PLANISH_CHOICES": str(name)}
        said[name.name] = subprocess.run(
            [sys.executable, "-c", code, ours[0].device],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    one, count, digest = said["choices.json"].stdout.split()
    others = [row for row in ours if row.device != ours[0].device]
    assert (int(one), int(count)) == (1, 1 + len(others))
    assert digest != table.digest()
    for name in ("bad.json", "none.json"):
        assert f"{name} has no table of choices" in said[name].stderr
        assert "ValueError: PLANISH_CHOICES" in said[name].stderr


@pytest.mark.parametrize("given", ["fast", 3, None])
def test_an_unknown_mode_is_taken(given: Any) -> None:
    with pytest.raises(Exception, match=r"options\['planish'\] is .*known are 'faster', 'always'"):
        options = {"planish": given}
        torch.compile(Layer(), backend="planish", options=options)(torch.randn(6, 16))


def test_doctor_says_nothing_of_the_compiler() -> None:
    found = doctor.report()["compile"]
    assert found["whole norms in a graph"] == found["passes that caches know"] == "yes"
    assert found["products added in place"] == "yes"
    assert any(name.startswith("table of choices, cpu") for name in found)
