"""Each sweep end to end in a tiny form: the files it writes, and what is in them."""

import csv
import io
import json
import time

import pytest

from planish.bench import allocator, main, plots, report, sweeps, timing
from planish.bench.case import Case
from planish.bench.command import parse, run
from planish.bench.measure import Result, measure
from planish.bench.providers.pytorch import Eager
from planish.bench.sweeps import SWEEPS, Sweep, cases_of, fit
from planish.bench.timing import Effort
from planish.commands.command_lines import UsageError
from planish.library.loaded import library

NAMES = "copy,add,unfused,onednn,planish"


def tiny(monkeypatch, name):
    old = SWEEPS[name]
    few = [(8, 64), (8, 128)]
    new = Sweep(old.name, old.what, few, few, old.dtypes, old.axis)
    monkeypatch.setitem(sweeps.SWEEPS, name, new)


def read_csv(path):
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("# ")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    return comments, rows


@pytest.mark.parametrize("name", ["table", "rows", "small", "large", "decode"])
def test_sweep_writes_csv_json_and_pictures(name, monkeypatch, tmp_path, capsys):
    tiny(monkeypatch, name)
    monkeypatch.setattr("planish.bench.command.QUICK", Effort(3, 0.0, 0.5))
    arguments = [name, "--quick", "--providers", NAMES, "--threads", "1", "--out", str(tmp_path)]
    assert run(parse(arguments)) == 0
    printed = capsys.readouterr().out
    comments, rows = read_csv(tmp_path / f"{name}.csv")
    for wanted in ("machine.cpu", "versions.unfused", "settings.quick"):
        assert any(line.startswith(f"# {wanted}: ") for line in comments)
    command = json.dumps("planish bench " + " ".join(arguments))
    assert f"# settings.command: {command}" in comments
    body = json.loads((tmp_path / f"{name}.json").read_text())
    assert body["machine"]["threads"] == 1
    assert len(body["results"]) == len(rows)
    timed = [r for r in body["results"] if r["status"] == "ok"]
    for direction, needed in (("forward", {"copy", "unfused"}), ("backward", {"add", "unfused"})):
        there = {r["provider"] for r in timed if r["direction"] == direction}
        assert needed <= there
    for result in timed:
        assert 0 < result["microseconds"] < 1e7
        assert 0 < result["gb_per_s"] < 1e4
        assert result["trials"] >= 3
        assert result["cols"] in (64, 128)
        if result["role"] != "ceiling":
            key = "ulp_y" if result["direction"] == "forward" else "ulp_dx"
            assert 0 <= result[key] < 64
    assert "best peer" in printed
    tables = report.markdown(tmp_path / f"{name}.json")
    assert tables.count("| 8 x 128 |") == len({(r["dtype"], r["direction"]) for r in timed})
    pictures = list(tmp_path.glob("*.png"))
    if plots.importlib.util.find_spec("matplotlib"):
        assert pictures
        assert all(p.stat().st_size > 10_000 for p in pictures)


def test_accuracy_sweep_shows_what_cancellation_does(tmp_path, capsys):
    arguments = ["accuracy", "--quick", "--providers", "torch,planish", "--out", str(tmp_path)]
    assert run(parse([*arguments, "--direction", "forward"])) == 0
    body = json.loads((tmp_path / "accuracy.json").read_text())
    by_name = {
        r["provider"]: r
        for r in body["results"]
        if r["mean_over_std"] == 1e4 and r["output"] == "y" and r["scale"] == 1
    }
    for name in ("torch", "welford", "two-pass", "E[x2]-E[x]2"):
        assert name in by_name
    assert float(by_name["E[x2]-E[x]2"]["ulp_max"]) > 1e6
    assert float(by_name["two-pass"]["ulp_max"]) < 1e6
    for record in body["results"]:
        assert float(record["ulp_p9999"]) <= float(record["ulp_max"])
    assert "welford" in capsys.readouterr().out
    assert "| welford | " in report.markdown(tmp_path / "accuracy.json", accuracy_mean=(0.0, 1e4))


def test_missing_peers_are_named_with_their_reason(tmp_path, monkeypatch, capsys):
    tiny(monkeypatch, "rows")
    monkeypatch.setenv("PLANISH_BENCH_ONEDNN", str(tmp_path / "no-such-library.so"))
    names = "unfused,onednn,liger"
    arguments = ["rows", "--quick", "--providers", names, "--out", str(tmp_path), "--threads", "1"]
    assert run(parse(arguments)) == 0
    printed = capsys.readouterr().out
    assert "missing: onednn: " in printed
    assert "missing: liger: " in printed
    body = json.loads((tmp_path / "rows.json").read_text())
    assert set(body["missing"]) == {"onednn", "liger"}
    assert "no-such-library.so" in body["missing"]["onednn"]


def test_unknown_names_are_refused_with_the_known_ones(tmp_path):
    for option in ("--dtype", "--providers", "--kind", "--direction"):
        with pytest.raises(UsageError, match="is none of"):
            run(parse(["rows", option, "nonsense", "--out", str(tmp_path)]))


def test_list_names_every_provider(capsys):
    assert run(parse(["--list"])) == 0
    printed = capsys.readouterr().out
    for name in ("copy", "onednn", "planish-torch-kept", "apex"):
        assert name in printed


def test_command_runs_in_a_process_that_keeps_its_pages(monkeypatch):
    seen = {}

    def fake(command, env, check):
        seen.update(command=command, env=env)
        return type("Done", (), {"returncode": 7})

    monkeypatch.delenv(allocator.MARK, raising=False)
    monkeypatch.setattr("planish.bench.allocator.subprocess.run", fake)
    assert main(["rows", "--quick", "--threads", "3"]) == 7
    assert seen["command"][-4:] == ["rows", "--quick", "--threads", "3"]
    assert allocator.keeps_pages(seen["env"])
    assert seen["env"]["OMP_NUM_THREADS"] == "3"
    undone = allocator.ordinary(seen["env"], 3)
    assert not allocator.keeps_pages(undone)
    assert not set(allocator.KEEP_PAGES) & set(undone)


def test_cpu_clock_is_for_one_thread():
    with pytest.raises(UsageError, match="--threads 1"):
        main(["rows", "--clock", "cpu", "--threads", "2"])


def test_sizes_follow_the_memory_there_is():
    assert fit(1 << 16, 2048, "f32", 1e18) == 1 << 16
    rows = fit(1 << 16, 2048, "f32", 1e9)
    assert rows < 1 << 16
    assert rows * 2048 * 4 * sweeps.LIVE_TENSORS <= 1e9
    assert fit(64, 1 << 20, "f32", 1.0) == 1


def test_the_classic_table_is_the_classic_table():
    groups = cases_of(
        SWEEPS["table"], quick=False, dtypes=None, kinds=["layer"],
        directions=["forward", "backward"], budget_bytes=1e18,
    )  # fmt: skip
    assert [len(group) for group in groups] == [30, 30]
    assert [case.cols for case in groups[0]] == list(range(1024, 15873, 512))
    assert {case.rows for case in groups[0]} == {4096}
    assert {case.dtype for case in groups[0]} == {"f16"}


def result(provider, role, microseconds, status="ok"):
    return Result(
        "8 x 8", 8, 8, "f32", "layer", "forward", provider, role, status, "",
        microseconds, microseconds, microseconds, 3, 1.0 if microseconds else None,
    )  # fmt: skip


def test_ratio_is_best_right_peer_over_planish():
    results = [
        result("copy", "ceiling", 1.0),
        result("torch", "peer", 30.0),
        result("onednn", "peer", 20.0),
        result("cheat", "peer", None, "wrong"),
        result("planish", "planish", 10.0),
    ]
    assert report.best_peer(results).provider == "onednn"
    assert report.ratio(results) == 2.0
    assert report.ratio(results[:-1]) is None


def test_table_marks_wrong_and_unsupported_cells():
    stream = io.StringIO()
    table = report.Table(["torch", "cheat", "planish"], stream)
    table.head("a title")
    table.row([result("torch", "peer", 20.0), result("cheat", "peer", None, "wrong"),
               result("planish", "planish", 10.0)])  # fmt: skip
    line = stream.getvalue().splitlines()[-1]
    assert "WRONG" in line
    assert line.endswith("2.00")


def test_floats_are_short_and_json_has_no_infinity():
    assert report.rounded({"a": 1.23456789, "b": float("inf"), "c": 3, "d": None}) == {
        "a": 1.23457,
        "b": "inf",
        "c": 3,
        "d": None,
    }


def test_another_build_is_measured_beside_this_one_at_the_shapes_given(tmp_path, monkeypatch):
    monkeypatch.setattr("planish.bench.command.QUICK", Effort(3, 0.0, 0.5))
    words = f"rows --quick --providers planish --shapes 3x40,5x64 --threads 1 --out {tmp_path}"
    arguments = [*words.split(), "--before", str(library().path)]
    assert run(parse(arguments)) == 0
    results = json.loads((tmp_path / "rows.json").read_text())["results"]
    assert {(r["rows"], r["cols"]) for r in results} == {(3, 40), (5, 64)}
    for direction in ("forward", "backward"):
        there = [r["provider"] for r in results if r["direction"] == direction]
        assert there == 2 * ["planish", "planish-before"]
    assert all(r["status"] == "ok" and r["microseconds"] > 0 for r in results)


@pytest.mark.parametrize("text", ["4096", "3x", "0x4", "axb", "1x2x3"])
def test_shapes_that_are_none_are_named(text, tmp_path):
    with pytest.raises(UsageError, match=text):
        run(parse(["rows", "--shapes", text, "--providers", "planish", "--out", str(tmp_path)]))


def test_noise_is_shown_as_noise_and_not_as_a_ratio():
    results = [
        Result("w", 1, 1, "f32", "layer", "forward", name, role, "ok", "", 10.0, gb_per_s=1.0,
               noisy=noise)
        for name, role, noise in (("torch", "peer", False), ("planish", "planish", True))
    ]  # fmt: skip
    stream = io.StringIO()
    table = report.Table(["torch", "planish"], stream)
    table.row(results)
    table.foot()
    assert report.ratio(results) is None
    assert "1.0" in stream.getvalue() and "noisy" in stream.getvalue()
    assert "too noisy to tell" in stream.getvalue()


def test_a_case_of_noisy_trials_is_marked(monkeypatch):
    """Through the whole of measure(): a clock that jumps makes a time that is not shown."""
    waits = iter([0.0, 0.5, 0.0, 3.0] * 1000)

    def jumping():
        return time.perf_counter() + next(waits)

    monkeypatch.setitem(timing.CLOCKS, "wall", jumping)
    found = measure(Case(4, 64), [Eager()], Effort(5, 0.0, 1.0, patience=1.0))
    assert [r.noisy for r in found] == [True]
