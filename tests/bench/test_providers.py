"""Every provider computes what the reference says, and one that does not is caught."""

import weakref

import pytest

import torch
from planish.bench.case import Case
from planish.bench.measure import measure
from planish.bench.providers import all_providers, in_process
from planish.bench.providers.base import Absent, Provider, Run, UnsupportedError, run_of
from planish.bench.providers.onnx_model import norm_model
from planish.bench.providers.processes import Workers
from planish.bench.providers.textbook import textbook_providers
from planish.bench.timing import Effort

BRIEF = Effort(trials=3, trial_seconds=0.0, case_seconds=1.0)
# torch.compile takes seconds for each case; the slow end of the bench is not tested here.
QUICK_NAMES = [p.name for p in in_process() if p.name != "torch-compile"]


def provider(name):
    found = {p.name: p for p in in_process()}[name]
    reason = found.missing()
    if reason is not None:
        pytest.skip(f"{name} is missing: {reason}")
    return found


@pytest.mark.parametrize("name", QUICK_NAMES)
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_provider_is_right_or_says_why_not(name, kind, direction, dtype):
    case = Case(33, 100, dtype, direction, kind)
    (result,) = measure(case, [provider(name)], BRIEF)
    assert result.status in ("ok", "unsupported"), result.reason
    if result.status == "unsupported":
        assert result.reason
        assert result.microseconds is None
        return
    assert result.microseconds > 0
    assert result.microseconds_q1 <= result.microseconds <= result.microseconds_q3
    gb_per_s = case.needed_bytes / result.microseconds / 1e3
    assert result.gb_per_s == pytest.approx(gb_per_s, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "kind", "direction"),
    [
        ("copy", "layer", "forward"),
        ("add", "layer", "backward"),
        ("torch", "layer", "forward"),
        ("torch", "layer", "backward"),
        ("torch", "rms", "backward"),
        ("unfused", "layer", "backward"),
        ("onednn", "layer", "forward"),
        ("onednn", "layer", "backward"),
        ("onnxruntime", "layer", "forward"),
        ("onnxruntime", "rms", "forward"),
        ("planish", "layer", "forward"),
        ("planish", "layer", "backward"),
        ("planish", "rms", "forward"),
        ("planish", "rms", "backward"),
        ("planish-torch", "layer", "forward"),
        ("planish-torch", "layer", "backward"),
    ],
)
def test_provider_does_f32(name, kind, direction):
    """What each of them is there for must not silently become "unsupported"."""
    (result,) = measure(Case(20, 96, "f32", direction, kind), [provider(name)], BRIEF)
    assert result.status == "ok", result.reason


class Wrong(Provider):
    """Scales the right result by a little more than 1: wrong by far more than rounding."""

    name = "wrong"
    what = "a planted error"

    def prepare(self, case, data):
        def outputs():
            if case.direction == "forward":
                y = torch.nn.functional.layer_norm(
                    data.x, [case.cols], data.weight, data.bias, case.eps
                )
                return {"y": y * 1.0001}
            return {
                "dx": torch.zeros_like(data.x),
                "dweight": torch.zeros_like(data.weight),
                "dbias": torch.zeros_like(data.weight),
            }

        return run_of(outputs, outputs)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_wrong_provider_is_reported_and_never_timed(direction):
    case = Case(16, 64, "f32", direction)
    results = measure(case, [provider("torch"), Wrong()], BRIEF)
    right, wrong = results
    assert right.status == "ok"
    assert wrong.status == "wrong"
    assert "ULP off" in wrong.reason
    assert wrong.microseconds is None
    assert wrong.gb_per_s is None


def test_a_provider_that_fails_is_reported_and_the_others_go_on():
    class Failing(Provider):
        name = "failing"
        what = "a planted failure"

        def prepare(self, case, data):
            raise RuntimeError("planted")

    results = measure(Case(4, 8), [Failing(), provider("torch")], BRIEF)
    assert [r.status for r in results] == ["failed", "ok"]
    assert results[0].reason == "planted"


def test_what_outputs_hold_lives_while_the_calls_are_timed():
    alive = []

    class Bound(Provider):
        name = "bound"
        what = "memory that another library knows by its address"

        def prepare(self, case, data):
            y = torch.nn.functional.layer_norm(
                data.x, [case.cols], data.weight, data.bias, case.eps
            )
            seen = weakref.ref(y)
            return run_of(lambda: alive.append(seen() is not None), lambda: {"y": y})

    results = measure(Case(4, 8), [Bound(), provider("torch")], BRIEF)
    assert [r.status for r in results] == ["ok", "ok"]
    assert alive
    assert all(alive)


def test_absent_peer_has_its_reason():
    absent = Absent("nobody", "does nothing", "not invented yet")
    assert absent.missing() == "not invented yet"
    with pytest.raises(UnsupportedError, match="not invented"):
        absent.prepare(Case(1, 1), None)
    assert measure(Case(4, 8), [absent], BRIEF) == []


def test_every_known_provider_is_listed_and_named_once():
    workers = Workers()
    names = [p.name for p in all_providers(workers)]
    assert len(names) == len(set(names))
    for name in ("copy", "add", "torch", "torch-kept", "torch-compile", "unfused", "onnxruntime",
                 "onednn", "planish", "planish-torch", "planish-torch-kept", "liger", "quack",
                 "apex", "triton"):  # fmt: skip
        assert name in names


def test_worker_computes_the_same_bits_and_measures():
    workers = Workers()
    try:
        torch_again = {p.name: p for p in all_providers(workers)}["torch"]
        case = Case(8, 32, "f32", "backward")
        (result,) = measure(case, [torch_again], BRIEF)
        assert result.status == "ok", result.reason
        assert result.microseconds > 0
        (compared,) = measure(Case(8, 32, "f32", "backward"), [torch_again], BRIEF)
        assert compared.ulp_dx == result.ulp_dx
    finally:
        workers.close()


def test_worker_with_other_bits_is_a_failure(monkeypatch):
    from planish.bench.providers import processes

    workers = Workers()
    try:
        torch_again = {p.name: p for p in all_providers(workers)}["torch"]
        monkeypatch.setattr(processes, "checksum", lambda outputs: {"y": -1})
        (result,) = measure(Case(8, 32), [torch_again], BRIEF)
        assert result.status == "failed"
        assert "different bits" in result.reason
    finally:
        workers.close()


def test_textbook_methods_rank_as_they_should_at_a_large_mean():
    from planish.bench.accuracy import compare
    from planish.bench.case import make_data

    case = Case(32, 1024, "f32", mean=1000.0)
    data = make_data(case)
    outputs = {p.name: p.prepare(case, data).outputs() for p in textbook_providers()}
    largest = {name: s["y"].largest for name, s in compare(case, data, outputs).items()}
    assert largest["two-pass"] < largest["welford"] < largest["E[x2]-E[x]2"]


def test_onnx_model_is_what_onnxruntime_reads():
    ort = pytest.importorskip("onnxruntime")
    model = norm_model("layer", 3, 5, "f32", 1e-3)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["x", "weight", "bias"]
    assert session.get_outputs()[0].shape == [3, 5]
    x = torch.randn(3, 5)
    feeds = {"x": x.numpy(), "weight": torch.ones(5).numpy(), "bias": torch.zeros(5).numpy()}
    (y,) = session.run(None, feeds)
    wanted = torch.nn.functional.layer_norm(x, [5], eps=1e-3)
    torch.testing.assert_close(torch.from_numpy(y), wanted, rtol=1e-6, atol=1e-6)


def test_run_closes_what_it_opened():
    closed = []
    run = Run(lambda count: 0.0, dict, lambda: closed.append(1))
    run.close()
    assert closed == [1]
