"""planish under torch on CUDA tensors: everything here needs a GPU that torch sees."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from support import (
    FLOATS,
    GROUP,
    GROUP_BACKWARD,
    LAYER,
    LAYER_BACKWARD,
    RMS,
    RMS_BACKWARD,
    Calls,
    Watched,
    description,
    exact_norm,
    on_planish,
    row_error,
    wide,
)
from torch.autograd import gradcheck, gradgradcheck

import planish
import torch
from planish import _enable
from planish._library import library
from torch import Tensor, nn

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

GPU = torch.device("cuda", 0)
HALVES = [torch.float16, torch.bfloat16]
LAYOUT = "a layout that no fast kernel takes, or no kernel could be made"
MIXED = "a mix of dtypes that torch refuses"
#: The bounds of docs/guide/reproducibility.md, in ULP of the largest magnitude in the row.
BOUND = {torch.float32: 4.0, torch.float64: 4.0, torch.bfloat16: 1.0, torch.float16: 1.0}
#: rows, columns: within a warp, a block, a cluster, and past one read
SHAPES = [(4, 2), (1, 8), (7, 33), (64, 96), (300, 128), (13, 769), (64, 4096), (3, 15872)]
SHAPES += [(2, 262144)]


@pytest.fixture(autouse=True)
def no_error_is_left_on_the_gpu() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def random(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=generator, dtype=torch.float64).to(GPU, dtype)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor) -> list[Tensor]:
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (x, weight, bias)]
    leaves[0] = x.detach().requires_grad_()
    y = F.layer_norm(leaves[0], dy.shape[-1:], leaves[1], leaves[2])
    wanted = [leaf for leaf in leaves if leaf is not None]
    return [y.detach(), *torch.autograd.grad(y, wanted, dy)]


def rms(x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_()]
    if weight is not None:
        leaves.append(weight.detach().clone().requires_grad_())
    y = F.rms_norm(leaves[0], dy.shape[-1:], leaves[1] if weight is not None else None, 1e-5)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


NORMS: dict[str, tuple[Callable[..., list[Tensor]], str, str]] = {
    "layer_norm": (layer, LAYER, LAYER_BACKWARD),
    "rms_norm": (rms, RMS, RMS_BACKWARD),
}


def given(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    cols = shape[-1]
    parameters = [random(cols, dtype=dtype, seed=1), random(cols, dtype=dtype, seed=2)]
    return [random(*shape, dtype=dtype), *parameters, random(*shape, dtype=dtype, seed=3)]


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


def assert_like_torch(ours: list[Any], native: list[Any], rtol: float, atol: float) -> None:
    assert description(ours) == description(native)
    for mine, theirs in zip(ours, native, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)


TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-4),
    torch.bfloat16: (2e-2, 2e-1),
    torch.float16: (2e-3, 2e-2),
}


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
    for function, forward, backward in NORMS.values():
        native = function(x, weight, bias, dy)
        calls = Calls()
        with planish.enabled():
            ours = function(x, weight, bias, dy)
        assert all(torch.equal(a, b) for a, b in zip(ours, native, strict=True))
        assert calls.on_torch(forward) == {LAYOUT: 1}
        assert calls.on_torch(backward) == {LAYOUT: 1}


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


# ---- Autocast -----------------------------------------------------------------------------------


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


# ---- Streams, graphs, threads, devices ----------------------------------------------------------


@pytest.mark.parametrize("cols", [96, 1184], ids=["warm", "first call under capture"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_captured_graph_replays_something_else(norm: str, cols: int) -> None:
    function, forward, backward = NORMS[norm]
    x, weight, bias, dy = given((40, cols), torch.float32)
    with on_planish(forward, backward):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            # autograd itself wants a warm-up; with another row length the kernels stay new
            warm = given((40, cols if cols == 96 else 32), torch.float32)
            function(*warm)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = function(x, weight, bias, dy)
        for seed in (7, 8):
            x.copy_(random(40, cols, seed=seed))
            graph.replay()
            now = function(x, weight, bias, dy)
            torch.cuda.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(captured, now, strict=True))
    del graph, captured
    gc.collect()


def test_two_streams_disturb_each_other() -> None:
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    operands = [given((512, 2048), torch.bfloat16), given((300, 1536), torch.bfloat16)]
    native = [layer(*o) for o in operands]
    with on_planish(LAYER, LAYER_BACKWARD):
        alone = [layer(*o) for o in operands]
        torch.cuda.synchronize()
        for _ in range(50):
            found = []
            for stream, o in zip(streams, operands, strict=True):
                with torch.cuda.stream(stream):
                    found.append(layer(*o))
            torch.cuda.synchronize()
            for mine, right in zip(found, alone, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))
    for mine, theirs in zip(alone, native, strict=True):
        assert_like_torch(mine, theirs, *TOLERANCE[torch.bfloat16])


def test_the_work_is_queued_on_another_stream() -> None:
    """A long wait in front on the current stream: the norm must come after what comes before."""
    x, weight, bias, _ = given((256, 1024), torch.float32)
    source = random(256, 1024, seed=9)
    with on_planish(LAYER):
        expected = F.layer_norm(source, (1024,), weight, bias)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(50_000_000)
            x.copy_(source)
            y = F.layer_norm(x, (1024,), weight, bias)
            x.zero_()
        torch.cuda.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (64, 96), (16, 4096), (33, 15872)], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_a_backward_right_behind_its_forward_reads_what_was_there_before(
    norm: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """The backward starts while the forward runs. Behind a long wait both are queued by then, and
    the memory that the forward writes held something else."""
    function, forward, backward = NORMS[norm]
    operands = given(shape, dtype)
    with on_planish(forward, backward):
        alone = function(*operands)
        for turn in range(20):
            before = [torch.full((shape[0],), float(turn), device=GPU) for _ in range(8)]
            before += [torch.full_like(t, float(turn)) for t in alone]
            torch.cuda._sleep(300_000)
            del before
            behind = function(*operands)
            assert all(torch.equal(a, b) for a, b in zip(behind, alone, strict=True)), turn


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU: none is not current")
def test_a_device_that_is_not_current_is_forgotten() -> None:
    second = torch.device("cuda", 1)
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, bias, dy = given((64, 768), dtype)
        moved = [t.to(second) for t in (x, weight, bias, dy)]
        for function, forward, backward in NORMS.values():
            with on_planish(forward, backward):
                here = function(x, weight, bias, dy)
                there = function(*moved)
                assert torch.cuda.current_device() == 0
            assert all(t.device == second for t in there)
            assert all(torch.equal(a, b.to(GPU)) for a, b in zip(here, there, strict=True))
    torch.cuda.synchronize(second)


def test_threads_disturb_each_other() -> None:
    operands = {cols: given((33, cols), torch.float32) for cols in (96, 200, 1000, 2048)}
    wrong: list[object] = []
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        right = {c: (layer(*o), rms(*o)) for c, o in operands.items()}

        def work(cols: int) -> None:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for _ in range(40):
                        found = (layer(*operands[cols]), rms(*operands[cols]))
                        torch.cuda.current_stream().synchronize()
                        for mine, expected in zip(found, right[cols], strict=True):
                            if not all(map(torch.equal, mine, expected)):
                                wrong.append(cols)
            except Exception as error:
                wrong.append(error)

        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(cols,)) for cols in operands for _ in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


# ---- Lifecycle ----------------------------------------------------------------------------------


def test_graphs_recorded_while_enabled_lose_their_backward() -> None:
    x, weight, bias, dy = given((6, 64), torch.float16)
    for function in (
        lambda a, b: F.layer_norm(a, (64,), b, bias),
        lambda a, b: F.rms_norm(a, (64,), b, 1e-5),
    ):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        native = torch.autograd.grad(function(*leaves), leaves, dy)
        planish.enable()
        y = function(*leaves)
        assert planish.disable()
        ours = torch.autograd.grad(y, leaves, dy)
        assert_like_torch(list(ours), list(native), *TOLERANCE[torch.float16])
        y = function(*leaves)
        with on_planish():
            ours = torch.autograd.grad(y, leaves, dy)
        assert_like_torch(list(ours), list(native), *TOLERANCE[torch.float16])


def test_disabling_under_running_threads_goes_wrong() -> None:
    x, weight, bias, dy = given((64, 256), torch.float32)
    stop = threading.Event()
    wrong: list[object] = []

    def work() -> None:
        try:
            while not stop.is_set():
                layer(x, weight, bias, dy)
                rms(x, weight, bias, dy)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        planish.enable()
        planish.disable()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_enabling_starts_cuda() -> None:
    program = """
import os, torch, planish
planish.enable()
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    y = torch.nn.functional.layer_norm(torch.randn(4, 8, device="cuda"), (8,))
    torch.cuda.synchronize()
    ran = planish.stats()["native_layer_norm"]["planish"]
    os._exit(0 if ran == 1 and bool(y.isfinite().all()) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_stats_miscount() -> None:
    x, weight, bias, dy = given((6, 64), torch.float32)
    calls = Calls()
    with planish.enabled(devices="cuda"):
        for _ in range(3):
            layer(x, weight, bias, dy)
        F.layer_norm(x.cpu(), (64,))
    assert calls.on_planish(LAYER) == calls.on_planish(LAYER_BACKWARD) == 3
    with planish.enabled(devices="cpu"):
        layer(x, weight, bias, dy)
    assert calls.on_planish(LAYER) == 3
    assert not calls.on_torch(LAYER)


# ---- The rest of torch --------------------------------------------------------------------------


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients_are_wrong(check: Callable[..., bool]) -> None:
    x, weight, bias, _ = given((3, 4, 6), torch.float64)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    with on_planish(LAYER, RMS):
        assert check(lambda a, w, b: F.layer_norm(a, (6,), w, b), leaves)
        assert check(lambda a, w: F.rms_norm(a, (6,), w, 1e-5), leaves[:2])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", ["nn.functional.layer_norm", "native_layer_norm", "nn.functional.rms_norm"]
)
def test_torchs_samples_differ_from_torch(name: str, dtype: torch.dtype) -> None:
    pytest.importorskip("expecttest", reason="torch's op_db needs expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == name)

    def run(sample: Any) -> list[Any]:
        leaves = [sample.input, *sample.args, *sample.kwargs.values()]
        leaves = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        found = op(sample.input, *sample.args, **sample.kwargs)
        results = [found] if isinstance(found, Tensor) else list(found)
        dy = random(*results[0].shape, dtype=dtype)
        return [*results, *torch.autograd.grad(results[:1], leaves, [dy], allow_unused=True)]

    calls = Calls()
    samples = list(op.sample_inputs("cuda", dtype, requires_grad=True))
    for sample in samples:
        native = run(sample)
        with planish.enabled():
            ours = run(sample)
        assert_like_torch(ours, native, *TOLERANCE[dtype])
    assert samples
    assert calls.on_planish(RMS if "rms" in name else LAYER) > 0
    if op.error_inputs_func is None:
        return
    for given in op.error_inputs("cuda"):
        wrong = given.sample_input
        with planish.enabled(), pytest.raises(given.error_type, match=given.error_regex):
            op(wrong.input, *wrong.args, **wrong.kwargs)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.RMSNorm(64)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models_differ(backend: str) -> None:
    torch._dynamo.reset()
    model = Model().to(GPU)
    x = random(12, 32)

    def step(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.zero_grad()
        y = function(x)
        y.square().mean().backward()
        return [y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    native = step(model)
    calls = Calls()
    with planish.enabled():
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        ours = step(compiled)
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    if backend == "aot_eager":
        assert calls.on_planish(LAYER) > 0
    torch._dynamo.reset()


def test_deterministic_mode_changes_bits() -> None:
    x, weight, bias, dy = given((64, 4096), torch.float32)
    with on_planish(LAYER, LAYER_BACKWARD):
        before = layer(x, weight, bias, dy)
        torch.use_deterministic_algorithms(True)
        try:
            assert all(map(torch.equal, layer(x, weight, bias, dy), before))
        finally:
            torch.use_deterministic_algorithms(False)


def test_memory_grows() -> None:
    x, weight, bias, dy = given((64, 4096), torch.float16)
    with on_planish(LAYER, LAYER_BACKWARD, RMS, RMS_BACKWARD):
        for _ in range(3):
            layer(x, weight, bias, dy)
            rms(x, weight, bias, dy)
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            layer(x, weight, bias, dy)
            rms(x, weight, bias, dy)
        assert torch.cuda.memory_allocated() == before


def test_another_librarys_override_is_lost_or_in_the_way() -> None:
    """What torch/_native does with quack's RMSNorm at import, here by hand."""
    x, weight, _, _ = given((6, 64), torch.float32)
    seen: list[str] = []

    def theirs(
        input: Tensor, shape: list[int], w: Tensor | None, eps: float | None
    ) -> tuple[Tensor, Tensor]:
        seen.append("theirs")
        rstd = (input.square().mean(-1, keepdim=True) + (eps or 1e-7)).rsqrt()
        return input * rstd * (1 if w is None else w), rstd

    def register() -> torch.library.Library:
        made = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.impl("_fused_rms_norm", theirs, "CUDA")
        return made

    other = register()
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 1
    with on_planish(RMS):
        F.rms_norm(x, (64,), weight)
    assert len(seen) == 1
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 2
    planish.enable()
    other._destroy()
    with on_planish(RMS):
        F.rms_norm(x, (64,), weight)
    other = register()
    F.rms_norm(x, (64,), weight)  # the last registration wins
    assert len(seen) == 3
    assert planish.disable()
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 4
    other._destroy()
    F.rms_norm(x, (64,), weight)
    assert len(seen) == 4


def test_any_axes_differ_on_the_gpu() -> None:
    x, weight, bias, dy = given((6, 64), torch.float32)
    native = layer(x, weight, bias, dy)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = planish.layer_norm(leaves[0], 1, leaves[1], leaves[2])
    ours = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
    for mine, theirs in zip(ours, native, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    y = planish.layer_norm(leaves[0], 1, leaves[1], leaves[2])
    torch.autograd.grad(y.sum(), leaves)  # a gradient with strides of 0
    for dims in (0, (0, 1)):
        torch.testing.assert_close(
            planish.layer_norm(x, dims), planish.layer_norm(x.cpu(), dims).to(GPU)
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_modules_run_elsewhere(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.RMSNorm(64)).to(GPU, dtype)
    x = random(3, 6, 128, dtype=dtype)[..., ::2].requires_grad_()
    native = model(x)
    gradients = torch.autograd.grad(native.sum(), [x, *model.parameters()])
    calls = Calls()
    ours = planish.replace(model)(x)
    assert calls.on_planish("planish::norm_forward") == 2
    assert_like_torch([ours], [native], *TOLERANCE[dtype])
    assert_like_torch(
        list(torch.autograd.grad(ours.sum(), [x, *model.parameters()])),
        list(gradients),
        *TOLERANCE[dtype],
    )
    assert calls.on_planish("planish::norm_backward") == 2
    assert model(x[:0]).shape == (0, 6, 64)


def test_a_large_mean_costs_digits() -> None:
    """Rows far from zero: what a sum of squares gets wrong."""
    x = random(64, 1024, dtype=torch.float32) + 1e4
    right = exact_norm(x)[0]
    with on_planish(LAYER):
        y = F.layer_norm(x, (1024,))
    assert row_error(y, right, -1) <= 4
    assert abs(float(wide(y).mean())) < 1e-3


def test_the_groups_of_a_device_are_mixed_up() -> None:
    with planish.enabled("layer_norm", "cuda"):
        assert _enable.is_enabled("layer_norm", "cuda")
        assert not _enable.is_enabled("layer_norm", "cpu")
        assert not _enable.is_enabled("rms_norm", "cuda")
        with planish.enabled(autocast="keep"):
            assert _enable.is_enabled("rms_norm", "cpu")
        assert not _enable._autocast_passes
        assert not _enable.is_enabled("rms_norm", "cuda")


# ---- Group norm and layers over channels --------------------------------------------------------

LAST = torch.channels_last
GROUP_SHAPES = [((2, 8, 4, 4), 2), ((3, 6, 1, 1), 6), ((2, 64, 14, 14), 32), ((1, 32, 7, 7), 1)]


def group(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """y, and the gradients of everything there is."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    given = iter(leaves)
    arguments = [next(given), *(None if t is None else next(given) for t in (weight, bias))]
    y = F.group_norm(arguments[0], groups, *arguments[1:])
    dy = torch.linspace(-1, 1, x.numel(), device=GPU).reshape(x.shape).to(x.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


@pytest.mark.parametrize("parameters", [True, False], ids=["parameters", "bare"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "channels last"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "groups"), GROUP_SHAPES, ids=str)
def test_group_norm_differs_from_torchs(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype, channels_last: bool, parameters: bool
) -> None:
    x = random(*shape, dtype=dtype)
    if channels_last:
        x = x.contiguous(memory_format=LAST)
    given = [random(shape[1], dtype=dtype, seed=s) if parameters else None for s in (1, 2)]
    native = group(x, groups, *given)
    calls = Calls()
    with planish.enabled("group_norm"):
        ours = group(x, groups, *given)
        again = group(x, groups, *given)
    assert_like_torch(ours, native, *TOLERANCE[dtype])
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    for operator in (GROUP, GROUP_BACKWARD):  # on planish, or counted as what has no fast kernel
        reasons = calls.on_torch(operator)
        assert set(reasons) <= {LAYOUT}
        assert calls.on_planish(operator) + sum(reasons.values()) == 2


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_native_group_norm_returns_other_tensors_than_torchs(
    dtype: torch.dtype, mask: tuple[bool, bool, bool]
) -> None:
    x, dy = (random(2, 6, 4, 5, dtype=dtype, seed=s) for s in (0, 3))
    weight = random(6, dtype=dtype, seed=1)
    aten = torch.ops.aten

    def everything() -> list[Any]:
        found = list(aten.native_group_norm(x, weight, weight, 2, 6, 20, 3, 1e-5))
        found += aten.native_group_norm_backward(dy, x, *found[1:], weight, 2, 6, 20, 3, list(mask))
        return found

    native = everything()
    with planish.enabled("group_norm"):
        ours = everything()
    assert_like_torch(ours, native, *TOLERANCE[dtype])


def test_a_mistake_in_group_norm_raises_something_else_than_torch() -> None:
    x, weight = random(2, 6, 4, 5), random(6)
    calls: list[Callable[[], object]] = [
        lambda: F.group_norm(x, 4),
        lambda: F.group_norm(x, 3, weight[:5]),
        lambda: F.group_norm(x, 3, weight.cpu()),
        lambda: F.group_norm(x.half(), 3, weight),
        lambda: F.group_norm(x.int(), 3),
    ]
    for call in calls:
        with pytest.raises(Exception) as native:
            call()
        with planish.enabled("group_norm"), pytest.raises(native.type) as ours:
            call()
        words = [str(e.value).split("\nException raised from")[0] for e in (native, ours)]
        assert words[0] == words[1]


def test_a_graph_of_group_norm_recorded_while_enabled_has_other_gradients() -> None:
    x = random(2, 8, 4, 4).requires_grad_()
    weight = random(8, seed=1).requires_grad_()

    def loss() -> Tensor:
        return F.group_norm(x, 2, weight).pow(3).sum()

    native = torch.autograd.grad(loss(), [x, weight])
    before = loss()
    with planish.enabled("group_norm"):
        across = torch.autograd.grad(before, [x, weight])
        recorded = loss()
    after = torch.autograd.grad(recorded, [x, weight])
    for found in (across, after):
        for mine, theirs in zip(found, native, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_autocast_keep_casts_group_norm_to_float() -> None:
    x, norm = random(2, 8, 4, 4, dtype=torch.float16), nn.GroupNorm(2, 8).to(GPU)
    with torch.autocast("cuda"):
        assert norm(x).dtype == torch.float32
        with planish.enabled("group_norm", autocast="keep"):
            try:
                y = norm(x)
            except RuntimeError:
                pytest.skip("planish has no fast kernel for this, and torch's refuses the mix")
        assert y.dtype == torch.float16
        assert norm(x).dtype == torch.float32
    torch.testing.assert_close(y.float(), norm(x.float()), rtol=2e-3, atol=2e-3)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "LayerNorm2d": lambda: planish.LayerNorm2d(6),
    "RMSNorm2d": lambda: planish.RMSNorm2d(6),
    "GroupNorm": lambda: planish.GroupNorm(3, 6),
    "GroupNorm, silu": lambda: planish.GroupNorm(3, 6, activation="silu"),
    "InstanceNorm2d": lambda: planish.InstanceNorm2d(6, affine=True),
    "EvoNorm2dS0": lambda: planish.EvoNorm2dS0(6, 2),
}


@pytest.mark.parametrize("enabled", [False, True], ids=["bare", "enabled"])
@pytest.mark.parametrize("layout", ["dense", "channels last", "sliced"])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_over_channels_differs_from_the_cpus(
    name: str, layout: str, enabled: bool
) -> None:
    there = MODULES[name]()
    here = MODULES[name]().to(GPU)
    here.load_state_dict(there.state_dict())
    x = random(2, 6, 4, 5).cpu()
    if layout == "channels last":
        x = x.contiguous(memory_format=LAST)
    wide = torch.cat([x, x], -1)
    results = []
    for module, device in ((there, "cpu"), (here, GPU)):
        given = wide.to(device)[..., :5] if layout == "sliced" else x.to(device)
        leaves = [given.detach().requires_grad_(), *module.parameters()]
        if enabled:
            planish.enable()
        y = module(leaves[0])
        dy = torch.linspace(-1, 1, y.numel(), device=device).reshape(y.shape)
        results.append([y, *torch.autograd.grad(y, leaves, dy)])
        planish.disable()
    assert results[0][0].stride() == results[1][0].stride()
    for mine, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("enabled", [False, True], ids=["bare", "enabled"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("direct", [True, False], ids=["LayerNorm2d", "a namesake"])
def test_a_replaced_norm_over_channels_is_laid_out_otherwise(
    direct: bool, dtype: torch.dtype, enabled: bool
) -> None:
    """As theirs: channels last, of which the convolutions behind it have the use."""

    class TheirLayerNorm2d(nn.LayerNorm):
        __module__ = "timm.layers.norm"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    if direct:
        TheirLayerNorm2d.__qualname__ = "LayerNorm2d"
    norm = TheirLayerNorm2d(6).to(GPU, dtype)
    x = random(2, 6, 4, 5).to(dtype).requires_grad_()
    theirs = norm(x)
    dy = torch.randn_like(theirs)
    wanted = [theirs, *torch.autograd.grad(theirs, [x, *norm.parameters()], dy)]
    assert theirs.is_contiguous(memory_format=LAST)
    planish.replace(norm)
    assert planish.LayerNorm2d(6).to(GPU, dtype)(x).is_contiguous()  # planish's own keeps it
    if enabled:
        planish.enable()
    y = norm(x)
    found = [y, *torch.autograd.grad(y, [x, *norm.parameters()], dy)]
    planish.disable()
    assert y.stride() == theirs.stride()
    for mine, their in zip(found, wanted, strict=True):
        rtol = 1e-4 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(mine, their, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("enabled", [False, True], ids=["bare", "enabled"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["silu", "relu"])
def test_an_activation_behind_groups_is_wrong(
    name: str, layout: torch.memory_format, dtype: torch.dtype, enabled: bool
) -> None:
    side = 512 if enabled else 24
    x = (random(1, 32, side, side, dtype=torch.float64) + 3).to(dtype, memory_format=layout)
    leaves = [x, *(random(32, dtype=dtype, seed=seed) for seed in (1, 2))]
    dy = random(*x.shape, dtype=dtype, seed=3).to(memory_format=layout)
    exact = [t.double().requires_grad_() for t in leaves]
    wanted_y = getattr(F, name)(F.group_norm(exact[0], 8, *exact[1:]))
    wanted = [wanted_y, *torch.autograd.grad(wanted_y, exact, dy.double())]
    leaves = [t.requires_grad_() for t in leaves]
    with planish.enabled() if enabled else contextlib.nullcontext(), Watched() as mode:
        y = planish.group_norm(leaves[0], 8, *leaves[1:], activation=name)
        found = [y, *torch.autograd.grad(y, leaves, dy)]
    assert f"aten.{name}.default" not in mode.seen
    assert y.is_contiguous(memory_format=layout)
    for one, other in zip(found, wanted, strict=True):
        error = (one.double() - other).abs().max()
        assert error <= 4 * torch.finfo(dtype).eps * other.abs().max(), float(error)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm_of_a_permuted_view_differs_from_torchs(dtype: torch.dtype) -> None:
    x, weight = random(2, 96, 7, 7, dtype=dtype), random(96, dtype=dtype, seed=1)

    def results() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = F.layer_norm(leaf.permute(0, 2, 3, 1), (96,), weight, weight)
        dy = torch.linspace(-1, 1, y.numel(), device=GPU).reshape(y.shape).to(dtype)
        return [y.detach(), *torch.autograd.grad(y, leaf, dy)]

    native = results()
    with planish.enabled():
        ours = results()
    assert_like_torch(ours, native, *TOLERANCE[dtype])


#: LayerNorm and RMSNorm, forward and backward, in a process of its own: the bits of all results,
#: and how often an operator went to torch.
NORMS_ALONE = """
import hashlib, json
import planish, torch
import torch.nn.functional as F
torch.manual_seed(0)
x, dy = (torch.randn(300, 768).to("cuda", torch.bfloat16) for _ in range(2))
w = torch.linspace(0, 2, 768).to("cuda", torch.bfloat16).requires_grad_()
x.requires_grad_()
with planish.enabled():
    results = []
    for y in (F.layer_norm(x, (768,), w, w), F.rms_norm(x, (768,), w, 1e-5)):
        results += [y, *torch.autograd.grad(y, (x, w), dy)]
bits = b"".join(t.detach().view(torch.int16).cpu().numpy().tobytes() for t in results)
torch_calls = sum(sum(s["torch"].values()) for s in planish.stats().values())
print(json.dumps([hashlib.sha256(bits).hexdigest(), torch_calls]))
"""


def test_a_pack_needs_nvrtc(tmp_path: Path) -> None:
    """A library of NVRTC's name without its functions hides it from a process."""
    hidden, out = tmp_path / "hidden", tmp_path / "norms.pack"
    hidden.mkdir()
    shutil.copy(library().path, hidden / "libnvrtc.so.13")

    def run(*arguments: str, **changes: str) -> str:
        environment = {**os.environ, "PLANISH_PACK": "", **changes}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=300
        ).stdout

    without = {"PLANISH_NVRTC_PATH": str(hidden), "PLANISH_CACHE_DIR": str(tmp_path / "empty")}
    cache = {"PLANISH_CACHE_DIR": str(tmp_path / "cache")}
    bits, torch_calls = json.loads(run("-c", NORMS_ALONE, **cache))
    assert torch_calls == 0
    assert json.loads(run("-c", NORMS_ALONE, **without))[1] > 0, "NVRTC is not hidden"
    run("-m", "planish", "pack", str(out), **cache)
    assert json.loads(run("-c", NORMS_ALONE, **without, PLANISH_PACK=str(out))) == [bits, 0]
    doctor = run("-m", "planish", "doctor", **without, PLANISH_PACK=str(out))
    assert f"pack {out}, " in doctor
    assert not list((tmp_path / "empty").glob("*.kernel"))
