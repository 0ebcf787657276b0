"""The demo and the bench of models do not show noise as a result."""

import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from planish import demo
from planish.bench.models import took
from planish.bench.timing import Effort, Sample
from planish.demo_picture import AFTER, BEFORE, NormReport, StepReport, draw
from planish.models import NormCall

QUIET = {BEFORE: Sample((0.02, 0.021, 0.02, 0.02)), AFTER: Sample((0.01, 0.0101, 0.01, 0.01))}
#: A busy machine's: round by round anything between a tenth and two hundred times as fast.
NOISE = {
    BEFORE: Sample((0.02, 2.0, 0.02, 0.5, 0.021, 1.5)),
    AFTER: Sample((0.25, 0.01, 0.01, 0.09, 0.4, 0.01)),
}


def reports(samples):
    call = NormCall(torch.zeros(2, 3), [3], None, None, 1e-5)
    errors = dict.fromkeys(demo.OUTPUTS, 0.5)
    norm = NormReport(call, samples, samples, {BEFORE: errors, AFTER: errors})
    return norm, StepReport("model", "training step", samples, {BEFORE: 1.5, AFTER: 1.5})


@pytest.mark.parametrize("samples, shown", [(QUIET, True), (NOISE, False)], ids=["quiet", "noise"])
def test_what_is_printed(samples, shown, capsys):
    norm, step = reports(samples)
    screen = demo.Screen()
    demo.print_norms(screen, [norm])
    demo.print_steps(screen, [step])
    printed = capsys.readouterr().out
    assert ("2.00x" in printed) == shown
    assert ("10000" in printed) == shown
    assert printed.count("too noisy") == (0 if shown else 3)
    assert "loss 1.500000 -> 1.500000" in printed  # losses are no noise


@pytest.mark.parametrize("samples", [QUIET, NOISE], ids=["quiet", "noise"])
def test_what_is_drawn(samples, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    norm, step = reports(samples)
    draw(tmp_path / "demo.png", {"model": [norm]}, [step], {"cpu": "a", "threads": 1})
    assert (tmp_path / "demo.png").stat().st_size > 1000


def test_turns_go_on_while_they_are_noise_and_then_end():
    draw = random.Random(5)
    calls = []

    def timed(count):
        calls.append(count)
        return count * draw.choice((1.0, 10.0, 100.0))

    effort = Effort(trials=4, trial_seconds=0.0, case_seconds=1e9, patience=2.0)
    samples = demo.by_turns({BEFORE: timed, AFTER: timed}, effort)
    assert len(samples[BEFORE].seconds) == 8
    assert len(calls) == 2 + 2 * 8


def test_all_steps_together_end_in_time(monkeypatch):
    """However noisy: under three minutes with all that comes before the steps."""
    efforts = []

    def by_turns(works, effort):
        efforts.append(effort)
        return QUIET

    monkeypatch.setattr(demo, "by_turns", by_turns)
    workload = type("W", (), {"name": "w", "forward_step": float, "training_step": float})
    monkeypatch.setattr(demo.StepReport, "__init__", lambda *_: None)
    demo.time_steps(workload, demo.Screen(), demo.STEPS_SECONDS / 2)
    assert len(efforts) == 2
    assert sum(e.case_seconds * e.patience for e in efforts) <= demo.STEPS_SECONDS / 2


def test_a_model_s_step_is_not_shown_where_it_is_noise():
    assert "20.0 ms" in took(QUIET[BEFORE], 4)
    assert took(NOISE[BEFORE], 4) == "too noisy: 20.0 to 2000.0 ms"
