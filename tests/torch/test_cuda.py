"""planish under torch on CUDA tensors: layer and RMS norm. It needs a GPU that torch sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from cuda_support import (
    GPU,
    LAYOUT,
    NORMS,
    SHAPES,
    TOLERANCE,
    assert_like_torch,
    given,
    random,
    rms,
)
from support import (
    FLOATS,
    HALVES,
    LAYER,
    LAYER_BACKWARD,
    RMS,
    RMS_BACKWARD,
    Calls,
    description,
    exact_norm,
    on_planish,
    row_error,
    wide,
)

import planish
import torch
from planish.library.loaded import library
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

SHAPES += [(2, 262144)]


@pytest.fixture(autouse=True)
def no_error_is_left_on_the_gpu() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


MIXED = "a mix of dtypes that torch refuses"
#: The bounds of docs/guide/reproducibility.md, in ULP of the largest magnitude in the row.
BOUND = {torch.float32: 4.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}


def sizes_of_terms(x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor) -> list[Any]:
    """What y, dx, dweight and dbias are sums of, by magnitude: where terms cancel, the error is
    small beside these and not beside the result."""
    values, w, gradient = wide(x), wide(weight), wide(dy)
    centred = values if bias is None else values - values.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.longdouble(1e-5))
    xhat, g = centred * rstd, gradient * w
    c1 = 0 if bias is None else abs(g.mean(-1, keepdims=True))
    c2 = (g * xhat).mean(-1, keepdims=True)
    return [
        abs(xhat * w) + (0 if bias is None else abs(wide(bias))),
        rstd * (abs(g) + c1 + abs(xhat * c2)),
        abs(gradient * xhat).sum(0),
        abs(gradient).sum(0),
    ]


def test_torchs_own_kernels_are_not_what_planish_takes_them_for() -> None:
    torch.zeros(1, device=GPU)
    library().check_cuda(0)  # raises


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_values_leave_the_bounds_or_change_from_run_to_run(
    norm: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    function, forward, backward = NORMS[norm]
    x, weight, bias, dy = given(shape, dtype)
    native = function(x, weight, bias, dy)
    with on_planish(forward, backward):
        ours = function(x, weight, bias, dy)
        again = function(x, weight, bias, dy)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    assert description(ours) == description(native)
    rms = norm == "rms_norm"
    added = None if rms else bias
    exact = exact_norm(x, weight, added, dy, rms=rms)
    terms = sizes_of_terms(x, weight, added, dy)
    for i, (mine, theirs) in enumerate(zip(ours, native, strict=True)):
        axis = -1 if i < 2 else None
        error, torchs = (row_error(t, exact[i], axis, terms[i]) for t in (mine, theirs))
        assert error <= max(torchs, BOUND[dtype]), f"{i}: {error} ULP, torch {torchs}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False)])
def test_native_operators_return_other_tensors_than_torchs(
    dtype: torch.dtype, mask: tuple[bool, bool, bool]
) -> None:
    x, weight, bias, dy = given((3, 5, 64), dtype)
    x, dy = x.requires_grad_(False), dy
    aten = torch.ops.aten

    def everything() -> list[Any]:
        found: list[Any] = []
        for w, b in ((weight, bias), (weight, None), (None, None)):
            wanted = [mask[0], mask[1] and w is not None, mask[2] and b is not None]
            y, mean, rstd = torch.native_layer_norm(x, (64,), w, b, 1e-5)
            found += [y, mean, rstd]
            found += aten.native_layer_norm_backward(dy, x, (64,), mean, rstd, w, b, wanted)
        for w in (weight, None):
            y, rstd = aten._fused_rms_norm(x, (64,), w, 1e-5)
            found += [y, rstd]
            wanted = [mask[0], mask[1] and w is not None]
            found += aten._fused_rms_norm_backward(dy, x, (64,), rstd, w, wanted)
        return found

    native = everything()
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        ours = everything()
    assert_like_torch(ours, native, *TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_without_eps_rms_norm_takes_another_than_torchs(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 8, device=GPU, dtype=dtype)
    x[1] = 1e-3
    native = torch.ops.aten._fused_rms_norm(x, (8,), None, None)
    with on_planish(RMS):
        ours = torch.ops.aten._fused_rms_norm(x, (8,), None, None)
    torch.testing.assert_close(ours[1], native[1], rtol=1e-5, atol=0)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows apart": lambda x: x[:, :, :64],
    "transposed": lambda x: x.transpose(0, 1)[..., :64],
    "expanded": lambda x: x[:1, :, :64].expand(4, -1, -1),
    "every other column": lambda x: x[:, :, ::2][..., :64],
    "one element off": lambda x: x.flatten()[1 : 1 + 4 * 6 * 64].view(4, 6, 64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("norm", NORMS)
def test_other_layouts_give_other_results_than_torchs(
    norm: str, layout: str, dtype: torch.dtype
) -> None:
    function = NORMS[norm][0]
    x = LAYOUTS[layout](random(4, 6, 160, dtype=dtype))
    weight, bias = random(64, dtype=dtype, seed=1), random(64, dtype=dtype, seed=2)
    dy = random(*x.shape, dtype=dtype, seed=3)
    native = function(x, weight, bias, dy)
    with planish.enabled():
        ours = function(x, weight, bias, dy)
    assert_like_torch(ours, native, *TOLERANCE[dtype])


def test_what_planish_refuses_is_not_torchs_to_the_bit() -> None:
    x = random(4, 6, 160)[:, :, ::2][..., :64]
    weight, bias, dy = random(64, seed=1), random(64, seed=2), random(4, 6, 64, seed=3)
    function, forward, backward = NORMS["rms_norm"]
    native = function(x, weight, bias, dy)
    calls = Calls()
    with planish.enabled():
        ours = function(x, weight, bias, dy)
    assert all(torch.equal(a, b) for a, b in zip(ours, native, strict=True))
    assert calls.on_torch(forward) == {LAYOUT: 1}
    assert calls.on_torch(backward) == {LAYOUT: 1}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("view", ["apart", "channels"])
def test_a_layer_norm_is_not_copied_for_planish(view: str, dtype: torch.dtype) -> None:
    """What there is no kernel for as it lies: x, or x beside its gradient."""
    x = random(4, 6, 128, dtype=dtype)[..., ::2]
    if view == "channels":
        x = random(4, 64, 5, 6, dtype=dtype).permute(0, 2, 3, 1)
    weight, bias = random(64, dtype=dtype, seed=1), random(64, dtype=dtype, seed=2)
    dy = random(*x.shape, dtype=dtype, seed=3)
    function = NORMS["layer_norm"][0]
    native = function(x, weight, bias, dy)
    calls = Calls()
    with planish.enabled():
        ours = function(x, weight, bias, dy)
    assert_like_torch(ours, native, *TOLERANCE[dtype])
    assert calls.on_planish(LAYER) == calls.on_planish(LAYER_BACKWARD) == 1


@pytest.mark.parametrize("function", [F.layer_norm, F.rms_norm])
def test_expanded_gradients_are_read_as_dense(function: Callable[..., Tensor]) -> None:
    x = random(5, 6, 33).requires_grad_()
    weight = random(33, seed=1).requires_grad_()
    native = torch.autograd.grad(function(x, (33,), weight).sum(), [x, weight])
    with planish.enabled():
        ours = torch.autograd.grad(function(x, (33,), weight).sum(), [x, weight])
    assert_like_torch(list(ours), list(native), 1e-4, 1e-4)


@pytest.mark.parametrize("grad", [True, False], ids=["train", "inference"])
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "same"])
@pytest.mark.parametrize("layout", ["channels last", "dense", "transposed"])
def test_rms_norm_has_other_strides_than_torchs(layout: str, mixed: bool, grad: bool) -> None:
    x = random(2, 8, 4, 16, dtype=torch.bfloat16)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "transposed":
        x = x.transpose(0, 1)
    weight = random(16, dtype=torch.float32 if mixed else torch.bfloat16)

    def run() -> list[Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about mixed dtypes
            if not grad:
                with torch.inference_mode():
                    return [F.rms_norm(x, (16,), weight)]
            leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
            y = F.rms_norm(leaves[0], (16,), leaves[1])
            return [y.detach(), *torch.autograd.grad(y.sum(), leaves)]

    native = run()
    with planish.enabled():
        ours = run()
    assert_like_torch(ours[:1], native[:1], *TOLERANCE[torch.bfloat16])
    for mine, theirs in zip(ours[1:], native[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-1)


def test_mixed_rms_norm_does_not_run_on_planish() -> None:
    x, _, _, dy = given((64, 256), torch.bfloat16)
    weight = random(256)
    with on_planish(RMS, RMS_BACKWARD), torch.no_grad(), torch.enable_grad():
        y, dx, dweight = rms(x, weight, None, dy)
    assert (y.dtype, dx.dtype, dweight.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    exact = exact_norm(x, weight, None, dy, rms=True)
    assert row_error(y, exact[0], -1) <= 1
    assert row_error(dx, exact[1], -1) <= 1
    assert row_error(dweight, exact[2], None) <= 4


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (2, 0, 4)], ids=str)
def test_empty_input_differs_from_torchs(shape: tuple[int, ...]) -> None:
    x, weight, bias, dy = given(shape, torch.float32)
    for function, _, _ in NORMS.values():
        native = function(x, weight, bias, dy)
        with planish.enabled():
            ours = function(x, weight, bias, dy)
        assert_like_torch(ours, native, 0, 0)


def errors() -> list[tuple[type[BaseException], str]]:
    x, weight, bias, _ = given((3, 8), torch.float32)
    calls: list[Callable[[], object]] = [
        lambda: F.layer_norm(x, (7,), weight[:7], bias[:7]),
        lambda: F.layer_norm(x, (8,), weight[:7], bias),
        lambda: F.layer_norm(x, (8,), weight.half(), bias.half()),
        lambda: F.layer_norm(x.half(), (8,), weight, bias),
        lambda: F.layer_norm(x, (8,), weight.cpu(), bias),
        lambda: F.layer_norm(x.cpu(), (8,), weight, bias),
        lambda: F.layer_norm(x.long(), (8,)),
        lambda: F.layer_norm(x, ()),
        lambda: F.rms_norm(x, (7,), weight[:7]),
        lambda: F.rms_norm(x, (8,), weight[:7]),
        lambda: F.rms_norm(x, (8,), weight.cpu()),
        lambda: F.rms_norm(x.long(), (8,)),
        lambda: torch.ops.aten._fused_rms_norm(x, (8,), weight[:7], 1e-5),
        lambda: torch.ops.aten.native_layer_norm(x, (8,), weight[:7], None, 1e-5),
    ]
    found: list[tuple[type[BaseException], str]] = []
    for call in calls:
        try:
            call()
            found.append((BaseException, "no error"))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def test_errors_are_not_torchs() -> None:
    native = errors()
    with planish.enabled():
        assert errors() == native


def autocast_result(dtype: torch.dtype) -> list[Tensor]:
    x, _, _, dy = given((6, 64), dtype)
    weight, bias = random(64, seed=1), random(64, seed=2)
    with torch.autocast("cuda", dtype=dtype):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        y = F.layer_norm(leaves[0], (64,), leaves[1], leaves[2])
    gradients = torch.autograd.grad(y, leaves, dy.to(y.dtype))
    return [y.detach(), *gradients]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_autocast_by_default_is_not_torchs(dtype: torch.dtype) -> None:
    native = autocast_result(dtype)
    with on_planish(LAYER, LAYER_BACKWARD):
        ours = autocast_result(dtype)
    assert ours[0].dtype == torch.float32
    assert_like_torch(ours, native, 1e-2, 1e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_autocast_keep_does_not_keep_half(dtype: torch.dtype) -> None:
    native = autocast_result(dtype)
    calls = Calls()
    with planish.enabled(autocast="keep"):
        ours = autocast_result(dtype)
    assert calls.on_planish(LAYER) == calls.on_planish(LAYER_BACKWARD) == 1
    assert [t.dtype for t in ours] == [dtype, dtype, torch.float32, torch.float32]
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2e-2, atol=2e-2)
    after = autocast_result(dtype)
    assert_like_torch(after, native, 0, 0)


def test_autocast_keep_fails_on_layouts_that_planish_does_not_take() -> None:
    x = random(4, 6, 160, dtype=torch.float16)[:, :, ::2][..., :64].requires_grad_()
    weight = random(64).requires_grad_()
    with on_planish(LAYER, LAYER_BACKWARD), planish.enabled(autocast="keep"):
        with torch.autocast("cuda", dtype=torch.float16):
            y = F.layer_norm(x, (64,), weight)
        y.sum().backward()
    assert y.dtype == torch.float16
    right = exact_norm(x.detach(), weight.detach())[0]
    assert row_error(y, right, -1) <= 1


def test_half_with_float_parameters_runs_without_keep() -> None:
    x, weight = random(4, 64, dtype=torch.float16), random(64)
    calls = Calls()
    with planish.enabled(), pytest.raises(RuntimeError):
        F.layer_norm(x, (64,), weight)
    assert calls.on_torch(LAYER) == {MIXED: 1}
