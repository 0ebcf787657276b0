"""planish bench switch: every norm of its lists runs, its verdicts, and what it writes."""

import csv

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from planish.bench import switch
from planish.bench.switch_shapes import QUICK, Norm, norms
from planish.bench.timing import TOO_NOISY, Effort, Ratio, Sample
from planish.commands.command_lines import UsageError

SHORT = Effort(trials=3, trial_seconds=0.0, case_seconds=0.2, patience=1.0)


def test_lists_name_each_norm_of_quick():
    labels = {norm.label for norm in norms()}
    assert set(QUICK) <= labels
    assert {norm.kind for norm in norms()} == {"layer", "rms", "group", "weight"}
    assert len(norms()) > 200


@pytest.mark.parametrize(
    "norm",
    [
        Norm("layer", (2, 5, 24), "a"),
        Norm("layer", (2, 24, 3, 5), "a", layout="nchw"),
        Norm("rms", (2, 5, 24), "a"),
        Norm("group", (2, 24, 4, 5), "a", 4, "nchw"),
        Norm("group", (2, 24, 4, 5), "a", 4, "nhwc"),
        Norm("group", (2, 24, 7), "a", 4, "nchw"),
        Norm("group", (2, 24, 2, 3, 5), "a", 4, "nhwc"),
        Norm("weight", (3, 5, 160), "a"),
        Norm("weight", (40, 5, 6), "a", axis=2),
    ],
    ids=lambda norm: f"{norm.kind}-{norm.layout}-{norm.label}",
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_cell_is_checked_and_timed(norm, direction, dtype):
    cell = switch.measure_cell(norm, dtype, direction, 1, "cpu", 1.1, SHORT)
    assert cell.error_ulp < 8
    assert cell.torch_microseconds > 0 and cell.planish_microseconds > 0
    assert cell.rounds in (3, 6)  # six where it was slower at first
    assert cell.ran == "planish" or cell.ran.startswith("torch: ")


def test_layer_norm_runs_on_planish():
    cell = switch.measure_cell(Norm("layer", (4, 64), "a"), "f32", "forward", 1, "cpu", 1.1, SHORT)
    assert cell.ran == "planish"


def test_a_wrong_result_is_said(monkeypatch):
    right = switch.work_of
    calls = []

    def work_of(*arguments):
        calls.append(arguments)
        off = 0.0 if len(calls) < 3 else 0.1  # the first two are the reference and torch
        return lambda: tuple(t + off for t in right(*arguments)())

    monkeypatch.setattr(switch, "work_of", work_of)
    cell = switch.measure_cell(Norm("layer", (4, 64), "a"), "f32", "forward", 1, "cpu", 1.1, SHORT)
    assert cell.verdict == "wrong"


def test_what_is_wrong():
    assert not switch.is_wrong(3.0, 1.0)
    assert not switch.is_wrong(900.0, 800.0)  # torch's own kernel is as far off
    assert switch.is_wrong(100.0, 1.0)
    assert switch.is_wrong(float("inf"), 5.0)
    assert switch.is_wrong(float("nan"), 5.0)


@pytest.mark.parametrize(
    "found, wanted",
    [
        (Ratio(1.0, 0.95, 1.05), "fine"),
        (Ratio(1.09, 1.0, 1.2), "fine"),
        (Ratio(1.2, 1.15, 1.3), "slower"),
        (Ratio(3.0, 1.2, 9.0), "slower"),  # how much is noise, that it is slower is not
        (Ratio(0.5, 0.1, 1.0), "fine"),
        (Ratio(1.0, 0.5, 2.0), TOO_NOISY),
        (Ratio(1.3, 1.0, 2.0), TOO_NOISY),
    ],
)
def test_verdicts(found, wanted):
    assert switch.verdict(found, 1.1) == wanted


def test_the_command_prints_what_is_slower_and_writes_all(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(switch, "EFFORT", SHORT)
    words = ["--only", "15 x 3,1 x 197 x 192", "--threads", "1", "--dtype", "f32", "--limit", "0"]
    status = switch.main([*words, "--malloc", "ordinary", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert status == 1  # nothing takes no time at all
    assert printed.count("slower; planish") == 4
    lines = [line for line in (tmp_path / "switch.csv").read_text().splitlines() if line[0] != "#"]
    rows = list(csv.DictReader(lines))
    assert {(row["shape"], row["direction"]) for row in rows} == {
        (shape, direction)
        for shape in ("15 x 3", "1 x 197 x 192")
        for direction in ("forward", "backward")
    }
    assert all(row["verdict"] == "slower" for row in rows)


def test_what_is_slower_by_chance_is_measured_again(monkeypatch):
    found = []

    def interleave(works, effort, **_):
        slow = 2.0 if not found else 1.0
        found.append(slow)
        return {"torch": Sample((1.0,) * 7), "planish": Sample((slow,) * 3 + (1.0,) * 4)}

    monkeypatch.setattr(switch, "interleave", interleave)
    monkeypatch.setattr(switch, "verdict", lambda r, _: "slower" if len(found) == 1 else "fine")
    cell = switch.measure_cell(Norm("layer", (4, 64), "a"), "f32", "forward", 1, "cpu", 1.1, SHORT)
    assert len(found) == 2
    assert cell.rounds == 14
    assert cell.verdict == "fine"


def test_nothing_chosen_is_said():
    with pytest.raises(UsageError, match="no shape"):
        switch.main(["--only", "nothing like it", "--malloc", "ordinary"])
