"""What a rewritten block calls (batch_blocks.py): a batch norm with its activation, and with a
residual, by one call, or module by module where somebody could tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planish.operators import batch
from planish.operators.ways import Way, way_of
from planish.replacing import batch_known
from planish.replacing.stages import watched
from torch import Tensor, nn

__all__ = ["NORMS", "known_activation", "norm_act", "norm_add_act"]

NORMS = tuple(batch_known.TYPES.values())


def known_activation(act: Any) -> str | None:
    try:
        return batch_known.activation_of(act)
    except KeyError:
        return None


def _joined(norm: Any, chain: tuple[Any, ...], act: Any, x: Any, residual: Any) -> Any:
    """act(chain(norm(x)) + residual) by one call, where nobody can tell it from several; None
    otherwise, with nothing done."""
    if type(norm) not in NORMS or norm.activation is not None or not isinstance(x, Tensor):
        return None
    for one in chain:
        if type(one) is not nn.Identity or watched(one):
            return None
    activation = known_activation(act)
    if activation is None or watched(norm) or watched(act):
        return None
    alike = residual is None or (type(residual) is Tensor and residual.dtype == x.dtype)
    y = norm._at_once(x, residual, activation) if alike else None
    if y is None and _fits(norm, x, residual):
        norm._check_input_dim(x)
        y = norm._forward(x, residual, activation)
    return y


def _fits(norm: Any, x: Any, residual: Any) -> bool:
    """Whether these tensors are such as planish runs."""
    if residual is not None and not (
        isinstance(residual, Tensor)
        and residual.shape == x.shape
        and residual.dtype == x.dtype
        and residual.device == x.device
    ):
        return False
    by_batch = norm.training or norm.running_mean is None
    vectors = norm.running_mean, norm.running_var, norm.weight, norm.bias
    return way_of(x, residual) in (Way.PLAIN, Way.OPERATOR) and batch.runs(
        x, *vectors, by_batch, norm.eps
    )


def norm_act(norm: Any, chain: tuple[Any, ...], act: Any, x: Any) -> Any:
    """act(chain(norm(x)))."""
    joined = _joined(norm, chain, act, x, None)
    if joined is not None:
        return joined
    y = norm(x)
    for one in chain:
        y = one(y)
    return act(y)


def norm_add_act(in_place: bool, first: bool) -> Callable[..., Any]:
    """act(norm(x) + residual), as the source adds it."""

    def add(norm: Any, chain: tuple[Any, ...], act: Any, x: Any, residual: Any) -> Any:
        joined = None if residual is None else _joined(norm, chain, act, x, residual)
        if joined is not None:
            return joined
        y = norm(x)
        for one in chain:
            y = one(y)
        if in_place:
            y += residual
        else:
            y = y + residual if first else residual + y
        return act(y)

    return add
