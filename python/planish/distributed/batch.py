"""Batch norm by the statistics of all ranks, as a call."""

from __future__ import annotations

from typing import Any

from planish.distributed.agreement import agree, group_of
from planish.functions import batch
from planish.operators import sync_batch
from planish.operators.arguments import (
    check_activation,
    check_optional,
    check_tensor,
    number_of,
    truth_of,
)
from torch import Tensor

__all__ = ["batch_norm"]


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
    group: Any = None,
    activation: str | None = None,
    addend: Tensor | None = None,
) -> Tensor:
    """Batch normalization of a batch of which each rank of ``group`` has a part, as
    ``planish.SyncBatchNorm`` has it: ``input`` (N, C, ...) is this rank's part, of any size, none
    included; parameters and running statistics are those of all C channels on every rank.

        y = f((input - mean) / sqrt(var + eps) * weight + bias + addend)

    In training mean and variance are those of all parts. Each rank sends its number of values, and
    of each channel the mean and the sum of squares in f64; all merge them in the order of the
    ranks, and have the same bits. Running statistics are written as ``planish.batch_norm`` does,
    the same bits on every rank. Gradients of ``weight`` and ``bias`` are this rank's share, to be
    added up over the ranks, as those of every replicated parameter. Where ``training`` is False
    nothing is exchanged.

    ``group``, and when ranks have to agree: :func:`layer_norm`. Everything else:
    ``planish.batch_norm``; but it is differentiable once in training.

    Raises what ``planish.batch_norm`` raises, but for one value a channel, as torch's
    SyncBatchNorm.

    Example:

    >>> x = torch.randn(2, 8, 4, 4)
    >>> y = planish.distributed.batch_norm(x, None, None, training=True, activation="relu")
    """
    function = "batch_norm"
    check_tensor(function, "input", input)
    vectors = {
        "running_mean": running_mean,
        "running_var": running_var,
        "weight": weight,
        "bias": bias,
    }
    check_optional(function, **vectors, addend=addend)
    check_activation(function, activation)
    group = group_of(function, group)
    training = truth_of(function, "training", training)
    momentum = number_of(function, "momentum", momentum)
    eps = number_of(function, "eps", eps)
    values = (0, *range(2, input.dim()))
    agree(
        function,
        group,
        {
            "input": (input, values),
            "addend": (addend, values),
            **{name: (vector, ()) for name, vector in vectors.items()},
        },
        training=training,
        momentum=momentum,
        eps=eps,
        activation=activation,
    )
    if not training or group.size() == 1:
        return batch.batch_norm(
            input, running_mean, running_var, weight, bias, training, momentum, eps,
            activation=activation, addend=addend,
        )  # fmt: skip
    return sync_batch.batch_norm(  # type: ignore[no-any-return]
        input, running_mean, running_var, weight, bias, momentum, eps, activation, addend, group,
        function,
    )  # fmt: skip
