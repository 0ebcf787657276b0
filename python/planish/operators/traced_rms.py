"""torch's RMS norm as planish's own operator, for backends of torch.compile that keep norms whole.

torch has its RMS norm as a composition, which tracing takes apart whatever the backend wants; layer
norm and group norm it leaves to the backend.
"""

from __future__ import annotations

from torch.fx.experimental import proxy_tensor

import torch
from planish.operators import ops
from planish.operators.norms import rms_eps
from torch import Tensor

__all__ = ["forward"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _backend_decomposes() -> bool:
    """Whether the backend that traces now takes norms apart, as the inductor does."""
    table = getattr(proxy_tensor.get_proxy_mode(), "decomposition_table", None)
    if table is None:  # before torch 2.13
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
        or any(t.dtype not in _DTYPES or t.device != input.device for t in given)
    ):
        return None
    eps = rms_eps(eps, input)
    axes = list(range(input.dim() - count, input.dim()))
    y, _, rstd = ops.plain_forward(input, weight, None, axes, axes, eps, True)
    return y, rstd
