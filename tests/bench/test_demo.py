"""The demo and the bench of models do not show noise as a result."""

import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from planish.bench.models import took
from planish.bench.timing import Effort, Sample
from planish.commands.models import NormCall
from planish.demo import command, time
from planish.demo import screen as demo_screen
from planish.demo.picture import AFTER, BEFORE, NormReport, StepReport, draw
from planish.demo.time import Budget

QUIET = {BEFORE: Sample((0.02, 0.021, 0.02, 0.02)), AFTER: Sample((0.01, 0.0101, 0.01, 0.01))}
#: A busy machine's: round by round anything between a tenth and two hundred times as fast.
NOISE = {
    BEFORE: Sample((0.02, 2.0, 0.02, 0.5, 0.021, 1.5)),
    AFTER: Sample((0.25, 0.01, 0.01, 0.09, 0.4, 0.01)),
}


def reports(samples):
    call = NormCall(torch.zeros(2, 3), [3], None, None, 1e-5)
    errors = dict.fromkeys(demo_screen.OUTPUTS, 0.5)
    norm = NormReport(call, samples, samples, {BEFORE: errors, AFTER: errors})
    return norm, StepReport("model", "training step", samples, {BEFORE: 1.5, AFTER: 1.5})


@pytest.mark.parametrize("samples, shown", [(QUIET, True), (NOISE, False)], ids=["quiet", "noise"])
def test_what_is_printed(samples, shown, capsys):
    norm, step = reports(samples)
    screen = demo_screen.Screen()
    demo_screen.print_norms(screen, [norm])
    demo_screen.print_steps(screen, [step])
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


class Time:
    """A clock that stands still but for the work that is done."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds):
        """Something that takes so long each time."""
        draw = iter(seconds) if isinstance(seconds, list) else None

        def timed(count):
            taken = count * (next(draw) if draw else seconds)
            self.now += taken
            return taken

        return timed


def test_turns_go_on_while_they_are_noise_and_then_end():
    draw = random.Random(5)
    calls = []

    def timed(count):
        calls.append(count)
        return count * draw.choice((1.0, 10.0, 100.0))

    effort = Effort(trials=4, trial_seconds=0.0, case_seconds=1e9, patience=2.0)
    budget = Budget(1e12, Time())
    samples = command.by_turns({BEFORE: timed, AFTER: timed}, effort, budget, budget.end, "it")
    assert len(samples[BEFORE].seconds) == 8
    assert len(calls) == 2 + 2 * 8
    assert not budget.left_out


def test_turns_end_with_the_time_that_they_have():
    clock = Time()
    budget = Budget(100.0, clock)
    noise = [1.0, 7.0, 2.0, 9.0, 1.0, 8.0, 3.0] * 20
    works = {BEFORE: clock.work(noise), AFTER: clock.work(noise[1:])}
    samples = command.by_turns(works, Effort(1000, 0.0, 1e9), budget, 60.0, "it")
    assert 60.0 <= clock.now < 60.0 + 9.0, "no more than the trial that ran"
    assert len(samples[BEFORE].seconds) == len(samples[AFTER].seconds) >= 3
    assert not budget.left_out


def test_what_has_no_time_for_three_rounds_is_left_out_and_named():
    clock = Time()
    budget = Budget(100.0, clock)
    works = {BEFORE: clock.work(10.0), AFTER: clock.work(10.0)}
    assert command.by_turns(works, Effort(5, 0.0, 1e9), budget, 70.0, "the step") == {}
    assert budget.left_out == ["the step"]
    assert clock.now <= 80.0


class Model:
    """A workload whose steps take so many seconds by a made-up clock."""

    name = "a model"

    def __init__(self, clock, forward, training):
        def step(seconds):
            def run():
                clock.now += seconds
                return 1.0

            return run

        self.forward_step, self.training_step = step(forward), step(training)


def run_steps(monkeypatch, forward, training, until):
    clock = Time()
    budget = Budget(1000.0, clock)

    def timed_under(name, work, warm=True, queued=False):
        def timed(count):
            begin = clock.now
            for _ in range(count):
                work()
            return clock.now - begin

        return timed

    monkeypatch.setattr(command, "timed_under", timed_under)
    model = Model(clock, forward, training)
    return command.time_steps(model, demo_screen.Screen(), budget, until), budget, clock


def test_steps_end_in_time(monkeypatch, capsys):
    found, budget, clock = run_steps(monkeypatch, 1.0, 3.0, 60.0)
    assert [report.step for report in found] == ["forward", "training step"]
    assert not budget.left_out
    assert clock.now <= 60.0 + 3.0
    capsys.readouterr()
    demo_screen.print_steps(demo_screen.Screen(), found)
    assert capsys.readouterr().out.count("no difference") == 2


def test_a_step_that_is_too_slow_is_left_out(monkeypatch):
    found, budget, clock = run_steps(monkeypatch, 2.0, 30.0, 100.0)
    assert [report.step for report in found] == ["forward"]
    assert budget.left_out == ["a model: the training step"]
    assert clock.now <= 100.0 + 30.0


def test_a_norm_is_checked_though_no_time_is_left_to_time_it():
    call = NormCall(torch.randn(4, 8), [8], torch.ones(8), torch.zeros(8), 1e-5)
    call.dy = torch.randn(4, 8)
    budget = Budget(0.0)
    report = command.examine(call, budget, budget.end)
    assert report.forward == {} and report.backward == {}
    assert set(report.ulp[AFTER]) == {"y", "dx", "dweight", "dbias"}
    assert budget.left_out == [
        "the time of norm 4 x 8, forward",
        "the time of norm 4 x 8, backward",
    ]


def test_the_demo_says_what_it_left_out(tmp_path, capsys):
    assert command.main(["--seconds", "1", "--small", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "no norm was checked" in printed
    assert "within 4 ULP" not in printed
    for key in ("bert", "convnext"):
        assert f"left out, as no time was left for it (--seconds): {key}: all of it" in printed
    assert not (tmp_path / "demo.png").exists()


def test_the_whole_demo_is_done_within_three_minutes():
    """The picture, the imports and one step that had begun beside what is timed."""
    assert time.SECONDS + 15 <= 180
    budget = Budget(100.0, Time())
    assert budget.part(2) == 50.0
    assert budget.part(4, 80.0) == 20.0
    assert budget.left(-1.0) == 0.0


def test_a_model_s_step_is_not_shown_where_it_is_noise():
    assert "20.0 ms" in took(QUIET[BEFORE], 4)
    assert took(NOISE[BEFORE], 4) == "too noisy: 20.0 to 2000.0 ms"
