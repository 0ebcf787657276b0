"""planish.replace() and restore() while another thread is in a forward: it finishes by what it
began with, or runs what is there now, and gives the same result."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fused_blocks import Added, Modulated, Pair, Sum
from replace_support import LlamaNorm

import planish
import torch
from planish import zoo
from torch import Tensor, nn


def of_timm(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        if zoo.missing_packages(("timm",)):
            pytest.skip("timm not installed")
        zoo.prepare()
        import timm.layers

        made: nn.Module = getattr(timm.layers, name)(32)
        return made

    return make


def resnet_block() -> nn.Module:
    if zoo.missing_packages(("diffusers",)):
        pytest.skip("diffusers not installed")
    zoo.prepare()
    from diffusers.models.resnet import ResnetBlock2D

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = ResnetBlock2D(in_channels=32, temb_channels=None, groups=4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.block(x, None)
            return y

    return Alone()


ROWS, IMAGE = (2, 3, 32), (2, 32, 4, 4)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LayerNorm": (lambda: nn.LayerNorm(32), ROWS),
    "RMSNorm": (lambda: nn.RMSNorm(32), ROWS),
    "GroupNorm": (lambda: nn.GroupNorm(4, 32), IMAGE),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(32, affine=True), IMAGE),
    "a norm of Python": (lambda: LlamaNorm(32), ROWS),
    "timm's LayerNorm2d": (of_timm("LayerNorm2d"), IMAGE),
    "timm's GroupNormAct": (of_timm("GroupNormAct"), IMAGE),
    "sum": (lambda: Sum(nn.LayerNorm), ROWS),
    "sum, a norm of Python": (lambda: Sum(LlamaNorm), ROWS),
    "added": (lambda: Added(nn.RMSNorm), ROWS),
    "modulated": (lambda: Modulated(nn.LayerNorm), ROWS),
    "pair": (lambda: Pair(nn.RMSNorm), ROWS),
    "ResnetBlock2D": (resnet_block, IMAGE),
}

#: In these files a step is an instruction, elsewhere a line.
_FILES = ("norm_modules.py", "channel_modules.py")


class _AtStep:
    """Runs an action at one step of what is called: a line, or in some files an instruction."""

    def __init__(self, action: Callable[[], Any], at: int) -> None:
        self.action, self.at, self.steps = action, at, 0

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename.startswith(torch.__path__[0]):
            return self if "modules" in frame.f_code.co_filename else None
        frame.f_trace_opcodes = frame.f_code.co_filename.endswith(_FILES)
        if event in ("line", "opcode"):
            self.steps += 1
            if self.steps == self.at:
                self.action()
        return self

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return function()
        finally:
            sys.settrace(before)


@pytest.mark.parametrize("name", MODELS)
def test_a_switch_at_some_step_of_a_forward_raises_or_gives_another_result(name: str) -> None:
    make, shape = MODELS[name]
    model, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(parameter.shape))
        wanted = model(x)

        def turn() -> None:
            (planish.restore if replaced else replace)(model)

        for replaced in (True, False):
            at, done = 1, False
            while not done:
                (replace if replaced else planish.restore)(model)
                traced = _AtStep(turn, at)
                found = traced.run(lambda: model(x))
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
                done = traced.steps < at
                at += 1
            assert at > (9 if replaced else 2)


def replace(model: nn.Module) -> None:
    planish.replace(model, fuse=True)


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_in_forwards_see_a_model_that_is_replaced_and_restored(often: None) -> None:
    models = [make() for make, shape in list(MODELS.values())[:5] if shape]
    models += [Sum(nn.LayerNorm), Sum(LlamaNorm), Added(nn.RMSNorm), Pair(nn.RMSNorm)]
    inputs = [
        torch.randn(IMAGE if isinstance(m, nn.GroupNorm | nn.InstanceNorm2d) else ROWS)
        for m in models
    ]
    whole = nn.ModuleList(models)
    errors: list[BaseException] = []
    count, stop = 0, threading.Event()

    def work() -> None:
        nonlocal count
        try:
            with torch.no_grad():
                while not stop.is_set():
                    for model, x, y in zip(models, inputs, wanted, strict=True):
                        torch.testing.assert_close(model(x), y, rtol=1e-5, atol=1e-5)
                    count += 1
        except BaseException as error:
            errors.append(error)

    with torch.no_grad():
        wanted = [model(x) for model, x in zip(models, inputs, strict=True)]
    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    end, switches = time.monotonic() + 2.0, 0
    while not errors and (time.monotonic() < end or count < 2) and time.monotonic() < end + 30:
        replace(whole)
        planish.restore(whole)
        switches += 1
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not errors and count > 1 and switches > 1
