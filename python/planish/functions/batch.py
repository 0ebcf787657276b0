"""Batch norm, with what may stand behind it."""

from __future__ import annotations

import torch
from planish.functions.functional import _node
from planish.library import torch_calls
from planish.operators import batch, placed
from planish.operators.arguments import (
    check_activation,
    check_optional,
    check_tensor,
    number_of,
    truth_of,
)
from planish.operators.stage_calls import is_distributed
from planish.operators.ways import Way, way_of
from torch import Tensor, fx

__all__ = ["batch_norm", "long_way"]

#: Those that may be None.
_TENSORS = "running_mean", "running_var", "weight", "bias", "addend"


def _checked_way(input: Tensor, tensors: tuple[Tensor | None, ...]) -> Way:
    """How a call of these is computed, those of _TENSORS after the input."""
    way = way_of(input, *tensors)
    if way is not Way.PLAIN or input is None:
        check_tensor("batch_norm", "input", input)
        check_optional("batch_norm", **dict(zip(_TENSORS, tensors, strict=True)))
    return way


def _check_addend(input: Tensor, addend: Tensor | None) -> None:
    if addend is not None and addend.shape != input.shape:
        raise RuntimeError(
            f"batch_norm: Expected addend of input's shape {list(input.shape)}, but got addend of "
            f"shape {list(addend.shape)}"
        )


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    addend: Tensor | None = None,
) -> Tensor:
    """Batch normalization of ``input`` (N, C, ...), with the arguments of torch's, and what stands
    behind it in the same pass over memory:

        y = f((input - mean) / sqrt(var + eps) * weight + bias + addend)

    In training mean and (biased) variance are those of each channel, over all other axes, and
    ``running_mean`` and ``running_var``, where they are given, become ``(1 - momentum)`` of
    themselves and ``momentum`` of the mean and the unbiased variance. Otherwise they are the mean
    and the variance, and may not be None.

    ``activation``: ``"relu"``, ``"silu"``, ``"gelu"`` (with erf), ``"gelu_tanh"``, ``"relu6"`` or
    ``"hardswish"``; ``addend``: a tensor of ``input``'s shape, such as the residual of a block.
    Neither takes a pass of its own.
    The backward keeps ``input``, and of what stands behind: nothing for an activation, the result
    for ``"relu"`` behind an addend, else the addend.

    The result is laid out as ``input``, channels last included. Dtypes: f16, bf16, f32 and f64,
    each tensor its own. The statistics are exact for any mean of up to 1e4 standard deviations
    (docs/internals/numerics.md), and the same bits for any number of threads. Differentiable any
    number of times, forward mode included. The running statistics are written without a trace for
    autograd, as torch writes them.

    Raises what torch raises, ValueError for one value a channel in training included; ValueError
    for another activation; RuntimeError for an addend of another shape.

    Example:

    >>> x, residual = torch.randn(2, 8, 4, 4), torch.randn(2, 8, 4, 4)
    >>> mean, var = torch.zeros(8), torch.ones(8)
    >>> y = planish.batch_norm(x, mean, var, training=True, activation="relu", addend=residual)
    >>> plain = torch.nn.functional.batch_norm(x, None, None, training=True)
    >>> torch.allclose(y, torch.relu(plain + residual), atol=1e-5)
    True
    """
    if activation is None and addend is None and type(momentum) is type(eps) is float:
        numbers = training, momentum, eps
        y = torch_calls.batch_norm(input, weight, bias, running_mean, running_var, *numbers)
        if y is not None:
            return y
    given = input, running_mean, running_var, weight, bias, training, momentum, eps
    return long_way(*given, activation, addend)


def long_way(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
    addend: Tensor | None,
) -> Tensor:
    """batch_norm by planish's own operators."""
    key = None
    if type(momentum) is float:
        beside = input, addend, weight, bias, running_mean, running_var
        known, key = batch.find(training, eps, activation, beside)
        if known is not None:
            return batch.run(known, momentum, beside)
    running, parameters = (running_mean, running_var), (weight, bias)
    tensors = *running, *parameters, addend
    if isinstance(input, fx.Proxy) or isinstance(addend, fx.Proxy):
        rest = {"training": training, "momentum": momentum, "eps": eps, "activation": activation}
        return _node(batch_norm, input, **dict(zip(_TENSORS, tensors, strict=True)), **rest)
    check_activation("batch_norm", activation)
    way = _checked_way(input, tensors)
    if type(momentum) is not float:
        momentum = number_of("batch_norm", "momentum", momentum)
    if type(eps) is not float:
        eps = number_of("batch_norm", "eps", eps)
    _check_addend(input, addend)
    if type(training) is not bool:
        training = truth_of("batch_norm", "training", training)
    numbers = training, momentum, eps, activation
    if way is Way.OPERATOR and is_distributed(input) and not torch.compiler.is_compiling():
        placed_y = placed.batch_norm(batch_norm, input, running, parameters, *numbers, addend)
        if placed_y is not None:
            return placed_y
    if way is not Way.TORCH and not batch.runs(input, *running, *parameters, training, eps):
        way = Way.TORCH
    return batch.batch_norm(
        way, input, running_mean, running_var, weight, bias, *numbers, addend, key
    )
