"""planish as a provider of vLLM's norms, ``rms_norm`` and ``fused_add_rms_norm`` of vllm.ir.

vLLM loads :func:`register` by the entry point ``vllm.general_plugins``; which provider runs is then
vLLM's to decide, by its option for the priority of each operator (there ``planish`` goes in front).
Nothing here imports vLLM before :func:`register` does.

The sum of ``fused_add_rms_norm`` is rounded to x's dtype and the norm reads it so. y is made in
float and rounded to the weight's dtype before the product, as vLLM's own implementation does, where
the weight has x's dtype (``cast="xhat"``); a wider weight multiplies in float.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from planish.functions import functional, stages
from planish.operators import arguments, stage_calls
from planish.operators.arguments import eps_of
from planish.operators.call import Tensors
from planish.operators.ways import way_of
from torch import Tensor

__all__ = ["PROVIDER", "fused_add_rms_norm", "register", "rms_norm"]

#: What vLLM calls it.
PROVIDER = "planish"

_log = logging.getLogger("planish")


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    """RMS norm over the last axis in x's dtype; ``variance_size`` has to be None or the last axis'
    size (ValueError).

    Example:

    >>> planish.compat.vllm.rms_norm(torch.randn(4, 64), torch.ones(64), 1e-6).shape
    torch.Size([4, 64])
    """
    _check("rms_norm", x, weight, variance_size)
    cast = "xhat" if weight is not None and weight.dtype == x.dtype else "once"
    return functional.rms_norm(x, -1, weight, eps=epsilon, cast=cast).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(RMS norm of the sum, the sum) with sum = x + x_residual, both in x's dtype, new tensors.

    Example:

    >>> y, total = planish.compat.vllm.fused_add_rms_norm(
    ...     torch.randn(4, 64), torch.randn(4, 64), torch.ones(64), 1e-6
    ... )
    """
    _check("fused_add_rms_norm", x, weight, variance_size)
    stages.check_like_x("fused_add_rms_norm", "x_residual", x_residual, x, optional=False)
    epsilon = eps_of("fused_add_rms_norm", epsilon, True, x.dtype)
    fused = stage_calls.norm(
        way_of(x, x_residual, weight),
        Tensors(x, x_residual, weight=weight),
        [x.dim() - 1],
        epsilon,
        True,
        round_xhat=weight is not None and weight.dtype == x.dtype,
        y_dtype=x.dtype,
        sum_dtype=x.dtype,
    )
    if fused is not None:
        return fused
    total = stages.sum_with(x, x_residual, x.dtype)
    return rms_norm(total, weight, epsilon, variance_size), total


def _check(function: str, x: Tensor, weight: Tensor | None, variance_size: int | None) -> None:
    stages.check_x(function, x)
    stages.check_parameter(function, "weight", weight, x)
    if variance_size is not None and variance_size != x.shape[-1]:
        raise ValueError(
            f"{function}: variance_size is {variance_size}; planish takes the variance over all "
            f"{x.shape[-1]} columns only"
        )


def _runs(x: Tensor, weight: Tensor | None, variance_size: int | None) -> bool:
    """Of dtypes, devices and None-ness alone: sizes may be symbols here."""
    tensors = [x] if weight is None else [x, weight]
    return (
        variance_size is None
        and x.device.type in arguments.DEVICES
        and all(t.dtype in arguments.DTYPES and t.device == x.device for t in tensors)
    )


def rms_norm_supports(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """Whether :func:`rms_norm` runs these."""
    return _runs(x, weight, variance_size)


def fused_add_rms_norm_supports(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    """Whether :func:`fused_add_rms_norm` runs these."""
    return _runs(x, weight, variance_size) and x_residual.dtype in arguments.DTYPES


def register(ir: Any = None) -> bool:
    """Registers the two providers with ``vllm.ir``, or with another object that has its ``ops``.

    Returns whether they are registered. Where vLLM has no ``vllm.ir`` (before 0.20), or has
    operators of other schemas, that is said to the logger ``planish`` at level WARNING and vLLM
    goes on without: a plugin must not keep it from starting. A second call changes nothing.

    Example:

    >>> planish.compat.vllm.register(object())  # no vllm.ir, or one of another form
    False
    """
    try:
        if ir is None:
            import vllm.ir
            import vllm.ir.ops

            ir = vllm.ir
        for name, run, supports in (
            ("rms_norm", rms_norm, rms_norm_supports),
            ("fused_add_rms_norm", fused_add_rms_norm, fused_add_rms_norm_supports),
        ):
            op = getattr(ir.ops, name)
            if PROVIDER in op.impls:
                continue
            given: dict[str, Any] = {"supported": _supported(), "supports_args": supports}
            if "batch_invariant" in inspect.signature(op.register_impl).parameters:
                given["batch_invariant"] = True  # a row's bits do not depend on the others
            op.register_impl(PROVIDER, **given)(run)
    except (ImportError, AttributeError, ValueError) as error:
        _log.warning("planish is no provider of vLLM's norms: %s", error)
        return False
    return True


def _supported() -> bool:
    """Whether there are kernels for what this torch runs on."""
    return not torch.cuda.is_available() or "cuda" in arguments.DEVICES
