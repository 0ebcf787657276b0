"""What inductor writes for a matrix product that is added to a tensor in place. Out of place it
copies that tensor first."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor.fx_passes import reinplace
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V

import torch
from torch import fx

__all__ = ["MARK", "is_there"]

aten = torch.ops.aten

#: In the meta of an addmm whose first argument nothing reads any more.
MARK = "planish_in_place"


class _AddedProduct(ir.MutatingFirstArgExternKernel):
    """``total.addmm_(one, other)``."""

    def __init__(self, total: Any, one: Any, other: Any) -> None:
        inputs = [self.realize_input(tensor) for tensor in (total, one, other)]
        super().__init__(
            None,
            ir.NoneLayout(device=total.get_device()),
            self.unwrap_storage(inputs),
            (),
            python_kernel_name="torch.Tensor.addmm_",
            op_overload=aten.addmm_.default,
        )
        V.graph.mark_buffer_mutated(inputs[0].get_name())
        self.name = V.graph.register_buffer(self)
        V.graph.register_operation(self)


def _lower(total: Any, one: Any, other: Any) -> Any:
    _AddedProduct(total, one, other)
    return total


def _is_marked(node: fx.Node) -> bool:
    return bool(node.meta.get(MARK))


def is_there() -> bool:
    """Whether this torch has what this module asks for, and nobody else has changed it. From then
    on inductor has marked products made in place."""
    known: dict[Any, Any] = reinplace.inplaceable_ops
    if aten.addmm_.default not in lowerings and aten.addmm.default not in known:
        register_lowering(aten.addmm_.default, type_promotion_kind=None)(_lower)
        known[aten.addmm.default] = reinplace.InplaceableOp(
            aten.addmm_.default, 0, extra_check=_is_marked
        )
    entry = known.get(aten.addmm.default)
    return entry is not None and entry.extra_check is _is_marked
