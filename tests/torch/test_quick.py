"""What C asks of every call (planish.library.quick): its answers are those that Python gives."""

from __future__ import annotations

import ctypes
import functools
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import planish
import torch
from planish.library import quick
from planish.library.loaded import library
from planish.operators import kept
from torch import Tensor, nn


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Subclass(Tensor):
    pass


def _answers_in(mode: Callable[[], Any]) -> bool:
    with mode():
        return bool(quick.is_quiet())


def test_nothing_sees_a_plain_call() -> None:
    assert quick.is_quiet() is True


@pytest.mark.parametrize("mode", [_Dispatch, _Function, forward_ad.dual_level])
def test_modes_see_calls(mode: Callable[[], Any]) -> None:
    assert _answers_in(mode) is False
    assert quick.is_quiet() is True


def test_transforms_and_tracing_see_calls() -> None:
    found: list[bool] = []

    def note(x: Tensor) -> Tensor:
        found.append(bool(quick.is_quiet()))
        return x

    torch.func.vmap(note)(torch.ones(2, 3))
    torch.jit.trace(note, torch.ones(2), check_trace=False)
    assert found == [False, False]


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (lambda: torch.ones(2), True),
        (lambda: nn.Parameter(torch.ones(2)), True),
        (lambda: torch.ones(4, 2).t(), True),
        (lambda: None, True),
        (lambda: torch.ones(2).as_subclass(_Subclass), False),
        (lambda: torch._efficientzerotensor(2), False),
        (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, False),
        (lambda: torch.ones(2).to_sparse(), False),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), False),
        (lambda: 3, False),
    ],
)
def test_what_the_kernels_read(make: Callable[[], Any], plain: bool) -> None:
    tensor = make()
    assert quick.is_plain(torch.ones(2), tensor) is plain
    key = quick.key_of((1, "a"), (tensor, torch.ones(3)), ())
    assert (key is not None) is plain


def test_a_key_has_options_dtypes_sizes_and_devices() -> None:
    x, weight = torch.ones(2, 3), torch.ones(3, dtype=torch.float64)
    given = ("f", 1.0), (x, None, weight), (x, None)
    key = quick.key_of(*given)
    assert key == quick.key_of(*given) and key[0] == ("f", 1.0)
    others = [
        (("f", 2.0), (x, None, weight), ()),
        (("f", 1.0), (x.bfloat16(), None, weight), ()),
        (("f", 1.0), (x.view(3, 2), None, weight), ()),
        (("f", 1.0), (x.view(2, 3, 1), None, weight), ()),
        (("f", 1.0), (x, weight, weight), ()),
        (("f", 1.0), (x, weight, None), ()),
        (("f", 1.0), (x, None, weight, None), ()),
    ]
    keys = {quick.key_of(*other) for other in others}
    assert len(keys) == len(others) and key not in keys and None not in keys
    assert quick.key_of((), (x.t(),), (x.t(),)) is not None, "another object"
    turned = x.t()
    assert quick.key_of((), (turned,), (turned,)) is None
    assert quick.key_of((), (turned,), ()) is not None
    assert quick.key_of((), (torch.ones((1,) * 17),), ()) is None
    assert quick.key_of((), (x,) * 13, ()) is None


# ---- Where a tensor has what ---------------------------------------------------------------------


def test_tensors_are_read_where_they_lie() -> None:
    """Else every call goes the long way."""
    assert quick.key_of((), (torch.ones(2),), ()) is not None


_IN_A_MODE = """
import sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
import torch._C
with Mode():
    import planish
    from planish.library import quick
    assert quick.key_of((), (torch.ones(2),), ()) is None
x = torch.ones(2, 8)
planish.gated_rms_norm(x, x)
assert quick.key_of((), (x,), ()) is not None
"""


def test_tensors_are_read_after_an_import_in_a_mode() -> None:
    subprocess.run([sys.executable, "-c", _IN_A_MODE], check=True)


# ---- Calls that are known ------------------------------------------------------------------------


def _found(x: Tensor, weight: Tensor) -> tuple[Any, Any, Any]:
    """What kept.run says of planish.normalize(x, 2, -1, None, weight)."""
    planish.normalize(x.detach(), weight=weight.detach())
    options = next(key[0] for key in kept._calls if key[0][0] == "normalize")
    return kept.run(options, (x, weight, None))


def test_a_known_call_is_made_where_nothing_records_it() -> None:
    kept._calls.clear()
    x, weight = torch.randn(5, 12), torch.randn(12, requires_grad=True)
    wanted = planish.normalize(x, weight=weight)
    assert wanted.requires_grad
    results, key, prepared = _found(x, weight)
    assert results is None and kept.find(key) is prepared and type(prepared) is kept.Prepared
    with torch.no_grad():
        results, again, same = _found(x, weight)
    assert torch.equal(results[0], wanted) and results[1] is None
    assert again == key and same is prepared
    results, _, _ = _found(x, weight.detach())
    assert torch.equal(results[0], wanted) and not results[0].requires_grad
    with torch.autograd.profiler.profile():
        assert _found(x, weight.detach())[0] is None, "the profiler sees what is dispatched"
    assert kept.run(("other",), (x, weight, None))[::2] == (None, None)
    assert kept.run(("normalize", []), (x, weight, None))[::2] == (None, None)
    assert kept.run(key[0], (x.t(), weight, None)) == (None, None, None)
    with _Dispatch():
        assert kept.run(key[0], (x, weight, None)) == (None, None, None)


def test_dropout_is_drawn_by_the_long_way() -> None:
    kept._calls.clear()
    x, residual = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    for _ in range(2):
        torch.manual_seed(3)
        found = planish.add_rms_norm(x, residual, dropout_p=0.5)
        torch.manual_seed(3)
        for one, other in zip(found, planish.add_rms_norm(x, residual, dropout_p=0.5), strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(planish.add_rms_norm(x, residual, dropout_p=0.5)[1], found[1])


# ---- The short way of a bare norm ----------------------------------------------------------------

_SIZE = {quick.LAYER_NORM: (6,), quick.GROUP_NORM: 3, quick.RMS_NORM: (6,)}


@pytest.fixture(params=_SIZE)
def op(request: pytest.FixtureRequest) -> Iterator[int]:
    """Those of the CPU; a first call puts planish under torch's operator."""
    planish.layer_norm(torch.ones(2, 6), -1)
    planish.rms_norm(torch.ones(2, 6), -1)
    planish.group_norm(torch.ones(2, 6), 3)
    yield request.param


def _norm(op: int, x: Any, weight: Any, bias: Any = None, eps: Any = 1e-5) -> Any:
    run = quick.runs_torchs(op, x, weight, bias)
    y = quick.norm(op, x, _SIZE[op], weight, bias, eps)
    assert run or y is None
    return y


def test_plain_calls_go_the_short_way(op: int) -> None:
    x, weight, bias = torch.randn(4, 6), nn.Parameter(torch.randn(6)), torch.randn(6)
    if op == quick.LAYER_NORM:
        wanted = planish.layer_norm(x, (1,), weight, bias)
    elif op == quick.GROUP_NORM:
        wanted = planish.group_norm(x, 3, weight, bias, cast="xhat")
    else:
        bias, wanted = None, planish.rms_norm(x, (1,), weight)
    for parameters in ((weight, bias), (None, None), (weight, None)):
        y = _norm(op, x, *parameters)
        assert type(y) is Tensor and y.shape == x.shape
    assert torch.equal(_norm(op, x, weight, bias), wanted)


def test_without_a_graph_y_is_the_same(op: int) -> None:
    """There no statistics are made, which nobody could see."""
    for dtype, shape in itertools.product((torch.float32, torch.bfloat16), ((4, 6), (0, 6))):
        x, weight = torch.randn(shape, dtype=dtype), torch.randn(6, dtype=dtype)
        saved = _norm(op, x, weight.clone().requires_grad_())
        if op == quick.RMS_NORM and not x.numel():
            assert saved is None, "torch has no backward of it on the CPU"
            continue
        with torch.no_grad():
            assert torch.equal(_norm(op, x, weight), saved)
        with torch.inference_mode():
            assert torch.equal(_norm(op, x.clone(), weight), saved)


_X = functools.partial(torch.ones, 4, 6)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (lambda: _X(), lambda: torch.ones(6, dtype=torch.float64)),
        (lambda: _X(dtype=torch.bfloat16), lambda: torch.ones(6)),
        (lambda: torch.ones(6, 4).t(), lambda: None),
        (lambda: _X(dtype=torch.complex64), lambda: None),
        (lambda: _X(dtype=torch.int32), lambda: None),
        (lambda: _X().as_subclass(_Subclass), lambda: None),
        (lambda: nn.Parameter(_X()), lambda: None),
        (lambda: _X(), lambda: torch.ones(6).as_subclass(_Subclass)),
        (lambda: _X(), lambda: torch.ones(5)),
        (lambda: _X(), lambda: torch.ones(1)),
        (lambda: torch.ones(()), lambda: None),
        (lambda: _X(device="meta"), lambda: None),
        (lambda: None, lambda: None),
        (lambda: _X(), lambda: 3),
    ],
)
def test_other_calls_go_the_long_way(
    op: int, x: Callable[[], Any], weight: Callable[[], Any]
) -> None:
    assert _norm(op, x(), weight()) is None
    assert _norm(op, _X(), None) is not None, "and nothing of it stays"


def test_states_in_which_calls_go_the_long_way(op: int) -> None:
    weight = torch.ones(6, requires_grad=True)
    with torch.inference_mode():
        made = _X()
    assert _norm(op, made, weight) is None
    assert _norm(op, made, None) is not None
    with torch.no_grad():
        assert _norm(op, made, weight) is not None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert _norm(op, _X(), weight) is None
        assert _norm(op, _X(), None) is not None
    for state in (torch.autocast("cpu", torch.bfloat16), _Dispatch(), _Function()):
        with state:
            assert _norm(op, _X(), None) is None


def test_what_torch_refuses_is_said_by_the_long_way() -> None:
    with pytest.raises(RuntimeError, match=r"layer_norm: Expected weight .*\[5\]"):
        planish.layer_norm(torch.ones(4, 6), -1, torch.ones(5))
    with pytest.raises(RuntimeError, match="group_norm: Expected number of channels"):
        planish.group_norm(torch.ones(4, 6), 4)
    with pytest.raises(IndexError):
        planish.layer_norm(torch.ones(()), -1)


def test_rms_norm_has_no_bias() -> None:
    x, weight = torch.randn(4, 6), torch.randn(6)
    with planish.enabled("rms_norm"):
        y = quick.norm(quick.RMS_NORM, x, None, weight, None, 1e-5)
        assert torch.equal(y, planish.rms_norm(x, (1,), weight))
        assert quick.norm(quick.RMS_NORM, x, None, weight, weight, 1e-5) is None


def test_batch_norm_is_torchs_while_enabled() -> None:
    x, weight = torch.randn(4, 6, dtype=torch.bfloat16), torch.ones(6)
    assert quick.runs_torchs(quick.BATCH_NORM, x, weight) is False
    with planish.enabled("batch_norm"):
        assert quick.runs_torchs(quick.BATCH_NORM, x, weight) is True
        assert quick.runs_torchs(quick.BATCH_NORM, x.double(), weight) is False


def test_arguments_are_counted() -> None:
    assert quick.norm(quick.LAYER_NORM, torch.ones(2, 3)) is None
    assert quick.norm(7, torch.ones(2, 3), None, None, None, 1e-5) is None
    assert quick.runs_torchs(-1, torch.ones(2, 3)) is False
    assert quick.key_of(()) is None


def test_another_number_of_functions_is_taken() -> None:
    make = library().functions.planish_python_functions
    assert make((ctypes.c_void_p * 2)(), 2, ()) is None
