"""torch's RMS norm as planish's own operator, for backends of torch.compile that keep norms whole.

torch has its RMS norm as a composition, which tracing takes apart whatever the backend wants; layer
norm and group norm it leaves to the backend.
"""

from __future__ import annotations

import torch
from planish.library import dispatcher
from planish.operators import ops, ways
from planish.operators.arguments import DTYPES, rms_eps
from torch import Tensor

__all__ = ["forward"]


def _backend_decomposes() -> bool:
    """Whether the backend that traces now takes norms apart, as the inductor does."""
    from torch.fx.experimental import (
        proxy_tensor,  # takes long, and is there while a graph is traced
    )

    table = getattr(proxy_tensor.get_proxy_mode(), "decomposition_table", None)
    if table is None:  # before torch 2.13
        from torch.fx.experimental import (
            proxy_tensor,  # takes long, and is there while a graph is traced
        )

    table = getattr(proxy_tensor, "CURRENT_DECOMPOSITION_TABLE", {})
    return torch.ops.aten.native_layer_norm.default in table


def forward(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor] | None:
    """y and rstd, as aten::_fused_rms_norm has them; None where torch's composition is wanted."""
    count = len(normalized_shape)
    given = [input] if weight is None else [input, weight]
    if (
        _backend_decomposes()
        or not 0 < count <= input.dim() <= 16
        or list(input.shape[input.dim() - count :]) != list(normalized_shape)
        or (weight is not None and list(weight.shape) != list(normalized_shape))
        or any(t.dtype not in DTYPES or t.device != input.device for t in given)
        or ways.lacks_rules(*given)
    ):
        return None
    eps = rms_eps(eps, input)
    axes = list(range(input.dim() - count, input.dim()))
    y, _, rstd = ops.plain_forward(input, weight, None, axes, axes, eps, True)
    return y, rstd


dispatcher.trace_rms_by(forward)
