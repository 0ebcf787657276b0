"""`planish bench fused` in a tiny form: what it checks, prints and writes. The peers in Triton run
in its interpreter, where Triton is."""

import csv
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from planish.bench import allocator, main
from planish.bench.fused import command, reference, ways, works
from planish.bench.timing import Effort
from planish.commands.command_lines import UsageError

HERE = Path(__file__).resolve()
TINY = Effort(trials=3, trial_seconds=0.0, case_seconds=0.5, patience=1.0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """In this process, few rows."""
    monkeypatch.setattr(allocator, "keeps_pages", lambda: True)
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(works, "SAMPLES", 2)


def tiny(row, kind="rms", direction="forward", dtype="f32"):
    heads = 3 if row == "qk" else 1
    return works.Work("add", row, kind, direction, 6, 160, dtype, "cpu", heads)


ROWS = [
    *((row, kind, direction) for row in ("add", "dropout") for kind in ("rms", "layer")
      for direction in works.BOTH),
    *(("modulated", "layer", direction) for direction in works.BOTH),
    *(("gated", "rms", direction) for direction in works.BOTH),
    *((row, "rms", "forward") for row in ("fp8-row", "fp8-tensor", "fp8-128", "fp8-row-add")),
    *(("qk", "rms", direction) for direction in works.BOTH),
]  # fmt: skip


def verdict(work, way):
    sets = works.copies(works.make_data(work), 2)
    torch.manual_seed(0)
    return reference.Truth(work, sets[0]).check(way.prepare(work, sets).outputs())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("row", "kind", "direction"), ROWS)
def test_every_way_computes_every_work(row, kind, direction, dtype, monkeypatch):
    monkeypatch.setattr(reference, "DROPPED", 0.05)
    work = tiny(row, kind, direction, dtype)
    for way in ways.all_ways("cpu", "none"):
        if way.missing("cpu") is None:
            error, wrong = verdict(work, way)
            assert not wrong, (way.name, wrong)
            assert error < 8


def test_another_function_is_seen(monkeypatch):
    def without_eps_and_weight(work):
        def function(data):
            s = data["x"] + data["residual"]
            return torch.nn.functional.rms_norm(s, s.shape[-1:]), s

        return function

    way = ways.Functions("other", "", without_eps_and_weight)
    _, wrong = verdict(tiny("add"), way)
    assert wrong.startswith("y is")
    monkeypatch.setattr(ways, "DROPOUT", 0.5)
    _, wrong = verdict(tiny("dropout"), ways.Functions("torch", "", ways.of_torch))
    assert "kept" in wrong or "dropped" in wrong


def test_table_and_file(tmp_path, capsys):
    arguments = ["--quick", "--threads", "1", "--compile", "none", "--out", str(tmp_path)]
    assert main(["fused", *arguments, "--only", "decode,modulated"]) == 0
    lines = (tmp_path / "fused.csv").read_text().splitlines()
    found = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert {row["way"] for row in found} >= {"planish", "unfused", "torch"}
    assert {row["row"] for row in found} == {"add", "fp8-row", "modulated"}
    assert all(row["status"] == "ok" and float(row["error"]) < 8 for row in found)
    printed = capsys.readouterr().out
    assert "missing: torch-compile: left out by --compile none" in printed
    assert "modulated LayerNorm backward, f32" in printed


def test_what_does_not_fit_into_the_time_is_named(tmp_path, capsys):
    arguments = ["--quick", "--threads", "1", "--seconds", "1e-9", "--out", str(tmp_path)]
    assert main(["fused", *arguments, "--only", "qk"]) == 1  # nothing was measured
    assert "out of time, not measured: qk RMSNorm forward" in capsys.readouterr().out
    with pytest.raises(UsageError, match="'none' is none of add,"):
        main(["fused", *arguments, "--only", "none"])


def test_the_ceiling_moves_what_it_says():
    way = command.Ceiling()
    if (reason := way.missing("cpu")) is not None:
        pytest.skip(reason)
    for work in (tiny("add"), tiny("gated", direction="backward"), tiny("fp8-row-add")):
        found = way.prepare(work, []).outputs()
        assert len(found) == len(work.streams[1])
        assert all(not bool(t.any()) and t.numel() > 0 for t in found.values())


def in_interpreter():
    """Every peer in Triton at every work, on the CPU; called in a process of its own."""
    from planish.bench.fused import triton_streams, triton_ways

    triton_ways.fastest = triton_streams.fastest = lambda choices, *_: choices[0]
    triton_ways.cores = lambda: 2
    reference.DROPPED = 0.05
    reference.LIMIT_STEPS = 8.0  # the interpreter rounds 1.99 to 1 in 8-bit types
    done = 0
    for row, kind, direction in ROWS:
        for dtype in ("f32", "bf16"):
            work = tiny(row, kind, direction, dtype)
            for way in triton_ways.triton_ways():
                try:
                    _, wrong = verdict(work, way)
                except ways.UnsupportedError:
                    continue
                assert not wrong, (way.name, work.title, wrong)
                done += 1
            found = triton_streams.prepare(work, works.copies(works.make_data(work), 1)).outputs()
            assert all(not bool(t.any()) for t in found.values()), work.title
    print(f"{done} done")


def test_peers_in_triton_compute_every_work():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    here = str(HERE.parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_fused as t; t.in_interpreter()"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    if "only 0-dimensional arrays can be converted" in ran.stderr:
        pytest.skip("this Triton's interpreter cannot loop with this NumPy")
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[0]) >= 2 * len(ROWS)
