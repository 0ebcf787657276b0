"""What one call costs the host, without the work: every public function and module of planish,
beside the composition of torch's operators that says the same.

    python bench/overhead.py [--rounds 60] [--only add] [--device cuda] [--out FILE]

Rows are (4, 64), images (1, 8, 4, 4), in f32. Each call is timed for inference (no gradient is
wanted), the forward of training, and forward and backward (torch.autograd.grad by all tensors);
planish's while it is not enabled and while it is. The calls take turns, a hundred at a time, round
after round in one process, so that all of them see the same machine. Printed is the fastest turn of
each, in microseconds: what the call costs where nothing else slows it down. On the CPU the time is
the thread's, one thread; on CUDA it is the clock's, the calls are only queued while it runs, and
the GPU is waited for outside.

The last lines are an empty torch.autograd.Function around one of planish's operators of C,
norm_forward, with norm_backward in its backward, of x, weight and bias, with no checks at all: what
Python's autograd allows. --out writes CSV.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.nn.functional as F

import planish
import torch
from planish.operators import call as _call
from planish.operators import short
from torch import Tensor, nn

CALLS = 100
MODES = ("inference", "training, forward", "forward and backward")
WAYS = ("torch", "not enabled", "enabled")

Function = Callable[..., Any]


class Case(NamedTuple):
    """One call: in torch's operators, by planish, and the tensors it takes. Modules hold their own,
    by which is differentiated, too."""

    name: str
    torch: Function
    planish: Function
    tensors: tuple[Tensor, ...]
    differentiable: bool = True


# ---- The calls -----------------------------------------------------------------------------------


def _rms(x: Tensor, w: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w, eps)


def _layer(x: Tensor, *parameters: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *parameters)


def _quantised(y: Tensor) -> tuple[Tensor, Tensor]:
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


def _standardized(w: Tensor) -> Tensor:
    variance, mean = torch.var_mean(w, (1, 2, 3), unbiased=False, keepdim=True)
    return (w - mean) * (variance + 1e-5).rsqrt()


def _with_sum(norm: Function) -> Function:
    def both(x: Tensor, r: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        s = x + r
        return norm(s, *parameters), s

    return both


def _over_channels(x: Tensor, *parameters: Tensor) -> Tensor:
    return _layer(x.permute(0, 2, 3, 1), *parameters).permute(0, 3, 1, 2)


def functions(rows: Callable[..., Tensor], image: Tensor) -> Iterator[Case]:
    """The public functions of a norm alone."""
    x, w, b, c, d = rows(4, 64), rows(64), rows(64), rows(8), rows(8)
    yield Case("layer_norm", _layer, lambda *t: planish.layer_norm(t[0], -1, *t[1:]), (x, w, b))
    yield Case("rms_norm", _rms, lambda *t: planish.rms_norm(t[0], -1, t[1]), (x, w))
    yield Case(
        "layer_norm over channels",
        _over_channels,
        lambda *t: planish.layer_norm(t[0], 1, *t[1:]),
        (image, c, d),
    )
    yield Case(
        "group_norm",
        lambda *t: F.group_norm(t[0], 2, *t[1:]),
        lambda *t: planish.group_norm(t[0], 2, *t[1:]),
        (image, c, d),
    )
    yield Case(
        "group_norm, silu",
        lambda *t: F.silu(F.group_norm(t[0], 2, *t[1:])),
        lambda *t: planish.group_norm(t[0], 2, *t[1:], activation="silu"),
        (image, c, d),
    )
    yield Case("weight_standardize", _standardized, planish.weight_standardize, (image,))


def staged_functions(rows: Callable[..., Tensor]) -> Iterator[Case]:
    """Those of a norm with stages, of two norms, and of quantised results."""
    x, r, w, b = rows(4, 64), rows(4, 64), rows(64), rows(64)
    scale, shift = rows(4, 64), rows(4, 64)
    yield Case("add_layer_norm", _with_sum(_layer), planish.add_layer_norm, (x, r, w, b))
    yield Case("add_rms_norm", _with_sum(_rms), planish.add_rms_norm, (x, r, w))
    yield Case(
        "modulated_layer_norm",
        lambda x, scale, shift: _layer(x) * (1 + scale) + shift,
        planish.modulated_layer_norm,
        (x, scale, shift),
    )
    yield Case(
        "modulated_rms_norm",
        lambda x, scale, shift: _rms(x) * (1 + scale) + shift,
        planish.modulated_rms_norm,
        (x, scale, shift),
    )
    yield Case(
        "gated_rms_norm",
        lambda x, gate, w: _rms(x, w) * F.silu(gate),
        planish.gated_rms_norm,
        (x, r, w),
    )
    yield Case(
        "gated_layer_norm",
        lambda x, gate, w, b: _layer(x, w, b) * F.silu(gate),
        planish.gated_layer_norm,
        (x, r, w, b),
    )
    yield Case(
        "qk_norm",
        lambda q, k, v, w: (_rms(q, v), _rms(k, w)),
        lambda *t: planish.qk_norm(*t, 1e-5),
        (x, r, w, b),
    )
    yield Case(
        "quantized_rms_norm",
        lambda x, w: _quantised(_rms(x, w)),
        planish.quantized_rms_norm,
        (x, w),
        False,
    )
    yield Case(
        "quantized_layer_norm",
        lambda x, w, b: _quantised(_layer(x, w, b)),
        planish.quantized_layer_norm,
        (x, w, b),
        False,
    )


class _Torch(nn.Module):
    """torch's module, and what stands around it in a model."""

    def __init__(self, norm: nn.Module, around: Function) -> None:
        super().__init__()
        self.norm, self.around = norm, around

    def forward(self, *given: Tensor) -> Any:
        return self.around(self.norm, *given)


def _added(norm: nn.Module, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    s = x + r
    return norm(s), s


def modules(rows: Callable[..., Tensor], image: Tensor) -> Iterator[Case]:
    """The public modules, each beside torch's own, or torch's with what stands around it."""
    x, r, scale, shift = (rows(4, 64) for _ in range(4))
    sequence = image.flatten(2)
    volume = image.unsqueeze(-1)
    channels = _Torch(
        nn.LayerNorm(8), lambda norm, x: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    )
    channels_rms = _Torch(
        nn.RMSNorm(8), lambda norm, x: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    )
    modulated = _Torch(
        nn.LayerNorm(64, 1e-6, elementwise_affine=False),
        lambda norm, x, scale, shift: norm(x) * (1 + scale) + shift,
    )
    gated = _Torch(nn.RMSNorm(64, 1e-5), lambda norm, x, gate: norm(x) * F.silu(gate))
    silu = _Torch(nn.GroupNorm(2, 8), lambda norm, x: F.silu(norm(x)))
    own = planish.EvoNorm2dS0(8, 2)
    relu = _Torch(nn.BatchNorm2d(8), lambda norm, x: F.relu(norm(x)))
    joined = _Torch(nn.BatchNorm2d(8), lambda norm, x, r: F.relu(norm(x) + r))
    fused = planish.BatchNorm2d(8, activation="relu")
    yield Case("LayerNorm", nn.LayerNorm(64), planish.LayerNorm(64), (x,))
    yield Case("RMSNorm", nn.RMSNorm(64), planish.RMSNorm(64), (x,))
    yield Case("LayerNorm2d", channels, planish.LayerNorm2d(8), (image,))
    yield Case("RMSNorm2d", channels_rms, planish.RMSNorm2d(8), (image,))
    yield Case("GroupNorm", nn.GroupNorm(2, 8), planish.GroupNorm(2, 8), (image,))
    yield Case("GroupNorm, silu", silu, planish.GroupNorm(2, 8, activation="silu"), (image,))
    yield Case("InstanceNorm1d", nn.InstanceNorm1d(8), planish.InstanceNorm1d(8), (sequence,))
    yield Case("InstanceNorm2d", nn.InstanceNorm2d(8), planish.InstanceNorm2d(8), (image,))
    yield Case("InstanceNorm3d", nn.InstanceNorm3d(8), planish.InstanceNorm3d(8), (volume,))
    yield Case("BatchNorm2d", nn.BatchNorm2d(8), planish.BatchNorm2d(8), (image,))
    yield Case("BatchNorm2d, relu", relu, fused, (image,))
    yield Case("BatchNorm2d, add, relu", joined, fused, (image, image.flip(0)))
    yield Case("EvoNorm2dS0", _Torch(own, lambda norm, x: norm._composed(x)), own, (image,))
    yield Case("AddLayerNorm", _Torch(nn.LayerNorm(64), _added), planish.AddLayerNorm(64), (x, r))
    yield Case("AddRMSNorm", _Torch(nn.RMSNorm(64, 1e-5), _added), planish.AddRMSNorm(64), (x, r))
    yield Case("ModulatedLayerNorm", modulated, planish.ModulatedLayerNorm(64), (x, scale, shift))
    yield Case("GatedRMSNorm", gated, planish.GatedRMSNorm(64), (x, r))


def empty(rows: Callable[..., Tensor]) -> Case:
    """An empty torch.autograd.Function around norm_forward and norm_backward."""
    x, w, b = rows(4, 64), rows(64), rows(64)
    forward = _call.make_call([1], [1], rms=False, eps=1e-5)
    alone = _call.make_call([1], [1], rms=False, eps=1e-5, save=False)
    options = _call.backward_options(forward.options, 0b1101, x.dtype, x.dtype)
    backward = forward.axes, options, 0, 0.0
    none = None

    def run(x: Tensor, w: Tensor, b: Tensor, numbers: Any) -> Any:
        return short.FORWARD(x, none, none, none, none, w, b, none, none, none, *numbers)

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            y, _, mean, rstd = run(x, w, b, forward)
            ctx.save_for_backward(x, rstd, mean, w)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            x, rstd, mean, w = ctx.saved_tensors
            none5 = (none,) * 5
            given = dy, x, rstd, mean, *none5, w, none, none, none, none
            dx, _, dw, db, *_ = short.BACKWARD(*given, *backward)
            return dx, dw, db

    apply = super(torch.autograd.Function, Empty).apply

    def function(*tensors: Tensor) -> Any:
        return apply(*tensors) if tensors[0].requires_grad else run(*tensors, alone)[0]

    return Case("an empty torch.autograd.Function", function, function, (x, w, b))


# ---- Timing --------------------------------------------------------------------------------------


def calls_of(case: Case, function: Function) -> dict[str, Callable[[], object]]:
    """By the name of what is timed."""

    def inference() -> object:
        with torch.no_grad():
            return function(*case.tensors)

    bare = inference if isinstance(function, nn.Module) else lambda: function(*case.tensors)
    calls: dict[str, Callable[[], object]] = {MODES[0]: bare}
    if case.differentiable:
        leaves = [tensor.clone().requires_grad_() for tensor in case.tensors]
        wanted = [*leaves, *(function.parameters() if isinstance(function, nn.Module) else ())]
        made = function(*leaves)
        results = made if isinstance(made, tuple) else (made,)
        dys = [torch.ones_like(result) for result in results]

        def both() -> object:
            made = function(*leaves)
            results = made if isinstance(made, tuple) else (made,)
            return torch.autograd.grad(results, wanted, dys)

        calls |= {MODES[1]: lambda: function(*leaves), MODES[2]: both}
    return calls


def microseconds(call: Callable[[], object], device: str) -> float:
    """Time of one call, over many."""
    clock = time.perf_counter_ns if device == "cuda" else time.thread_time_ns
    for _ in range(CALLS // 10):
        call()
    began = clock()
    for _ in range(CALLS):
        call()
    passed = clock() - began
    if device == "cuda":
        torch.cuda.synchronize()
    return passed / CALLS / 1e3


Times = dict[tuple[str, str, str], float]


def measure(cases: list[Case], rounds: int, device: str) -> Times:
    """The fastest turn by (case, mode, way)."""
    found: Times = {}
    off = [
        (case.name, mode, way, call)
        for case in cases
        for way, function in (("torch", case.torch), ("not enabled", case.planish))
        for mode, call in calls_of(case, function).items()
    ]
    on = [(name, mode, "enabled", call) for name, mode, way, call in off if way != "torch"]
    for turn in range(rounds + 1):
        for enabled, turns in ((False, off), (True, on)):
            if enabled:
                planish.enable()
            for *key, call in turns:
                timing = microseconds(call, device)
                if turn:  # the first round warms up
                    found[tuple(key)] = min(timing, found.get(tuple(key), timing))  # type: ignore
            if enabled:
                planish.disable()
    return found


def main() -> int:
    """Prints the table; exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="calls whose names have this in them")
    parser.add_argument("--out", help="a file for the results, as CSV")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = given.device

    def rows(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    image = rows(1, 8, 4, 4)
    cases = [*functions(rows, image), *staged_functions(rows), *modules(rows, image), empty(rows)]
    for case in cases:
        for function in (case.torch, case.planish):
            if isinstance(function, nn.Module):
                function.to(device)
    cases = [case for case in cases if given.only in case.name]
    found = measure(cases, given.rounds, device)
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    about = f"torch {torch.__version__}, planish {planish.__version__}, f32, one thread, {machine}"
    print(f"{about}; microseconds a call, the fastest of {given.rounds} turns")
    print(f"{'':34} {'':22} " + " ".join(f"{way:>12}" for way in WAYS))
    for case in cases:
        for mode in MODES if case.differentiable else MODES[:1]:
            times = [found[case.name, mode, way] for way in WAYS]
            print(f"{case.name:34} {mode:22} " + " ".join(f"{time:12.2f}" for time in times))
    if given.out:
        with open(given.out, "w", newline="") as file:
            file.write(f"# {about}\n# python bench/overhead.py --rounds {given.rounds}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["call", "mode", *WAYS])
            for name, mode in dict.fromkeys((name, mode) for name, mode, _ in found):
                times = [f"{found[name, mode, way]:.2f}" for way in WAYS]
                writer.writerow([name, mode, *times])
    return 0


if __name__ == "__main__":
    sys.exit(main())
