"""The bench's statistics and its turns, on clocks and works that the test makes up."""

import math
import random
import time

import pytest

from planish.bench.timing import (
    LEAST_TRIALS,
    Effort,
    OutOfTimeError,
    Sample,
    Seconds,
    calls_per_trial,
    interleave,
    loop,
    median_interval,
    ratio,
    ratio_settled,
)


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


def noisy(seed, quiet=1e-3):
    """Trials of a machine with other work: most wait for a core, some for a long time."""
    draw = random.Random(seed)

    def timed(count):
        return count * quiet * draw.choice((1.0, 1.0, 3.0, 8.0, 40.0))

    return timed


def test_interval_of_the_median_of_known_numbers_of_trials():
    """The bounds of the sign test, from its tables."""
    for count, low, high in ((3, 0, 2), (6, 0, 5), (9, 1, 7), (12, 2, 9), (15, 3, 11), (20, 5, 14)):
        assert median_interval([float(i) for i in range(count)][::-1]) == (low, high)


def test_interval_holds_the_median_as_often_as_it_says():
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(15)])
        held += low <= math.log(2) <= high
    assert 0.94 < held / 2000 < 0.99


def test_noise_is_not_shown_as_a_result():
    """Two works that take the same: either it is seen that they do, or nothing is said."""
    shown = 0
    for seed in range(200):
        works = {"a": noisy(seed), "b": noisy(1000 + seed)}
        effort = Effort(trials=5, trial_seconds=0.0, case_seconds=1e9, patience=3.0)
        samples = interleave(works, effort, settled=ratio_settled("a", "b"))
        found = ratio(samples["a"], samples["b"])
        if found.noisy:
            assert str(found) == "too noisy"
            assert len(samples["a"].seconds) == 15, "gave up before its patience was over"
        else:
            shown += 1
            assert 0.8 < found.value < 1.25, f"seed {seed}: {found} of two equal works"
            wanted = "no difference" if found.even else f"{found.value:.2f}x"
            assert str(found) == wanted
    assert shown < 100


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ((1.02, 1.01, 1.0, 0.99, 1.03, 1.02), (1.0,) * 6, "no difference"),  # 0.99 to 1.03
        ((1.0,) * 6, (1.0,) * 6, "no difference"),
        ((1.02, 1.01, 1.01, 1.01, 1.03, 1.02), (1.0,) * 6, "1.02x"),
        ((0.9, 0.91, 0.9, 0.9, 0.9, 0.9), (1.0,) * 6, "0.90x"),
        ((1.0, 1.0, 2.0, 3.0, 3.0), (0.99, 1.98, 2.02, 2.9, 2.9), "too noisy"),
    ],
)
def test_what_may_be_none_is_shown_as_a_difference(before, after, text):
    assert str(ratio(Sample(before), Sample(after))) == text


def test_medians_that_contradict_the_rounds_are_shown():
    """Six of seven rounds are slower by 1 in 100; of all trials the middle one is faster."""
    before = Sample((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.0, 7.0))
    after = Sample((0.99, 1.98, 2.97, 3.96, 5.01, 5.94, 6.93, 6.93, 6.93))
    found = ratio(before, after)
    assert found.low > 1 and found.value > 1 and before.median < after.median
    assert str(found) == "no difference"


def test_few_outliers_are_no_noise():
    trials = [1.0, 1.01, 0.99, 1.02, 250.0, 1.0, 0.98, 1.0, 0.01]
    assert not Sample(tuple(trials)).noisy
    assert Sample((1.0, 1.5, 2.0)).noisy


def test_ratio_is_taken_round_by_round():
    """The whole machine becomes ten times slower half way: the ratio does not."""
    before = Sample((2.0, 2.0, 2.0, 2.0, 20.0, 20.0, 20.0, 20.0))
    after = Sample((1.0, 1.0, 1.0, 1.0, 10.0, 10.0, 10.0, 10.0))
    assert ratio(before, after).value == 2.0
    assert not ratio(before, after).noisy
    assert before.noisy


def test_measuring_goes_on_until_it_is_settled():
    slow = iter([1.0] + [5.0, 1.0] * 3 + [1.0] * 1000)
    effort = Effort(trials=6, trial_seconds=0.0, case_seconds=1e9, patience=10.0)
    samples = interleave({"a": lambda count: next(slow) * count}, effort)
    assert 6 < len(samples["a"].seconds) < 60
    assert not samples["a"].noisy
    assert samples["a"].median == 1.0


def test_patience_ends_by_the_clock():
    ticks = iter(range(1000))
    effort = Effort(trials=3, trial_seconds=0.0, case_seconds=10, patience=2.0)
    works = {"a": noisy(3)}
    samples = interleave(works, effort, clock=lambda: next(ticks), settled=lambda _: False)
    assert 3 < len(samples["a"].seconds) < 25


def test_works_that_are_to_be_alike_get_the_same_number_of_calls():
    counts = {"fast": [], "slow": []}

    def work(name, seconds):
        return lambda count: counts[name].append(count) or count * seconds

    effort = Effort(trials=3, trial_seconds=0.01, case_seconds=1e9)
    interleave({"fast": work("fast", 1e-5), "slow": work("slow", 1e-3)}, effort, alike=True)
    assert counts["fast"][-3:] == counts["slow"][-3:] == [1000] * 3


def test_a_calibration_that_waited_for_a_core_is_repeated():
    waits = iter([0.05])
    calls = calls_per_trial(lambda count: count * 1e-4 + next(waits, 0.0), Effort())
    assert calls == 100


def test_steady_waits_for_a_core_are_noise_too():
    """An operator that waits for another thread's core each time takes as long in every trial."""
    works = {
        "torch": lambda count: Seconds(count * 2e-3, 0.01),
        "planish": lambda count: Seconds(count * 4e-6, 0.99),
    }
    effort = Effort(trials=3, trial_seconds=0.0, case_seconds=1e9, patience=2.0)
    samples = interleave(works, effort, settled=ratio_settled("torch", "planish"))
    found = ratio(samples["torch"], samples["planish"])
    assert (samples["torch"].noisy, samples["planish"].noisy) == (True, False)
    assert str(found) == "too noisy"
    assert len(samples["torch"].seconds) == 6


def test_loop_knows_how_long_it_had_a_core():
    asleep = loop(lambda: time.sleep(0.05), warm=False, clock="wall")(1)
    assert asleep >= 0.05 and asleep.on_core < 0.5
    assert loop(lambda: time.sleep(0.02), warm=False, clock="cpu")(1).on_core == 1.0
    assert not Sample((1.0, 1.0, 1.0), (0.9, 0.1, 0.95)).starved
    assert Sample((1.0, 1.0, 1.0), (0.2, 0.1, 0.95)).starved
    assert not Sample((1.0, 1.0, 1.0)).starved  # not known


def test_a_deadline_ends_with_whole_rounds():
    ticks = iter(range(1000))
    effort = Effort(trials=50, trial_seconds=0.0, case_seconds=1e9)
    works = {name: lambda count: 1.0 * count for name in "ab"}
    samples = interleave(works, effort, clock=lambda: next(ticks), deadline=31)
    assert LEAST_TRIALS <= len(samples["a"].seconds) < 12
    assert len(samples["a"].seconds) == len(samples["b"].seconds)


def test_a_deadline_before_the_least_number_of_trials_is_an_error():
    for deadline in (0, 1, 4, 8):
        ticks = iter(range(1000))
        ran = []
        works = {name: lambda count, r=ran: r.append(count) or 1.0 for name in "ab"}
        with pytest.raises(OutOfTimeError):
            interleave(works, Effort(), clock=lambda t=ticks: next(t), deadline=deadline)
        assert len(ran) <= deadline
