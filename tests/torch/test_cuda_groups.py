"""Group norm and layers over channels under torch on CUDA, and packs. It needs a GPU."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from cuda_support import GPU, LAYOUT, SHAPES, TOLERANCE, assert_like_torch, random
from support import FLOATS, GROUP, GROUP_BACKWARD, NARROW, Calls, Watched

import planish
import torch
from planish.library.loaded import library
from torch import Tensor, nn

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU", allow_module_level=True)

SHAPES += [(2, 262144)]


@pytest.fixture(autouse=True)
def no_error_is_left_on_the_gpu() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


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
@pytest.mark.parametrize("dtype", NARROW, ids=str)
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
@pytest.mark.parametrize("dtype", NARROW, ids=str)
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
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

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


@pytest.mark.parametrize("way", ["module", "add"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_channels_seen_last_leave_their_layout_behind(way: str, dtype: torch.dtype) -> None:
    """As a U-Net's transformers have them: x is an image, what comes back is dense rows."""
    rows = random(2, 32, 24, 24, dtype=dtype).flatten(2).transpose(1, 2)
    norm = planish.LayerNorm(32, device=GPU, dtype=dtype)
    residual, dy = (random(*rows.shape, dtype=dtype, seed=s) for s in (4, 5))
    x, w, b = rows.detach().requires_grad_(), norm.weight, norm.bias

    def ours() -> Tensor:
        return norm(x) if way == "module" else planish.add_layer_norm(x, residual, w, b)[0]

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        y = ours()
        gradients = torch.autograd.grad(y, (x, w, b), dy)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages() if "planish" in event.key]
    assert names and not any("general" in name for name in names)
    s = x if way == "module" else x + residual
    native = F.layer_norm(s, (32,), w, b)
    wanted = torch.autograd.grad(native, (x, w, b), dy)
    tolerance = (1e-5, 1e-4) if dtype == torch.float32 else (2e-2, 2e-1)
    for mine, theirs in zip([y, *gradients], [native, *wanted], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance[0], atol=tolerance[1])
