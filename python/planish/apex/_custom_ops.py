"""torch.ops.apex: the ten operators of Apex, with fake implementations and autograd formulas.

They are defined when one of them is first asked for, by its name in a module, or with the module of
that name under apex (_install.py), and never where a real Apex has defined them. planish's own
modules do not go through them: a custom operator costs the host tens of microseconds.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from planish.apex import _kernels, _recovery, fused_layer_norm_cuda
from planish.operators import ops
from planish.operators.arguments import HALF
from torch import Tensor

__all__ = ["GROUP_NORMS", "NORMS", "activation", "define", "operator"]

#: name -> RMS, affine
_KINDS = {
    "fused_layer_norm_affine": (False, True),
    "fused_rms_norm_affine": (True, True),
    "fused_layer_norm": (False, False),
    "fused_rms_norm": (True, False),
}
NORMS = tuple(f"{kind}_{way}" for kind in _KINDS for way in ("fwd", "bwd"))
_SILU = 1  # planish_activation of planish.h
GROUP_NORMS = ("group_norm_nhwc_fprop", "group_norm_nhwc_bprop")


def activation(act: str | None) -> str | None:
    """planish's name of it; ValueError for one that Apex's kernels do not have."""
    name = act.lower() if act else None
    if name not in (None, "silu", "swish"):
        raise ValueError(f"act is {act!r}; known are None, '', 'silu' and 'swish'")
    return "silu" if name else None


def _custom_op(name: str, run: Callable[..., Any], schema: str) -> Any:
    return torch.library.custom_op(f"apex::{name}", run, mutates_args=(), schema=schema)


def _parts(rms: bool, affine: bool) -> list[str]:
    return ["weight"] * affine + ["bias"] * (affine and not rms)


def _define_norm(kind: str, rms: bool, affine: bool) -> dict[str, Any]:
    """apex::{kind}_fwd and _bwd: the extension module's functions with the arguments in the order
    of the functions in apex.normalization.fused_layer_norm."""
    parts = _parts(rms, affine)
    prefix, suffix = "rms_" if rms else "", "_affine" if affine else ""
    run_forward = getattr(fused_layer_norm_cuda, f"{prefix}forward{suffix}")
    run_backward = getattr(fused_layer_norm_cuda, f"{prefix}backward{suffix}")
    given = 1 if rms else 2  # statistics
    # torch leaves out of a call what is the default: memory_efficient may be missing in `rest`.

    def forward(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *parameters, shape, eps = rest[: len(parts) + 2]
        return tuple(run_forward(x, shape, *parameters, eps))

    def forward_fake(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        shape = rest[len(parts)]
        rows = 1
        for size in x.shape[: x.dim() - len(shape)]:
            rows = rows * size
        half = x.dtype in HALF
        dtype = torch.float32 if half else x.dtype
        statistics = [x.new_empty((rows,), dtype=dtype) for _ in range(given)]
        return torch.empty_like(x, memory_format=torch.contiguous_format), *statistics

    def backward(dy: Tensor, *rest: Any) -> Any:
        *statistics, kept, shape = rest[: given + 2]
        *parameters, eps = rest[given + 2 : given + 3 + len(parts)]
        memory_efficient = bool(rest[given + 3 + len(parts) :] == (True,))
        result = run_backward(dy, *statistics, kept, shape, *parameters, eps, memory_efficient)
        return tuple(result) if affine else result

    def backward_fake(dy: Tensor, *rest: Any) -> Any:
        dx = torch.empty_like(rest[given])
        parameters = rest[given + 2 : given + 2 + len(parts)]
        return (dx, *map(torch.empty_like, parameters)) if affine else dx

    named = "".join(f", Tensor {part}" for part in parts)
    tail = "float eps, bool memory_efficient=False"
    results = ", ".join(["Tensor"] * (1 + given))
    fwd = _custom_op(
        f"{kind}_fwd",
        forward,
        f"(Tensor input{named}, int[] normalized_shape, {tail}) -> ({results})",
    )
    fwd.register_fake(forward_fake)
    saved = "Tensor invvar" if rms else "Tensor? mean, Tensor invvar"
    gradients = ", ".join(["Tensor"] * (1 + len(parts)))
    bwd = _custom_op(
        f"{kind}_bwd",
        backward,
        f"(Tensor grad_output, {saved}, Tensor input_or_output, int[] normalized_shape{named}, "
        f"{tail}) -> " + (f"({gradients})" if affine else "Tensor"),
    )
    bwd.register_fake(backward_fake)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, *parameters, ctx.shape, ctx.eps, memory_efficient = inputs
        y, *statistics = output
        weight, bias = (*parameters, None, None)[:2]
        enough = memory_efficient and _recovery.y_is_enough(y.dtype, weight, bias)
        ctx.memory_efficient, ctx.own = enough, None
        if enough:
            ctx.own = None if weight is None else weakref.ref(weight)
            parameters = [_recovery.copied(parameter) for parameter in parameters]
        if enough and not rms:
            statistics[0] = None  # type: ignore[call-overload]
        ctx.save_for_backward(y if enough else x, *statistics, *parameters)

    def differentiate(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
        kept, *rest = ctx.saved_tensors
        statistics, parameters = rest[:given], rest[given:]
        if ctx.memory_efficient:
            _recovery.may_have_changed(None if ctx.own is None else ctx.own())
            weight, bias = (*parameters, None, None)[:2]
            statistics[-1] = _recovery.proven(statistics[-1], kept.dtype, weight, bias)
        found = bwd(dy, *statistics, kept, ctx.shape, *parameters, ctx.eps, ctx.memory_efficient)
        return *(found if affine else (found,)), None, None, None

    fwd.register_autograd(differentiate, setup_context=keep)
    return {f"{kind}_fwd": fwd, f"{kind}_bwd": bwd}


_AXES: tuple[list[int], list[int]] = [2, 3, 4], [1, 2]


def _check_group_norm(x: Tensor, G: int, weight: Tensor, bias: Tensor, passes: int) -> None:
    channels = x.shape[1] if x.dim() == 4 else 0
    if channels == 0 or G <= 0 or channels % G:
        raise RuntimeError(
            "group_norm_nhwc_fprop: Expected x (N, C, H, W) with channels that G divides, but got "
            f"x of shape {list(x.shape)} and G={G}"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter.shape != (channels,):
            raise RuntimeError(
                f"group_norm_nhwc_fprop: Expected {name} of {channels} elements, but got it of "
                f"shape {list(parameter.shape)}"
            )
    if passes not in (1, 2):
        raise ValueError(f"group_norm_nhwc_fprop: passes is {passes}; known are 1 and 2")


def _fprop_fake(x: Tensor, G: int, *rest: Any) -> tuple[Tensor, Tensor]:
    act = rest[3] if len(rest) > 3 else None
    wide = x.dtype == torch.float64 or activation(act) is not None
    dtype = torch.float64 if wide else torch.float32
    return torch.empty_like(x), x.new_empty((2 * x.shape[0] * G,), dtype=dtype)


def _bprop_fake(
    grad_output: Tensor, sums: Tensor, x: Tensor, G: int, weight: Tensor, bias: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


def _define_group_norm() -> dict[str, Any]:
    """apex::group_norm_nhwc_fprop and _bprop. ``sums`` is what the one hands to the other: here
    mean and rstd, in float64 where an activation follows (Apex: sums in float32)."""

    def fprop(
        x: Tensor,
        G: int,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        act: str | None = None,
        passes: int = 1,
        use_group_norm_v2: bool = False,
    ) -> tuple[Tensor, Tensor]:
        _check_group_norm(x, G, weight, bias, passes)
        code = _SILU if activation(act) else 0
        y, mean, rstd = ops.plain_forward(
            x, weight, bias, *_AXES, float(eps), False, activation=code, split=G
        )
        assert mean is not None
        return y, torch.stack([mean, rstd]).flatten()

    def bprop(
        grad_output: Tensor,
        sums: Tensor,
        x: Tensor,
        G: int,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        act: str | None = None,
        passes: int = 1,
        use_group_norm_v2: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        code = _SILU if activation(act) else 0
        mean, rstd = sums.view(2, x.shape[0], G, 1, 1, 1)
        dx, dweight, dbias = ops.plain_backward(
            grad_output,
            x,
            mean,
            rstd,
            weight,
            *_AXES,
            False,
            bias=bias if code else None,
            activation=code,
            split=G,
        )
        assert dx is not None
        assert dweight is not None
        assert dbias is not None
        return dx, dweight, _kernels.as_dtype(dbias, bias.dtype)

    tail = "float eps, str? act=None, int passes=1, bool use_group_norm_v2=False"
    parameters = "Tensor x, int G, Tensor weight, Tensor bias"
    forward = _custom_op(GROUP_NORMS[0], fprop, f"({parameters}, {tail}) -> (Tensor, Tensor)")
    forward.register_fake(_fprop_fake)
    backward = _custom_op(
        GROUP_NORMS[1],
        bprop,
        f"(Tensor grad_output, Tensor sums, {parameters}, {tail}) -> (Tensor, Tensor, Tensor)",
    )
    backward.register_fake(_bprop_fake)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, ctx.groups, weight, bias, *ctx.rest = inputs
        ctx.save_for_backward(output[1], x, weight, bias)

    def differentiate(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
        sums, x, weight, bias = ctx.saved_tensors
        dx, dweight, dbias = backward(dy, sums, x, ctx.groups, weight, bias, *ctx.rest)
        return dx, None, dweight, dbias, None, None, None, None

    forward.register_autograd(differentiate, setup_context=keep)
    return {GROUP_NORMS[0]: forward, GROUP_NORMS[1]: backward}


@functools.cache
def _group_norms() -> dict[str, Any]:
    return _define_group_norm()


@functools.cache
def _norms() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for kind, (rms, affine) in _KINDS.items():
        made |= _define_norm(kind, rms, affine)
    return made


def _is_defined_elsewhere(name: str, made: Callable[[], dict[str, Any]]) -> bool:
    none_yet = made.cache_info().currsize == 0  # type: ignore[attr-defined]
    return none_yet and hasattr(torch.ops.apex, name)


def operator(name: str) -> Any:
    """The operator of that name, callable; what is not defined yet is."""
    made = _norms if name in NORMS else _group_norms
    if _is_defined_elsewhere(name, made):
        return getattr(torch.ops.apex, name)
    return made()[name]


def define() -> None:
    """Defines them all, but where a real Apex has."""
    operator(NORMS[0])
    operator(GROUP_NORMS[0])
