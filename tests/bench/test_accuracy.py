"""ULP distances and the reference, against values worked out another way."""

import math

import numpy as np
import pytest

import torch
from planish.bench.accuracy import compare, distance, quantile, rows_distance, ulp_of
from planish.bench.case import Case, make_data
from planish.library.dtypes import BY_NAME


@pytest.mark.parametrize(
    ("value", "dtype", "ulp"),
    [
        (1.0, torch.float32, 2.0**-23),
        (1.999, torch.float32, 2.0**-23),
        (2.0, torch.float32, 2.0**-22),
        (-1.0, torch.float16, 2.0**-10),
        (1.0, torch.bfloat16, 2.0**-7),
        (1.0, torch.float64, 2.0**-52),
        (0.0, torch.float32, 2.0**-149),
        (1e-42, torch.float32, 2.0**-149),
        (0.0, torch.float16, 2.0**-24),
        (6.2e-5, torch.float16, 2.0**-24),
        (0.0, torch.bfloat16, 2.0**-133),
    ],
)
def test_ulp_is_the_gap_between_neighbours(value, dtype, ulp):
    assert float(ulp_of(torch.tensor(value, dtype=torch.float64), dtype)) == ulp


def test_ulp_agrees_with_numpy_spacing():
    values = np.exp2(np.random.default_rng(0).uniform(-140, 127, 1000)).astype(np.float32)
    wanted = np.spacing(values).astype(np.float64)
    found = ulp_of(torch.from_numpy(values), torch.float32).numpy()
    np.testing.assert_array_equal(found, wanted)


def test_nan_and_infinity_count_as_infinitely_far_unless_wanted():
    nan, inf = math.nan, math.inf
    found = torch.tensor([1.0, nan, inf, nan, inf, -inf])
    wanted = torch.tensor([1.0, 1.0, 1.0, nan, inf, inf], dtype=torch.float64)
    gaps = distance(found, wanted, torch.ones(6, dtype=torch.float64))
    assert gaps.tolist() == [0.0, inf, inf, 0.0, 0.0, inf]


def test_row_distance_is_in_ulp_of_the_rows_largest():
    wanted = torch.tensor([[1.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    found = torch.tensor([[1.0, 2.0**-23], [4.0, 2.0**-23]])
    assert rows_distance(found, wanted, torch.float32).tolist() == [[0.0, 1.0], [0.0, 0.25]]


def test_quantile_is_a_value_that_occurs():
    values = torch.arange(1, 10001, dtype=torch.float64)
    assert quantile(values, 0.9999) == 9999
    assert quantile(values, 1.0) == 10000
    assert quantile(values, 0.5) == 5000


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_reference_agrees_with_autograd_in_double(kind, dtype):
    """The truth rounded once to the dtype is at most half an ULP off."""
    for direction in ("forward", "backward"):
        case = Case(7, 53, dtype, direction, kind, mean=3.0)
        data = make_data(case)
        given = (data.x, data.weight, data.bias)
        x, w, b = (None if t is None else t.double().requires_grad_() for t in given)
        if kind == "layer":
            y = torch.nn.functional.layer_norm(x, [53], w, b, case.eps)
        else:
            y = x * (x.square().mean(-1, keepdim=True) + case.eps).rsqrt() * w
        if direction == "forward":
            exact = {"y": y.detach()}
        else:
            y.backward(data.dy.double())
            exact = {"dx": x.grad, "dweight": w.grad}
            if b is not None:
                exact["dbias"] = b.grad
        outputs = {"truth": {key: t.to(BY_NAME[dtype]) for key, t in exact.items()}}
        slack = 8.0 if dtype == "f64" else 0.5001  # in f64 torch's own rounding shows
        for key, spread in compare(case, data, outputs, keep=True)["truth"].items():
            assert spread.largest <= slack, (kind, dtype, key)
            assert spread.quantile(0.9999) <= spread.largest


def test_reference_in_chunks_equals_reference_at_once(monkeypatch):
    import planish.bench.accuracy as accuracy

    case = Case(50, 20, "f32", "backward")
    data = make_data(case)
    outputs = {"zero": {"dx": torch.zeros(50, 20), "dweight": torch.zeros(20)}}
    whole = compare(case, data, outputs)["zero"]
    monkeypatch.setattr(accuracy, "CHUNK_ELEMENTS", 60)
    parts = compare(case, data, outputs)["zero"]
    for key in ("dx", "dweight"):
        assert parts[key].largest == pytest.approx(whole[key].largest, rel=1e-9)


def test_input_is_the_same_every_time_and_as_asked():
    case = Case(1000, 100, "f32", "backward", mean=100.0)
    one, two = make_data(case), make_data(case)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.dy, two.dy)
    assert float(one.x.mean()) == pytest.approx(100.0, abs=0.02)
    assert float(one.x.std()) == pytest.approx(1.0, abs=0.02)
    tiny = make_data(Case(10, 100, "f32", scale=1e-30))
    assert 1e-31 < float(tiny.x.abs().max()) < 1e-29


def test_needed_bytes_by_hand():
    forward = Case(10, 100, "f32")
    assert forward.needed_bytes == 4 * (2 * 1000 + 2 * 100 + 2 * 10)
    backward = Case(10, 100, "bf16", "backward")
    assert backward.needed_bytes == 2 * (3 * 1000 + 3 * 100) + 4 * 2 * 10
    assert Case(10, 100, "f16", kind="rms").needed_bytes == 2 * (2 * 1000 + 100) + 4 * 10
