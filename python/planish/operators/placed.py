"""Norms of DTensors whose normalised axis is sharded: each rank's part by parts.py, so that nothing
is gathered. Everything else has rules for DTensor itself (sharding.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from planish.operators import call, parts, sync_batch
from torch import Tensor

__all__ = ["batch_norm", "group_norm", "norm", "split_axis_of"]


def _distributed() -> Any:
    return sys.modules.get("torch.distributed.tensor")


def split_axis_of(x: Tensor, reduce: Sequence[int]) -> int | None:
    """The axis of x's mesh that shards one of these axes of x; None where none does, or several do,
    or x is a sum that is still to be made."""
    tensor = _distributed()
    if tensor is None or not isinstance(x, tensor.DTensor):
        return None
    found = [
        axis
        for axis, placement in enumerate(x.placements)
        if isinstance(placement, tensor.Shard) and placement.dim % x.dim() in reduce
    ]
    partial = any(placement.is_partial() for placement in x.placements)
    return found[0] if len(found) == 1 and not partial else None


def _local(x: Any, parameter: Any, affine: Sequence[int]) -> Tensor | None:
    """This rank's part of a parameter, sharded as x is along the axes that it has; its gradient is
    a sum over the ranks that have other rows, or other elements that share it."""
    tensor = _distributed()
    if parameter is None:
        return None
    placements, gradients = [], []
    for placement in x.placements:
        axis = placement.dim % x.dim() if placement.is_shard() else None
        if axis in affine:
            placements.append(tensor.Shard(affine.index(axis)))
            gradients.append(placements[-1])
        else:
            placements.append(tensor.Replicate())
            gradients.append(tensor.Replicate() if axis is None else tensor.Partial())
    placed = parameter
    if list(parameter.placements) != placements:  # else its gradient would be summed up at once
        placed = parameter.redistribute(x.device_mesh, placements)
    return placed.to_local(grad_placements=gradients)  # type: ignore[no-any-return]


def _are_of(mesh: Any, *tensors: Any) -> bool:
    tensor = _distributed()
    return all(
        one is None or (isinstance(one, tensor.DTensor) and one.device_mesh == mesh)
        for one in tensors
    )


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, problem: call.Norm
) -> Tensor | None:
    """The norm of a DTensor with one normalised axis sharded along one axis of its mesh, without
    its activation; None for any other, and for parameters that are no DTensors of x's mesh."""
    at = split_axis_of(x, problem.reduce)
    if at is None:
        return None
    tensor = _distributed()
    given: Any = x
    mesh = given.device_mesh
    if not _are_of(mesh, weight, bias):
        return None
    if any(one is not None and one.dim() != len(problem.affine) for one in (weight, bias)):
        return None
    axes = call.pack_axes(problem.reduce, problem.affine)
    options = call.pack_options(rms=problem.rms, more=call.L2 * problem.l2)
    part = parts.Norm(axes, options, problem.eps)
    local = [_local(given, parameter, problem.affine) for parameter in (weight, bias)]
    y = parts.norm(part, mesh.get_group(at), given.to_local(), *local)
    return tensor.DTensor.from_local(  # type: ignore[no-any-return]
        y, mesh, given.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor | None:
    """The group norm of a DTensor whose channels are cut so that as many ranks share each group;
    None for any other, and for parameters that are no DTensors of x's mesh."""
    at = split_axis_of(x, range(1, x.dim()))
    given: Any = x
    if at is None or given.placements[at].dim % x.dim() != 1:
        return None
    mesh, ranks = given.device_mesh, given.device_mesh.size(at)
    is_shared = groups < ranks and ranks % groups == 0 and x.shape[1] % ranks == 0
    if not is_shared or not _are_of(mesh, weight, bias):
        return None
    rows = given.to_local().unsqueeze(1)
    part = parts.Norm(
        call.pack_axes(range(2, rows.dim()), [1, 2]),
        call.pack_options(rms=False),
        eps,
        among=ranks // groups,
    )
    local = (_local(given, parameter, [1]) for parameter in (weight, bias))
    seen = (None if parameter is None else parameter.unsqueeze(0) for parameter in local)
    y = parts.norm(part, mesh.get_group(at), rows, *seen).squeeze(1)
    return _distributed().DTensor.from_local(  # type: ignore[no-any-return]
        y, mesh, given.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def batch_norm(
    run: Callable[..., Tensor],
    x: Any,
    running: Sequence[Any],
    parameters: Sequence[Any],
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
    addend: Any,
) -> Tensor | None:
    """The batch norm of a DTensor of which each rank has images, pixels or channels of its own: in
    training by one exchange of statistics where a channel's values are sharded along one axis of
    the mesh, else by `run`, which is planish.batch_norm, of what each rank has. None where torch's
    rules are to gather: sharded along several axes, or sums that are still to be made, or running
    statistics and parameters that are no DTensors of x's mesh."""
    mesh, tensor = x.device_mesh, _distributed()
    values = [0, *range(2, x.dim())]
    sharded = [one for one in x.placements if one.is_shard() and one.dim % x.dim() in values]
    at = split_axis_of(x, values)
    if len(sharded) > 1 or (at is None) != (not sharded) or x.numel() <= x.shape[1]:
        return None
    if any(one.is_partial() for one in x.placements) or not _are_of(
        mesh, addend, *running, *parameters
    ):
        return None
    of_weight, of_bias = (_local(x, one, [1]) for one in parameters)
    mean, var = (_in_place(x, one) for one in running)
    if (mean is None, var is None) != tuple(one is None for one in running):
        return None
    beside = None
    if addend is not None:
        beside = addend.redistribute(mesh, x.placements).to_local()
    given = x.to_local(), mean, var, of_weight, of_bias
    if training and at is not None and mesh.size(at) > 1:
        group = mesh.get_group(at)
        y = sync_batch.batch_norm(*given, momentum, eps, activation, beside, group)
    else:
        y = run(*given, training, momentum, eps, activation=activation, addend=beside)
    return tensor.DTensor.from_local(  # type: ignore[no-any-return]
        y, mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def _in_place(x: Any, running: Any) -> Tensor | None:
    """This rank's memory of running statistics, where it holds what x's channels there need."""
    if running is None:
        return None
    tensor = _distributed()
    wanted = [
        tensor.Shard(0) if one.is_shard() and one.dim % x.dim() == 1 else tensor.Replicate()
        for one in x.placements
    ]
    return running.to_local() if list(running.placements) == wanted else None
