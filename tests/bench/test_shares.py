"""`planish coverage` and `planish try` do not show noise as a result, on times that are made up."""

import time

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from planish.bench.timing import Sample
from planish.commands import coverage, reach, trial


def rounds(*of, on_core=1.0):
    """A model of two classes of norms: seconds of the step, of the one and of the other."""
    made = [reach.Round(step, {"a.A": one, "b.B": other}, on_core) for step, one, other in of]
    classes = {name: reach.Calls(on_planish=2) for name in ("a.A", "b.B")}
    return reach.Reach(classes, 1.0, made)


QUIET = rounds((1.0, 0.1, 0.1), (1.1, 0.11, 0.11), (0.9, 0.09, 0.09), (1.0, 0.1, 0.1))
NOISE = rounds((1.0, 0.1, 0.1), (9.0, 0.1, 0.2), (1.0, 0.7, 0.1), (3.0, 0.1, 2.5))
STARVED = rounds(*[(10.0, 0.01, 0.01)] * 5, on_core=0.1)
ONCE = rounds((1.0, 0.1, 0.1))


@pytest.mark.parametrize(
    "found, shown",
    [(QUIET, True), (NOISE, False), (STARVED, False), (ONCE, False)],
    ids=["quiet", "noise", "starved", "once"],
)
def test_shares_of_a_model(found, shown):
    text = coverage.report("model", dict.fromkeys(reach.MODES, found))
    assert ("norms take 20% of this forward" in text) == shown
    assert text.count(" 50%") == (2 if shown else 0)
    assert text.count("too noisy") == (0 if shown else 3)
    assert ("other work had the cores" in text) == (not shown)
    assert "%" not in text or shown


def test_a_share_that_is_almost_nothing_is_no_noise():
    assert str(reach.Share((0.001, 0.004, 0.002, 0.001))) == "0%"
    assert str(reach.Share((0.01, 0.4, 0.2, 0.02))) == "too noisy"


class _Waits(torch.nn.Module):
    """Waits for as long as it is told, outside of its norm."""

    def __init__(self, seconds):
        super().__init__()
        self.norm, self.seconds = torch.nn.LayerNorm(1024), iter(seconds)

    def forward(self, x):
        end = time.perf_counter() + next(self.seconds)
        while time.perf_counter() < end:
            pass
        return self.norm(x)


def looked(seconds, count):
    model = _Waits(seconds)
    x = torch.randn(4, 1024)
    with torch.no_grad():
        model.norm(x)
        return reach.look(model, lambda: model(x), count)


def test_rounds_go_on_while_they_differ_and_then_end(monkeypatch):
    monkeypatch.setattr(reach.Share, "noisy", True)
    found = looked([0.0] * 99, 4)
    assert len(found.rounds) == 4 * reach.PATIENCE
    assert found.calls == 1, "of one round"
    monkeypatch.setattr(reach.Share, "noisy", False)
    assert len(looked([0.0] * 99, 4).rounds) == 4
    assert len(looked([0.0] * 99, 1).rounds) == 1


class Subject:
    """Two ways whose steps take so many seconds by a made-up clock."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def clock(self):
        return self.now

    def forward(self):
        return "forward"

    def training_step(self):
        return "training step"

    def timed(self, name, step):
        takes = self.seconds[step()]

        def run(count):
            taken = count * (next(takes) if hasattr(takes, "__next__") else takes)
            self.now += taken
            return taken

        return run


def test_a_step_that_has_not_the_time_is_left_out():
    subject = Subject({"forward": 0.5, "training step": 20.0})
    lines = trial._time(subject, 60.0, subject.clock)
    assert "500.00 ms" in lines[0] and "no difference" in lines[0]
    assert lines[1].startswith("  training step  left out: ")
    assert lines[1].endswith("s are too few for it (--seconds)")
    assert subject.now <= 60.0 + 20.0


def test_noise_is_not_shown_as_a_ratio():
    draw = [0.5, 40.0, 1.0, 0.5, 9.0, 0.7, 30.0, 0.5, 2.0, 0.6, 25.0]
    subject = Subject({"forward": iter(draw * 100), "training step": 0.5})
    lines = trial._time(subject, 2000.0, subject.clock)
    assert lines[0] == "  forward        too noisy: other work had the cores"
    assert "no difference" in lines[1]
    assert Sample((0.5,) * 5).noisy is False
