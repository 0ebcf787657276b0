"""Batch norm by the statistics of several processes.

The message of a process is (n, mean, m2) of each channel in f64: how many values there are, their
mean and the sum of squares of what is left beside it (Chan, Golub, LeVeque 1983). All processes
merge all messages in the order of ranks, by the same element-wise operations, so that they get the
same bits. One that has no values sends n = 0, which is passed over without a look at it: nothing
waits for a GPU.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch.distributed as dist

import torch
from planish.operators import batch_ops, parts
from planish.operators.arguments import DEVICES, DTYPES
from planish.operators.call import ACTIVATIONS
from torch import Tensor

__all__ = ["batch_norm", "group_of", "merge"]


def group_of(given: Any) -> Any:
    """The processes whose statistics are merged; None: there are no others."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = given if given else dist.group.WORLD
    return group if dist.get_world_size(group) > 1 else None


def merge(messages: list[Tensor], channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, m2, n) of all, in the order of the list; n is a tensor of one number."""
    sizes = [1, channels, channels]
    count, mean, m2 = torch.split(messages[0], sizes)
    for message in itertools.islice(messages, 1, None):
        other_count, other_mean, other_m2 = torch.split(message, sizes)
        total = count + other_count
        share = other_count / total.clamp(min=1)
        apart = other_mean - mean
        m2 = m2 + other_m2 + apart.square() * (count * share)
        mean = mean + apart * share
        count = total
    return mean, m2, count


def _update(running: Tensor | None, found: Tensor, momentum: float) -> None:
    if running is not None:
        running.copy_((1 - momentum) * running.double() + momentum * found)


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        addend: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        code: int,
        group: Any,
    ) -> Tensor:
        channels, axes = x.shape[1], batch_ops.axes_of(x.dim())
        sent, _ = torch.ops.planish.norm_part_message(x, axes, 0, 0)
        mean, m2, count = merge(list(parts.gather(sent, group)), channels)
        rstd = (m2 / count + eps).rsqrt()
        _update(running_mean, mean, momentum)
        _update(running_var, m2 / (count - 1), momentum)
        y = torch.empty_like(x)
        if x.numel():
            options = batch_ops.options_of(code)
            y = batch_ops.APPLY(x, rstd, mean, addend, weight, bias, axes, options, eps)
        by_y = code == batch_ops.RELU and addend is not None
        saved_y, saved_addend = (y, None) if by_y else (None, addend if code else None)
        saved_bias = bias if code and not by_y else None
        ctx.save_for_backward(x, mean, rstd, saved_y, saved_addend, weight, saved_bias, count)
        ctx.numbers, ctx.group = (axes, code, eps), group
        ctx.dtypes = [None if t is None else t.dtype for t in (weight, bias, addend)]
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, mean, rstd, y, addend, weight, bias, count = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_addend, *_ = ctx.needs_input_grad
        axes, code, eps = ctx.numbers
        behind = y, addend, weight, bias, axes
        sums = torch.zeros(2, x.shape[1], dtype=torch.float64, device=x.device)
        daddend = None
        if x.numel():
            options = batch_ops.options_of(code, wanted=2 * needs_addend | 4 | 8 | batch_ops.SUMS)
            _, daddend, dweight, dbias = batch_ops.BACKWARD(
                dy, x, rstd, mean, None, None, *behind, options, eps
            )
            sums = torch.stack([dbias, dweight]).double()
        weight_dtype, bias_dtype, addend_dtype = ctx.dtypes
        dbias, dweight = sums  # those of this process: whoever reduces gradients adds them up
        dx = None
        if needs_x:
            everywhere = sums.clone()
            dist.all_reduce(everywhere, group=ctx.group)
            dx = torch.empty_like(x)
            if x.numel():
                scale = 1 if weight is None else weight.double()
                c1, c2 = everywhere * (scale / count)
                options = batch_ops.options_of(code, wanted=1)
                dx, *_ = batch_ops.BACKWARD(dy, x, rstd, mean, c1, c2, *behind, options, eps)
        return (
            dx,
            dweight.to(weight_dtype) if needs_weight else None,
            dbias.to(bias_dtype) if needs_bias else None,
            (dy.to(addend_dtype) if daddend is None else daddend.to(addend_dtype))
            if needs_addend
            else None,
            *(None,) * 6,
        )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    activation: str | None,
    addend: Tensor | None,
    group: Any,
    function: str = "SyncBatchNorm",
) -> Tensor:
    """The norm of x by the statistics of the group, which has two processes or more."""
    vectors = running_mean, running_var, weight, bias
    for vector in vectors:
        if vector is not None and vector.shape != x.shape[1:2]:
            raise RuntimeError(
                f"{function}: Expected {x.shape[1]} channels in every parameter and buffer, "
                f"like the input, but got one of shape {list(vector.shape)}"
            )
    if x.dtype not in DTYPES or x.device.type not in DEVICES:
        raise NotImplementedError(f"{function}: not implemented for {x.dtype} on {x.device}")
    if x.dim() > 16:
        raise NotImplementedError(f"{function}: not implemented for {x.dim()} axes, but for 16")
    if addend is not None and addend.shape != x.shape:
        raise RuntimeError(
            f"{function}: Expected addend of input's shape {list(x.shape)}, but got addend of "
            f"shape {list(addend.shape)}"
        )
    return _SyncBatchNorm.apply(  # type: ignore[no-any-return, no-untyped-call]
        x,
        weight,
        bias,
        addend,
        running_mean,
        running_var,
        momentum,
        eps,
        ACTIVATIONS[activation],
        group,
    )
