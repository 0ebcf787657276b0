"""ShardedNorm for torch's tensor parallel API."""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

import torch
from planish import replacing
from torch import Tensor, nn

__all__ = ["ShardedNorm"]


class ShardedNorm(ParallelStyle):
    """A norm whose normalised axis is sharded, such as that of the queries of all heads behind a
    ColwiseParallel projection (OLMo 2): a few bytes a row are exchanged in place of the rows.

        parallelize_module(layer, mesh, {"q_proj": ColwiseParallel(), "q_norm": ShardedNorm()})

    The module is put through :func:`planish.replace`, which proves what it computes; its parameters
    become DTensors that are sharded along their only axis, so that optimizers, clipping and
    distributed checkpoints know them. A plain tensor that comes in is taken as this rank's part of
    the last axis, as ColwiseParallel returns it; a DTensor is brought to be sharded so. With
    ``use_local_output`` the result is this rank's part, else a DTensor.

    Raises ValueError for a module that planish does not take, with the reason.

    Example:

    >>> planish.distributed.ShardedNorm()
    ShardedNorm(use_local_output=True)
    """

    def __init__(self, *, use_local_output: bool = True) -> None:
        super().__init__()
        self.use_local_output = use_local_output

    @staticmethod
    def _shard(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() != 1:
                raise ValueError(
                    f"ShardedNorm: {parameter_name} of {type(module).__name__} has "
                    f"{parameter.dim()} axes; wanted one"
                )
            placed: Any
            if isinstance(parameter, DTensor):
                placed = parameter.redistribute(mesh, [Shard(0)])
            else:
                placed = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            module.register_parameter(
                parameter_name, nn.Parameter(placed, requires_grad=parameter.requires_grad)
            )

    @staticmethod
    def _prepare_input(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
        x, *rest = inputs
        if isinstance(x, DTensor):
            wanted = Shard(x.dim() - 1)
            return x if x.placements == (wanted,) else x.redistribute(mesh, [wanted]), *rest
        if not isinstance(x, Tensor):
            raise TypeError(f"ShardedNorm: Expected x to be a tensor, but got {type(x).__name__}")
        weight = next(module.parameters(recurse=False), None)
        shape: Any = None
        stride: Any = None
        if weight is not None:  # parts need not be even
            shape = torch.Size((*x.shape[:-1], weight.shape[0]))
            stride = torch.empty(shape, device="meta").stride()
        placed = DTensor.from_local(
            x, mesh, [Shard(x.dim() - 1)], run_check=False, shape=shape, stride=stride
        )
        return placed, *rest

    @staticmethod
    def _prepare_output(local: bool, module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.to_local() if local and isinstance(output, DTensor) else output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        report = replacing.replaced(module)
        if not report.taken:
            report = replacing.replaced(replacing.replace(module))
        if not report.taken:
            raise ValueError(
                f"ShardedNorm: planish does not take {type(module).__name__}: {report}"
            )
        return distribute_module(
            module,
            device_mesh,
            self._shard,
            self._prepare_input,
            functools.partial(self._prepare_output, self.use_local_output),
        )

    def __repr__(self) -> str:
        return f"ShardedNorm(use_local_output={self.use_local_output})"
