"""The bench's statistics and its turns, on clocks and works that the test makes up."""

import time

import pytest

from planish.bench.timing import LEAST_TRIALS, Effort, Sample, calls_per_trial, interleave, loop


def test_median_and_quartiles_of_known_trials():
    sample = Sample((5.0, 1.0, 3.0, 2.0, 4.0))
    assert sample.median == 3.0
    assert sample.quartiles == (2.0, 4.0)
    assert sample.spread == pytest.approx(2.0 / 3.0)


def test_one_outlier_moves_neither_median_nor_quartiles_far():
    sample = Sample((1.0, 1.0, 1.0, 1.0, 100.0))
    assert sample.median == 1.0
    assert sample.quartiles == (1.0, 1.0)


def test_single_trial_has_no_spread():
    assert Sample((2.0,)).quartiles == (2.0, 2.0)
    assert Sample((2.0,)).spread == 0.0


def test_trial_length_follows_the_call():
    effort = Effort(trial_seconds=0.01)
    assert calls_per_trial(lambda count: count * 0.02, effort) == 1
    assert calls_per_trial(lambda count: count * 1e-5, effort) == 1000


def test_every_round_runs_every_work_once():
    order = []

    def work(name):
        return lambda count: order.append(name) or count * 1.0

    effort = Effort(trials=6, trial_seconds=0.0, case_seconds=1e9)
    samples = interleave({name: work(name) for name in "abc"}, effort)
    rounds = [order[i : i + 3] for i in range(3, len(order), 3)]  # the first three calibrate
    assert len(rounds) == 6
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 1, "always the same order"
    assert all(sample.seconds == (1.0,) * 6 for sample in samples.values())


def test_a_slow_case_is_cut_short_but_not_below_the_least():
    ticks = iter(range(1000))
    effort = Effort(trials=50, trial_seconds=0.0, case_seconds=5)
    samples = interleave({"a": lambda count: 1.0}, effort, clock=lambda: 6 * next(ticks))
    assert len(samples["a"].seconds) == LEAST_TRIALS


def test_cpu_clock_leaves_out_the_time_off_the_core(monkeypatch):
    monkeypatch.setenv("PLANISH_BENCH_CLOCK", "cpu")
    assert loop(lambda: time.sleep(0.05), warm=False)(1) < 0.02
    monkeypatch.setenv("PLANISH_BENCH_CLOCK", "wall")
    assert loop(lambda: time.sleep(0.05), warm=False)(1) >= 0.05


def test_loop_calls_as_often_as_asked_plus_one_to_warm():
    calls = []
    timed = loop(lambda: calls.append(0))
    assert timed(5) > 0
    assert len(calls) == 6
    calls.clear()
    loop(lambda: calls.append(0), warm=False)(5)
    assert len(calls) == 5
