"""Uses planish for the first time in every place of torch's where that may be, each in a process of
its own: forked from this one, which has imported torch alone.

    python first_uses.py [PLACE...]

prints one line of JSON for each place and action: [place, action, exit code, "" or the exception].
test_first_use.py reads them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch._dynamo  # once, not in every child
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch
from torch import nn

Action = Callable[[], object]
X = torch.randn(2, 4)
MODEL = nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4))


class Refused(Exception):
    """What the modes below raise."""


class RefusesOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise Refused(str(func))


class RefusesFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise Refused(str(func))


def inside(mode: Callable[[], AbstractContextManager[Any]]) -> Callable[[Action], None]:
    def place(action: Action) -> None:
        with mode():
            action()

    return place


def of_a_function(call: Callable[[Callable[..., Any]], object]) -> Callable[[Action], None]:
    def place(action: Action) -> None:
        def function(t: torch.Tensor) -> torch.Tensor:
            action()
            return t.sum()

        call(function)

    return place


def of_a_module(call: Callable[[nn.Module], object]) -> Callable[[Action], None]:
    def place(action: Action) -> None:
        class Model(nn.Module):
            def forward(self, t: torch.Tensor) -> torch.Tensor:
                action()
                return t + 1

        call(Model())

    return place


PLACES: dict[str, Callable[[Action], None]] = {
    "plain": lambda action: (action(), None)[1],
    "jvp": of_a_function(lambda f: torch.func.jvp(f, (X,), (X,))),
    "grad": of_a_function(lambda f: torch.func.grad(f)(X)),
    "vmap": of_a_function(lambda f: torch.vmap(f)(X)),
    "functionalize": of_a_function(lambda f: torch.func.functionalize(f)(X)),
    "make_fx": of_a_function(lambda f: make_fx(f, tracing_mode="symbolic")(X)),
    "jit.trace": of_a_function(lambda f: torch.jit.trace(f, (X,))),
    "FakeTensorMode": inside(FakeTensorMode),
    "a dispatch mode that raises": inside(RefusesOperators),
    "a function mode that raises": inside(RefusesFunctions),
    "inference_mode": inside(torch.inference_mode),
    "autocast": inside(lambda: torch.autocast("cpu")),
    "the meta device": inside(lambda: torch.device("meta")),
    "export": of_a_module(lambda m: torch.export.export(m, (X,), strict=False)),
    "strict export": of_a_module(lambda m: torch.export.export(m, (X,), strict=True)),
    "compile": of_a_function(lambda f: torch.compile(f, backend="eager")(X)),
}


def enable() -> None:
    import planish

    planish.enable()
    planish.enable("layer_norm")


def enabled() -> None:
    import planish

    with planish.enabled("rms_norm"):
        planish.stats()
    planish.disable()


def stats() -> None:
    import planish

    planish.stats()


def doctor() -> None:
    from planish.commands import doctor

    problems = doctor.report()["problems"]
    assert not problems, problems


def replace() -> None:
    import planish

    planish.replace(MODEL)


def build() -> None:
    import planish

    planish.LayerNorm(4)
    planish.RMSNorm(4)
    planish.LayerNorm2d(4)
    planish.EvoNorm2dS0(4, 2)


def call() -> None:
    import planish

    planish.layer_norm(torch.ones(2, 4), 0)


def call_enabled() -> None:
    import planish

    planish.enable()
    x = torch.ones(2, 4)
    nn.functional.layer_norm(x, (4,))
    nn.functional.group_norm(x, 2)
    nn.functional.rms_norm(x, (4,))


ACTIONS: dict[str, Action] = {
    "enable": enable,
    "enabled": enabled,
    "stats": stats,
    "doctor": doctor,
    "replace": replace,
    "build": build,
    "call": call,
    "call_enabled": call_enabled,
}


def in_a_child(place: str, action: str) -> tuple[int, str]:
    """The exit code of a process that does it, and what it raised there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        raised = ""
        try:
            PLACES[place](ACTIONS[action])
        except BaseException as error:
            raised = f"{type(error).__module__}.{type(error).__name__}: {error}"
        os.write(writing, raised.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raised = pipe.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), raised


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for place in sys.argv[1:] or PLACES:
        for action in ACTIONS:
            print(json.dumps([place, action, *in_a_child(place, action)]), flush=True)
