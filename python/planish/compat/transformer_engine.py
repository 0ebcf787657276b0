"""TransformerEngine's LayerNorm and RMSNorm modules on planish.

Signatures, parameters, initial values, exceptions and the marks of sequence parallelism are
TransformerEngine's, as are the order of rounding (all in float, y rounded once) and the dtype of y,
which is the weight's (or autocast's). They run on any device that planish has. ``sm_margin`` (how
many multiprocessors a kernel leaves free) and the environment's NVTE_*_SM_MARGIN are kept as
attributes and have no effect; quantised results of its fp8 recipes are not here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from planish.functions import functional
from planish.operators.arguments import check_floats, check_tensor, number_of, sizes_of
from torch import Tensor, nn

__all__ = ["LayerNorm", "RMSNorm"]

_STAGES = {"forward": "FWD", "backward": "BWD", "inference": "INF"}


def _margins(given: int | dict[str, int]) -> dict[str, int]:
    """For each stage: what a dict says; else the environment; else the number."""
    margins = {}
    for stage, short in _STAGES.items():
        default = 0 if isinstance(given, dict) else given
        found = int(os.getenv(f"NVTE_{short}_LAYERNORM_SM_MARGIN", str(default)))
        margins[stage] = given.get(stage, found) if isinstance(given, dict) else found
    return margins


def _margin(stage: str) -> Any:
    def get(self: Any) -> int:
        margin: int = self._sm_margins[stage]
        return margin

    def put(self: Any, value: int) -> None:
        self._sm_margins[stage] = value

    return property(get, put, doc=f"sm_margin of the {stage} stage; no effect.")


class _Norm(nn.Module):
    """What both have: the weight over the last axes, and TransformerEngine's arguments."""

    weight: nn.Parameter

    def __init__(
        self,
        normalized_shape: int | Iterable[int] | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
        sm_margin: int | dict[str, int] = 0,
    ) -> None:
        super().__init__()
        if normalized_shape is None and hidden_size is None:
            raise RuntimeError(
                "Neither `normalized_shape` nor `hidden_size` (deprecated) args are provided"
            )
        if normalized_shape is not None and hidden_size is not None:
            raise RuntimeError(
                "Both `normalized_shape` and `hidden_size` (deprecated) args are provided"
            )
        if params_dtype is not None and dtype is not None:
            raise RuntimeError("Both `dtype` and `params_dtype` (deprecated) kwargs are provided")
        shape = normalized_shape
        if shape is None:
            warnings.warn(
                "`hidden_size` is now called `normalized_shape`", DeprecationWarning, stacklevel=3
            )
            shape = hidden_size
        assert shape is not None
        self.normalized_shape = sizes_of(type(self).__name__, "normalized_shape", shape)
        self.eps = number_of(type(self).__name__, "eps", eps)
        self.zero_centered_gamma = zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        self._sm_margins = _margins(sm_margin)
        dtype = params_dtype if dtype is None else dtype
        self.weight = nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))
        self._add_bias(device, dtype)
        self.reset_parameters()

    def _add_bias(self, device: Any, dtype: torch.dtype | None) -> None:
        pass

    def reset_parameters(self, defer_init: bool | None = None) -> None:
        """weight 1, or 0 with ``zero_centered_gamma``; bias 0. With ``defer_init`` (deprecated)
        nothing."""
        if defer_init is not None:
            warnings.warn(
                'defer_init is deprecated: set device to "meta"', DeprecationWarning, stacklevel=2
            )
            if defer_init:
                return
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)
        bias = getattr(self, "bias", None)
        if bias is not None:
            nn.init.zeros_(bias)
        if self.sequence_parallel is not None:
            for parameter in self.parameters(recurse=False):
                parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def _run(self, x: Tensor, rms: bool, bias: Tensor | None) -> Tensor:
        shape, count = self.normalized_shape, len(self.normalized_shape)
        check_tensor(type(self).__name__, "x", x)
        check_floats(type(self).__name__, x=x)
        if x.dim() < count or x.shape[x.dim() - count :] != shape:
            raise ValueError(
                f"{type(self).__name__}: Expected input whose last axes are {list(shape)}, like "
                f"the weight's, but got input of shape {list(x.shape)}"
            )
        kind = x.device.type
        dtype = self.weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        norm = functional.rms_norm if rms else functional.layer_norm
        return norm(
            x.to(dtype),
            range(x.dim() - count, x.dim()),
            self.weight.to(dtype),
            None if bias is None else bias.to(dtype),
            self.eps,
            weight_offset=1.0 if self.zero_centered_gamma else 0.0,
        )

    def extra_repr(self) -> str:
        centered = ", zero_centered_gamma=True" if self.zero_centered_gamma else ""
        return f"{list(self.normalized_shape)}, eps={self.eps}{centered}"


class LayerNorm(_Norm):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias``, or ``* (1 + weight)`` with
    ``zero_centered_gamma``. There is always a bias.

    Example:

    >>> from planish.compat.transformer_engine import LayerNorm
    >>> LayerNorm(64, device="cpu")(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    bias: nn.Parameter

    def _add_bias(self, device: Any, dtype: torch.dtype | None) -> None:
        self.bias = nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))

    def reset_layer_norm_parameters(self) -> None:
        """Deprecated: :meth:`reset_parameters`."""
        warnings.warn("use reset_parameters()", DeprecationWarning, stacklevel=2)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x`` (..., normalized_shape), in x's dtype."""
        return self._run(x, False, self.bias)

    fwd_ln_sm_margin = _margin("forward")
    bwd_ln_sm_margin = _margin("backward")
    inf_ln_sm_margin = _margin("inference")


class RMSNorm(_Norm):
    """``y = x / sqrt(mean(x^2) + eps) * weight``, or ``* (1 + weight)`` with
    ``zero_centered_gamma``.

    Example:

    >>> from planish.compat.transformer_engine import RMSNorm
    >>> RMSNorm(64, device="cpu")(torch.randn(4, 64)).shape
    torch.Size([4, 64])
    """

    def reset_rms_norm_parameters(self) -> None:
        """Deprecated: :meth:`reset_parameters`."""
        warnings.warn("use reset_parameters()", DeprecationWarning, stacklevel=2)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """The norm of ``x`` (..., normalized_shape), in x's dtype."""
        return self._run(x, True, None)

    fwd_rmsnorm_sm_margin = _margin("forward")
    bwd_rmsnorm_sm_margin = _margin("backward")
    inf_rmsnorm_sm_margin = _margin("inference")
